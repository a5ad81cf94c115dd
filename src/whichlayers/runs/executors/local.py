"""Who trains stacks, behind one small interface: this process, or N worker processes (ray_pool.py: a cluster).

Workers are plain `python -c` processes joined to the driver by one socket each, not multiprocessing's own:
a script that calls `whichlayers.run` then needs no `if __name__ == "__main__"`, a worker killed in the middle
of a message can jam no queue that others share, and a Ctrl-C at the terminal reaches the driver alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from whichlayers.errors import WhichlayersError
from whichlayers.runs.events import Emit, StackDone, StackFailed, StackLost, WorkerEvent
from whichlayers.runs.executors.worker import Measure, Ready, Room, Setup, Times, TimeStacks, Workplace
from whichlayers.runs.plan import SizeFor, Stack

if TYPE_CHECKING:
    from whichlayers.runs.assets import Subjects

PATIENCE = 0.5  # seconds between two looks when there is no news
DEATHS_IN_A_ROW = 10  # with no stack finished by any worker in between: it is the machine, not a trial
STILLBIRTHS_IN_A_ROW = 3
LOG_LINES_SHOWN = 12


@dataclass(frozen=True)
class Place:
    """A worker that is free."""

    number: int
    size_for: SizeFor | None = None  # trials of a kind that its own memory holds; None: as planned

    def most(self, stack: Stack) -> int:
        return stack.size if self.size_for is None else min(stack.size, self.size_for(stack.trials[0]))


class Executor(Protocol):
    @property
    def workers(self) -> int:
        """How many stacks may train at once."""

    def free(self) -> list[Place]: ...

    def start(self, stack: Stack, place: Place) -> None:
        """Begin a stack; its news go to the `emit` that the executor was made with."""

    def pump(self) -> None:
        """Wait a little for news and pass it on."""

    def close(self) -> None:
        """Stop everything at once; what was under way is lost."""


class InProcess:
    """Stacks train here, one after another: `start` returns when its stack has come to its end."""

    workers = 1

    def __init__(self, setup: Setup, emit: Emit, subjects: Subjects | None = None) -> None:
        self.workplace = Workplace(setup, subjects)
        self.emit = emit

    def free(self) -> list[Place]:
        return [Place(0)]

    def start(self, stack: Stack, place: Place) -> None:
        self.workplace.run(stack, self.emit)

    def pump(self) -> None:
        pass

    def close(self) -> None:
        pass


class Worker:
    """A worker process as the driver sees it."""

    def __init__(self, setup: Setup, log: Path) -> None:
        self.log = log
        self.stack: Stack | None = None
        self.ready = False
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r};"
            f" from whichlayers.runs.executors.worker import main; main({theirs.fileno()})"
        )
        threads = str(setup.threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment.setdefault("TOKENIZERS_PARALLELISM", "false")
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that Ctrl-C at the terminal reaches the driver alone
                env=environment,
            )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.send(setup)

    def send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it has died: reading from it will tell
            self.connection.send(message)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").strip().splitlines()[-LOG_LINES_SHOWN:])

    def how_it_died(self) -> str:
        """In words, after its end of the socket has closed."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code == -signal.SIGKILL:
            cause = "was killed (signal 9): most often the system ran out of memory"
        elif code < 0:
            cause = f"was ended by {signal.Signals(-code).name}"
        else:
            cause = f"ended with exit code {code}"
        return f"the worker process {cause}"


def measured_elsewhere(setups: Sequence[Setup], order: Measure, logs: Path) -> list[Room]:
    """Measure in processes of their own: what they took of their devices is free again when they end."""
    answers = asked_elsewhere(setups, order, logs, "measured what a trial takes")
    return [answer for answer in answers if isinstance(answer, Room)]


