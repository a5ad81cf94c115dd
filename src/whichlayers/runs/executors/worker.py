"""Where stacks train: in this process, or in a worker process that takes orders through a socket.

A worker's reading thread waits on that socket. When the driver is gone, however it went, the socket closes
and the worker ends at once: nothing trains for nobody.
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

from whichlayers.engine.cost import Need, Pace, does_not_fit, is_out_of_memory, release
from whichlayers.errors import WhichlayersError
from whichlayers.results.records import Epoch, Outcome
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
    from whichlayers.runs.assets import Catalogue, Subjects

TRACEBACK_LINES = 30
SECONDS_BETWEEN_NEWS = 0.25
DEFAULT_ENGINE = "whichlayers.runs.executors.worker:train_stack"

log = logging.getLogger(__name__)

OnEpoch = Callable[[str, Epoch], None]
OnSteps = Callable[[int], None]  # how many more trial-steps are done


@dataclass(frozen=True)
class Setup:
    """All a process needs to train stacks; small, and made of plain values, so that it can be sent to one."""

    engine: str  # "module:function"; the tests put a stand-in here
    device: str
    threads: int
    catalogue: Catalogue | None = None
    checkpoints: Path | None = None  # where long stacks are saved while they train; None: nowhere
    checkpoint_seconds: float = 300.0
    encoders: Path | None = None  # where finetuned models wait for questions about words; None: in memory


@dataclass(frozen=True)
class Ready:
    """A worker's first word: it has started and waits for stacks."""


@dataclass(frozen=True)
class Measure:
    """An order: what does a trial of each of these kinds take, and what is free?"""

    kinds: list[Trial]
    devices: tuple[str, ...]  # none named: the worker's own
    most: int  # trials that shall share a stack


@dataclass(frozen=True)
class Room:
    """The answer: bytes; None where nothing is known."""

    needs: list[Need | None]
    free: int | None  # on the device that has the least


@dataclass(frozen=True)
class TimeStacks:
    """An order: how long do stacks like these take?"""

    stacks: list[Stack]
    seconds: float  # to find it out, for all of them; the first of each model is timed in any case


@dataclass(frozen=True)
class Times:
    """The answer; None for a stack that was not timed."""

    paces: list[Pace | None]
    loading: float  # seconds that models and data took, once a process
    device: str  # what kind it is, in words


class Workplace:
    """One process's engine and subjects, loaded once and kept."""

    def __init__(self, setup: Setup, subjects: Subjects | None = None) -> None:
        module, _, function = setup.engine.partition(":")
        home = importlib.import_module(module)
        self.setup = setup
        self.engine: Callable[..., list[Any]] = getattr(home, function)
        self.room: Callable[..., Room] | None = getattr(home, f"{function}_room", None)
        self.times: Callable[..., Times] | None = getattr(home, f"{function}_times", None)
        self._subjects = subjects
        self.hand_in: Callable[[list[Any]], None] = lambda outcomes: None  # outcomes of a stack that goes on
        self.found_done: OnSteps = lambda steps: None  # trial-steps that an earlier run did

    @property
    def subjects(self) -> Subjects:
        if self._subjects is None:
            from whichlayers.runs.assets import Subjects

            assert self.setup.catalogue is not None
            self._subjects = Subjects.from_catalogue(self.setup.catalogue)
        return self._subjects

    def measure(self, order: Measure) -> Room:
        """WhichlayersError if a trial does not even fit alone."""
        if self.room is None:
            return Room([None] * len(order.kinds), None)
        return self.room(order, self)

    def time(self, order: TimeStacks) -> Times:
        if self.times is None:
            return Times([None] * len(order.stacks), 0.0, self.setup.device)
        return self.times(order, self)

    def run(self, stack: Stack, emit: Emit) -> None:
        """Train a stack; whatever goes wrong is news, not an exception."""
        told, steps, restored = 0.0, 0, 0
        notes = Notes(emit)
        ended: list[str] = []

        def hand_in(outcomes: list[Outcome]) -> None:
            ended.extend(outcome.trial_id for outcome in outcomes)
            emit(TrialsDone(stack.number, outcomes))

        self.hand_in = hand_in

        def on_epoch(trial_id: str, epoch: Epoch) -> None:
            emit(EpochDone(trial_id, epoch))

        def on_steps(more: int) -> None:
            nonlocal told, steps
            steps += more
            if (now := time.monotonic()) - told >= SECONDS_BETWEEN_NEWS:
                told = now
                emit(StepsDone(stack.number, steps, restored))

        def found_done(more: int) -> None:
            nonlocal told, restored
            restored += more
            told = 0.0  # to be told at once
            on_steps(more)

        self.found_done = found_done

        logging.getLogger("whichlayers").addHandler(notes)
        try:
            outcomes = self.engine(stack, self, on_epoch=on_epoch, on_steps=on_steps)
            if sorted([*ended, *(o.trial_id for o in outcomes)]) != sorted(stack.trial_ids):
                raise RuntimeError("the engine did not give one outcome for each trial of the stack")
        except Exception as error:
            end: WorkerEvent = StackFailed(stack.number, error_text(error), is_out_of_memory(error))
        else:
            end = StackDone(stack.number, outcomes)
        finally:
            logging.getLogger("whichlayers").removeHandler(notes)
        release()  # not before, since an error holds the tensors of its stack
        emit(end)


