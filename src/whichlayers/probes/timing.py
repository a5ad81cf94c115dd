"""How long a stack of probes takes: some rows through the encoder, one epoch of all its probes on them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from whichlayers.data.batches import subset
from whichlayers.data.tokenize import TokenisedSplit, TokenisedTask
from whichlayers.engine.cost import Pace
from whichlayers.probes.extract_sentences import extract, restricted
from whichlayers.probes.linear_probe import Job, Table, fit
from whichlayers.trial import Trial

SAMPLE = 96  # rows, spread over the lengths that occur


def measure_pace(
    trials: Sequence[Trial], encoder: PreTrainedModel, data: TokenisedTask, device: str | torch.device
) -> Pace:
    """`build` is the pass through the encoder; a step is an epoch of all probes."""
    first = trials[0]
    assert first.probe is not None
    seeds = {trial.seed for trial in trials}
    used = np.unique(np.concatenate([subset(len(data.train), first.train_size, seed) for seed in seeds]))
    sample = restricted(data.train, _spread(data.train, used))
    extract(encoder, sample, data.pad_id, pooling=first.probe.pooling, device=device)  # to warm up
    began = time.perf_counter()
    states = extract(encoder, sample, data.pad_id, pooling=first.probe.pooling, device=device)
    passed = time.perf_counter() - began
    table = Table(states, device)
    rows = np.arange(min(len(sample), first.train_size))
    probes = [dataclasses.replace(trial.probe, max_epochs=1) for trial in trials if trial.probe is not None]
    jobs = [Job(probe, trial.seed, rows) for probe, trial in zip(probes, trials, strict=True)]
    fit(table, sample.labels, jobs, data.n_outputs, data.kind)
    began = time.perf_counter()
    fit(table, sample.labels, jobs, data.n_outputs, data.kind)
    epoch = (time.perf_counter() - began) * first.train_size / len(rows)
    dev = sum(int(split.offsets[-1]) for split in data.evals.values())
    tokens = int(np.diff(data.train.offsets)[used].sum()) + dev
    whole = passed * tokens / int(sample.offsets[-1])
    return Pace(
        trials=len(trials),
        build=whole,
        compiling=0.0,
        capturing=0.0,
        step=epoch,
        error=0.1,
        evaluation=0.0,
        ending=0.0,
    )


def _spread(split: TokenisedSplit, rows: np.ndarray) -> np.ndarray:
    """Some of the rows, short and long ones in their proportion."""
    by_length = rows[np.argsort(np.diff(split.offsets)[rows], kind="stable")]
    return by_length[np.unique(np.linspace(0, len(rows) - 1, SAMPLE).round().astype(int))]
