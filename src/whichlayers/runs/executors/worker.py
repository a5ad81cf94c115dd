"""Runs stacks in the current process: the main process, or a worker process that receives requests over a socket.

A thread of a worker process reads from the socket. When the main process ends for any reason, the socket closes, and
the worker process exits at once.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.engine.cost import (
    MemoryCost,
    StackTiming,
    is_out_of_memory,
    out_of_memory_error,
    release_memory,
)
from whichlayers.errors import WhichlayersError
from whichlayers.results.records import EpochLike, TrialResultLike
from whichlayers.runs.events import (
    Emit,
    EpochDone,
    StackDone,
    StackFailed,
    StepsDone,
    TrialsDone,
    WorkerEvent,
    WorkerNote,
)
from whichlayers.runs.plan import Stack
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.runs.assets import AssetIndex, Assets

TRACEBACK_LINES = 30
PROGRESS_SECONDS = 0.25  # minimum time between two progress events of a stack
DEFAULT_ENGINE = "whichlayers.runs.executors.worker:train_stack"

log = logging.getLogger(__name__)

OnEpoch = Callable[[str, EpochLike], None]
OnSteps = Callable[[int], None]  # called with a number of finished steps, summed over trials


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a process that runs stacks; small and picklable, to be sent to a worker process."""

    engine: str  # "module:function"; tests replace it
    device: str
    threads: int
    asset_index: AssetIndex | None = None
    checkpoints: Path | None = None  # folder for checkpoints of running stacks; None: no checkpoints
    checkpoint_seconds: float = 300.0
    finetuned_models: Path | None = None  # folder for models that word probes need; None: kept in memory


@dataclass(frozen=True)
class WorkerReady:
    """The first message of a worker: it has started."""


@dataclass(frozen=True)
class MeasureMemory:
    """A request: measure the memory cost of these trials, and the free memory. The reply is a `MemoryReport`."""

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

    stacks: list[Stack]
    seconds: float  # for all of them; the first stack of each model is timed in any case


@dataclass(frozen=True)
class TimeReport:
    """The timing of each stack; None for a stack that was not timed."""

    timings: list[StackTiming | None]
    loading: float  # seconds to load models and data, once per process
    device: str  # hardware name


class TrialRunner:
    """Runs stacks of trials in this process with an engine and assets that are loaded once.

    An engine is a function `engine(stack, runner, on_epoch=..., on_steps=...)` that returns the results of the trials.
    Its module may also define `engine_memory` and `engine_time`, which reply to `MeasureMemory` and `MeasureTime`.
    """

    def __init__(self, config: WorkerConfig, assets: Assets | None = None) -> None:
        module_name, _, function = config.engine.partition(":")
        module = importlib.import_module(module_name)
        self.config = config
        self.engine: Callable[..., list[Any]] = getattr(module, function)
        self.memory_hook: Callable[..., MemoryReport] | None = getattr(module, f"{function}_memory", None)
        self.time_hook: Callable[..., TimeReport] | None = getattr(module, f"{function}_time", None)
        self._assets = assets
        # set while a stack runs: report the results of trials that end before their stack, and restored steps
        self.report_results: Callable[[list[Any]], None] = lambda results: None
        self.report_restored: OnSteps = lambda steps: None

    @property
    def assets(self) -> Assets:
        if self._assets is None:
            from whichlayers.runs.assets import Assets

            assert self.config.asset_index is not None
            self._assets = Assets.from_index(self.config.asset_index)
        return self._assets

    def measure_memory(self, request: MeasureMemory) -> MemoryReport:
        """Measure memory costs. Raises WhichlayersError if a single trial does not fit."""
        if self.memory_hook is None:
            return MemoryReport([None] * len(request.trials), None)
        return self.memory_hook(request, self)

    def measure_time(self, request: MeasureTime) -> TimeReport:
        """Time a few steps of some stacks."""
        if self.time_hook is None:
            return TimeReport([None] * len(request.stacks), 0.0, self.config.device)
        return self.time_hook(request, self)

    def run(self, stack: Stack, emit: Emit) -> None:
        """Run a stack; exceptions are reported as `StackFailed` events."""
        last_event, steps, restored = 0.0, 0, 0
        handler = WarningHandler(emit)
        reported: list[str] = []

        def report_results(results: list[TrialResultLike]) -> None:
            reported.extend(result.trial_id for result in results)
            emit(TrialsDone(stack.number, results))

        self.report_results = report_results

        def on_epoch(trial_id: str, epoch: EpochLike) -> None:
            emit(EpochDone(trial_id, epoch))

        def on_steps(more: int) -> None:
            nonlocal last_event, steps
            steps += more
            if (now := time.monotonic()) - last_event >= PROGRESS_SECONDS:
                last_event = now
                emit(StepsDone(stack.number, steps, restored))

        def report_restored(more: int) -> None:
            nonlocal last_event, restored
            restored += more
            last_event = 0.0  # emit at once
            on_steps(more)

        self.report_restored = report_restored

        logging.getLogger("whichlayers").addHandler(handler)
        try:
            results = self.engine(stack, self, on_epoch=on_epoch, on_steps=on_steps)
            if sorted([*reported, *(result.trial_id for result in results)]) != sorted(stack.trial_ids):
                raise RuntimeError("the engine did not return one result for each trial of the stack")
        except Exception as error:
            end: WorkerEvent = StackFailed(stack.number, error_text(error), is_out_of_memory(error))
        else:
            end = StackDone(stack.number, results)
        finally:
            logging.getLogger("whichlayers").removeHandler(handler)
        release_memory()  # after the except block: an exception keeps the tensors of its stack alive
        emit(end)


