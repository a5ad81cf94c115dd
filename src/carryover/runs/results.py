"""The Python side of a study: run it, or open one that was run, and take its results as frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carryover.runs import execute
from carryover.runs.events import OnEvent, RunSummary
from carryover.runs.export import epochs_frame, points_frame
from carryover.runs.folder import StudyFolder, find_folder

if TYPE_CHECKING:
    import pandas as pd

    from carryover.study.file import Study


@dataclass(frozen=True)
class Results:
    """A study that was run, in part or whole. Frames are read anew at each call."""

    folder: Path
    summary: RunSummary | None = None  # of the run that made this object, if one did

    def frame(self) -> pd.DataFrame:
        """One row a point and trial that is done, with the metrics of the last epoch in columns."""
        return points_frame(StudyFolder(self.folder))

    def epochs(self) -> pd.DataFrame:
        """One row a point, trial, epoch and metric."""
        return epochs_frame(StudyFolder(self.folder))


def run(
    study: Study | str | Path,
    folder: str | Path,
    *,
    device: str | None = None,
    workers: int | None = None,
    max_stack: int | None = None,
    retry_failed: bool = False,
    on_event: OnEvent = lambda event: None,
    **options: Any,
) -> Results:
    """Run a study, or what an earlier run in `folder` left of it. `study` may be the path of a study file."""
    from carryover.study.file import load_study

    if isinstance(study, str | Path):
        study = load_study(study)
    summary = execute.run(
        study,
        folder,
        device=device,
        workers=workers,
        max_stack=max_stack,
        retry_failed=retry_failed,
        on_event=on_event,
        **options,
    )
    return Results(summary.folder, summary)


def load(folder: str | Path) -> Results:
    """The results in a study folder; its study.toml or results.db will do as well."""
    return Results(find_folder(Path(folder)).path)
