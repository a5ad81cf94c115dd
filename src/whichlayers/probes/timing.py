"""Estimates how long a stack of probes takes, from a sample of examples and one epoch of all its probes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from whichlayers.data.batches import subset
from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
from whichlayers.engine.cost import StackTiming
from whichlayers.probes.extract import extract_sentences, select_rows
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.run_sentence_probes import ProbeJob, fit_sentence_probes
from whichlayers.trial import Trial

SAMPLE_SIZE = 96  # examples


def measure_probe_timing(
    trials: Sequence[Trial], encoder: PreTrainedModel, data: TokenizedTask, device: str | torch.device
) -> StackTiming:
    """The timing of a stack: `setup` is the forward pass of the encoder, and a step is one epoch of all probes."""
    first = trials[0]
    assert first.probe is not None
    seeds = {trial.seed for trial in trials}
    used = np.unique(np.concatenate([subset(len(data.train), first.train_size, seed) for seed in seeds]))
    sample = select_rows(data.train, _sample_lengths(data.train, used))
    extract_sentences(encoder, sample, data.pad_id, pooling=first.probe.pooling, device=device)  # warm-up
    started = time.perf_counter()
    hidden_states = extract_sentences(
        encoder, sample, data.pad_id, pooling=first.probe.pooling, device=device
    )
    encoder_seconds = time.perf_counter() - started
    states = HiddenStates(hidden_states, device)
    rows = np.arange(min(len(sample), first.train_size))
    probes = [dataclasses.replace(trial.probe, max_epochs=1) for trial in trials if trial.probe is not None]
    jobs = [ProbeJob(probe, trial.seed, rows) for probe, trial in zip(probes, trials, strict=True)]
    fit_sentence_probes(states, sample.labels, jobs, data.n_outputs, data.kind)  # warm-up
    started = time.perf_counter()
    fit_sentence_probes(states, sample.labels, jobs, data.n_outputs, data.kind)
    epoch_seconds = (time.perf_counter() - started) * first.train_size / len(rows)
    dev_tokens = sum(int(split.offsets[-1]) for split in data.evals.values())
    tokens = int(np.diff(data.train.offsets)[used].sum()) + dev_tokens
    all_seconds = encoder_seconds * tokens / int(sample.offsets[-1])
    return StackTiming(
        trials=len(trials),
        setup=all_seconds,
        compile=0.0,
        capture=0.0,
        step=epoch_seconds,
        error=0.1,
        evaluation=0.0,
        finish=0.0,
    )


def _sample_lengths(split: TokenizedSplit, rows: np.ndarray) -> np.ndarray:
    """A sample of the rows with the same distribution of lengths."""
    by_length = rows[np.argsort(np.diff(split.offsets)[rows], kind="stable")]
    return by_length[np.unique(np.linspace(0, len(rows) - 1, SAMPLE_SIZE).round().astype(int))]
