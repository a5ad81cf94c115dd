"""Prepare the next stack in a background thread while the present one trains.

Only host memory is used. Other threads must not use the GPU while a CUDA graph is captured, and its memory belongs to
the stack that trains.
"""

from __future__ import annotations

import logging
import threading

from whichlayers.runs.handlers import Handlers, WorkerContext
from whichlayers.runs.plan import Stack

MAX_MEMORY_FRACTION = 0.25  # of the free host memory; checkpoints need some of it as well

log = logging.getLogger(__name__)


class Preloader:
    """Loads the model and the data of one stack at a time.

    Args:
        handlers: Load them.
        context: Where they are kept.
    """

    def __init__(self, handlers: Handlers, context: WorkerContext) -> None:
        self.handlers, self.context = handlers, context
        self.thread: threading.Thread | None = None

    def start(self, stack: Stack) -> None:
        """Begin to load; call `wait` before the next call."""
        self.thread = threading.Thread(target=self._load, args=(stack,), name="preload", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Return when nothing is being loaded."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def _load(self, stack: Stack) -> None:
        from whichlayers.engine.memory import free_memory

        trial = stack.trials[0]
        try:
            needed, free = self.context.assets.bytes_to_load(trial), free_memory("cpu")
            if free is None or needed <= free * MAX_MEMORY_FRACTION:
                self.handlers[trial.kind].preload(stack.trials, self.context)
        except Exception as error:  # it is raised again when the stack runs, and reported for its trials
            log.debug("could not prepare the next stack: %s", error)
