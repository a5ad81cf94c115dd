"""The folder of a study: the paths of its files, and whether a study may run in it."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write, is_partial
from whichlayers.results.connection import DATABASE, connect, is_empty, missing_error
from whichlayers.results.db import ResultsDB
from whichlayers.results.lock import LOCK_NAME, lock_holder, locked_error
from whichlayers.results.losses import LOSSES

STUDY_FILE = "study.toml"
# files and folders of a run that ended before its first result
RUN_FILES = {LOCK_NAME, "cache", "checkpoints", "encoders", "logs", LOSSES, STUDY_FILE}


@dataclass(frozen=True)
class StudyFolder:
    """The folder that holds the results of one study."""

    path: Path

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def has_results(self) -> bool:
        return self.database.exists() and self.database.stat().st_size > 0

    @property
    def study_file(self) -> Path:
        return self.path / STUDY_FILE

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def finetuned_models(self) -> Path:
        """Finetuned models that word probes still need; deleted when the study is complete."""
        return self.path / "encoders"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def is_starting(self) -> bool:
        """Whether a run that has not written its trials into results.db yet holds the folder's lock."""
        return lock_holder(self.path) is not None and not self._has_tables()

    def _has_tables(self) -> bool:
        """Whether results.db has been set up; a run that was killed may leave an empty one."""
        if not self.has_results:
            return False
        with closing(connect(self.database, "mode=ro")) as connection:
            return not is_empty(connection)

    def ended_trials(self, retry_failed: bool = False) -> dict[str, str]:
        """By id: the status, done or failed, of the trials that a run skips; `retry_failed` skips only done ones."""
        if not self._has_tables():
            return {}
        statuses = ("done",) if retry_failed else ("done", "failed")
        with ResultsDB.open_readonly(self.database) as db:
            return {trial_id: status for status in statuses for trial_id in db.trial_ids(status)}

    def check_available(self, study_name: str) -> None:
        """Raise WhichlayersError unless the study may run here: in a new or empty folder, or in its own."""
        if self.path.exists() and not self.path.is_dir():
            raise WhichlayersError(f"{self.path} is a file: give a folder for the study's results")
        if not self.path.exists():
            return
        if (holder := lock_holder(self.path)) is not None:
            raise locked_error(self.path, holder)
        self.check_study(study_name)

    def check_study(self, study_name: str) -> None:
        """Raise WhichlayersError if the folder holds another study, or files that are not from a run."""
        if self.has_results:
            ResultsDB.check_writable(self.database, study_name)
            if not os.access(self.path, os.W_OK):
                raise WhichlayersError(f"{self.path} cannot be written: check permissions")
            return
        allowed = {*RUN_FILES, DATABASE}
        names = [entry.name for entry in self.path.iterdir()]
        # a killed run may leave an unfinished study.toml or migrated results.db
        other_files = sorted(name for name in names if name not in allowed and not is_partial(name))
        if other_files:
            raise WhichlayersError(
                f"{self.path} holds no study, but is not empty ({', '.join(other_files[:3])}"
                f"{', ...' if len(other_files) > 3 else ''}): give a new folder with --folder"
            )

    def write_study(self, text: str) -> None:
        """Write study.toml atomically."""
        with atomic_write(self.study_file) as partial:
            partial.write_text(text, encoding="utf-8")


def folder_of(study_file: Path) -> Path:
    """The results folder of a study file: its parent folder if that has results, else its path without suffix."""
    if study_file.name == STUDY_FILE and (study_file.parent / DATABASE).is_file():
        return study_file.parent
    return study_file.with_suffix("")


def locate_folder(path: Path) -> StudyFolder:
    """The study folder of a path, which may not exist: the folder itself, that of a file in it, or of a study file."""
    if _is_study_file(path):
        return StudyFolder(folder_of(path))
    return StudyFolder(path.parent if path.is_file() else path)


def find_folder(path: Path) -> StudyFolder:
    """The study folder of a path: the folder itself, a file in it, or the study file beside it.

    Raises:
        WhichlayersError: There is no results.db.
    """
    folder = locate_folder(path)
    if folder.database.is_file():
        return folder
    if (holder := lock_holder(folder.path)) is not None:
        raise WhichlayersError(
            f"the study in {folder.path} is running ({holder}) and has no results yet: it reads models and data first;"
            f" wait for its first trials, or follow them with: whichlayers watch {folder.path}"
        )
    if not path.exists():
        raise WhichlayersError(f"there is no {path}: give the folder of a study that was run")
    if path.is_file() and not _is_study_file(path):
        raise WhichlayersError(
            f"{path} is not in the folder of a study ({folder.path} holds no {DATABASE}): give the folder of a study"
            " that was run, or its study file"
        )
    # a run that failed before its first trial
    has_study = _is_study_file(path) or folder.study_file.is_file()
    hint = f"run the study (whichlayers run {path}), or " if has_study else ""
    raise missing_error(folder.database, hint)


def _is_study_file(path: Path) -> bool:
    return path.suffix == ".toml" and not path.is_dir()
