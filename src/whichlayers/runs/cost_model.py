"""What a study will take, from what was measured: its time on given workers, its place on the disk."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from whichlayers.engine.cost import Pace
from whichlayers.runs.plan import Stack, most_finetuned, time_key
from whichlayers.runs.queue import Waiting
from whichlayers.trial import Trial

Paces = Mapping[Hashable, Pace]

# What a measurement of a minute does not see: other programs, warm and cold caches, checkpoints.
SOONER, LATER = 0.8, 1.3
CHECKPOINT_COPIES = 3  # of its weights that a trial saves: themselves and Adam's two moments
# results.db, in bytes, indices included: a trial with its point, a metric of an epoch, a matrix
TRIAL_BYTES, VALUE_BYTES, MATRIX_BYTES = 1600, 60, 130
VALUES_AN_EPOCH = 4  # two losses, seconds, a metric
MATRICES_A_LAYER = 6


@dataclass(frozen=True)
class Span:
    """Seconds: what is expected, and between which bounds."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True)
class Disk:
    """Bytes: at most while it runs, and what is there in the end."""

    checkpoints: int
    encoders: int  # finetuned models that questions about words are asked of
    vectors: int  # of the words
    cache: int
    results: int


def time_of(stacks: Sequence[Stack], workers: Sequence[Paces], start: float, before: float = 0.0) -> Span:
    """Until the last of these workers is done; `before`: what the driver does before the first stack.

    Each stack goes to the worker that is free first, in the order in which the driver hands them out.
    """
    made = [before + makespan(stacks, workers, start, bound) for bound in (-1, 0, 1)]
    return Span(made[0] * SOONER, made[1], made[2] * LATER)


def makespan(stacks: Sequence[Stack], workers: Sequence[Paces], start: float, bound: int = 0) -> float:
    free = [(start, place) for place in range(len(workers))]
    seen: list[set[Hashable]] = [set() for _ in workers]
    end, waiting = 0.0, Waiting(stacks, len(workers))
    while (stack := waiting.take()) is not None:
        now, place = heapq.heappop(free)
        shape = (time_key(stack.trials[0]), stack.size)
        done = now + stack_seconds(stack, workers[place], shape not in seen[place], bound)
        seen[place].add(shape)
        heapq.heappush(free, (done, place))
        end = max(end, done)
    return end


def stack_seconds(stack: Stack, paces: Paces, first: bool, bound: int = 0) -> float:
    """`bound` -1 and 1: as quick, and as slow, as the measurement leaves open."""
    trial = stack.trials[0]
    pace = paces[time_key(trial)]
    if trial.probe is not None:  # it stops when it no longer gets better, nobody knows when
        soonest, last = min(trial.probe.patience + 1, trial.probe.max_epochs), trial.probe.max_epochs
        return pace.of(stack.size, (soonest, (soonest + last) // 2, last)[bound + 1], 0, first)
    seconds = pace.of(stack.size, trial.steps, evaluations(trial), first)
    return seconds * (1 + 2 * bound * min(pace.error, 0.4))


def evaluations(trial: Trial) -> int:
    return 1 if trial.training.evaluate == "end" else trial.training.epochs


def told_apart(stacks: Iterable[Stack], workers: Sequence[Paces]) -> tuple[list[Stack], list[Stack]]:
    """Stacks of kinds that were timed, and those of which nobody knows how long they take."""
    parts: tuple[list[Stack], list[Stack]] = [], []
    for stack in stacks:
        kind = time_key(stack.trials[0])
        parts[not all(kind in paces for paces in workers)].append(stack)
    return parts


def disk_of(
    stacks: Sequence[Stack],
    points: int,
    workers: int,
    weights_bytes: int,
    cache: int,
    depths: Mapping[str, int],
    vectors: int = 0,
) -> Disk:
    """`depths`: layers by model fingerprint. `vectors`: of the words of the largest corpus."""
    trials = [trial for stack in stacks for trial in stack.trials]
    finetuned = [trial for trial in trials if trial.probe is None and trial.word_probe is None]
    asked = [stack for stack in stacks if stack.trials[0].word_probe is not None]
    values = sum(VALUES_AN_EPOCH * (1 if t.probe else evaluations(t)) for t in trials)
    matrices = sum(MATRICES_A_LAYER * depths[trial.model_fingerprint] for trial in finetuned)
    results = TRIAL_BYTES * max(points, len(trials)) + VALUE_BYTES * values + MATRIX_BYTES * matrices
    checkpoints = checkpoint_bytes(weights_bytes, most_finetuned(stacks), workers)
    return Disk(
        checkpoints=2 * checkpoints,  # an old one goes when the new one is there
        encoders=weights_bytes * max(1, workers) * most_finetuned(asked),
        vectors=vectors * min(max(1, workers), len(asked)),
        cache=cache,
        results=results,
    )


def checkpoint_bytes(weights_bytes: int, trials: int, workers: int) -> int:
    return weights_bytes * CHECKPOINT_COPIES * max(1, workers) * trials


def at_speed(paces: Paces, speed: float) -> Paces:
    """Of a device that is so many times as fast."""
    times = ("build", "compiling", "capturing", "step", "evaluation", "ending")
    return {
        kind: replace(pace, **{name: getattr(pace, name) / speed for name in times})
        for kind, pace in paces.items()
    }
