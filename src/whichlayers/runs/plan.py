"""The plan of a study: which trials train together in a stack, how large stacks are, and how many steps they take."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from whichlayers.engine.cost import MemoryCost
from whichlayers.runs.assets import Assets
from whichlayers.runs.handlers import HANDLERS, Handlers, TrialHandler
from whichlayers.trial import Point, Trial

Item = TypeVar("Item")
StackKey = Callable[[Trial], Hashable]  # trials with equal keys may share a stack
StackSizeFn = Callable[[Trial], int]  # the maximum number of models in a stack of such trials


@dataclass(frozen=True)
class Stack:
    """Trials that run together.

    Finetuning trials of a stack train as one stacked model. A stack of word probes finetunes its models in that way,
    then probes each of them.

    Args:
        number: Identifies the stack within a run.
        trials: The trials, with equal stack keys.
        slots: Pad the stacked model to this number of trials, so that all stacks of one shape use the same compiled
            code. None: no padding.
        lost_workers: Number of worker processes that died while they ran this stack.
        similar_stacks: Number of stacks with the same model and number of slots.
    """

    number: int
    trials: tuple[Trial, ...]
    slots: int | None = None
    lost_workers: int = 0
    similar_stacks: int = 1

    @property
    def handler(self) -> TrialHandler:
        return HANDLERS[self.trials[0].kind]

    @functools.cached_property
    def steps(self) -> int:
        return total_steps(self.trials)

    @functools.cached_property
    def time_key(self) -> Hashable:
        """Stacks with equal keys have the same timing."""
        return self.handler.time_key(self.trials)

    @property
    def models(self) -> int:
        """Number of models that train together."""
        return count_models(self.trials)

    @property
    def finetunes(self) -> bool:
        """Whether models are finetuned."""
        return self.handler.finetunes(self.trials[0])

    @property
    def size(self) -> int:
        """Number of models, including padding."""
        return max(self.models, self.slots or 0)

    @property
    def trial_ids(self) -> list[str]:
        return [trial.id for trial in self.trials]


@dataclass(frozen=True)
class PlanRow:
    """Number of trials, steps and stacks of one model on one task with one training size."""

    model: str
    task: str
    train_size: int
    trials: int
    steps: int
    stacks: int


def unique_trials(points: Iterable[Point]) -> list[Trial]:
    """The trials of these points; points may share a trial."""
    return list({point.trial.id: point.trial for point in points}.values())


def trial_steps(trial: Trial) -> int:
    """Steps of one trial; for a word probe without the finetuning of its model, which other probes share."""
    return HANDLERS[trial.kind].steps(trial)


def total_steps(trials: Iterable[Trial]) -> int:
    """Steps of all trials, counting the finetuning of each model that is word-probed once."""
    shared, steps = dict[Hashable, int](), 0
    for trial in trials:
        handler = HANDLERS[trial.kind]
        steps += handler.steps(trial)
        shared |= handler.shared_steps(trial)
    return steps + sum(shared.values())


def models_to_keep(stacks: Iterable[Stack]) -> list[Trial]:
    """The finetuning trials whose models are kept on disk until these stacks are finished."""
    return [model for stack in stacks for model in stack.handler.kept_models(stack.trials)]


def count_models(trials: Sequence[Trial]) -> int:
    """Number of models in a stack of these trials; word probes of the same model share it."""
    return len(HANDLERS[trials[0].kind].group_by_model(trials)) if trials else 0


def split_trials(trials: Sequence[Trial], max_models: int) -> list[Sequence[Trial]]:
    """Split the trials of a stack evenly into parts of at most `max_models` models; a model's probes stay together."""
    models = HANDLERS[trials[0].kind].group_by_model(trials)
    return [list(itertools.chain(*chunk)) for chunk in even_chunks(models, max_models)]


# --- how large a stack may be ---


def memory_key(trial: Trial) -> Hashable:
    """Everything that determines the memory of a trial, except its training size."""
    return HANDLERS[trial.kind].memory_key(trial)


def representative_trials(trials: Iterable[Trial]) -> list[Trial]:
    """One trial for each `memory_key`: the one with the most training examples."""
    largest: dict[Hashable, Trial] = {}
    for trial in trials:
        known = largest.setdefault(memory_key(trial), trial)
        if trial.train_size > known.train_size:
            largest[memory_key(trial)] = trial
    return list(largest.values())


@dataclass(frozen=True)
class StackSizes:
    """Maximum number of models in a stack on one device.

    Args:
        max_stack: Limit for all stacks, except those of sentence probes.
        fitting: By `memory_key`: the number of models that fit into memory, where it was measured; 0: none.
    """

    max_stack: int
    fitting: Mapping[Hashable, int] = field(default_factory=dict)

    @classmethod
    def from_memory(
        cls, trials: Sequence[Trial], costs: Sequence[MemoryCost | None], free: float | None, max_stack: int
    ) -> StackSizes:
        """The sizes that fit into memory.

        Args:
            trials: One for each `memory_key`.
            costs: Memory of each of them; None: unknown.
            free: Free bytes for one worker; None: unknown.
            max_stack: Limit for all stacks.
        """
        fitting = {
            memory_key(trial): cost.max_trials(free, max_stack)
            for trial, cost in zip(trials, costs, strict=True)
            if cost is not None and free is not None
        }
        return cls(max_stack, fitting)

    def __call__(self, trial: Trial) -> int:
        """Maximum number of models in a stack of such trials; 0: it does not fit on this device."""
        if (fixed := HANDLERS[trial.kind].fixed_stack_size) is not None:
            return fixed
        return min(self.max_stack, self.fitting.get(memory_key(trial), self.max_stack))


