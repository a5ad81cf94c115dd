"""Estimates of the time and the disk space of a study from measured timings and sizes."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from whichlayers.engine.cost import StackTiming
from whichlayers.runs.plan import Stack, max_finetuned_models, models_to_keep, time_key
from whichlayers.runs.queue import StackQueue

Timings = Mapping[Hashable, StackTiming]  # by time_key

# Bounds for what a measurement of a minute does not cover: other programs, cold caches, checkpoints.
LOW_FACTOR, HIGH_FACTOR = 0.8, 1.3
CHECKPOINT_COPIES = 3  # a checkpoint holds the weights and both moments of Adam
TRIAL_BYTES = 1600  # of a trial with its point in results.db, indices included


@dataclass(frozen=True)
class TimeRange:
    """Estimated seconds with a lower and an upper bound."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True)
class DiskUsage:
    """Disk space in bytes: the maximum while the study runs (first three), and what remains in the end."""

    checkpoints: int
    finetuned_models: int  # kept for word probes
    activations: int  # hidden states of the words of a corpus
    cache: int
    results: int


def estimate_time(
    stacks: Sequence[Stack], workers: Sequence[Timings], start: float, before: float = 0.0
) -> TimeRange:
    """Estimated time until the last stack is finished.

    Args:
        stacks: Stacks whose kinds were timed.
        workers: The timings on each worker.
        start: Seconds until a worker has loaded its model and data.
        before: Seconds of the main process before the workers start.
    """
    low, expected, high = (before + makespan(stacks, workers, start, bound) for bound in (-1, 0, 1))
    return TimeRange(low * LOW_FACTOR, expected, high * HIGH_FACTOR)


def makespan(stacks: Sequence[Stack], workers: Sequence[Timings], start: float, bound: int = 0) -> float:
    """Seconds until the last worker is done if stacks run in the order of `StackQueue`.

    Args:
        stacks, workers, start: As in `estimate_time`.
        bound: -1 for the lower bound, 0 for the expected time, 1 for the upper bound.
    """
    free = [(start, worker) for worker in range(len(workers))]  # heap of (time at which it is free, worker)
    seen: list[set[Hashable]] = [set() for _ in workers]
    end, queue = 0.0, StackQueue(stacks, len(workers))
    while (stack := queue.pop()) is not None:
        now, worker = heapq.heappop(free)
        shape = (time_key(stack.trials[0]), stack.size)
        done = now + stack_seconds(stack, workers[worker], shape not in seen[worker], bound)
        seen[worker].add(shape)
        heapq.heappush(free, (done, worker))
        end = max(end, done)
    return end


def stack_seconds(stack: Stack, timings: Timings, first: bool, bound: int = 0) -> float:
    """Seconds of one stack.

    Args:
        stack: The stack.
        timings: The timings on its worker.
        first: Whether it is the first stack of its shape in its worker.
        bound: -1 for the lower bound, 0 for the expected time, 1 for the upper bound.
    """
    trial = stack.trials[0]
    return stack.handler.seconds(trial, stack.size, timings[time_key(trial)], first, bound)


def split_by_timed(stacks: Iterable[Stack], workers: Sequence[Timings]) -> tuple[list[Stack], list[Stack]]:
    """The stacks of kinds that all workers timed, and the other stacks."""
    timed: list[Stack] = []
    untimed: list[Stack] = []
    for stack in stacks:
        key = time_key(stack.trials[0])
        (timed if all(key in timings for timings in workers) else untimed).append(stack)
    return timed, untimed


def estimate_disk(
    stacks: Sequence[Stack],
    points: int,
    workers: int,
    weights_bytes: int,
    cache: int,
    depths: Mapping[str, int],
    activations: Sequence[int] = (),
) -> DiskUsage:
    """Estimated disk space of a study.

    Args:
        stacks: All stacks.
        points: Number of points of the study.
        workers: Number of workers.
        weights_bytes: Size of the largest model.
        cache: Size of the cache of tokens and hidden states.
        depths: Number of layers by model fingerprint.
        activations: Size of the hidden states that each stack keeps on disk while it runs.
    """
    trials = sum(len(stack.trials) for stack in stacks)
    results = TRIAL_BYTES * max(points, trials) + sum(
        stack.handler.result_bytes(trial, depths[trial.model_fingerprint])
        for stack in stacks
        for trial in stack.trials
    )
    checkpoints = checkpoint_bytes(weights_bytes, max_finetuned_models(stacks), workers)
    kept_models = max((len(models_to_keep([stack])) for stack in stacks), default=0)
    return DiskUsage(
        checkpoints=2 * checkpoints,  # an old checkpoint is deleted after the new one is written
        finetuned_models=weights_bytes * max(1, workers) * kept_models,
        activations=max(activations, default=0) * min(max(1, workers), sum(map(bool, activations))),
        cache=cache,
        results=results,
    )


def checkpoint_bytes(weights_bytes: int, trials: int, workers: int) -> int:
    """Size of one checkpoint of each worker, for stacks of so many trials."""
    return weights_bytes * CHECKPOINT_COPIES * max(1, workers) * trials


def scale_speed(timings: Timings, speed: float) -> Timings:
    """The timings on a device that is `speed` times as fast."""
    fields = ("setup", "compile", "capture", "step", "evaluation", "finish")
    return {
        key: replace(timing, **{name: getattr(timing, name) / speed for name in fields})
        for key, timing in timings.items()
    }
