"""Which trials train together, in which order, and how many optimiser steps that is."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from carryover.probes.progress import steps_of as probe_steps
from carryover.trial import Trial

Item = TypeVar("Item")
StackKey = Callable[[Trial], Hashable]
SizeFor = Callable[[Trial], int]  # the most trials of this kind that may share a stack


@dataclass(frozen=True)
class Stack:
    """Trials that train as one model.

    `slots`: fill the stack up to this size, so that code compiled for it serves all stacks of its kind,
    of which there are `alike`.
    `lost` counts the worker processes that died under it.
    """

    number: int
    trials: tuple[Trial, ...]
    slots: int | None = None
    lost: int = 0
    alike: int = 1

    @property
    def steps(self) -> int:
        return sum(map(steps_of, self.trials))

    @property
    def size(self) -> int:
        return max(len(self.trials), self.slots or 0)

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
    if trial.probe is not None:
        return probe_steps(trial.probe)
    return trial.steps


def memory_key(trial: Trial) -> Hashable:
    """What decides the memory that a trial takes, its training size aside."""
    order, training = trial.surgery.order, trial.training
    return (
        trial.model_fingerprint,
        trial.task_fingerprint,
        None if order is None else len(order),
        (training.batch_size, training.max_length, training.dropout),
        trial.probe is not None,
    )


def make_stacks(
    trials: Sequence[Trial], key: StackKey, max_stack: int | SizeFor, workers: int = 1, fill: bool = False
) -> list[Stack]:
    """Stacks of trials with one key, at most `max_stack` in each, none larger than a worker's fair share.
    With `fill` the stacks of one key are filled up to the size of the largest.

    Low seeds come first, so that every curve has one trial at each of its points before any has two. Among
    stacks that begin with the same seed the longest comes first: no worker is left alone with it at the end.
    """
    by_seed = sorted(range(len(trials)), key=lambda i: (trials[i].seed, i))
    groups: dict[Hashable, list[int]] = {}
    for i in by_seed:
        groups.setdefault(key(trials[i]), []).append(i)
    fair = math.ceil(len(trials) / workers)
    chunks: list[Sequence[int]] = []
    slots: dict[int, int] = {}  # by the chunk's first trial
    for group in groups.values():
        most = max_stack if isinstance(max_stack, int) else max_stack(trials[group[0]])
        if trials[group[0]].probe is None:  # probes stay together: the model runs once for all of them
            most = min(most, fair)
        of_group = even_chunks(group, max(1, most))
        slots |= {chunk[0]: max(map(len, of_group)) for chunk in of_group}
        chunks += of_group

    def turn(chunk: Sequence[int]) -> tuple[int, int, int]:
        return trials[chunk[0]].seed, -sum(steps_of(trials[i]) for i in chunk), chunk[0]

    def shape(chunk: Sequence[int]) -> Hashable:
        return trials[chunk[0]].model_fingerprint, slots[chunk[0]]

    alike = Counter(map(shape, chunks))
    return [
        Stack(
            number,
            tuple(trials[i] for i in chunk),
            slots[chunk[0]] if fill else None,
            alike=alike[shape(chunk)] if fill else 1,
        )
        for number, chunk in enumerate(sorted(chunks, key=turn))
    ]


def with_broken_off(
    trials: Sequence[Trial],
    broken_off: Sequence[Sequence[str]],
    key: StackKey,
    max_stack: int | SizeFor,
    workers: int = 1,
    fill: bool = False,
) -> list[Stack]:
    """Stacks of all trials. Those that an earlier run broke off come first, as they were: a checkpoint fits
    the very same stack only."""
    known = {trial.id: trial for trial in trials}
    by_seed = {trial.id: (trial.seed, i) for i, trial in enumerate(trials)}  # as make_stacks has them
    again = [
        Stack(0, tuple(known[trial_id] for trial_id in sorted(ids, key=by_seed.__getitem__)))
        for ids in broken_off
        if all(trial_id in known for trial_id in ids)
    ]

    def may_be(stack: Stack) -> bool:
        most = max_stack if isinstance(max_stack, int) else max_stack(stack.trials[0])
        return len(stack.trials) <= most and len({key(trial) for trial in stack.trials}) == 1

    again = [stack for stack in again if may_be(stack)]
    taken = {trial.id for stack in again for trial in stack.trials}
    rest = make_stacks([trial for trial in trials if trial.id not in taken], key, max_stack, workers, fill)
    return [dataclasses.replace(stack, number=number) for number, stack in enumerate([*again, *rest])]


def even_chunks(items: Sequence[Item], largest: int) -> list[Sequence[Item]]:
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