class WarningHandler(logging.Handler):
    """Sends logged warnings to the scheduler as `WorkerNote` events."""

    def __init__(self, send: Emit) -> None:
        super().__init__(logging.WARNING)
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        self.send(WorkerNote(record.getMessage()))


def train_stack(
    stack: Stack, runner: TrialRunner, on_epoch: OnEpoch, on_steps: OnSteps
) -> list[TrialResultLike]:
    """The default engine: finetunes the models of a stack, or runs its probes."""
    import torch

    from whichlayers.engine.cuda_graphs import warm_up_compiler
    from whichlayers.engine.finetune import finetune
    from whichlayers.engine.results import EngineSettings

    config, trials = runner.config, stack.trials
    torch.set_num_threads(config.threads)
    if trials[0].word_probe is not None:
        from whichlayers.runs.word_trials import run_word_stack

        return run_word_stack(stack, runner, on_steps)
    if config.device.startswith("cuda") and trials[0].probe is None:
        warm_up_compiler()  # in the background while the model and the data are loaded
    encoder = runner.assets.encoder(trials[0])
    data = runner.assets.data(trials[0])
    if trials[0].probe is not None:
        from whichlayers.probes.sentence_probe import run_probes

        cache = runner.assets.index.cache
        return list(
            run_probes(
                trials,
                encoder,
                data,
                device=config.device,
                cache=cache and cache / "features",
                on_epoch=on_epoch,
                on_step=on_steps,
            )
        )
    settings = EngineSettings(
        slots=stack.slots,
        similar_stacks=stack.similar_stacks,
        checkpoint_folder=config.checkpoints,
        checkpoint_seconds=config.checkpoint_seconds,
        keep_checkpoint=True,  # the scheduler deletes it when the results are in results.db
    )
    return list(
        finetune(
            trials,
            encoder,
            data,
            device=config.device,
            on_epoch=on_epoch,
            on_step=on_steps,
            on_restored=runner.report_restored,
            settings=settings,
        )
    )


