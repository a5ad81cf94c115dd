"""The resources of a run: devices, worker processes, threads, and how many trials of a kind fit into a stack."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whichlayers.engine.cost import out_of_memory_error
from whichlayers.errors import WhichlayersError
from whichlayers.runs import machine
from whichlayers.runs.assets import AssetIndex
from whichlayers.runs.executors.worker import MemoryReport, WorkerConfig
from whichlayers.runs.handlers import HANDLERS, Handlers
from whichlayers.runs.plan import StackSizeFn, memory_key
from whichlayers.trial import Trial

MAX_STACK_CUDA = 64  # default; larger stacks are not faster
MAX_STACK_CPU = 4
PROCESS_BYTES = 600e6  # memory of a process that has imported torch and transformers


@dataclass(frozen=True)
class Resources:
    """Devices, worker processes and stack sizes of a run.

    Args:
        devices: Such as ("cpu",) or ("cuda:0", "cuda:1").
        workers: Number of worker processes; 0 trains in the main process.
        threads: CPU threads of each process.
        max_stack: Maximum number of trials in a stack.
        stack_sizes: By `memory_key`: the number of trials that fit into memory.
        device_stack_sizes: The same for each device if devices differ; 0: not even one trial fits.
    """

    devices: tuple[str, ...]
    workers: int
    threads: int
    max_stack: int
    stack_sizes: Mapping[Hashable, int] = field(default_factory=dict)
    device_stack_sizes: tuple[Mapping[Hashable, int], ...] = ()

    @property
    def on_cuda(self) -> bool:
        return self.devices[0].startswith("cuda")

    def stack_size(self, trial: Trial) -> int:
        """Maximum number of trials in a stack of such trials."""
        return self._stack_size(trial, self.stack_sizes)

    def worker_stack_sizes(self) -> list[StackSizeFn] | None:
        """One function like `stack_size` for each worker; None if all devices are equal."""
        if not self.device_stack_sizes:
            return None
        return [
            functools.partial(
                self._stack_size, stack_sizes=self.device_stack_sizes[worker % len(self.device_stack_sizes)]
            )
            for worker in range(self.workers)
        ]

    def _stack_size(self, trial: Trial, stack_sizes: Mapping[Hashable, int]) -> int:
        if (fixed := HANDLERS[trial.kind].fixed_stack_size) is not None:
            return fixed
        return min(self.max_stack, stack_sizes.get(memory_key(trial), self.max_stack))

    def for_stacks(self, count: int) -> Resources:
        """The resources for `count` stacks: on CPU at most one worker per stack, with more threads each."""
        workers = min(self.workers, count)
        if self.on_cuda or not workers:
            return self
        return dataclasses.replace(self, workers=workers, threads=_threads(workers))

    def worker_configs(
        self,
        handlers: Handlers,
        asset_index: AssetIndex | None,
        checkpoints: Path | None = None,
        checkpoint_seconds: float = 300.0,
        finetuned_models: Path | None = None,
    ) -> list[WorkerConfig]:
        """One configuration for each worker; a single one if there are no worker processes."""
        devices = [self.devices[worker % len(self.devices)] for worker in range(max(1, self.workers))]
        return [
            WorkerConfig(
                handlers, device, self.threads, asset_index, checkpoints, checkpoint_seconds, finetuned_models
            )
            for device in devices
        ]


def choose_resources(devices: Sequence[str], workers: int | None, max_stack: int | None) -> Resources:
    """Resources with defaults for None: one worker per GPU, or one per CPU core; cores are shared among workers."""
    check_counts(workers, max_stack)
    device_type = devices[0].partition(":")[0]
    if workers is None:
        workers = machine.usable_cores() if device_type == "cpu" else len(devices)
    max_stack = max_stack or (MAX_STACK_CUDA if device_type == "cuda" else MAX_STACK_CPU)
    return Resources(tuple(devices), workers, _threads(workers), max_stack)


def check_counts(workers: int | None, max_stack: int | None) -> None:
    """Raise WhichlayersError if a number is out of range."""
    if workers is not None and workers < 0:
        raise WhichlayersError(f"workers = {workers}: must be 0 (train in the main process) or more")
    if max_stack is not None and max_stack < 1:
        raise WhichlayersError(f"max_stack = {max_stack}: must be 1 (no stacking) or more")


def _threads(workers: int) -> int:
    return max(1, machine.usable_cores() // max(1, workers))


def representative_trials(trials: Iterable[Trial]) -> list[Trial]:
    """One trial for each `memory_key`: the one with the most training examples."""
    largest: dict[Hashable, Trial] = {}
    for trial in trials:
        known = largest.setdefault(memory_key(trial), trial)
        if trial.train_size > known.train_size:
            largest[memory_key(trial)] = trial
    return list(largest.values())


def fit_stack_sizes(
    resources: Resources,
    trials: Sequence[Trial],
    memory: MemoryReport,
    weights_bytes: int,
    fewer_workers: bool,
) -> Resources:
    """Choose stack sizes that fit into memory.

    Args:
        resources: With the wanted number of workers and maximum stack size.
        trials: One for each `memory_key`, as measured.
        memory: Memory costs of these trials and the free memory of a device.
        weights_bytes: Size of the largest model; on CPU each worker process loads its own copy.
        fewer_workers: Whether the number of workers may be reduced.

    Raises:
        WhichlayersError: Not even one trial fits.
    """
    if memory.free is None or not any(memory.costs):
        return resources
    workers_per_device = math.ceil(max(1, resources.workers) / len(resources.devices))
    process_bytes = 0.0 if resources.on_cuda or resources.workers == 0 else PROCESS_BYTES + weights_bytes
    for sharing in range(workers_per_device, 0, -1):
        free = memory.free / sharing - process_bytes
        stack_sizes: dict[Hashable, int] = {}
        for trial, cost in zip(trials, memory.costs, strict=True):
            if cost is None:
                continue
            stack_sizes[memory_key(trial)] = size = cost.max_trials(free, resources.max_stack)
            if not size and (sharing == 1 or not fewer_workers):
                raise out_of_memory_error(cost.first_trial, free, trial, resources.devices[0])
        if all(stack_sizes.values()):
            workers = min(resources.workers, sharing * len(resources.devices))
            return dataclasses.replace(
                resources, workers=workers, threads=_threads(workers), stack_sizes=stack_sizes
            )
    raise AssertionError("unreachable: the last iteration returns or raises")


def fit_stack_sizes_per_device(
    resources: Resources, trials: Sequence[Trial], memory: Sequence[MemoryReport]
) -> Resources:
    """Choose stack sizes that fit into the memory of each device, where devices differ.

    A device that is too small for a kind of trial gets none of them.

    Args:
        resources: With the wanted number of workers and maximum stack size.
        trials: One for each `memory_key`, as measured.
        memory: The measurements on each device.

    Raises:
        WhichlayersError: A trial fits on no device.
    """
    sharing = math.ceil(max(1, resources.workers) / len(resources.devices))
    device_sizes: list[dict[Hashable, int]] = [{} for _ in memory]
    for place, trial in enumerate(trials):
        for sizes, report in zip(device_sizes, memory, strict=True):
            cost = report.costs[place]
            if cost is not None and report.free is not None:
                sizes[memory_key(trial)] = cost.max_trials(report.free / sharing, resources.max_stack)
        if not any(sizes.get(memory_key(trial), 1) for sizes in device_sizes):
            largest = max(memory, key=lambda report: report.free or 0)
            cost, free = largest.costs[place], (largest.free or 0) / sharing
            device = resources.devices[memory.index(largest)]
            raise out_of_memory_error(None if cost is None else cost.first_trial, free, trial, device)
    max_sizes = {
        key: max(sizes.get(key, 0) for sizes in device_sizes) for sizes in device_sizes for key in sizes
    }
    differ = any(sizes != max_sizes for sizes in device_sizes)
    return dataclasses.replace(
        resources, stack_sizes=max_sizes, device_stack_sizes=tuple(device_sizes) if differ else ()
    )