def asked_elsewhere(
    setups: Sequence[Setup], order: Measure | TimeStacks, logs: Path, what: str
) -> list[Room | Times]:
    """The answers of processes that each get the order, all at the same time, and end when they answered."""
    logs.mkdir(parents=True, exist_ok=True)
    workers: list[Worker] = []
    answers: list[Room | Times] = []
    try:
        for place, setup in enumerate(setups):
            workers.append(Worker(setup, logs / f"measure-{place + 1}.log"))
            workers[-1].send(order)
        for worker in workers:
            try:
                while isinstance(answer := worker.connection.recv(), Ready):
                    pass
            except (EOFError, OSError):
                raise WhichlayersError(
                    f"while it {what}, {worker.how_it_died()}\n{worker.last_words()}"
                ) from None
            if isinstance(answer, WhichlayersError):
                raise answer
            answers.append(answer)
    finally:
        for worker in workers:
            worker.kill()
    return answers


class WorkerPool:
    """Stacks train in worker processes, which start when they are first needed and are kept."""

    def __init__(
        self, setups: list[Setup], emit: Emit, logs: Path, sizes: Sequence[SizeFor] | None = None
    ) -> None:
        """`sizes`: of the stacks that each one's memory holds, where their devices differ."""
        self.setups = setups
        self.sizes = sizes
        self.emit = emit
        self.logs = logs
        self.running: dict[int, Worker] = {}  # by place; a place is empty until used, and after a death
        self.deaths_in_a_row = 0
        self.stillbirths_in_a_row = 0
        logs.mkdir(parents=True, exist_ok=True)

    @property
    def workers(self) -> int:
        return len(self.setups)

    def free(self) -> list[Place]:
        """Those that have started before the others: they have their model already."""
        idle = [number for number, worker in self.running.items() if worker.stack is None]
        vacant = [number for number in range(len(self.setups)) if number not in self.running]
        return [Place(number, self.sizes[number] if self.sizes else None) for number in idle + vacant]

    def start(self, stack: Stack, place: Place) -> None:
        self._start_at(place.number, stack)

    def _start_at(self, place: int, stack: Stack) -> None:
        if place not in self.running:
            self.running[place] = Worker(self.setups[place], self.logs / f"worker-{place + 1}.log")
        worker = self.running[place]
        worker.stack = stack
        worker.send(stack)

    def pump(self) -> None:
        busy = {worker.connection: place for place, worker in self.running.items()}
        for connection in wait(list(busy), timeout=PATIENCE):
            assert isinstance(connection, Connection)
            self._read(busy[connection])

    def _read(self, place: int) -> None:
        worker = self.running[place]
        try:
            news: WorkerEvent | Ready = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(place)
            return
        if isinstance(news, Ready):
            worker.ready = True
            self.stillbirths_in_a_row = 0
            return
        if isinstance(news, StackDone | StackFailed):
            worker.stack = None
            self.deaths_in_a_row = 0
        self.emit(news)

    def _bury(self, place: int) -> None:
        worker = self.running.pop(place)
        reason, log = worker.how_it_died(), worker.last_words()
        worker.connection.close()
        if not worker.ready:
            self._start_again(place, worker.stack, f"{reason}\n{log}")
            return
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row >= DEATHS_IN_A_ROW:
            raise WhichlayersError(
                f"{self.deaths_in_a_row} worker processes in a row died and no stack came to its end between;"
                f" the study is stopped and nothing is lost. The last one: {reason}\n{log}\n"
                "Try fewer workers (--workers), a smaller --max-stack, or --workers 0 to run in one process"
            )
        if worker.stack is not None:
            self.emit(StackLost(worker.stack.number, reason, log))

    def _start_again(self, place: int, stack: Stack | None, reason: str) -> None:
        """Its stack has no part in the death of a worker that never got ready."""
        self.stillbirths_in_a_row += 1
        if self.stillbirths_in_a_row >= STILLBIRTHS_IN_A_ROW:
            raise WhichlayersError(
                f"worker processes cannot start here: {reason}\nUse --workers 0 to run in one process"
            )
        if stack is not None:
            self._start_at(place, stack)

    def close(self) -> None:
        for worker in self.running.values():
            worker.kill()
        self.running.clear()
