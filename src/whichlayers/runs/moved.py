"""Load a study whose folder may have been moved or copied.

study.toml in a study folder has relative paths of files in the folder and next to it, so that a project can be moved as
a whole. If only the study folder was moved, the files are still next to its old place, which results.db stores.
"""

from __future__ import annotations

from pathlib import Path

from whichlayers.config.sections import NamedSection
from whichlayers.results.connection import DATABASE, ResultsDBError
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import STUDY_FILE
from whichlayers.study.study_file import Study, load_study


def load_moved_study(path: str | Path) -> Study:
    """Load a study from a study file or from the folder of a study that was run.

    Paths that do not exist are looked up from the old place of the folder.
    """
    path = Path(path)
    study = load_study(path)
    file = path / STUDY_FILE if path.is_dir() else path
    database = file.parent / DATABASE
    if file.name != STUDY_FILE or not database.is_file():
        return study
    try:
        with ResultsDB.open_readonly(database) as db:
            old_folder = db.meta("folder")
    except ResultsDBError:  # reported by the run
        return study
    if old_folder is None or Path(old_folder) == file.parent.resolve():
        return study
    old = Study.from_toml(file.read_text(encoding="utf-8-sig"), Path(old_folder), str(file))
    found = study.model_copy(
        update={
            key: tuple(map(_with_existing_paths, getattr(study, key), getattr(old, key)))
            for key in ("models", "tasks", "corpora")
        }
    )
    found._file, found._text = study._file, study._text
    return found


def _with_existing_paths(section: NamedSection, old: NamedSection) -> NamedSection:
    """A copy of a section with the paths of `old`, the same section read from another folder, if only those exist."""
    paths = {key: getattr(old, key) for key in type(section).model_fields}
    moved = {key: path for key, path in paths.items() if path != getattr(section, key)}  # only paths differ
    missing = [key for key in moved if not Path(getattr(section, key)).exists() and Path(moved[key]).exists()]
    return section.model_copy(update={key: moved[key] for key in missing})
