"""Runs a stack of sentence-level probe trials: one forward pass of the encoder, then all layers and seeds together.

    results = run_probes(trials, encoder, data, device="cuda", cache=folder)

Returns the same type of results as finetuning, with one record per trial: the best epoch, with its metrics on the
task's dev set. The dev set is not used for early stopping.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.batches import select_rows, subset
from whichlayers.data.metrics import name_by_split, score_outputs
from whichlayers.data.tasks import Kind
from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
from whichlayers.engine.devices import resolve_device, select_device
from whichlayers.engine.results import EpochRecord, OnEpoch, OnStep, TrialResult
from whichlayers.errors import WhichlayersError
from whichlayers.models.structure import ModelStructure
from whichlayers.probes.activation_files import StoredPrecision
from whichlayers.probes.evaluation import predict
from whichlayers.probes.extract import cache_key, extract_sentences
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import FittedProbe, ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.progress import ENCODER_STEPS, OnProgress
from whichlayers.trial import Probe, Surgery, Trial, get_probe


def stack_key(trial: Trial) -> Hashable:
    """What the probes of one stack must share; layer, seed, lr and patience may differ."""
    probe = get_probe(trial)
    return (
        "probe",
        trial.input_fingerprint,
        trial.task_fingerprint,
        trial.train_size,
        trial.training.max_length,
        (probe.pooling, probe.batch_size, probe.held_out),
    )


def run_probes(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenizedTask,
    *,
    device: str | torch.device = "cpu",
    cache: Path | None = None,
    precision: StoredPrecision = "float32",
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
) -> list[TrialResult]:
    """Train all probes and evaluate them on the dev set.

    Args:
        trials: Probe trials with the same `stack_key`.
        encoder: The frozen model. It is not changed.
        data: The tokenized task.
        device: Where the encoder and the probes run.
        cache: Folder in which the hidden states are cached for later stacks of the same model and task.
        precision: dtype of the stored hidden states.
        on_epoch: Called with the trial id and the record of each trial.
        on_step: Progress callback, in the unit of `progress.probe_steps`.

    Returns:
        One result per trial, in the same order.
    """
    started = time.perf_counter()
    _check_trials(trials, encoder)
    torch_device, first = resolve_device(device), trials[0]
    select_device(torch_device)
    pooling = get_probe(first).pooling
    train, rows, suffix = _training_examples(trials, data)
    key = cache_key(first.input_fingerprint, data.fingerprint, first.training.max_length, pooling, precision)
    splits = {f"{key}.train{suffix}": train}
    splits |= {f"{key}.dev{'-' + name if name else ''}": split for name, split in data.evals.items()}
    on_rows = _encoder_progress(on_step, len(trials), sum(map(len, splits.values())))

    def extract_split(file_key: str, split: TokenizedSplit) -> HiddenStates:
        states = extract_sentences(
            encoder,
            split,
            data.pad_id,
            pooling=pooling,
            precision=precision,
            device=torch_device,
            cache=cache,
            key=file_key,
            on_rows=on_rows,
        )
        return HiddenStates(states, torch_device)

    states = [extract_split(file_key, split) for file_key, split in splits.items()]
    jobs = [ProbeJob.of_trial(trial, rows[trial.seed_of("subset")], get_probe(trial)) for trial in trials]
    fitted = fit_sentence_probes(states[0], train.labels, jobs, data.n_outputs, data.kind, on_step)
    outputs = [predict(dev_states, fitted) for dev_states in states[1:]]
    seconds = time.perf_counter() - started
    return [
        _trial_result(trial, fitted[t], [o[t] for o in outputs], data, seconds, on_epoch)
        for t, trial in enumerate(trials)
    ]


@dataclass(frozen=True, eq=False)
class ProbeJob:
    """One probe to train, and the rows of its training subset."""

    probe: Probe
    seed: int  # determines the held-out examples; the subset's
    rows: np.ndarray  # (size,) int64, the same for all jobs of a seed
    order_seed: int | None = None  # None: `seed`
    weights_seed: int | None = None  # None: `seed`

    @staticmethod
    def of_trial(trial: Trial, rows: np.ndarray, probe: Probe) -> ProbeJob:
        """The job of a trial, with its rows and its probe, which may have other settings."""
        return ProbeJob(probe, trial.seed_of("subset"), rows, trial.seed_of("order"), trial.seed_of("head"))


def fit_sentence_probes(
    states: HiddenStates,
    labels: np.ndarray,
    jobs: Sequence[ProbeJob],
    n_outputs: int,
    kind: Kind = "classification",
    on_progress: OnProgress | None = None,
) -> list[FittedProbe]:
    """Train all probes together.

    Args:
        states: Hidden states of n sentences.
        labels: (n,) class indices, or targets of a regression.
        jobs: The probes to train. They must agree in size, batch_size and held_out.
        n_outputs: Number of classes; 1 for regression.
        kind: Type of the task, which determines the loss.
        on_progress: Called with the number of probe epochs that were run, or skipped because a probe stopped early.

    Returns:
        One fitted probe per job, in the same order.
    """
    if not jobs:
        raise WhichlayersError("there must be at least one probe to train, got none")
    if len({(len(job.rows), job.probe.batch_size, job.probe.held_out) for job in jobs}) > 1:
        raise WhichlayersError("probes that train together must agree in train_size, batch_size and held_out")
    specs = [
        ProbeSpec(
            states.layer_neurons(job.probe.layer),
            seed=job.seed,
            order_seed=job.order_seed,
            weights_seed=job.weights_seed,
            lr=job.probe.lr,
            weight_decay=job.probe.weight_decay,
            standardize=job.probe.standardize,
            max_epochs=job.probe.max_epochs,
            patience=job.probe.patience,
        )
        for job in jobs
    ]
    training = ProbeTraining(
        batch_size=jobs[0].probe.batch_size,
        held_out=jobs[0].probe.held_out,
        kind=kind,
        precision="float32",
        like_finetuning=True,
    )
    rows = {job.seed: job.rows for job in jobs}
    return fit_probes(states, labels, n_outputs, specs, training, on_progress, rows)


def _trial_result(
    trial: Trial,
    probe: FittedProbe,
    outputs: list[Tensor],
    data: TokenizedTask,
    seconds: float,
    on_epoch: OnEpoch | None,
) -> TrialResult:
    """Metrics of a probe from its outputs (n, C) on each of the task's dev sets."""
    if probe.error is not None:
        return TrialResult(trial.id, error=probe.error, seconds=seconds)
    metrics: dict[str, float] = {}
    dev_loss = math.nan
    for (name, split), logits in zip(data.evals.items(), outputs, strict=True):
        labels = torch.from_numpy(split.labels)
        if not name:
            dev_loss = _mean_loss(logits, labels, data.kind)
        scores = score_outputs(data.metrics, data.kind, logits.numpy(), split.labels)
        metrics |= name_by_split(scores, name)
    record = EpochRecord(probe.epoch, probe.train_loss, dev_loss, metrics, seconds)
    if on_epoch is not None:
        on_epoch(trial.id, record)
    return TrialResult(trial.id, [record], seconds=seconds)


