"""Status of a study: number of trials, failures, time left, disk usage. Read-only; never blocks a run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import LockHolder, lock_holder
from whichlayers.results.records import Counts, Failure
from whichlayers.runs.handlers import HANDLERS
from whichlayers.runs.plan import total_steps, trial_steps


@dataclass(frozen=True)
class Status:
    """The result of `status`."""

    folder: Path
    study: str
    counts: Counts
    failures: list[Failure]
    running: LockHolder | None  # the process that is running the study
    seconds_left: float | None  # None: not running, or no step finished yet
    last_outcome: str | None  # how the last run ended; None while a run is active
    disk: dict[str, int]  # bytes by entry of the folder, largest first
    notes: list[str]  # about the data of the tasks


def status(folder: StudyFolder, now: float | None = None) -> Status:
    """Read the status of a study; `now` is the current time in seconds since 1970, for tests."""
    holder = lock_holder(folder.path)
    with ResultsDB.open_readonly(folder.database) as db:
        last = db.last_run()
        return Status(
            folder=folder.path,
            study=db.meta("study_name") or "",
            counts=db.counts(),
            failures=db.failures(),
            running=holder,
            seconds_left=_seconds_left(db, now or time.time()) if holder else None,
            last_outcome=(last["outcome"] or "killed") if last and not holder else None,
            disk=disk_use(folder.path),
            notes=db.notes(),
        )


def _seconds_left(db: ResultsDB, now: float) -> float | None:
    """Time left at the speed of the current run, counting epochs of running trials, but not restored steps."""
    last = db.last_run()
    if last is None or last["finished"] is not None:
        return None
    epochs = dict(
        db.connection.execute(
            "SELECT trial_id, MAX(epoch) FROM epochs JOIN trials ON id = trial_id"
            " WHERE status = 'running' GROUP BY trial_id"
        ).fetchall()
    )
    ended_in_run = {
        row[0]
        for row in db.connection.execute(
            "SELECT id FROM trials WHERE run_id = ? AND status IN ('done', 'failed')", (last["run_id"],)
        )
    }
    steps_ended = total_steps(t for t in db.trials("done", "failed") if t.id in ended_in_run)
    steps_running, steps_left = 0.0, 0.0
    for trial in (unfinished := db.trials("running", "pending")):
        fraction = epochs.get(trial.id, 0) / HANDLERS[trial.kind].max_epochs(trial)
        steps_running += fraction * trial_steps(trial)
        steps_left += (1 - fraction) * trial_steps(trial)
    steps_left += total_steps(unfinished) - sum(map(trial_steps, unfinished))  # finetuning for word probes
    steps_done = steps_ended + steps_running - db.restored_steps(last["run_id"])
    return steps_left * (now - last["started"]) / steps_done if steps_done > 0 else None


def disk_use(folder: Path) -> dict[str, int]:
    """Bytes of each entry of a folder, largest first."""
    use = {entry.name: _size(entry) for entry in folder.iterdir()}
    return dict(sorted(use.items(), key=lambda item: -item[1]))


def _size(entry: Path) -> int:
    try:
        if entry.is_dir() and not entry.is_symlink():
            return sum(map(_size, entry.iterdir()))
        return entry.lstat().st_size
    except OSError:  # deleted since it was listed
        return 0