def train_stack_memory(request: MeasureMemory, runner: TrialRunner) -> MemoryReport:
    """Memory costs of the default engine, from one step of a stack of one trial and of two trials."""
    import torch

    from whichlayers.engine.memory import free_memory, measure_memory

    torch.set_num_threads(runner.config.threads)
    device, costs = runner.config.device, list[MemoryCost | None]()
    for trial in request.trials:
        if trial.word_probe is not None:
            trial = dataclasses.replace(trial, word_probe=None)
        if trial.probe is not None or not trial.train_size:  # probes: memory does not depend on their number
            costs.append(None)
            continue
        encoder, data = runner.assets.encoder(trial), runner.assets.data(trial)
        encoder.to(device)  # type: ignore[arg-type]
        free = free_memory(device)
        try:
            costs.append(measure_memory([trial], encoder, data, device, free=free, limit=request.max_stack))
        except WhichlayersError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise out_of_memory_error(None, free or 0, trial, device) from None
            # training will raise the same error for the trials concerned
            log.warning("could not measure the memory of %s on %s: %s", trial.model, trial.task, error)
            costs.append(None)
    free_bytes = [free for name in request.devices or (device,) if (free := free_memory(name)) is not None]
    return MemoryReport(costs, min(free_bytes, default=None))


def train_stack_time(request: MeasureTime, runner: TrialRunner) -> TimeReport:
    """Timings of the default engine, one stack after another until the time is used up."""
    import torch

    from whichlayers.engine.results import EngineSettings
    from whichlayers.engine.timing import measure_timing
    from whichlayers.probes.timing import measure_probe_timing

    config, assets = runner.config, runner.assets
    torch.set_num_threads(config.threads)
    timings, loading, seen = list[StackTiming | None](), 0.0, set[tuple[str, bool]]()
    deadline = time.monotonic() + request.seconds
    for left, stack in zip(range(len(request.stacks), 0, -1), request.stacks, strict=True):
        trial, remaining = stack.trials[0], deadline - time.monotonic()
        if trial.word_probe is not None:
            try:
                from whichlayers.runs.word_trials import time_word_stack

                timings.append(time_word_stack(stack, runner, max(0.0, remaining) / left))
            except Exception as error:
                log.warning("could not time the word probes of %s: %s", trial.model, error)
                timings.append(None)
            release_memory()
            continue
        kind = (trial.model_fingerprint, trial.probe is None)
        if remaining < 0 and kind in seen:
            timings.append(None)
            continue
        seen.add(kind)
        began = time.monotonic()
        encoder, data = assets.encoder(trial), assets.data(trial)
        loading += time.monotonic() - began
        try:
            if trial.probe is not None:
                timing = measure_probe_timing(stack.trials, encoder, data, config.device)
            else:
                settings = EngineSettings(slots=stack.slots, similar_stacks=stack.similar_stacks)
                timing = measure_timing(
                    stack.trials, encoder, data, config.device, settings, max(0.0, remaining) / left
                )
            timings.append(timing)
        except Exception as error:  # training will raise the same error for the trials concerned
            log.warning("could not time %s on %s: %s", trial.model, trial.task, error)
            timings.append(None)
        release_memory()
    on_cuda = config.device.startswith("cuda")
    return TimeReport(
        timings, loading, torch.cuda.get_device_name(config.device) if on_cuda else config.device
    )


def error_text(error: BaseException) -> str:
    """The error in one line, followed by the end of its traceback unless it is a WhichlayersError."""
    if isinstance(error, WhichlayersError):
        return str(error)
    first = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    tail = "".join(traceback.format_exception(error)).strip().splitlines()[-TRACEBACK_LINES:]
    return "\n".join([first, "", *tail])


def main(descriptor: int) -> None:
    """The main function of a worker process; `descriptor` is its end of the socket."""
    faulthandler.enable()
    serve(Connection(descriptor), on_close=lambda: os._exit(0))


def serve(connection: Connection, on_close: Callable[[], Any]) -> None:
    """Process requests until the connection closes.

    The first message is a `WorkerConfig`; each further one is a `Stack`, a `MeasureMemory` or a `MeasureTime`.

    Args:
        connection: To the main process.
        on_close: Called by the reading thread when the connection closes.
    """
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                requests.put(connection.recv())
        except (EOFError, OSError):
            requests.put(None)
            on_close()

    threading.Thread(target=listen, daemon=True).start()
    config = requests.get()
    if config is None:
        return
    runner = TrialRunner(config)
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
        else:
            runner.run(request, connection.send)
