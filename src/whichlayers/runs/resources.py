"""What a run trains with: devices, processes, and how many trials share a stack, as far as memory goes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whichlayers.engine.cost import does_not_fit
from whichlayers.errors import WhichlayersError
from whichlayers.runs import machine
from whichlayers.runs.assets import Catalogue
from whichlayers.runs.executors.worker import Room, Setup
from whichlayers.runs.plan import SizeFor, memory_key
from whichlayers.trial import Trial

MOST_TRIALS = {"cuda": 64}  # in a stack, where the user names no number; more gain nothing
MOST_TRIALS_ELSEWHERE = 4
MOST_PROBES = 512  # in a stack: all that read the same states, so that the model runs once for them
PROCESS_BYTES = 600e6  # torch and transformers, before any model


@dataclass(frozen=True)
class Means:
    """What a run trains with."""

    devices: tuple[str, ...]
    workers: int  # 0: this process
    threads: int  # of each process
    max_stack: int
    sizes: Mapping[Hashable, int] = field(default_factory=dict)  # by memory_key: what memory leaves of it
    each: tuple[Mapping[Hashable, int], ...] = ()  # the same by device, where devices differ; 0: not even one

    @property
    def on_cuda(self) -> bool:
        return self.devices[0].startswith("cuda")

    def size_for(self, trial: Trial) -> int:
        return self._size(trial, self.sizes)

    def sizes_by_worker(self) -> list[SizeFor] | None:
        """Of the stacks that each worker's memory holds; None where all are alike."""
        if not self.each:
            return None
        return [
            functools.partial(self._size, sizes=self.each[place % len(self.each)])
            for place in range(self.workers)
        ]

    def _size(self, trial: Trial, sizes: Mapping[Hashable, int]) -> int:
        if trial.probe is not None:
            return MOST_PROBES
        return min(self.max_stack, sizes.get(memory_key(trial), self.max_stack))

    def for_stacks(self, count: int) -> Means:
        """On a CPU, no more processes than stacks: they share out the cores that would be idle."""
        workers = min(self.workers, count)
        if self.on_cuda or not workers:
            return self
        return dataclasses.replace(self, workers=workers, threads=_threads(workers))

    def setups(
        self,
        engine: str,
        catalogue: Catalogue | None,
        checkpoints: Path | None = None,
        checkpoint_seconds: float = 300.0,
        encoders: Path | None = None,
    ) -> list[Setup]:
        devices = [self.devices[place % len(self.devices)] for place in range(max(1, self.workers))]
        return [
            Setup(engine, device, self.threads, catalogue, checkpoints, checkpoint_seconds, encoders)
            for device in devices
        ]


def choose_means(devices: Sequence[str], workers: int | None, max_stack: int | None) -> Means:
    """One process a GPU; on CPU one a core, and the cores shared out among them."""
    check_counts(workers, max_stack)
    kind = devices[0].partition(":")[0]
    stack = max_stack or MOST_TRIALS.get(kind, MOST_TRIALS_ELSEWHERE)
    if workers is None:
        workers = machine.usable_cores() if kind == "cpu" else len(devices)
    return Means(tuple(devices), workers, _threads(workers), stack)


def check_counts(workers: int | None, max_stack: int | None) -> None:
    if workers is not None and workers < 0:
        raise WhichlayersError(f"workers = {workers}: give 0 (train in this process) or more")
    if max_stack is not None and max_stack < 1:
        raise WhichlayersError(f"max_stack = {max_stack}: give 1 (each trial by itself) or more")


def _threads(workers: int) -> int:
    return max(1, machine.usable_cores() // max(1, workers))


def kinds_of(trials: Iterable[Trial]) -> list[Trial]:
    """One trial of each kind that takes memory in its own way: that with the most training examples."""
    largest: dict[Hashable, Trial] = {}
    for trial in trials:
        known = largest.setdefault(memory_key(trial), trial)
        if trial.train_size > known.train_size:
            largest[memory_key(trial)] = trial
    return list(largest.values())


def fitted(
    means: Means, kinds: Sequence[Trial], room: Room, weights_bytes: int, fewer_workers: bool
) -> Means:
    """The means with stacks that fit into memory; with fewer workers, where that is allowed and helps.

    Raises WhichlayersError if not even one trial of a kind fits.
    """
    if room.free is None or not any(room.needs):
        return means
    per_device = math.ceil(max(1, means.workers) / len(means.devices))
    own = 0.0 if means.on_cuda or means.workers == 0 else PROCESS_BYTES + weights_bytes
    for sharing in range(per_device, 0, -1):
        share = room.free / sharing - own
        sizes: dict[Hashable, int] = {}
        for trial, need in zip(kinds, room.needs, strict=True):
            if need is None:
                continue
            sizes[memory_key(trial)] = size = need.fits(share, means.max_stack)
            if not size and (sharing == 1 or not fewer_workers):
                raise does_not_fit(need.first, share, trial, means.devices[0])
        if all(sizes.values()):
            workers = min(means.workers, sharing * len(means.devices))
            return dataclasses.replace(means, workers=workers, threads=_threads(workers), sizes=sizes)
    raise AssertionError("the last round returns or raises")


def fitted_to_each(means: Means, kinds: Sequence[Trial], rooms: Sequence[Room]) -> Means:
    """The means with stacks that fit into the memory of each device by itself, where devices differ.

    A device that holds no trial of a kind is not given any. WhichlayersError if none holds one.
    """
    sharing = math.ceil(max(1, means.workers) / len(means.devices))
    each: list[dict[Hashable, int]] = [{} for _ in rooms]
    for place, trial in enumerate(kinds):
        for sizes, room in zip(each, rooms, strict=True):
            need = room.needs[place]
            if need is not None and room.free is not None:
                sizes[memory_key(trial)] = need.fits(room.free / sharing, means.max_stack)
        if not any(sizes.get(memory_key(trial), 1) for sizes in each):
            largest = max(rooms, key=lambda room: room.free or 0)
            need, free = largest.needs[place], (largest.free or 0) / sharing
            device = means.devices[rooms.index(largest)]
            raise does_not_fit(None if need is None else need.first, free, trial, device)
    largest_of = {kind: max(sizes.get(kind, 0) for sizes in each) for sizes in each for kind in sizes}
    differ = any(sizes != largest_of for sizes in each)
    return dataclasses.replace(means, sizes=largest_of, each=tuple(each) if differ else ())
