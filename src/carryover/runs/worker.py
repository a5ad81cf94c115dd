"""Where stacks train: in this process, or in a worker process that takes orders through a socket.

A worker's reading thread waits on that socket. When the driver is gone, however it went, the socket closes
and the worker ends at once: nothing trains for nobody.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carryover.runs.events import Emit, EpochDone, StackDone, StackFailed, StepsDone
from carryover.runs.plan import Stack
from carryover.runs.rows import Epoch, Outcome
from carryover.trial import CarryoverError, Trial

if TYPE_CHECKING:
    from carryover.runs.subjects import Catalogue, Subjects

TRACEBACK_LINES = 30
SECONDS_BETWEEN_NEWS = 0.25
DEFAULT_ENGINE = "carryover.runs.worker:train_stack"

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


@dataclass(frozen=True)
class Ready:
    """A worker's first word: it has started and waits for stacks."""


class Workplace:
    """One process's engine and subjects, loaded once and kept."""

    def __init__(self, setup: Setup, subjects: Subjects | None = None) -> None:
        module, _, function = setup.engine.partition(":")
        self.setup = setup
        self.engine: Callable[..., list[Any]] = getattr(importlib.import_module(module), function)
        self._subjects = subjects

    @property
    def subjects(self) -> Subjects:
        if self._subjects is None:
            from carryover.runs.subjects import Subjects

            assert self.setup.catalogue is not None
            self._subjects = Subjects.from_catalogue(self.setup.catalogue)
        return self._subjects

    def run(self, stack: Stack, emit: Emit) -> None:
        """Train a stack; whatever goes wrong is news, not an exception."""
        told, steps = 0.0, 0

        def on_epoch(trial_id: str, epoch: Epoch) -> None:
            emit(EpochDone(trial_id, epoch))

        def on_steps(more: int) -> None:
            nonlocal told, steps
            steps += more
            if (now := time.monotonic()) - told >= SECONDS_BETWEEN_NEWS:
                told = now
                emit(StepsDone(stack.number, steps))

        try:
            outcomes = self.engine(stack.trials, self, on_epoch=on_epoch, on_steps=on_steps)
            if sorted(o.trial_id for o in outcomes) != sorted(stack.trial_ids):
                raise RuntimeError("the engine did not give one outcome for each trial of the stack")
        except Exception as error:
            emit(StackFailed(stack.number, error_text(error)))
        else:
            emit(StackDone(stack.number, outcomes))


def train_stack(
    trials: Sequence[Trial], workplace: Workplace, on_epoch: OnEpoch, on_steps: OnSteps
) -> list[Outcome]:
    """The real engine: the stack's encoder and data, then finetuning."""
    import torch

    from carryover.engine.finetune import finetune
    from carryover.engine.outcome import EngineSettings

    torch.set_num_threads(workplace.setup.threads)
    encoder = workplace.subjects.encoder(trials[0])
    data = workplace.subjects.data(trials[0])
    settings = EngineSettings(checkpoint_folder=workplace.setup.checkpoints)
    return list(
        finetune(
            trials,
            encoder,
            data,
            device=workplace.setup.device,
            on_epoch=on_epoch,
            on_step=on_steps,
            settings=settings,
        )
    )


def error_text(error: BaseException) -> str:
    """First what it was, in one line, then the end of the traceback; an error meant for users needs none."""
    if isinstance(error, CarryoverError):
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
    while (stack := orders.get()) is not None:
        workplace.run(stack, connection.send)
