"""Measurements on this machine: how many trials fit into memory, and how long steps of such stacks take."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whichlayers.engine.cost import StackTiming
from whichlayers.runs.executors.local import measure_memory_in_subprocesses, run_in_subprocesses
from whichlayers.runs.executors.worker import MeasureMemory, MeasureTime, TimeReport, TrialRunner
from whichlayers.runs.handlers import Handlers
from whichlayers.runs.plan import Stack, time_key, trial_steps
from whichlayers.runs.resources import (
    Resources,
    fit_stack_sizes,
    fit_stack_sizes_per_device,
    representative_trials,
)
from whichlayers.trial import Trial

TIMING_SECONDS = 30.0
MAX_START_SECONDS = 6.0  # at most what a process takes to import torch and transformers
UNTIMED_ERROR = 0.25  # relative error of a timing that was scaled from another kind of stack


@dataclass(frozen=True)
class StudyTiming:
    """Timings of the stacks of a study on each worker."""

    timings: tuple[dict[Hashable, StackTiming], ...]  # by worker, then by time_key
    start: float  # seconds until a worker has loaded its model and data

    @property
    def known(self) -> bool:
        """Whether any kind of stack was timed."""
        return any(self.timings)


def fit_memory(
    resources: Resources,
    trials: list[Trial],
    handlers: Handlers,
    assets: Any,
    logs: Path,
    fewer_workers: bool,
) -> Resources:
    """Measure memory and choose the largest stack sizes that fit.

    On GPUs, worker processes measure, unless training is in the main process. On CPU the main process measures, which
    has loaded models and data already.

    Args:
        resources: With the wanted number of workers and maximum stack size.
        trials: The trials to run.
        handlers: Measure the memory.
        assets: Models and data.
        logs: Folder for the logs of worker processes.
        fewer_workers: Whether the number of workers may be reduced to fit.
    """
    if not trials:
        return resources
    measured, configs = representative_trials(trials), resources.worker_configs(handlers, assets.index)
    if resources.on_cuda and resources.workers:
        request = MeasureMemory(measured, (), resources.max_stack)
        reports = measure_memory_in_subprocesses(configs[: len(resources.devices)], request, logs)
        if len(reports) > 1:
            return fit_stack_sizes_per_device(resources, measured, reports)
        (report,) = reports
    else:
        request = MeasureMemory(measured, resources.devices, resources.max_stack)
        report = TrialRunner(configs[0], assets).measure_memory(request)
    return fit_stack_sizes(resources, measured, report, assets.weights_bytes, fewer_workers)


def time_stacks(
    stacks: Sequence[Stack],
    resources: Resources,
    handlers: Handlers,
    assets: Any,
    logs: Path,
    seconds: float = TIMING_SECONDS,
) -> StudyTiming:
    """Time a few steps of one stack of each kind.

    All workers measure at the same time, as they will train: on CPU they slow each other down. A kind for which there
    was no time gets the scaled timing of another kind with the same model.
    """
    chosen = _longest_of_each_kind(stacks)
    request = MeasureTime(chosen, seconds)
    configs = resources.worker_configs(handlers, assets.index)
    began = time.monotonic()
    if resources.workers:
        replies = run_in_subprocesses(configs, request, logs, "timing a few steps")
        reports = [reply for reply in replies if isinstance(reply, TimeReport)]
    else:
        reports = [TrialRunner(configs[0], assets).measure_time(request)]
    spent = time.monotonic() - began
    by_device: dict[str, list[list[StackTiming | None]]] = {}
    for report in reports:
        by_device.setdefault(report.device, []).append(report.timings)
    device_timings = {
        device: _fill_in(chosen, [_mean(column) for column in zip(*timings, strict=True)], assets)
        for device, timings in by_device.items()
    }
    loading = max((report.loading for report in reports), default=0.0)
    start = loading + (min(spent, MAX_START_SECONDS) if resources.workers else 0.0)
    return StudyTiming(tuple(device_timings[report.device] for report in reports), start)


def _longest_of_each_kind(stacks: Sequence[Stack]) -> list[Stack]:
    """The longest stack of each `time_key`; first the longest of each model and kind of trial."""
    longest: dict[Hashable, Stack] = {}
    for stack in stacks:
        key = time_key(stack.trials[0])
        if key not in longest or _work(stack) > _work(longest[key]):
            longest[key] = stack
    by_work = sorted(longest.values(), key=_work, reverse=True)
    seen: set[Hashable] = set()
    first: list[Stack] = []
    for stack in by_work:
        kind = (stack.trials[0].model_fingerprint, stack.trials[0].kind)
        if kind not in seen:
            seen.add(kind)
            first.append(stack)
    return [*first, *(stack for stack in by_work if stack not in first)]


def _work(stack: Stack) -> int:
    return stack.size * trial_steps(stack.trials[0])


def _mean(timings: Sequence[StackTiming | None]) -> StackTiming | None:
    """The mean over workers on equal devices; the error includes their differences."""
    known = [timing for timing in timings if timing is not None]
    if not known:
        return None
    n = len(known)
    mean = {name: sum(getattr(timing, name) for timing in known) / n for name in vars(known[0])}
    spread = max(abs(timing.step - mean["step"]) for timing in known) / mean["step"] if mean["step"] else 0.0
    return StackTiming(**{**mean, "trials": known[0].trials, "error": max(mean["error"], spread)})


def _fill_in(
    stacks: Sequence[Stack], timings: Sequence[StackTiming | None], assets: Any
) -> dict[Hashable, StackTiming]:
    """Timings by `time_key`; a stack without one gets that of another with the same model, scaled by its tokens."""
    known = {
        time_key(stack.trials[0]): timing
        for stack, timing in zip(stacks, timings, strict=True)
        if timing is not None
    }
    for stack, timing in zip(stacks, timings, strict=True):
        trial = stack.trials[0]
        similar = next(
            (
                (other, other_timing)
                for other, other_timing in zip(stacks, timings, strict=True)
                if other_timing is not None
                and stack.handler.timing_scales
                and other.trials[0].model_fingerprint == trial.model_fingerprint
                and other.trials[0].kind == trial.kind
            ),
            None,
        )
        if timing is None and similar is not None:
            known[time_key(trial)] = _scale_by_tokens(similar[1], similar[0], stack, assets)
    return known


def _scale_by_tokens(timing: StackTiming, timed: Stack, other: Stack, assets: Any) -> StackTiming:
    """The timing of `timed`, scaled to the tokens per step and per evaluation of `other`."""
    timed_data, other_data = (assets.data(stack.trials[0]) for stack in (timed, other))

    def tokens_per_example(split: Any) -> float:
        return float(split.offsets[-1]) / max(1, len(split))

    batch_ratio = other.trials[0].training.batch_size / timed.trials[0].training.batch_size
    step_ratio = tokens_per_example(other_data.train) / tokens_per_example(timed_data.train) * batch_ratio
    eval_ratio = sum(float(s.offsets[-1]) for s in other_data.evals.values())
    eval_ratio /= max(1.0, sum(float(s.offsets[-1]) for s in timed_data.evals.values()))
    return replace(
        timing,
        step=timing.step * step_ratio,
        evaluation=timing.evaluation * eval_ratio,
        error=max(timing.error, UNTIMED_ERROR),
    )
