"""Which trials train together, in which order, and how many optimiser steps that is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from carryover.trial import Trial

StackKey = Callable[[Trial], Hashable]


@dataclass(frozen=True)
class Stack:
    """Trials that train as one model. `lost` counts the worker processes that died under it."""

    number: int
    trials: tuple[Trial, ...]
    lost: int = 0

    @property
    def steps(self) -> int:
        return sum(map(steps_of, self.trials))

    @property
    def trial_ids(self) -> list[str]:
        return [trial.id for trial in self.trials]


@dataclass(frozen=True)
class PlanRow:
    """What one model on one task at one size asks for."""

    model: str
    task: str
    train_size: int
    trials: int
    steps: int
    stacks: int


def steps_of(trial: Trial) -> int:
    return math.ceil(trial.train_size / trial.training.batch_size) * trial.training.epochs


def make_stacks(trials: Sequence[Trial], key: StackKey, max_stack: int, workers: int = 1) -> list[Stack]:
    """Stacks of trials with one key, at most `max_stack` in each, none larger than a worker's fair share.

    Low seeds come first, so that every curve has one trial at each of its points before any has two. Among
    stacks that begin with the same seed the longest comes first: no worker is left alone with it at the end.
    """
    by_seed = sorted(range(len(trials)), key=lambda i: (trials[i].seed, i))
    groups: dict[Hashable, list[int]] = {}
    for i in by_seed:
        groups.setdefault(key(trials[i]), []).append(i)
    largest = max(1, min(max_stack, math.ceil(len(trials) / workers)))
    chunks = [chunk for group in groups.values() for chunk in _even_chunks(group, largest)]

    def turn(chunk: list[int]) -> tuple[int, int, int]:
        return trials[chunk[0]].seed, -sum(steps_of(trials[i]) for i in chunk), chunk[0]

    return [
        Stack(number, tuple(trials[i] for i in chunk))
        for number, chunk in enumerate(sorted(chunks, key=turn))
    ]


def with_broken_off(
    trials: Sequence[Trial],
    broken_off: Sequence[Sequence[str]],
    key: StackKey,
    max_stack: int,
    workers: int = 1,
) -> list[Stack]:
    """Stacks of all trials. Those that an earlier run broke off come first, as they were: a checkpoint fits
    the very same stack only."""
    known = {trial.id: trial for trial in trials}
    again = [
        [known[trial_id] for trial_id in ids]
        for ids in broken_off
        if len(ids) <= max_stack and all(trial_id in known for trial_id in ids)
    ]
    again = [stack for stack in again if len({key(trial) for trial in stack}) == 1]
    taken = {trial.id for stack in again for trial in stack}
    rest = make_stacks([trial for trial in trials if trial.id not in taken], key, max_stack, workers)
    return [
        Stack(number, tuple(stack))
        for number, stack in enumerate([*again, *(stack.trials for stack in rest)])
    ]


def _even_chunks(items: list[int], largest: int) -> list[list[int]]:
    """As few chunks as may be, their sizes differing by one at most: 9 by at most 8 is 5 + 4, not 8 + 1."""
    count = math.ceil(len(items) / largest)
    edges = [len(items) * i // count for i in range(count + 1)]
    return [items[a:b] for a, b in itertools.pairwise(edges)]


def plan_rows(stacks: Iterable[Stack]) -> list[PlanRow]:
    """The stacks' trials counted by model, task and size, in the order in which they first run."""
    trials: dict[tuple[str, str, int], list[Trial]] = {}
    in_stacks: dict[tuple[str, str, int], set[int]] = {}
    for stack in stacks:
        for trial in stack.trials:
            place = (trial.model, trial.task, trial.train_size)
            trials.setdefault(place, []).append(trial)
            in_stacks.setdefault(place, set()).add(stack.number)
    return [
        PlanRow(*place, len(found), sum(map(steps_of, found)), len(in_stacks[place]))
        for place, found in trials.items()
    ]
