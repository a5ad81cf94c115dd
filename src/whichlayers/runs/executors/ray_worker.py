"""A worker on a Ray cluster: an actor that runs stacks in a thread and is polled for events.

Its machine does not need to share a disk with the main process. Each model and data set is put into Ray's object store
once and fetched once by each worker that needs it; a stack is then sent as its trials alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whichlayers.engine.settings import EngineSettings, checkpoint_file
from whichlayers.errors import WhichlayersError
from whichlayers.runs import machine
from whichlayers.runs.asset_index import AssetIndex
from whichlayers.runs.assets import Assets, DataKey, data_key
from whichlayers.runs.events import StackDone, WorkerEvent, error_text
from whichlayers.runs.executors.worker import MeasureMemory, MemoryReport, TrialRunner, WorkerConfig
from whichlayers.runs.handlers.finetuned_models import model_path
from whichlayers.runs.plan import Stack
from whichlayers.trial import Trial, WordProbe

if TYPE_CHECKING:
    from whichlayers.data.corpora import Corpus
    from whichlayers.data.tokenize import TokenizedTask
    from whichlayers.models.load import ModelFiles

SENT_SUFFIXES = {".json", ".txt", ".safetensors", ".model", ".jinja"}  # of the files of a model
Reference = Any  # to an object in the store
Put = Callable[[Any], Reference]
Get = Callable[[Reference], Any]


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


def local_study_folder(run_key: str) -> Path:
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

        self.scratch = local_study_folder(run_key)
        self.local_checkpoints = config.checkpoints is None and config.checkpoint_seconds > 0
        if self.local_checkpoints:
            config = dataclasses.replace(config, checkpoints=self.scratch / "checkpoints")
        # wherever checkpoints are, a resumed word probe needs its finetuned model
        config = dataclasses.replace(config, finetuned_models=self.scratch / "encoders")
        assets = None if bundle is None else RemoteAssets(bundle, ray.get, self.scratch)
        self.runner = TrialRunner(config, assets)
        self.events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self.finished: Stack | None = None  # the last finished stack, whose local files are still there
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

    def announce(self, stack: Stack) -> None:
        """`stack` will probably run after the one that is started next."""
        self.runner.upcoming = stack

    def start(self, stack: Stack) -> None:
        """Start a stack; called after the results of the previous one are in results.db."""
        self._delete_files_of_finished()
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

    def _delete_files_of_finished(self) -> None:
        """Delete the checkpoint and the finetuned models of the last finished stack from the local disk."""
        if self.finished is None:
            return
        config, stack = self.runner.config, self.finished
        if self.local_checkpoints:
            settings = EngineSettings(checkpoint_folder=config.checkpoints)
            if (checkpoint := checkpoint_file(settings, stack.trials)) is not None:
                checkpoint.unlink(missing_ok=True)
        if config.finetuned_models is not None:
            for finetuning in stack.handler.kept_models(stack.trials):
                model_path(config.finetuned_models, finetuning).unlink(missing_ok=True)
        self.finished = None

    def clean_up(self) -> None:
        """Delete the local files of the study; called when it is complete."""
        shutil.rmtree(self.scratch, ignore_errors=True)


# --- models and data ---


@dataclass(frozen=True)
class AssetBundle:
    """References to all models and data of a study in the object store."""

    files: dict[str, ModelFiles] = field(default_factory=dict)  # by model fingerprint
    # to the contents of a model's files by name, by model fingerprint
    models: dict[str, Reference] = field(default_factory=dict)
    data: dict[DataKey, Reference] = field(default_factory=dict)  # to tokenized tasks, by `data_key`
    corpora: dict[str, Reference] = field(default_factory=dict)  # by corpus fingerprint


def bundle_assets(assets: Assets, put: Put) -> AssetBundle:
    """Put everything that `assets.check` has loaded into the object store, one model at a time to save memory."""
    files = dict(assets.index.models)
    return AssetBundle(
        files,
        {fingerprint: put(_read_files(model)) for fingerprint, model in files.items()},
        {key: put(task) for key, task in assets.tokenized_tasks().items()},
        {fingerprint: put(corpus) for fingerprint, corpus in assets.loaded_corpora().items()},
    )


def _read_files(files: ModelFiles) -> dict[str, np.ndarray]:
    """The contents (uint8) of the files of a model by name."""
    suffixes = SENT_SUFFIXES | ({".bin"} if files.allow_pickle else set())
    return {
        file.name: np.fromfile(file, np.uint8)
        for file in sorted(files.folder.iterdir())
        if file.is_file() and file.suffix in suffixes
    }


class RemoteAssets(Assets):
    """Assets from a bundle, on a machine without the original files.

    Args:
        bundle: References to the models and data.
        get: Fetches an object from the store.
        scratch: Local folder for model files and the cache.
    """

    def __init__(self, bundle: AssetBundle, get: Get, scratch: Path) -> None:
        super().__init__(scratch / "cache")
        self.index = AssetIndex(scratch / "cache", dict(bundle.files))
        self.bundle, self.get, self.scratch = bundle, get, scratch
        self.verified: set[str] = set()  # fingerprints of models whose local files are complete

    def _model_files_of(self, trial: Trial) -> ModelFiles:
        files = self.bundle.files[trial.model_fingerprint]
        local = dataclasses.replace(files, folder=self.scratch / "models" / files.fingerprint)
        if files.fingerprint not in self.verified:
            if not _is_complete(local):
                shutil.rmtree(local.folder, ignore_errors=True)
                _write_files(self.get(self.bundle.models[files.fingerprint]), local.folder)
            if not _is_complete(local):
                raise WhichlayersError(
                    f"the files of model {files.name} in {local.folder} are damaged: check the free disk space there"
                )
            self.verified.add(files.fingerprint)
        return local

    def data(self, trial: Trial) -> TokenizedTask:
        key = data_key(trial)
        with self._lock:
            if key not in self._data:
                self._data[key] = self.get(self.bundle.data[key])
            return self._data[key]

    def corpus(self, word_probe: WordProbe) -> Corpus:
        fingerprint = word_probe.fingerprint
        with self._lock:
            if fingerprint not in self._corpora:
                self._corpora[fingerprint] = self.get(self.bundle.corpora[fingerprint])
            return self._corpora[fingerprint]


def _is_complete(files: ModelFiles) -> bool:
    """Whether the files have the expected fingerprint."""
    from whichlayers.models.find import hash_model_files

    try:
        return hash_model_files(files.folder, files.allow_pickle) == files.fingerprint
    except (WhichlayersError, OSError):
        return False


def _write_files(files: dict[str, np.ndarray], folder: Path) -> None:
    """Write a folder atomically; if two workers write it at the same time, one of them succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as partial:
        inner = Path(partial) / "model"
        inner.mkdir()
        for name, content in files.items():
            content.tofile(inner / name)
        with contextlib.suppress(OSError):  # another worker was faster
            os.rename(inner, folder)
