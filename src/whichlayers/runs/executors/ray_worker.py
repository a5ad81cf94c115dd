"""A worker on a Ray cluster: an actor that runs stacks in a thread and is polled for events."""

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
from whichlayers.runs.events import StackDone, WorkerEvent, error_text
from whichlayers.runs.executors.transfer import AssetBundle, RemoteAssets
from whichlayers.runs.executors.worker import MeasureMemory, MemoryReport, TrialRunner, WorkerConfig
from whichlayers.runs.plan import Stack


@dataclass(frozen=True)
class WorkerInfo:
    """Where an actor runs, its software versions, and its memory."""

    node: str
    host: str
    pid: int
    device: str  # with its hardware name
    versions: dict[str, str]
    memory: MemoryReport
    memory_error: str | None = None  # why memory could not be measured; the trials concerned will fail later


def scratch_folder(run_key: str) -> Path:
    """The folder of a study on this machine's own disk; the same when the study is resumed."""
    return Path(tempfile.gettempdir()) / f"whichlayers-{os.getuid()}" / run_key


class RayWorker:
    """The actor.

    Args:
        config: If it has `checkpoint_seconds` but no folder for checkpoints, they are written to the local disk.
        bundle: Models and data; None if the handlers need none.
        run_key: Identifies the study folder.
    """

    def __init__(self, config: WorkerConfig, bundle: AssetBundle | None, run_key: str) -> None:
        import ray

        self.scratch = scratch_folder(run_key)
        self.local_checkpoints = config.checkpoints is None and config.checkpoint_seconds > 0
        if self.local_checkpoints:
            config = dataclasses.replace(
                config, checkpoints=self.scratch / "checkpoints", finetuned_models=self.scratch / "encoders"
            )
        assets = None if bundle is None else RemoteAssets(bundle, ray.get, self.scratch)
        self.runner = TrialRunner(config, assets)
        self.events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self.finished: Stack | None = None  # the last finished stack, whose checkpoint is still there
        self.stack: Stack | None = None

    def join(self, request: MeasureMemory) -> WorkerInfo:
        """Measure memory and describe this worker."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        device = machine.device_name(self.runner.config.device)
        memory, memory_error = MemoryReport([None] * len(request.trials), None), None
        try:
            memory = self.runner.measure_memory(request)
        except Exception as error:
            memory_error = error_text(error)
        versions = machine.versions()
        return WorkerInfo(node, socket.gethostname(), os.getpid(), device, versions, memory, memory_error)

    def start(self, stack: Stack) -> None:
        """Start a stack; called after the results of the previous one are in results.db."""
        self._delete_checkpoint()
        self.stack = stack
        threading.Thread(target=self.runner.run, args=(stack, self.events.put), daemon=True).start()

    def poll(self, timeout: float) -> list[WorkerEvent]:
        """All pending events; waits up to `timeout` seconds for the first one."""
        events: list[WorkerEvent] = []
        with contextlib.suppress(queue.Empty):
            events.append(self.events.get(timeout=timeout))
            while True:
                events.append(self.events.get_nowait())
        if any(isinstance(event, StackDone) for event in events):
            self.finished = self.stack
        return events

    def _delete_checkpoint(self) -> None:
        if self.local_checkpoints and self.finished is not None:
            settings = EngineSettings(checkpoint_folder=self.runner.config.checkpoints)
            if (checkpoint := checkpoint_file(settings, self.finished.trials)) is not None:
                checkpoint.unlink(missing_ok=True)
        self.finished = None

    def clean_up(self) -> None:
        """Delete the local files of the study; called when it is complete."""
        shutil.rmtree(self.scratch, ignore_errors=True)
