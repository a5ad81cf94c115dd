"""Which trials train together, in which order, and how many optimiser steps that is."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from whichlayers.probes.steps import WORD_STEPS
from whichlayers.probes.steps import steps_of as probe_steps
from whichlayers.trial import Trial

Item = TypeVar("Item")
StackKey = Callable[[Trial], Hashable]
SizeFor = Callable[[Trial], int]  # the most trials of this kind that may share a stack


@dataclass(frozen=True)
class Stack:
    """Trials that train as one model; or all questions about words that are asked of models which do.

    `slots`: fill the stack up to this size, so that code compiled for it serves all stacks of its kind,
    of which there are `alike`.
    `lost` counts the worker processes that died under it.
    """

    number: int
    trials: tuple[Trial, ...]
    slots: int | None = None
    lost: int = 0
    alike: int = 1

    @functools.cached_property
    def steps(self) -> int:
        return total_steps(self.trials)

    @property
    def models(self) -> int:
        """That train at once."""
        return models_in(self.trials)

    @property
    def finetunes(self) -> bool:
        """Probes read frozen states, and questions about words may be asked of the model as it was pretrained."""
        return self.trials[0].probe is None and self.trials[0].train_size > 0

    @property
    def size(self) -> int:
        return max(self.models, self.slots or 0)

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
    """Of a question about words without the finetuning of its model, which it shares with others."""
    if trial.word_probe is not None:
        return WORD_STEPS
    if trial.probe is not None:
        return probe_steps(trial.probe)
    return trial.steps


def total_steps(trials: Iterable[Trial]) -> int:
    finetuned, steps = dict[Hashable, int](), 0
    for trial in trials:
        steps += steps_of(trial)
        if trial.word_probe is not None and trial.train_size:
            finetuned[words_key(trial), trial.seed] = trial.steps
    return steps + sum(finetuned.values())


def words_key(trial: Trial) -> Hashable:
    """What questions about words of one stack share: the model, and how it is finetuned; not with which seed."""
    training = trial.training if trial.train_size else None
    return ("words", trial.model_fingerprint, trial.task_fingerprint, trial.train_size, trial.head, training)


def most_finetuned(stacks: Iterable[Stack]) -> int:
    """Models that one of these stacks finetunes at once."""
    return max((stack.models for stack in stacks if stack.finetunes), default=0)


def models_in(trials: Sequence[Trial]) -> int:
    return len(_by_model(trials)) if trials and trials[0].word_probe is not None else len(trials)


def cut(trials: Sequence[Trial], most: int) -> list[Sequence[Trial]]:
    """Even pieces of at most so many models; the questions that are asked of one stay together."""
    if trials[0].word_probe is None:
        return even_chunks(trials, most)
    return [list(itertools.chain(*chunk)) for chunk in even_chunks(_by_model(trials), most)]


def _by_model(trials: Sequence[Trial]) -> list[list[Trial]]:
    found: dict[int | None, list[Trial]] = {}
    for trial in trials:  # the pretrained model is one, whatever the seed of its probes
        found.setdefault(trial.seed if trial.train_size else None, []).append(trial)
    return list(found.values())


def memory_key(trial: Trial) -> Hashable:
    """What decides the memory that a trial takes, its training size aside."""
    order, training = trial.surgery.order, trial.training
    return (
        trial.model_fingerprint,
        trial.task_fingerprint,
        None if order is None else len(order),
        (training.batch_size, training.max_length, training.dropout),
        trial.probe is not None or (trial.word_probe is not None and not trial.train_size),
    )


def time_key(trial: Trial) -> Hashable:
    """What decides how long a step takes."""
    return memory_key(trial), trial.word_probe is not None


def make_stacks(
    trials: Sequence[Trial], key: StackKey, max_stack: int | SizeFor, workers: int = 1, fill: bool = False
) -> list[Stack]:
    """Stacks of trials with one key, at most `max_stack` in each, none larger than a worker's fair share.
    With `fill` the stacks of one key are filled up to the size of the largest.

    Low seeds come first, so that every curve has one trial at each of its points before any has two; among
    stacks that begin with the same seed, the longest. waiting.py tells when this order is left.
    """
    groups: dict[Hashable, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.seed):
        groups.setdefault(key(trial), []).append(trial)
    fair = math.ceil(sum(map(models_in, groups.values())) / workers)
    chunks: list[tuple[Sequence[Trial], int]] = []  # with the most models that a chunk of its group has
    for group in groups.values():
        most = max_stack if isinstance(max_stack, int) else max_stack(group[0])
        if group[0].probe is None:  # probes stay together: the model runs once for all of them
            most = min(most, fair)
        of_group = cut(group, max(1, most))
        chunks += [(chunk, max(map(models_in, of_group))) for chunk in of_group]

    def turn(place: int) -> tuple[int, int, int]:
        chunk = chunks[place][0]
        return chunk[0].seed, -total_steps(chunk), place

    def shape(place: int) -> Hashable:
        chunk, slots = chunks[place]
        return chunk[0].model_fingerprint, slots

    alike = Counter(map(shape, range(len(chunks))))
    return [
        Stack(
            number,
            tuple(chunks[place][0]),
            chunks[place][1] if fill else None,
            alike=alike[shape(place)] if fill else 1,
        )
        for number, place in enumerate(sorted(range(len(chunks)), key=turn))
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
        return stack.models <= most and len({key(trial) for trial in stack.trials}) == 1

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
            task = trial.task if trial.word_probe is None else f"{trial.task or 'as pretrained'}, then words"
            place = (trial.model, task, trial.train_size)
            trials.setdefault(place, []).append(trial)
            in_stacks.setdefault(place, set()).add(stack.number)
    return [
        PlanRow(*place, len(found), total_steps(found), len(in_stacks[place]))
        for place, found in trials.items()
    ]
