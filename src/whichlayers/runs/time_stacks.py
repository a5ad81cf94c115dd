"""Time a few steps of one stack of each kind, on all workers at the same time."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whichlayers.engine.cost import StackTiming
from whichlayers.runs.executors.local import run_in_subprocesses
from whichlayers.runs.executors.worker import MeasureTime, TimeReport, TrialRunner
from whichlayers.runs.handlers import Handlers
from whichlayers.runs.plan import Stack, trial_steps
from whichlayers.runs.resources import Resources

Timings = Mapping[Hashable, StackTiming]  # by Stack.time_key

TIMING_SECONDS = 30.0
MAX_START_SECONDS = 6.0  # at most what a process takes to import torch and transformers
UNTIMED_ERROR = 0.25  # relative error of a timing that was scaled from another kind of stack


@dataclass(frozen=True)
class StudyTiming:
    """Timings of the stacks of a study on each worker."""

    timings: tuple[dict[Hashable, StackTiming], ...]  # by worker, then by Stack.time_key
    start: float  # seconds until a worker has loaded its model and data

    @property
    def known(self) -> bool:
        """Whether any kind of stack was timed."""
        return any(self.timings)


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
        reports = run_in_subprocesses(configs, request, TimeReport, logs)
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
    device_timings = {device: _share_slowdown(timings) for device, timings in device_timings.items()}
    loading = max((report.loading for report in reports), default=0.0)
    start = loading + (min(spent, MAX_START_SECONDS) if resources.workers else 0.0)
    return StudyTiming(tuple(device_timings[report.device] for report in reports), start)


def _longest_of_each_kind(stacks: Sequence[Stack]) -> list[Stack]:
    """The longest stack of each `Stack.time_key`; first the longest of each model and kind of trial."""
    longest: dict[Hashable, Stack] = {}
    for stack in sorted(stacks, key=_work, reverse=True):
        longest.setdefault(stack.time_key, stack)
    first: dict[Hashable, Stack] = {}
    for stack in longest.values():
        first.setdefault(_model_and_kind(stack), stack)
    return list({stack.number: stack for stack in (*first.values(), *longest.values())}.values())


def _model_and_kind(stack: Stack) -> Hashable:
    return stack.trials[0].model_fingerprint, stack.trials[0].kind


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
    error = max(mean["error"] / math.sqrt(n), spread / math.sqrt(n))
    return StackTiming(**{**mean, "trials": known[0].trials, "error": error})


def _share_slowdown(timings: Mapping[Hashable, StackTiming]) -> dict[Hashable, StackTiming]:
    """The timings with their mean slowdown: that of a single kind was measured in a few seconds."""
    slowdown = sum(timing.slowdown for timing in timings.values()) / max(1, len(timings))
    return {key: replace(timing, slowdown=slowdown) for key, timing in timings.items()}


def _fill_in(
    stacks: Sequence[Stack], timings: Sequence[StackTiming | None], assets: Any
) -> dict[Hashable, StackTiming]:
    """Timings by `Stack.time_key`; a stack without one gets that of another with the same model, scaled."""
    filled: dict[Hashable, StackTiming] = {}
    similar: dict[Hashable, tuple[StackTiming, Stack]] = {}  # the first timing of each model and kind
    for stack, timing in zip(stacks, timings, strict=True):
        if timing is not None:
            filled[stack.time_key] = timing
            similar.setdefault(_model_and_kind(stack), (timing, stack))
    for stack in stacks:
        known = similar.get(_model_and_kind(stack))
        if stack.time_key not in filled and known is not None and stack.handler.timing_scales:
            timing, timed = known
            scaled = stack.handler.scale_timing(timing, timed.trials[0], stack.trials[0], assets)
            filled[stack.time_key] = replace(scaled, error=max(timing.error, UNTIMED_ERROR))
    return filled
