"""Runs stacks in the current process: the main process, or a worker process that receives requests over a socket.

A thread of a worker process reads from the socket. When the main process ends for any reason, the socket closes, and
the worker process exits at once.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

from whichlayers.engine.cost import MemoryCost, StackTiming
from whichlayers.engine.out_of_memory import is_out_of_memory, release_memory
from whichlayers.engine.settings import CHECKPOINT_MINUTES, EngineSettings
from whichlayers.errors import WhichlayersError
from whichlayers.runs.asset_index import AssetIndex
from whichlayers.runs.assets import Assets
from whichlayers.runs.events import (
    Emit,
    Reporter,
    StackDone,
    StackFailed,
    StepsDone,
    WorkerEvent,
    error_text,
)
from whichlayers.runs.executors.preload import Preloader
from whichlayers.runs.handlers import Handlers, TrialHandler, WorkerContext
from whichlayers.runs.plan import Stack
from whichlayers.trial import Trial

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a process that runs stacks; small and picklable, to be sent to a worker process."""

    handlers: Handlers  # tests replace them
    device: str
    threads: int
    asset_index: AssetIndex | None = None
    checkpoints: Path | None = None  # folder for checkpoints of running stacks; None: no checkpoints
    checkpoint_seconds: float = 60 * CHECKPOINT_MINUTES
    finetuned_models: Path | None = None  # folder for models that word probes need; None: kept in memory

    @property
    def preloads(self) -> bool:
        """Whether the next stack is prepared while one trains; on a CPU this would take cores from training."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class WorkerReady:
    """The first message of a worker: it has started."""


@dataclass(frozen=True)
class Upcoming:
    """A note without reply: the stack that will probably follow the next one."""

    stack: Stack


@dataclass(frozen=True)
class MeasureMemory:
    """A request: measure the memory cost of these trials, and the free memory. The reply is a `MemoryReport`."""

    activity: ClassVar[str] = "measuring memory"
    trials: list[Trial]
    devices: tuple[str, ...]  # where free memory is measured; empty: the worker's own device
    max_stack: int  # the largest stack size of interest


@dataclass(frozen=True)
class MemoryReport:
    """Memory cost of each trial, and free memory, in bytes; None where unknown."""

    costs: list[MemoryCost | None]
    free: int | None  # on the device with the least free memory


@dataclass(frozen=True)
class MeasureTime:
    """A request: time a few steps of these stacks. The reply is a `TimeReport`."""

    activity: ClassVar[str] = "timing a few steps"
    stacks: list[Stack]
    seconds: float  # for all of them; the first stack of each model is timed in any case


@dataclass(frozen=True)
class TimeReport:
    """The timing of each stack; None for a stack that was not timed."""

    timings: list[StackTiming | None]
    loading: float  # seconds to load models and data, once per process
    device: str  # hardware name


class TrialRunner:
    """Runs and measures stacks of trials in this process, with models and data that are loaded once."""

    def __init__(self, config: WorkerConfig, assets: Assets | None = None) -> None:
        self.config = config

        def load_assets() -> Assets:
            if assets is not None:
                return assets
            assert config.asset_index is not None
            return Assets.from_index(config.asset_index)

        self.context = WorkerContext(config.device, config.threads, load_assets, config.finetuned_models)
        self.preloader = Preloader(config.handlers, self.context)
        self.upcoming: Stack | None = None  # the stack that will probably follow the next one

    def _handler(self, trial: Trial) -> TrialHandler:
        handler = self.config.handlers[trial.kind]
        handler.prepare(self.context)
        return handler

    def measure_memory(self, request: MeasureMemory) -> MemoryReport:
        """Measure memory costs. Raises WhichlayersError if a single trial does not fit."""
        costs = [
            self._handler(trial).measure_memory(trial, self.context, request.max_stack)
            for trial in request.trials
        ]
        if not any(costs):
            return MemoryReport(costs, None)
        from whichlayers.engine.free_memory import free_memory

        free = [free_memory(device) for device in request.devices or (self.config.device,)]
        return MemoryReport(costs, min((number for number in free if number is not None), default=None))

    def measure_time(self, request: MeasureTime) -> TimeReport:
        """Time a few steps of some stacks, one after another until the time is used up."""
        timings, loading, seen = list[StackTiming | None](), 0.0, set[tuple[str, str]]()
        deadline = time.monotonic() + request.seconds
        for left, stack in zip(range(len(request.stacks), 0, -1), request.stacks, strict=True):
            trial, remaining = stack.trials[0], deadline - time.monotonic()
            handler, kind = self._handler(trial), (trial.model_fingerprint, trial.kind)
            if remaining < 0 and handler.timing_scales and kind in seen:
                timings.append(None)
                continue
            seen.add(kind)
            settings = EngineSettings(slots=stack.slots, similar_stacks=stack.similar_stacks)
            try:
                began = time.monotonic()
                self.context.assets.load(trial)
                loading += time.monotonic() - began
                seconds = max(0.0, remaining) / left
                timings.append(handler.measure_time(stack.trials, self.context, settings, seconds))
            except Exception as error:  # training will raise the same error for the trials concerned
                log.warning("could not time %s on %s: %s", trial.model, handler.task_name(trial), error)
                timings.append(None)
            release_memory()
        return TimeReport(timings, loading, self._hardware_name())

    def _hardware_name(self) -> str:
        if not self.context.on_cuda:
            return self.config.device
        import torch

        return torch.cuda.get_device_name(self.config.device)

    def run(self, stack: Stack, emit: Emit) -> None:
        """Run a stack; exceptions are reported as `StackFailed` events.

        The upcoming stack is prepared in a background thread from the first training step on.
        """
        self.preloader.wait()
        upcoming, self.upcoming = self.upcoming, None

        def emit_and_preload(event: WorkerEvent) -> None:
            nonlocal upcoming
            emit(event)
            if upcoming is not None and isinstance(event, StepsDone):
                self.preloader.start(upcoming)
                upcoming = None

        report = Reporter(stack.number, emit_and_preload)
        settings = EngineSettings(
            slots=stack.slots,
            similar_stacks=stack.similar_stacks,
            checkpoint_folder=self.config.checkpoints,
            checkpoint_seconds=self.config.checkpoint_seconds,
            keep_checkpoint=True,  # the scheduler deletes it when the results are in results.db
        )
        warnings = WarningHandler(report)
        logging.getLogger("whichlayers").addHandler(warnings)
        try:
            self._handler(stack.trials[0]).run(stack.trials, self.context, settings, report)
            if sorted(report.finished) != sorted(stack.trial_ids):
                raise RuntimeError("the handler did not report one result for each trial of the stack")
        except Exception as error:
            end: WorkerEvent = StackFailed(stack.number, error_text(error), is_out_of_memory(error))
        else:
            end = StackDone(stack.number)
        finally:
            logging.getLogger("whichlayers").removeHandler(warnings)
        release_memory()  # after the except block: an exception keeps the tensors of its stack alive
        emit(end)


class WarningHandler(logging.Handler):
    """Reports logged warnings as notes."""

    def __init__(self, report: Reporter) -> None:
        super().__init__(logging.WARNING)
        self.report, self.thread = report, threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self.thread:  # not those of the next stack: they are logged again when it runs
            self.report.note(record.getMessage())


def main(descriptor: int) -> None:
    """The main function of a worker process; `descriptor` is its end of the socket."""
    faulthandler.enable()
    serve(Connection(descriptor), on_close=lambda: os._exit(0))


def serve(connection: Connection, on_close: Callable[[], Any]) -> None:
    """Process requests until the connection closes.

    The first message is a `WorkerConfig`; each further one is a `Stack`, an `Upcoming`, a `MeasureMemory` or a
    `MeasureTime`.

    Args:
        connection: To the main process.
        on_close: Called by the reading thread when the connection closes.
    """
    try:
        runner = TrialRunner(connection.recv())
    except EOFError:  # the main process has ended
        return
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                requests.put(connection.recv())
        except (EOFError, OSError):
            requests.put(None)
            on_close()

    threading.Thread(target=listen, daemon=True).start()
    connection.send(WorkerReady())
    while (request := requests.get()) is not None:
        if isinstance(request, MeasureMemory | MeasureTime):
            try:
                if isinstance(request, MeasureMemory):
                    connection.send(runner.measure_memory(request))
                else:
                    connection.send(runner.measure_time(request))
            except WhichlayersError as error:
                connection.send(error)
        elif isinstance(request, Upcoming):
            runner.upcoming = request.stack
        else:
            runner.run(request, connection.send)
