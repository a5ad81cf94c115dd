"""Run a stack of probe trials: one pass of the encoder, then all layers and seeds at once.

    outcomes = run(trials, encoder, data, device="cuda", cache=folder)

What comes back is what finetuning gives, with one record a trial: that of the epoch that was kept, with its
metrics on the task's dev set, which plays no part in when a probe stops.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.batches import subset
from whichlayers.data.metrics import score
from whichlayers.data.tokenize import TokenisedSplit, TokenisedTask
from whichlayers.engine.results import EpochRecord, OnEpoch, OnStep, Outcome
from whichlayers.errors import WhichlayersError
from whichlayers.models.anatomy import Anatomy
from whichlayers.probes.extract_sentences import Precision, cache_key, extract, restricted
from whichlayers.probes.linear_probe import Fitted, Job, Table, fit, losses, predict
from whichlayers.probes.steps import PASS_STEPS
from whichlayers.trial import Probe, Surgery, Trial


def stack_key(trial: Trial) -> Hashable:
    """What the probes of one stack must share; layer, seed, lr and patience may differ."""
    probe = _probe_of(trial)
    return (
        "probe",
        trial.model_fingerprint,
        trial.task_fingerprint,
        trial.train_size,
        trial.training.max_length,
        (probe.pooling, probe.batch_size, probe.held_out),
    )


def run(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenisedTask,
    *,
    device: str | torch.device = "cpu",
    cache: Path | None = None,
    precision: Precision = "float32",
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
) -> list[Outcome]:
    """Train all probes and score them on the dev set. `encoder` is frozen and stays as it is.

    `cache`: where the states are kept for the next stack of the same model and task. `on_step` counts as
    `progress.steps_of` does.
    """
    from whichlayers.engine.finetune import checked_device

    started = time.perf_counter()
    _check(trials, encoder)
    place, first = checked_device(device), trials[0]
    pooling = _probe_of(first).pooling
    rows = {seed: subset(len(data.train), first.train_size, seed) for seed in {t.seed for t in trials}}
    used = _used_rows(len(data.train), list(rows.values()))
    train = data.train if used is None else restricted(data.train, used)
    if used is not None:
        rows = {seed: np.searchsorted(used, mine) for seed, mine in rows.items()}
    key = cache_key(first.model_fingerprint, data.fingerprint, first.training.max_length, pooling, precision)
    splits = {f"{key}.train{_name_of(used)}": train}
    splits |= {f"{key}.dev{'-' + name if name else ''}": split for name, split in data.evals.items()}
    on_rows = _share_of_pass(on_step, len(trials), sum(map(len, splits.values())))

    def table_of(name: str, split: TokenisedSplit) -> Table:
        states = extract(
            encoder,
            split,
            data.pad_id,
            pooling=pooling,
            precision=precision,
            device=place,
            cache=cache,
            key=name,
            on_rows=on_rows,
        )
        return Table(states, place)

    tables = [table_of(name, split) for name, split in splits.items()]
    jobs = [Job(_probe_of(trial), trial.seed, rows[trial.seed]) for trial in trials]
    fitted = fit(tables[0], train.labels, jobs, data.n_outputs, data.kind, on_step)
    layers = [job.probe.layer for job in jobs]
    outputs = [predict(table, fitted, layers) for table in tables[1:]]
    seconds = time.perf_counter() - started
    return [
        _outcome(trial, fitted[t], [o[t] for o in outputs], data, seconds, on_epoch)
        for t, trial in enumerate(trials)
    ]


def _outcome(
    trial: Trial,
    probe: Fitted,
    outputs: list[Tensor],
    data: TokenisedTask,
    seconds: float,
    on_epoch: OnEpoch | None,
) -> Outcome:
    """`outputs`: (n, C) for each of the task's dev sets."""
    if probe.error is not None:
        return Outcome(trial.id, error=probe.error, seconds=seconds)
    metrics: dict[str, float] = {}
    dev_loss = math.nan
    for (name, split), mine in zip(data.evals.items(), outputs, strict=True):
        labels = torch.from_numpy(split.labels)
        if not name:
            dev_loss = float(losses(mine, labels, data.kind).mean())
        chosen = mine[:, 0] if data.kind == "regression" else mine.argmax(-1)
        scores = score(data.metrics, chosen.numpy(), split.labels)
        metrics |= {f"{m}_{name}" if name else m: value for m, value in scores.items()}
    record = EpochRecord(probe.epoch, probe.train_loss, dev_loss, metrics, seconds)
    if on_epoch is not None:
        on_epoch(trial.id, record)
    return Outcome(trial.id, [record], seconds=seconds)


def _used_rows(n: int, subsets: Sequence[np.ndarray]) -> np.ndarray | None:
    """The rows that any probe trains on, in order; None, for all, unless most of them can be left out."""
    used = np.unique(np.concatenate(subsets))
    return used if len(used) <= n / 2 else None


def _name_of(used: np.ndarray | None) -> str:
    return "" if used is None else "-" + hashlib.blake2b(used.tobytes(), digest_size=6).hexdigest()


def _share_of_pass(on_step: OnStep | None, trials: int, total: int) -> Callable[[int], None] | None:
    """Examples that went through the encoder, told as the trials' share of progress."""
    if on_step is None:
        return None
    seen = told = 0

    def on_rows(more: int) -> None:
        nonlocal seen, told
        seen += more
        now = PASS_STEPS * trials * seen // total
        on_step(now - told)
        told = now

    return on_rows


def _probe_of(trial: Trial) -> Probe:
    if trial.probe is None:
        raise WhichlayersError(f"trial {trial.id} is no probe: it has to be finetuned")
    return trial.probe


def _check(trials: Sequence[Trial], encoder: PreTrainedModel) -> None:
    if not trials:
        raise WhichlayersError("a stack needs at least one trial, got none")
    depth = Anatomy(encoder).depth
    for trial in trials:
        if stack_key(trial) != stack_key(trials[0]):
            raise WhichlayersError(
                f"probes {trials[0].id} and {trial.id} cannot share a stack: they must agree in model, task, "
                "train_size, max_length, pooling, batch_size and held_out"
            )
        if trial.surgery.canonical() != Surgery():
            raise WhichlayersError(
                f"trial {trial.id} asks for a probe of a model whose layers are re-initialised or moved: "
                "only the pretrained model can be probed"
            )
        layer = _probe_of(trial).layer
        if not 0 <= layer <= depth:
            raise WhichlayersError(
                f"layer = {layer} cannot be probed: the layers are 1 to {depth}, 0 is the embeddings"
            )
