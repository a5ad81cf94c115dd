"""Prepare the next stack while the current one trains: its model, its data and its compiled code.

A background thread loads model and data into host memory. It never uses the GPU: no other thread may while a CUDA graph
is captured. Code is compiled in a process of its own, if the GPU has memory to spare.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from whichlayers.engine.settings import EngineSettings
from whichlayers.runs.handlers import Handlers, WorkerContext
from whichlayers.runs.plan import Stack

if TYPE_CHECKING:
    from whichlayers.engine.compile_ahead import CompileProcess

MAX_HOST_FRACTION = 0.25  # of the free host memory, for the model; checkpoints need some of it as well
# Of the free GPU memory, for compiling. It is measured after the first step of the running stack, which will take more
# for CUDA graphs and evaluation.
MAX_DEVICE_FRACTION = 0.3
MAX_COMPILE_SECONDS = 120.0

log = logging.getLogger(__name__)


class Preloader:
    """Prepares one stack at a time.

    Args:
        handlers: Load models and data.
        context: Where these are kept.
    """

    def __init__(self, handlers: Handlers, context: WorkerContext) -> None:
        self.handlers, self.context = handlers, context
        self.thread: threading.Thread | None = None
        self.process: CompileProcess | None = None

    def start(self, stack: Stack) -> None:
        """Begin to prepare a stack; called between two training steps, after `wait`."""
        from whichlayers.engine.free_memory import free_memory

        free = (free_memory("cpu"), free_memory(self.context.device))
        self.thread = threading.Thread(target=self._run, args=(stack, *free), name="preload", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Return when nothing is being prepared."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def close(self) -> None:
        """Stop compiling and return when nothing is being prepared."""
        if (process := self.process) is not None:
            process.kill()
        self.wait()

    def _run(self, stack: Stack, free_host: int | None, free_device: int | None) -> None:
        trial = stack.trials[0]
        try:
            needed = self.context.assets.bytes_to_load(trial)
            if free_host is None or needed <= free_host * MAX_HOST_FRACTION:
                self.handlers[trial.kind].preload(stack.trials, self.context)
                self._compile(stack, free_device)
        except Exception as error:  # it is raised again when the stack runs, and reported for its trials
            log.debug("could not prepare the next stack: %s", error)

    def _compile(self, stack: Stack, free_device: int | None) -> None:
        from whichlayers.engine.compile_ahead import CompileProcess

        settings = EngineSettings(slots=stack.slots, similar_stacks=stack.similar_stacks)
        job = self.handlers[stack.trials[0].kind].plan_compile_job(stack.trials, self.context, settings)
        if job is None or job.device_bytes > MAX_DEVICE_FRACTION * (free_device or 0):
            return
        self.process = CompileProcess(job)
        status = self.process.wait(MAX_COMPILE_SECONDS)
        self.process = None
        log.debug("compiled the layers of the next stack: exit status %d", status)
