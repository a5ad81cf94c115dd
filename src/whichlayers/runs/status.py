"""How far a study is: counts, failures, time left, disk use. Only reads, and never holds up a run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from whichlayers.results.db import Store
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import Holder, holder
from whichlayers.results.records import Counts, Failure
from whichlayers.runs.plan import steps_of, total_steps


@dataclass(frozen=True)
class Status:
    folder: Path
    study: str
    counts: Counts
    failures: list[Failure]
    running: Holder | None  # who runs it now
    seconds_left: float | None  # None: not running, or nothing finished yet to judge by
    last_outcome: str | None  # of the last run, while none is under way
    disk: dict[str, int]  # bytes by part of the folder, largest first
    notes: list[str]  # about the tasks' data


def status(folder: StudyFolder, now: float | None = None) -> Status:
    who = holder(folder.path)
    with Store.read(folder.database) as store:
        last = store.last_run()
        return Status(
            folder=folder.path,
            study=store.meta("study_name") or "",
            counts=store.counts(),
            failures=store.failures(),
            running=who,
            seconds_left=_seconds_left(store, now or time.time()) if who else None,
            last_outcome=(last["outcome"] or "killed") if last and not who else None,
            disk=disk_use(folder.path),
            notes=store.notes(),
        )


def _seconds_left(store: Store, now: float) -> float | None:
    """At the pace of the run under way; epochs of trials still running count, but for those it found done."""
    last = store.last_run()
    if last is None or last["finished"] is not None:
        return None
    settled, under_way, elsewhere = 0.0, 0.0, 0.0
    epochs = dict(
        store.connection.execute(
            "SELECT trial_id, MAX(epoch) FROM epochs JOIN trials ON id = trial_id"
            " WHERE status = 'running' GROUP BY trial_id"
        ).fetchall()
    )
    settled_now = {
        row[0]
        for row in store.connection.execute(
            "SELECT id FROM trials WHERE run_id = ? AND status IN ('done', 'failed')", (last["run_id"],)
        )
    }
    settled += total_steps(t for t in store.trials("done", "failed") if t.id in settled_now)
    for trial in (left := store.trials("running", "pending")):
        asked = trial.training.epochs if trial.probe is None else trial.probe.max_epochs
        share = epochs.get(trial.id, 0) / asked
        under_way += share * steps_of(trial)
        elsewhere += (1 - share) * steps_of(trial)
    elsewhere += total_steps(left) - sum(map(steps_of, left))  # finetuning that questions about words share
    did = settled + under_way - store.restored(last["run_id"])
    return elsewhere * (now - last["started"]) / did if did > 0 else None


def disk_use(folder: Path) -> dict[str, int]:
    use = {entry.name: _size(entry) for entry in folder.iterdir()}
    return dict(sorted(use.items(), key=lambda item: -item[1]))


def _size(entry: Path) -> int:
    try:
        if entry.is_dir() and not entry.is_symlink():
            return sum(map(_size, entry.iterdir()))
        return entry.lstat().st_size
    except OSError:  # gone since it was listed
        return 0
