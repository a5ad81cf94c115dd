"""`whichlayers status`: show progress, failures, time left and disk usage of a study."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from whichlayers.cli.as_json import AsJson, print_json, status_data
from whichlayers.cli.format import console, describe_trial
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder, find_folder
from whichlayers.results.lock import LockHolder, lock_holder
from whichlayers.results.records import Counts, Failure
from whichlayers.text import counted, format_bytes, format_duration

FAILURES_SHOWN = 10


@dataclass(frozen=True)
class Status:
    """The state of a study, read without blocking a run."""

    folder: Path
    study: str
    counts: Counts
    failures: list[Failure]
    running: LockHolder | None  # the process that is running the study
    seconds_left: float | None  # None: not running, or no step finished yet
    last_outcome: str | None  # how the last run ended; None while a run is active
    disk: dict[str, int]  # bytes by entry of the folder, largest first
    notes: list[str]  # about the data of the tasks
    other_done: int = 0  # finished trials of other settings, which are not part of the study


def status(
    folder: StudyFolderPath,
    errors: Annotated[
        bool, typer.Option("--errors", help="Show all failures with their tracebacks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show progress, failures, time left and disk usage of a study."""
    current = read_status(find_folder(folder))
    if as_json:
        print_json(status_data(current))
        return
    out = console()

    def show(text: str, style: str = "") -> None:
        out.print(Text(text, style=style), soft_wrap=True)

    counts = current.counts
    show(f"{current.study}: {counts.done:,} of {counted(counts.total, 'trial')} done", "bold")
    running = "running" if current.running else "interrupted"
    rest = {running: counts.running, "pending": counts.pending, "failed": counts.failed}
    if any(rest.values()):
        show(", ".join(f"{number:,} {name}" for name, number in rest.items() if number))
    if current.running:
        left = (
            f"; about {format_duration(current.seconds_left)} left"
            if current.seconds_left is not None
            else ""
        )
        show(f"running: {current.running}{left}")
    elif counts.pending or counts.running:
        last = f" (last run: {current.last_outcome})" if current.last_outcome else ""
        show(f"not running{last}; resume with: whichlayers run {current.folder}")
    if current.other_done:
        others = counted(current.other_done, "finished trial")
        show(f"{others} of other settings in results.db: not part of the study, results leave them out")
    for note in current.notes:
        show(note, "yellow")
    for failure in current.failures if errors else current.failures[:FAILURES_SHOWN]:
        error = failure.error if errors else failure.error.partition("\n")[0]
        show(f"failed: {describe_trial(failure.trial)}: {error}", "red")
    if len(current.failures) > FAILURES_SHOWN and not errors:
        show(f"and {len(current.failures) - FAILURES_SHOWN:,} more; show all with --errors", "red")
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in current.disk.items() if size)
    show(f"disk space: {format_bytes(sum(current.disk.values()))} ({parts})")


def read_status(folder: StudyFolder, now: float | None = None) -> Status:
    """Read the status of a study; `now` is the current time in seconds since 1970, for tests."""
    from whichlayers.runs.disk import disk_use

    holder = lock_holder(folder.path)
    with ResultsDB.open_readonly(folder.database) as db:
        last, counts = db.last_run(), db.counts()
        return Status(
            folder=folder.path,
            study=db.meta("study_name") or "",
            counts=counts,
            failures=db.failures(),
            running=holder,
            seconds_left=db.time_left(last["run_id"], now or time.time()) if holder and last else None,
            last_outcome=(last["outcome"] or "killed") if last and not holder else None,
            disk=disk_use(folder.path),
            notes=db.notes(),
            other_done=len(db.trial_ids("done")) - counts.done,
        )