class Notes(logging.Handler):
    """Passes the engine's warnings on to the driver."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.WARNING)
        self.pass_on = emit

    def emit(self, record: logging.LogRecord) -> None:
        self.pass_on(WorkerNote(record.getMessage()))


def train_stack(stack: Stack, workplace: Workplace, on_epoch: OnEpoch, on_steps: OnSteps) -> list[Outcome]:
    """The real engine: the stack's encoder and data, then finetuning, or probing of the frozen model."""
    import torch

    from whichlayers.engine.cuda_graphs import start_compiler
    from whichlayers.engine.finetune import finetune
    from whichlayers.engine.results import EngineSettings

    setup, trials = workplace.setup, stack.trials
    torch.set_num_threads(setup.threads)
    if trials[0].word_probe is not None:
        from whichlayers.runs.word_trials import answer_stack

        return answer_stack(stack, workplace, on_steps)
    if setup.device.startswith("cuda") and trials[0].probe is None:
        start_compiler()  # while model and data are read
    encoder = workplace.subjects.encoder(trials[0])
    data = workplace.subjects.data(trials[0])
    if trials[0].probe is not None:
        from whichlayers.probes.sentence_probe import run as run_probes

        cache = workplace.subjects.catalogue.cache
        return list(
            run_probes(
                trials,
                encoder,
                data,
                device=setup.device,
                cache=cache and cache / "features",
                on_epoch=on_epoch,
                on_step=on_steps,
            )
        )
    settings = EngineSettings(
        slots=stack.slots,
        alike=stack.alike,
        checkpoint_folder=setup.checkpoints,
        checkpoint_seconds=setup.checkpoint_seconds,
        keep_checkpoint=True,  # the driver deletes it when the outcomes are in results.db
    )
    return list(
        finetune(
            trials,
            encoder,
            data,
            device=setup.device,
            on_epoch=on_epoch,
            on_step=on_steps,
            on_restored=workplace.found_done,
            settings=settings,
        )
    )


