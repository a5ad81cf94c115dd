"""Estimates of the time and the disk space of a study from measured timings and sizes."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from whichlayers.engine.cost import StackTiming
from whichlayers.runs.plan import Stack, max_finetuned_models, time_key
from whichlayers.runs.queue import StackQueue
from whichlayers.trial import Trial

Timings = Mapping[Hashable, StackTiming]  # by time_key

# Bounds for what a measurement of a minute does not cover: other programs, cold caches, checkpoints.
LOW_FACTOR, HIGH_FACTOR = 0.8, 1.3
MAX_TIMING_ERROR = 0.4
CHECKPOINT_COPIES = 3  # a checkpoint holds the weights and both moments of Adam
# Bytes in results.db, indices included: a trial with its point, a metric of an epoch, a weight matrix
TRIAL_BYTES, VALUE_BYTES, MATRIX_BYTES = 1600, 60, 130
VALUES_PER_EPOCH = 4  # two losses, seconds, a metric
MATRICES_PER_LAYER = 6


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
    timing = timings[time_key(trial)]
    if trial.probe is not None:  # early stopping: the number of epochs is unknown
        earliest, latest = min(trial.probe.patience + 1, trial.probe.max_epochs), trial.probe.max_epochs
        epochs = (earliest, (earliest + latest) // 2, latest)[bound + 1]
        return timing.seconds(stack.size, epochs, 0, first)
    seconds = timing.seconds(stack.size, trial.steps, evaluations(trial), first)
    return seconds * (1 + 2 * bound * min(timing.error, MAX_TIMING_ERROR))


def evaluations(trial: Trial) -> int:
    """How often a finetuning trial is evaluated."""
    return 1 if trial.training.evaluate == "end" else trial.training.epochs


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
    activations: int = 0,
) -> DiskUsage:
    """Estimated disk space of a study.

    Args:
        stacks: All stacks.
        points: Number of points of the study.
        workers: Number of workers.
        weights_bytes: Size of the largest model.
        cache: Size of the cache of tokens and hidden states.
        depths: Number of layers by model fingerprint.
        activations: Size of the word activations of the largest corpus.
    """
    trials = [trial for stack in stacks for trial in stack.trials]
    finetuned = [trial for trial in trials if trial.probe is None and trial.word_probe is None]
    word_stacks = [stack for stack in stacks if stack.trials[0].word_probe is not None]
    values = sum(VALUES_PER_EPOCH * (1 if t.probe else evaluations(t)) for t in trials)
    matrices = sum(MATRICES_PER_LAYER * depths[trial.model_fingerprint] for trial in finetuned)
    results = TRIAL_BYTES * max(points, len(trials)) + VALUE_BYTES * values + MATRIX_BYTES * matrices
    checkpoints = checkpoint_bytes(weights_bytes, max_finetuned_models(stacks), workers)
    return DiskUsage(
        checkpoints=2 * checkpoints,  # an old checkpoint is deleted after the new one is written
        finetuned_models=weights_bytes * max(1, workers) * max_finetuned_models(word_stacks),
        activations=activations * min(max(1, workers), len(word_stacks)),
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