def _planned_size(trial: Trial, max_stack: int | StackSizeFn, even_share: int) -> int:
    """Size of the stacks of such trials: as large as possible, but every worker gets its share."""
    size = max_stack if isinstance(max_stack, int) else max_stack(trial)
    if HANDLERS[trial.kind].fixed_stack_size is None:
        size = min(size, even_share)
    return max(1, size)


# --- stacks ---


def stack_key_fn(handlers: Handlers, assets: Assets) -> StackKey:
    """The function that computes stack keys."""
    return lambda trial: handlers[trial.kind].stack_key(trial, assets)


def make_stacks(
    trials: Sequence[Trial], key: StackKey, max_stack: int | StackSizeFn, workers: int = 1, fill: bool = False
) -> list[Stack]:
    """Group trials into stacks.

    Low seeds come first, so that every point of a curve has one trial before any has two. Stacks that begin with the
    same seed are sorted from long to short. `StackQueue` may run them in another order.

    Args:
        trials: All trials.
        key: Only trials with equal keys share a stack.
        max_stack: Maximum number of models in a stack.
        workers: No stack is larger than an even share of all models among this many workers.
        fill: Pad all stacks of one key to the size of the largest.
    """
    groups: dict[Hashable, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.seed):
        groups.setdefault(key(trial), []).append(trial)
    even_share = math.ceil(sum(map(count_models, groups.values())) / workers)
    chunks: list[tuple[Sequence[Trial], int]] = []  # trials, and models in the largest chunk of their group
    for group in groups.values():
        group_chunks = split_trials(group, _planned_size(group[0], max_stack, even_share))
        chunks += [(chunk, max(map(count_models, group_chunks))) for chunk in group_chunks]

    def order(place: int) -> tuple[int, int, int]:
        chunk = chunks[place][0]
        return chunk[0].seed, -total_steps(chunk), place

    stacks = [
        Stack(number, tuple(chunks[place][0]), chunks[place][1] if fill else None)
        for number, place in enumerate(sorted(range(len(chunks)), key=order))
    ]
    return _count_similar(stacks) if fill else stacks


def _count_similar(stacks: Sequence[Stack]) -> list[Stack]:
    """The stacks with their `similar_stacks`."""

    def shape(stack: Stack) -> Hashable:
        return stack.trials[0].model_fingerprint, stack.slots

    n_of_shape = Counter(map(shape, stacks))
    return [dataclasses.replace(stack, similar_stacks=n_of_shape[shape(stack)]) for stack in stacks]


def make_stacks_to_resume(
    trials: Sequence[Trial],
    interrupted: Sequence[Sequence[str]],
    key: StackKey,
    max_stack: int | StackSizeFn,
    workers: int = 1,
    fill: bool = False,
) -> list[Stack]:
    """Group trials into stacks; first the stacks that an earlier run left unfinished, with exactly the same trials.

    A checkpoint can only be loaded by the same stack. An interrupted stack is not restored if it is too large now, or
    has trials that are not in `trials`.

    Args:
        trials: All trials.
        interrupted: Trial ids of each interrupted stack.
        key, max_stack, workers, fill: As in `make_stacks`.
    """
    by_id = {trial.id: trial for trial in trials}
    by_seed = {trial.id: (trial.seed, i) for i, trial in enumerate(trials)}  # the order within make_stacks
    restored = [
        Stack(0, tuple(by_id[trial_id] for trial_id in sorted(ids, key=by_seed.__getitem__)))
        for ids in interrupted
        if all(trial_id in by_id for trial_id in ids)
    ]

    def is_allowed(stack: Stack) -> bool:
        max_size = max_stack if isinstance(max_stack, int) else max_stack(stack.trials[0])
        return stack.models <= max_size and len({key(trial) for trial in stack.trials}) == 1

    restored = [stack for stack in restored if is_allowed(stack)]
    used = {trial.id for stack in restored for trial in stack.trials}
    rest = make_stacks([trial for trial in trials if trial.id not in used], key, max_stack, workers, fill)
    if fill:  # a checkpoint can be loaded with any number of slots
        slots = {key(stack.trials[0]): stack.slots or 0 for stack in rest}
        restored = [
            dataclasses.replace(stack, slots=max(stack.models, slots.get(key(stack.trials[0]), 0)))
            for stack in restored
        ]
    stacks = [dataclasses.replace(stack, number=n) for n, stack in enumerate([*restored, *rest])]
    return _count_similar(stacks) if fill else stacks


def even_chunks(items: Sequence[Item], max_size: int) -> list[Sequence[Item]]:
    """Split into as few chunks as possible whose sizes differ by at most one: 9 items by 8 give 5 + 4, not 8 + 1."""
    count = math.ceil(len(items) / max_size)
    edges = [len(items) * i // count for i in range(count + 1)]
    return [items[a:b] for a, b in itertools.pairwise(edges)]


def plan_rows(stacks: Iterable[Stack]) -> list[PlanRow]:
    """Count trials, steps and stacks by model, task and training size, in the order in which they first run."""
    trials: dict[tuple[str, str, int], list[Trial]] = {}
    stack_numbers: dict[tuple[str, str, int], set[int]] = {}
    for stack in stacks:
        for trial in stack.trials:
            row = (trial.model, stack.handler.task_name(trial), trial.train_size)
            trials.setdefault(row, []).append(trial)
            stack_numbers.setdefault(row, set()).add(stack.number)
    return [
        PlanRow(*row, len(row_trials), total_steps(row_trials), len(stack_numbers[row]))
        for row, row_trials in trials.items()
    ]
