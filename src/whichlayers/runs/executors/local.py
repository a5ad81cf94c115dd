"""Executors on this machine: in the main process, or in worker processes. `executors.ray` uses a cluster.

Worker processes are started as `python -c ...` and connected to the main process by one socket each, instead of by
multiprocessing. Thus a script that calls `whichlayers.run` needs no `if __name__ == "__main__"`, a worker that is
killed while it sends a message cannot block a queue shared with others, and Ctrl-C in a terminal only reaches the main
process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar

from whichlayers.errors import WhichlayersError
from whichlayers.runs.assets import Assets
from whichlayers.runs.events import Emit, StackDone, StackFailed, StackLost, WorkerEvent
from whichlayers.runs.executors.worker import (
    MeasureMemory,
    MeasureTime,
    TrialRunner,
    Upcoming,
    WorkerConfig,
    WorkerReady,
)
from whichlayers.runs.plan import Stack, StackSizeFn

Reply = TypeVar("Reply")

POLL_SECONDS = 0.5
# consecutive deaths of workers without a finished stack in between, after which the run stops
MAX_WORKER_DEATHS = 10
MAX_START_FAILURES = 3  # consecutive workers that died while starting, after which the run stops
LOG_TAIL_LINES = 12


@dataclass(frozen=True)
class FreeWorker:
    """A worker without a stack.

    Args:
        number: Identifies the worker within its executor.
        stack_size: The number of models that fit into this worker's memory; None: as planned.
    """

    number: int
    stack_size: StackSizeFn | None = None

    def max_models(self, stack: Stack) -> int:
        """The number of models of a stack that this worker can run together; 0 if none."""
        return stack.size if self.stack_size is None else min(stack.size, self.stack_size(stack.trials[0]))


class Executor(ABC):
    """Runs stacks on one or more workers and passes their events to `emit`, which the scheduler sets.

    Args:
        config: Of the first worker.
        workers: Number of stacks that can run at the same time.
    """

    def __init__(self, config: WorkerConfig, workers: int) -> None:
        self.config, self.workers = config, workers
        self.emit: Emit = lambda event: None

    @abstractmethod
    def free_workers(self) -> list[FreeWorker]:
        """The workers without a stack."""

    def announce(self, stack: Stack, worker: FreeWorker) -> None:  # noqa: B027
        """Tell a free worker which stack will probably follow the one that is started next."""

    @abstractmethod
    def start(self, stack: Stack, worker: FreeWorker) -> None:
        """Start a stack on a free worker."""

    def poll(self) -> None:  # noqa: B027
        """Wait briefly for events and pass them on."""

    def close(self) -> None:  # noqa: B027
        """Stop all workers at once; running stacks are lost."""

    def clean_up(self) -> None:  # noqa: B027
        """Delete the study's files on other machines; called when the study is complete."""


class InProcessExecutor(Executor):
    """Runs stacks in the main process, one after another: `start` returns when the stack has ended."""

    def __init__(self, config: WorkerConfig, assets: Assets | None = None) -> None:
        super().__init__(config, workers=1)
        self.runner = TrialRunner(config, assets)

    def free_workers(self) -> list[FreeWorker]:
        return [FreeWorker(0)]

    def announce(self, stack: Stack, worker: FreeWorker) -> None:
        self.runner.upcoming = stack

    def start(self, stack: Stack, worker: FreeWorker) -> None:
        self.runner.run(stack, self.emit)

    def close(self) -> None:
        self.runner.preloader.close()


