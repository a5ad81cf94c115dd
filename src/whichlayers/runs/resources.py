"""The resources of a run: devices, worker processes, threads, and how many trials of a kind fit into a stack."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whichlayers.engine.out_of_memory import out_of_memory_error
from whichlayers.engine.settings import CHECKPOINT_MINUTES
from whichlayers.errors import WhichlayersError
from whichlayers.runs import machine
from whichlayers.runs.asset_index import AssetIndex
from whichlayers.runs.executors.local import run_in_subprocesses
from whichlayers.runs.executors.worker import MeasureMemory, MemoryReport, TrialRunner, WorkerConfig
from whichlayers.runs.handlers import Handlers
from whichlayers.runs.plan import StackSizes, representative_trials
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
        stack_sizes: For each device; a single one if they are equal, none if memory was not measured.
    """

    devices: tuple[str, ...]
    workers: int
    threads: int
    max_stack: int
    stack_sizes: tuple[StackSizes, ...] = ()

    @property
    def on_cuda(self) -> bool:
        return self.devices[0].startswith("cuda")

    def stack_size(self, trial: Trial) -> int:
        """Maximum number of trials in a stack of such trials, on the device with the most memory."""
        return max(sizes(trial) for sizes in self.worker_stack_sizes())

    def worker_stack_sizes(self) -> list[StackSizes]:
        """The stack sizes of each worker."""
        sizes = self.stack_sizes or (StackSizes(self.max_stack),)
        return [sizes[worker % len(sizes)] for worker in range(max(1, self.workers))]

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
        checkpoint_seconds: float = 60 * CHECKPOINT_MINUTES,
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
    """CPU threads of each process: its share of the cores, at most OMP_NUM_THREADS if that is set."""
    share = max(1, machine.usable_cores() // max(1, workers))
    return min(share, machine.thread_limit() or share)


def fit_memory(
    resources: Resources,
    trials: list[Trial],
    handlers: Handlers,
    assets: Any,
    logs: Path,
    fewer_workers: bool,
) -> Resources:
    """Measure memory and choose the largest stack sizes that fit.

    On GPUs, worker processes measure, unless training is in the main process. On CPU the main process measures, which
    has loaded models and data already.

    Args:
        resources: With the wanted number of workers and maximum stack size.
        trials: The trials to run.
        handlers: Measure the memory.
        assets: Models and data.
        logs: Folder for the logs of worker processes.
        fewer_workers: Whether the number of workers may be reduced to fit.
    """
    if not trials:
        return resources
    measured, configs = representative_trials(trials), resources.worker_configs(handlers, assets.index)
    if resources.on_cuda and resources.workers:
        request = MeasureMemory(measured, (), resources.max_stack)
        reports = run_in_subprocesses(configs[: len(resources.devices)], request, MemoryReport, logs)
    else:
        request = MeasureMemory(measured, resources.devices, resources.max_stack)
        reports = [TrialRunner(configs[0], assets).measure_memory(request)]
    return fit_stack_sizes(resources, measured, reports, assets.weights_bytes, fewer_workers)


def fit_stack_sizes(
    resources: Resources,
    trials: Sequence[Trial],
    reports: Sequence[MemoryReport],
    weights_bytes: int,
    fewer_workers: bool,
) -> Resources:
    """Choose stack sizes that fit into the memory of each device.

    A device that is too small for a kind of trial gets none of them.

    Args:
        resources: With the wanted number of workers and maximum stack size.
        trials: One for each `memory_key`, as measured.
        reports: Memory costs of these trials and the free memory, for each device; a single one if they are equal.
        weights_bytes: Size of the largest model; on CPU each worker process loads its own copy.
        fewer_workers: Whether the number of workers may be reduced.

    Raises:
        WhichlayersError: A trial fits on no device.
    """
    process_bytes = 0.0 if resources.on_cuda or not resources.workers else worker_bytes(weights_bytes)
    workers_per_device = math.ceil(max(1, resources.workers) / len(resources.devices))
    for sharing in range(workers_per_device, 0, -1):
        free = [None if r.free is None else r.free / sharing - process_bytes for r in reports]
        sizes = tuple(
            StackSizes.from_memory(trials, report.costs, free_bytes, resources.max_stack)
            for report, free_bytes in zip(reports, free, strict=True)
        )
        too_large = [n for n, trial in enumerate(trials) if not any(size(trial) for size in sizes)]
        if not too_large:
            workers = min(resources.workers, sharing * len(resources.devices))
            return dataclasses.replace(
                resources, workers=workers, threads=_threads(workers), stack_sizes=sizes
            )
        if sharing == 1 or not fewer_workers:
            break
    largest = max(range(len(reports)), key=lambda n: free[n] or 0.0)
    cost = reports[largest].costs[too_large[0]]
    needed = None if cost is None else cost.first_trial
    raise out_of_memory_error(needed, free[largest] or 0.0, trials[too_large[0]], resources.devices[largest])


def worker_bytes(weights_bytes: int) -> int:
    """Memory of a worker process on CPU that has loaded a model."""
    return int(PROCESS_BYTES) + weights_bytes
