"""A study's models and data as values that can be sent to machines which share no disk with this one.

Each is put into a store once (Ray's object store) and fetched once by each worker that needs it; a stack then
travels as its trials alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whichlayers.errors import WhichlayersError
from whichlayers.runs.assets import Catalogue, Subjects
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.data.corpora import Corpus
    from whichlayers.data.tokenize import TokenisedTask
    from whichlayers.models.load import ModelFiles

SENT = {".json", ".txt", ".safetensors", ".model", ".jinja"}  # suffixes of a model's files that are sent
Reference = Any  # to something in the store
Put = Callable[[Any], Reference]
Get = Callable[[Reference], Any]


@dataclass(frozen=True)
class Parcel:
    """References, by what a trial says of its model, task and corpus."""

    files: dict[str, ModelFiles] = field(default_factory=dict)
    models: dict[str, Reference] = field(default_factory=dict)  # to the bytes of each file, by name
    data: dict[tuple[str, str, int], Reference] = field(default_factory=dict)
    corpora: dict[str, Reference] = field(default_factory=dict)


def packed(subjects: Subjects, put: Put) -> Parcel:
    """All that `subjects.check` has loaded. One model after another is in this process's memory."""
    files = dict(subjects.catalogue.models)
    return Parcel(
        files,
        {fingerprint: put(_bytes_of(model)) for fingerprint, model in files.items()},
        {key: put(tokens) for key, tokens in subjects.tokenised().items()},
        {fingerprint: put(corpus) for fingerprint, corpus in subjects.corpora().items()},
    )


def _bytes_of(files: ModelFiles) -> dict[str, np.ndarray]:
    suffixes = SENT | ({".bin"} if files.allow_pickle else set())
    return {
        file.name: np.fromfile(file, np.uint8)
        for file in sorted(files.folder.iterdir())
        if file.is_file() and file.suffix in suffixes
    }


class SentSubjects(Subjects):
    """Models and data out of a parcel, on a machine that has none of them on its disk."""

    def __init__(self, parcel: Parcel, get: Get, scratch: Path) -> None:
        super().__init__(scratch / "cache")
        self.catalogue = Catalogue(scratch / "cache", dict(parcel.files))
        self.parcel, self.get, self.scratch = parcel, get, scratch
        self.checked: set[str] = set()  # models whose files on this disk are those that were sent

    def _files_of(self, trial: Trial) -> ModelFiles:
        files = self.parcel.files[trial.model_fingerprint]
        here = dataclasses.replace(files, folder=self.scratch / "models" / files.fingerprint)
        if files.fingerprint not in self.checked:
            if not _is_whole(here):
                shutil.rmtree(here.folder, ignore_errors=True)
                _write(self.get(self.parcel.models[files.fingerprint]), here.folder)
            if not _is_whole(here):
                raise WhichlayersError(
                    f"the files of model {files.name} arrived damaged in {here.folder}: is that disk full?"
                )
            self.checked.add(files.fingerprint)
        return here

    def data(self, trial: Trial) -> TokenisedTask:
        key = (trial.task_fingerprint, trial.model_fingerprint, trial.training.max_length)
        if key not in self._data:
            self._data[key] = self.get(self.parcel.data[key])
        return self._data[key]

    def corpus(self, trial: Trial) -> Corpus:
        assert trial.word_probe is not None
        wanted = trial.word_probe.fingerprint
        if wanted not in self._corpora:
            self._corpora[wanted] = self.get(self.parcel.corpora[wanted])
        return self._corpora[wanted]


def _is_whole(files: ModelFiles) -> bool:
    from whichlayers.models.find import fingerprint_of

    try:
        return fingerprint_of(files.folder, files.allow_pickle) == files.fingerprint
    except (WhichlayersError, OSError):
        return False


def _write(files: dict[str, np.ndarray], folder: Path) -> None:
    """The folder is there whole or not at all; of two workers that write it at once, one does for both."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as partial:
        inner = Path(partial) / "model"
        inner.mkdir()
        for name, content in files.items():
            content.tofile(inner / name)
        with contextlib.suppress(OSError):  # the other one was first
            os.rename(inner, folder)