def train_stack_room(order: Measure, workplace: Workplace) -> Room:
    """What the real engine takes: a step of one trial and of two, for each kind."""
    import torch

    from whichlayers.engine.memory import free_memory, measure

    torch.set_num_threads(workplace.setup.threads)
    device, needs = workplace.setup.device, list[Need | None]()
    for trial in order.kinds:
        if trial.word_probe is not None:
            trial = dataclasses.replace(trial, word_probe=None)
        if trial.probe is not None or not trial.train_size:  # the same few batches of states for all probes
            needs.append(None)
            continue
        encoder, data = workplace.subjects.encoder(trial), workplace.subjects.data(trial)
        encoder.to(device)  # type: ignore[arg-type]
        free = free_memory(device)
        try:
            needs.append(measure([trial], encoder, data, device, free=free, most=order.most))
        except WhichlayersError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise does_not_fit(None, free or 0, trial, device) from None
            # training will meet the same error and tell it of the trials concerned
            log.warning("what %s on %s takes could not be measured: %s", trial.model, trial.task, error)
            needs.append(None)
    found = [free for name in order.devices or (device,) if (free := free_memory(name)) is not None]
    return Room(needs, min(found, default=None))


def train_stack_times(order: TimeStacks, workplace: Workplace) -> Times:
    """How long the real engine takes, one stack after another while there is time."""
    import torch

    from whichlayers.engine.results import EngineSettings
    from whichlayers.engine.timing import measure_pace
    from whichlayers.probes.timing import measure_pace as measure_probes

    setup, subjects = workplace.setup, workplace.subjects
    torch.set_num_threads(setup.threads)
    paces, loading, seen = list[Pace | None](), 0.0, set[tuple[str, bool]]()
    deadline = time.monotonic() + order.seconds
    for left, stack in zip(range(len(order.stacks), 0, -1), order.stacks, strict=True):
        trial, remaining = stack.trials[0], deadline - time.monotonic()
        if trial.word_probe is not None:
            try:
                from whichlayers.runs.word_trials import pace_of_stack

                paces.append(pace_of_stack(stack, workplace, max(0.0, remaining) / left))
            except Exception as error:
                log.warning("questions about words could not be timed: %s", error)
                paces.append(None)
            release()
            continue
        sort = (trial.model_fingerprint, trial.probe is None)
        if remaining < 0 and sort in seen:
            paces.append(None)
            continue
        seen.add(sort)
        began = time.monotonic()
        encoder, data = subjects.encoder(trial), subjects.data(trial)
        loading += time.monotonic() - began
        try:
            if trial.probe is not None:
                pace = measure_probes(stack.trials, encoder, data, setup.device)
            else:
                settings = EngineSettings(slots=stack.slots, alike=stack.alike)
                pace = measure_pace(
                    stack.trials, encoder, data, setup.device, settings, max(0.0, remaining) / left
                )
            paces.append(pace)
        except Exception as error:  # training will meet it and tell it of the trials concerned
            log.warning("%s on %s could not be timed: %s", trial.model, trial.task, error)
            paces.append(None)
        release()
    on_cuda = setup.device.startswith("cuda")
    return Times(paces, loading, torch.cuda.get_device_name(setup.device) if on_cuda else setup.device)


def error_text(error: BaseException) -> str:
    """First what it was, in one line, then the end of the traceback; an error meant for users needs none."""
    if isinstance(error, WhichlayersError):
        return str(error)
    first = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    tail = "".join(traceback.format_exception(error)).strip().splitlines()[-TRACEBACK_LINES:]
    return "\n".join([first, "", *tail])


def main(descriptor: int) -> None:
    """A worker process, from its first line to its last."""
    faulthandler.enable()
    serve(Connection(descriptor), leave=lambda: os._exit(0))


def serve(connection: Connection, leave: Callable[[], Any]) -> None:
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                orders.put(connection.recv())
        except (EOFError, OSError):
            orders.put(None)
            leave()

    threading.Thread(target=listen, daemon=True).start()
    setup = orders.get()
    if setup is None:
        return
    workplace = Workplace(setup)
    connection.send(Ready())
    while (order := orders.get()) is not None:
        if isinstance(order, Measure | TimeStacks):
            try:
                known = workplace.measure(order) if isinstance(order, Measure) else workplace.time(order)
                connection.send(known)
            except WhichlayersError as error:
                connection.send(error)
        else:
            workplace.run(order, connection.send)