class WorkerProcess:
    """A worker process and the connection to it.

    Args:
        config: Sent to the worker.
        log: File for its standard output and standard error.
    """

    def __init__(self, config: WorkerConfig, log: Path) -> None:
        self.log = log
        self.stack: Stack | None = None
        self.ready = False
        own_socket, worker_socket = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r};"
            f" from whichlayers.runs.executors.worker import main; main({worker_socket.fileno()})"
        )
        threads = str(config.threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment.setdefault("TOKENIZERS_PARALLELISM", "false")
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[worker_socket.fileno()],
                start_new_session=True,  # so that Ctrl-C in a terminal only reaches the main process
                env=environment,
            )
        worker_socket.close()
        self.connection = Connection(own_socket.detach())
        self.send(config)

    def send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the worker has died: reading from the connection will fail
            self.connection.send(message)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def log_tail(self) -> str:
        """The last lines of the worker's output."""
        return "\n".join(self.log.read_text(errors="replace").strip().splitlines()[-LOG_TAIL_LINES:])

    def exit_reason(self) -> str:
        """Why the process ended, as text; called after its end of the connection has closed."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code == -signal.SIGKILL:
            cause = "was killed (signal 9): most likely the system ran out of memory"
        elif code < 0:
            cause = f"was terminated by {signal.Signals(-code).name}"
        else:
            cause = f"ended with exit code {code}"
        return f"the worker process {cause}"


def run_in_subprocesses(
    configs: Sequence[WorkerConfig], request: MeasureMemory | MeasureTime, reply_type: type[Reply], logs: Path
) -> list[Reply]:
    """Send a request to one new process per config, all at the same time, and return their replies.

    The memory of their devices is free again afterwards.

    Args:
        configs: One for each process.
        request: The request.
        reply_type: The type of its replies.
        logs: Folder for the output of the processes.
    """
    logs.mkdir(parents=True, exist_ok=True)
    workers: list[WorkerProcess] = []
    replies: list[Reply] = []
    try:
        for place, config in enumerate(configs):
            workers.append(WorkerProcess(config, logs / f"measure-{place + 1}.log"))
            workers[-1].send(request)
        for worker in workers:
            try:
                while isinstance(reply := worker.connection.recv(), WorkerReady):
                    pass
            except (EOFError, OSError):
                raise WhichlayersError(
                    f"while {request.activity}, {worker.exit_reason()}\n{worker.log_tail()}"
                ) from None
            if isinstance(reply, WhichlayersError):
                raise reply
            assert isinstance(reply, reply_type)
            replies.append(reply)
    finally:
        for worker in workers:
            worker.kill()
    return replies


class ProcessExecutor(Executor):
    """Runs stacks in worker processes, which are started when first needed and reused.

    Args:
        configs: One for each worker.
        logs: Folder for the output of the workers.
        stack_sizes: The stack sizes that fit into the memory of each worker.
    """

    def __init__(self, configs: list[WorkerConfig], logs: Path, stack_sizes: Sequence[StackSizeFn]) -> None:
        super().__init__(configs[0], workers=len(configs))
        self.configs = configs
        self.stack_sizes = stack_sizes
        self.logs = logs
        # by worker number; a worker has no process before its first stack and after its process died
        self.processes: dict[int, WorkerProcess] = {}
        self.worker_deaths = 0  # consecutive
        self.start_failures = 0  # consecutive
        logs.mkdir(parents=True, exist_ok=True)

    def free_workers(self) -> list[FreeWorker]:
        """The free workers; first those that have been started, since they have loaded their model already."""
        idle = [number for number, process in self.processes.items() if process.stack is None]
        not_started = [number for number in range(len(self.configs)) if number not in self.processes]
        return [FreeWorker(number, self.stack_sizes[number]) for number in idle + not_started]

    def announce(self, stack: Stack, worker: FreeWorker) -> None:
        self._process(worker.number).send(Upcoming(stack))

    def start(self, stack: Stack, worker: FreeWorker) -> None:
        self._start_on(worker.number, stack)

    def _start_on(self, number: int, stack: Stack) -> None:
        process = self._process(number)
        process.stack = stack
        process.send(stack)

    def _process(self, number: int) -> WorkerProcess:
        """The process of a worker, which is started if there is none."""
        if number not in self.processes:
            log = self.logs / f"worker-{number + 1}.log"
            self.processes[number] = WorkerProcess(self.configs[number], log)
        return self.processes[number]

    def poll(self) -> None:
        numbers = {process.connection: number for number, process in self.processes.items()}
        for connection in wait(list(numbers), timeout=POLL_SECONDS):
            assert isinstance(connection, Connection)
            self._read(numbers[connection])

    def _read(self, number: int) -> None:
        """Receive one message of a worker and pass it on."""
        process = self.processes[number]
        try:
            message: WorkerEvent | WorkerReady = process.connection.recv()
        except (EOFError, OSError):
            self._handle_death(number)
            return
        if isinstance(message, WorkerReady):
            process.ready = True
            self.start_failures = 0
            return
        if isinstance(message, StackDone | StackFailed):
            process.stack = None
            self.worker_deaths = 0
        self.emit(message)

    def _handle_death(self, number: int) -> None:
        """Report the stack of a worker process that died; stop the run after many deaths in a row."""
        process = self.processes.pop(number)
        reason, log = process.exit_reason(), process.log_tail()
        process.connection.close()
        if not process.ready:
            self._handle_start_failure(number, process.stack, f"{reason}\n{log}")
            return
        self.worker_deaths += 1
        if self.worker_deaths >= MAX_WORKER_DEATHS:
            raise WhichlayersError(
                f"{self.worker_deaths} worker processes in a row died without finishing a stack; the run is stopped,"
                f" and finished trials are kept. Last error: {reason}\n{log}\n"
                "Try fewer workers (--workers), a smaller --max-stack, or --workers 0 to run in one process"
            )
        if process.stack is not None:
            self.emit(StackLost(process.stack.number, reason, log))

    def _handle_start_failure(self, number: int, stack: Stack | None, reason: str) -> None:
        """Start the worker again; its stack is not the cause, since the worker was not ready yet."""
        self.start_failures += 1
        if self.start_failures >= MAX_START_FAILURES:
            raise WhichlayersError(
                f"worker processes cannot start: {reason}\nUse --workers 0 to run in one process"
            )
        if stack is not None:
            self._start_on(number, stack)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.processes.clear()
