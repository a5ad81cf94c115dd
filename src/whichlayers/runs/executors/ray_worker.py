"""A worker on a Ray cluster: an actor that trains stacks in a thread and is asked for its news."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import shutil
import socket
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from whichlayers.engine.results import EngineSettings, checkpoint_file
from whichlayers.runs import machine
from whichlayers.runs.events import StackDone, WorkerEvent
from whichlayers.runs.executors.transfer import Parcel, SentSubjects
from whichlayers.runs.executors.worker import Measure, Room, Setup, Workplace, error_text
from whichlayers.runs.plan import Stack


@dataclass(frozen=True)
class Joined:
    """An actor's first word: where it runs, and what its memory holds."""

    node: str
    host: str
    pid: int
    device: str  # in words
    versions: dict[str, str]
    room: Room
    trouble: str | None = (
        None  # why nothing could be measured; training will meet it again and tell whose it is
    )


def scratch_folder(run_key: str) -> Path:
    """Of one study on this machine's own disk; the same when the study goes on later."""
    return Path(tempfile.gettempdir()) / f"whichlayers-{os.getuid()}" / run_key


class RayWorker:
    """`setup.checkpoints` None with `setup.checkpoint_seconds`: they go to this machine's own disk."""

    def __init__(self, setup: Setup, parcel: Parcel | None, run_key: str) -> None:
        import ray

        self.scratch = scratch_folder(run_key)
        self.own_checkpoints = setup.checkpoints is None and setup.checkpoint_seconds > 0
        if self.own_checkpoints:
            setup = dataclasses.replace(
                setup, checkpoints=self.scratch / "checkpoints", encoders=self.scratch / "encoders"
            )
        subjects = None if parcel is None else SentSubjects(parcel, ray.get, self.scratch)
        self.workplace = Workplace(setup, subjects)
        self.mail: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self.done: Stack | None = None  # it came to its end, and its checkpoint is still there
        self.stack: Stack | None = None

    def join(self, order: Measure) -> Joined:
        import ray

        node = ray.get_runtime_context().get_node_id()
        device = machine.device_name(self.workplace.setup.device)
        room, trouble = Room([None] * len(order.kinds), None), None
        try:
            room = self.workplace.measure(order)
        except Exception as error:
            trouble = error_text(error)
        return Joined(node, socket.gethostname(), os.getpid(), device, machine.versions(), room, trouble)

    def begin(self, stack: Stack) -> None:
        """A new stack is sent only when the outcomes of the one before are in results.db."""
        self._forget()
        self.stack = stack
        threading.Thread(target=self.workplace.run, args=(stack, self.mail.put), daemon=True).start()

    def news(self, patience: float) -> list[WorkerEvent]:
        """All there is, after waiting for the first."""
        found: list[WorkerEvent] = []
        with contextlib.suppress(queue.Empty):
            found.append(self.mail.get(timeout=patience))
            while True:
                found.append(self.mail.get_nowait())
        if any(isinstance(event, StackDone) for event in found):
            self.done = self.stack
        return found

    def _forget(self) -> None:
        if self.own_checkpoints and self.done is not None:
            settings = EngineSettings(checkpoint_folder=self.workplace.setup.checkpoints)
            if (saved := checkpoint_file(settings, self.done.trials)) is not None:
                saved.unlink(missing_ok=True)
        self.done = None

    def clean(self) -> None:
        """The study is complete: nothing of it is needed here any more."""
        shutil.rmtree(self.scratch, ignore_errors=True)
