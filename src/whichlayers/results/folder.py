"""A study's folder: what lies in it, and whether it may be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whichlayers.errors import WhichlayersError
from whichlayers.results.db import Store
from whichlayers.results.lock import LOCK_NAME, Locked, holder

DATABASE = "results.db"
STUDY_FILE = "study.toml"
OURS = {
    LOCK_NAME,
    "cache",
    "checkpoints",
    "encoders",
    "logs",
    STUDY_FILE,
}  # what a run that ended before its first result leaves


@dataclass(frozen=True)
class StudyFolder:
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
    def encoders(self) -> Path:
        return self.path / "encoders"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def check_free_for(self, study_name: str) -> None:
        """Raise unless a study of this name may run here: in a new or empty folder, or in its own."""
        if self.path.exists() and not self.path.is_dir():
            raise WhichlayersError(f"{self.path} is a file: give a folder for the study's results")
        if not self.path.exists():
            return
        if (who := holder(self.path)) is not None:
            raise Locked(
                f"{self.path} is being run by {who}: wait for it or stop it;"
                f" `whichlayers status {self.path}` shows how far it is"
            )
        self.check_study(study_name)

    def check_study(self, study_name: str) -> None:
        if self.has_results:
            Store.open(self.database, study_name).close()
            return
        foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in {*OURS, DATABASE})
        if foreign:
            raise WhichlayersError(
                f"{self.path} holds no study, yet is not empty ({', '.join(foreign[:3])}"
                f"{', ...' if len(foreign) > 3 else ''}): give a new folder with --folder"
            )

    def write_study(self, text: str) -> None:
        partial = self.study_file.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.study_file)


def folder_of(study_file: Path) -> Path:
    """Where a study file's results go: into a folder of its name beside it, unless it lies in a study's folder."""
    if study_file.name == STUDY_FILE and (study_file.parent / DATABASE).is_file():
        return study_file.parent
    return study_file.with_suffix("")


def find_folder(given: Path) -> StudyFolder:
    """The study folder that a folder, a file in it, or the study file beside it stands for."""
    is_study = given.suffix == ".toml" and not given.is_dir()
    path = folder_of(given) if is_study else given.parent if given.is_file() else given
    folder = StudyFolder(path)
    if folder.database.is_file():
        return folder
    if not given.exists():
        raise WhichlayersError(f"there is no {given}: name the folder of a study that was run")
    first = f"run the study (whichlayers run {given}), or " if is_study else ""
    raise WhichlayersError(f"{path} holds no {DATABASE}: {first}name the folder of a study that was run")