def _mean_loss(outputs: Tensor, labels: Tensor, kind: Kind) -> float:
    """Mean loss of outputs (n, C) with labels (n,)."""
    if kind == "regression":
        return float(F.mse_loss(outputs[:, 0], labels))
    return float(F.cross_entropy(outputs, labels))


def _training_examples(
    trials: Sequence[Trial], data: TokenizedTask
) -> tuple[TokenizedSplit, dict[int, np.ndarray], str]:
    """The training examples whose hidden states are extracted.

    Returns:
        (the examples, the rows of each subset among them by its seed, the suffix of the name of their file)
    """
    seeds = {trial.seed_of("subset") for trial in trials}
    rows = {seed: subset(len(data.train), trials[0].train_size, seed) for seed in seeds}
    used = _used_rows(len(data.train), list(rows.values()))
    if used is None:
        return data.train, rows, ""
    rows = {seed: np.searchsorted(used, seed_rows) for seed, seed_rows in rows.items()}
    suffix = "-" + hashlib.blake2b(used.tobytes(), digest_size=6).hexdigest()
    return select_rows(data.train, used), rows, suffix


def _used_rows(n: int, subsets: Sequence[np.ndarray]) -> np.ndarray | None:
    """The rows that any probe trains on, sorted; None for all rows if they are more than half of n."""
    used = np.unique(np.concatenate(subsets))
    return used if len(used) <= n / 2 else None


def _encoder_progress(on_step: OnStep | None, trials: int, total: int) -> Callable[[int], None] | None:
    """A callback that converts examples through the encoder into ENCODER_STEPS progress steps per trial."""
    if on_step is None:
        return None
    seen = reported = 0

    def on_rows(count: int) -> None:
        nonlocal seen, reported
        seen += count
        now = ENCODER_STEPS * trials * seen // total
        on_step(now - reported)
        reported = now

    return on_rows


def _check_trials(trials: Sequence[Trial], encoder: PreTrainedModel) -> None:
    if not trials:
        raise WhichlayersError("a stack needs at least one trial, got none")
    depth = ModelStructure(encoder).depth
    for trial in trials:
        if stack_key(trial) != stack_key(trials[0]):
            raise WhichlayersError(
                f"probes {trials[0].id} and {trial.id} cannot share a stack: they must agree in model, task, "
                "train_size, max_length, pooling, batch_size and held_out"
            )
        if trial.surgery.canonical() != Surgery():
            raise WhichlayersError(
                f"trial {trial.id} probes a model whose layers are re-initialized, permuted or dropped: "
                "only the pretrained model can be probed"
            )
        layer = get_probe(trial).layer
        if not 0 <= layer <= depth:
            raise WhichlayersError(
                f"layer = {layer} cannot be probed: the layers are 1 to {depth}, and 0 is the embeddings"
            )
