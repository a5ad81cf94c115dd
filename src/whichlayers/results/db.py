"""results.db: every fact a study has found, in one SQLite file that survives `kill -9`.

Only the driving process writes. Anyone may read at any time: in write-ahead mode a reader never holds up
the writer. Each method that writes is one transaction: a trial is done, with all its epochs, or it is not.

`synchronous = NORMAL`: what a killed process had committed is in the operating system's hands and is safe.
Only a power cut can lose the last commits; the file stays sound, and the trials concerned run again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from whichlayers.errors import WhichlayersError
from whichlayers.results.records import (
    Counts,
    Epoch,
    Failure,
    ModelRow,
    Outcome,
    RunRow,
    TaskRow,
    WeightChange,
)
from whichlayers.results.schema import SCHEMA, SCHEMA_VERSION, change_row, run_row, trial_row
from whichlayers.trial import Point, Trial

IN_STUDY = "EXISTS (SELECT 1 FROM points WHERE points.trial_id = trials.id)"


class StoreError(WhichlayersError):
    """results.db cannot be used."""


class Store:
    """An open results.db. Made by `Store.create`, `Store.open` or `Store.read`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, writes: bool) -> None:
        self.path = path
        self.writes = writes
        self.connection = connection

    # --- opening ---

    @classmethod
    def create(cls, path: Path, study_name: str) -> Store:
        """A new store; it appears whole or not at all, whenever the process is killed."""
        store = cls.connect(path, path.resolve().as_uri() + "?mode=rwc")
        from whichlayers import __version__

        facts = {
            "schema_version": str(SCHEMA_VERSION),
            "study_name": study_name,
            "created": repr(time.time()),
            "whichlayers_version": __version__,
        }
        with store.transaction() as db:
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
        return store

    @classmethod
    def open(cls, path: Path, study_name: str) -> Store:
        """Open for writing; make the store first where there is none yet."""
        if not path.exists() or path.stat().st_size == 0:
            return cls.create(path, study_name)
        store = cls.connect(path, path.resolve().as_uri() + "?mode=rw")
        if store.is_blank():  # killed between making the file and committing its tables
            store.close()
            return cls.create(path, study_name)
        store.check_schema()
        if (held := store.meta("study_name")) != study_name:
            store.close()
            raise StoreError(
                f"{path} holds the study {held!r}, not {study_name!r}: give another folder,"
                f" or name the study {held!r} if it is an edited version of that one"
            )
        return store

    @classmethod
    def read(cls, path: Path) -> Store:
        """Open for reading only; works while a run writes, and in a folder that may not be written to."""
        if not path.is_file():
            raise StoreError(
                f"no results at {path}: run the study first, or name the folder of one that was run"
            )
        uri = path.resolve().as_uri()
        try:
            store = cls.connect(path, uri + "?mode=ro")
        except StoreError:
            if path.with_name(path.name + "-wal").exists():
                raise
            store = cls.connect(path, uri + "?immutable=1")
        if store.is_blank():
            store.close()
            raise StoreError(
                f"{path} holds no study yet: its run has only just begun, or was stopped before it did"
            )
        store.check_schema()
        return store

    @classmethod
    def connect(cls, path: Path, uri: str) -> Store:
        writes = "mode=rw" in uri
        try:
            db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
            db.row_factory = sqlite3.Row
            if writes:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
            db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise StoreError(
                    f"{path} cannot be {'written' if writes else 'read'} ({error}): may you do so in its folder?"
                    " is the disk full? Put that right, or name another folder"
                ) from error
            raise StoreError(
                f"{path} cannot be read as a results file ({error}): restore it from a copy, or move it away"
                " and run the study anew"
            ) from error
        return cls(path, db, writes)

    def tables(self) -> set[str]:
        return {
            row[0] for row in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }

    def is_blank(self) -> bool:
        return not self.tables()

    def check_schema(self) -> None:
        if not {"meta", "trials", "points", "epochs", "runs"} <= self.tables():
            self.close()
            raise StoreError(
                f"{self.path} is a database, but not one that whichlayers wrote: give another folder"
            )
        version = int(self.meta("schema_version") or 0)
        if version != SCHEMA_VERSION:
            maker = self.meta("whichlayers_version") or self.meta("carryover_version")
            self.close()
            raise StoreError(
                f"{self.path} has schema version {version} (written by whichlayers {maker}), and this whichlayers"
                f" knows version {SCHEMA_VERSION}: use the version that wrote it, or a newer one"
            )

    def close(self) -> None:
        """A writer leaves one plain file, to be copied and read anywhere, unless someone reads just now."""
        if self.writes:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("PRAGMA busy_timeout = 0")
                self.connection.execute("PRAGMA journal_mode = DELETE")
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ):
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, also when interrupted in the middle."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException as error:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(
                    f"{self.path} cannot be written ({error}): put that right (is the disk full?) and run"
                    " the study again; what is done is kept"
                ) from error
            raise

    # --- what the study asks for ---

    def set_points(
        self, points: Sequence[Point], tasks: Iterable[TaskRow], models: Iterable[ModelRow]
    ) -> None:
        """Make the study what `points` says. Trials known already keep their status and results; trials that
        no point asks for any more are forgotten, unless they are done: those may be wanted again one day.
        """
        trials: dict[str, Trial] = {}
        for point in points:
            trials.setdefault(point.trial.id, point.trial)
        with self.transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (t.fingerprint, t.name, t.kind, t.metric, json.dumps(t.metrics), t.train_rows)
                    for t in tasks
                ],
            )
            db.executemany(
                "INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?, ?)",
                [(m.fingerprint, m.name, m.revision, m.family, m.depth) for m in models],
            )
            db.executemany(
                """INSERT INTO trials(id, model, model_fingerprint, task, task_fingerprint, train_size, seed,
                       head, recipe, keep_layer_norm, reinit_lr_factor, trial_json)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                   ON CONFLICT(id) DO UPDATE SET model = excluded.model, task = excluded.task,
                       recipe = excluded.recipe, keep_layer_norm = excluded.keep_layer_norm,
                       reinit_lr_factor = excluded.reinit_lr_factor, trial_json = excluded.trial_json""",
                [trial_row(trial_id, trial) for trial_id, trial in trials.items()],
            )
            db.execute("DELETE FROM points")
            db.executemany(
                "INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?)",
                [(p.experiment, p.condition, p.x, p.trial.id) for p in points],
            )
            db.execute(f"DELETE FROM trials WHERE status != 'done' AND NOT {IN_STUDY}")
            db.execute("DELETE FROM epochs WHERE trial_id NOT IN (SELECT id FROM trials)")
            db.execute("DELETE FROM weight_changes WHERE trial_id NOT IN (SELECT id FROM trials)")

    def set_notes(self, notes: Sequence[str]) -> None:
        """What the readers of the data want the user to know, for `status`."""
        self._set_meta("notes", json.dumps(list(notes)))

    def notes(self) -> list[str]:
        return list(json.loads(self.meta("notes") or "[]"))

    # --- a run ---

    def begin_run(self, run: RunRow) -> int:
        """Note who runs. Trials found running belong to a run that was killed: they are pending again."""
        with self.transaction() as db:
            db.execute("UPDATE trials SET status = 'pending' WHERE status = 'running'")
            db.execute("UPDATE runs SET outcome = 'killed' WHERE finished IS NULL AND outcome IS NULL")
            cursor = db.execute(
                "INSERT INTO runs(started, host, pid, device, threads, versions, git_commit, command)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (time.time(), *run_row(run)),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def end_run(self, run_id: int, outcome: str) -> None:
        with self.transaction() as db:
            db.execute("UPDATE trials SET status = 'pending' WHERE status = 'running'")
            db.execute(
                "UPDATE runs SET finished = ?, outcome = ? WHERE run_id = ?", (time.time(), outcome, run_id)
            )

    def retry_failed(self) -> int:
        with self.transaction() as db:
            cursor = db.execute(
                "UPDATE trials SET status = 'pending', error = NULL, started = NULL WHERE status = 'failed'"
            )
        return cursor.rowcount

    def start(self, trial_ids: Sequence[str], run_id: int) -> None:
        """Mark trials as running; what an earlier, interrupted attempt left behind goes."""
        now = time.time()  # one for all: it tells later which trials were one stack
        with self.transaction() as db:
            for trial_id in trial_ids:
                cursor = db.execute(
                    "UPDATE trials SET status = 'running', started = ?, run_id = ?, error = NULL"
                    " WHERE id = ? AND status IN ('pending', 'running')",
                    (now, run_id, trial_id),
                )
                _must_change_one(cursor, f"start trial {trial_id}")
                db.execute("DELETE FROM epochs WHERE trial_id = ?", (trial_id,))

    def note_restored(self, run_id: int, steps: int) -> None:
        """How many of its steps a run found done: `status` leaves them out of its pace."""
        self._set_meta(_restored_in(run_id), str(steps))

    def record_epoch(self, trial_id: str, epoch: Epoch) -> None:
        with self.transaction() as db:
            _write_epoch(db, trial_id, epoch)

    def finish(self, outcomes: Iterable[Outcome], share: float = 1.0) -> None:
        """Close trials that were running: done with all their epochs, or failed with their error.

        Their seconds are those of the whole stack; each trial is charged its `share`, so that sums are true.
        """
        with self.transaction() as db:
            for outcome in outcomes:
                for epoch in outcome.epochs:
                    _write_epoch(db, outcome.trial_id, epoch)
                changes: Sequence[WeightChange] = getattr(outcome, "weight_changes", ())  # probes have none
                db.executemany(
                    "INSERT OR REPLACE INTO weight_changes VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [change_row(outcome.trial_id, change) for change in changes],
                )
                cursor = db.execute(
                    "UPDATE trials SET status = ?, error = ?, finished = ?, seconds = ?"
                    " WHERE id = ? AND status = 'running'",
                    (
                        "failed" if outcome.error else "done",
                        outcome.error,
                        time.time(),
                        outcome.seconds * share,
                        outcome.trial_id,
                    ),
                )
                _must_change_one(cursor, f"finish trial {outcome.trial_id}")

    def fail(self, trial_ids: Iterable[str], error: str) -> None:
        with self.transaction() as db:
            for trial_id in trial_ids:
                cursor = db.execute(
                    "UPDATE trials SET status = 'failed', error = ?, finished = ?"
                    " WHERE id = ? AND status = 'running'",
                    (error, time.time(), trial_id),
                )
                _must_change_one(cursor, f"fail trial {trial_id}")

    def _set_meta(self, key: str, value: str) -> None:
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # --- reading ---

    def meta(self, key: str) -> str | None:
        row = self.connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def restored(self, run_id: int) -> int:
        return int(self.meta(_restored_in(run_id)) or 0)

    def trials(self, *statuses: str) -> list[Trial]:
        """Trials of the study in one of these statuses, in the order of the study file."""
        marks = ", ".join("?" * len(statuses))
        rows = self.connection.execute(
            f"""SELECT trial_json FROM trials
                JOIN (SELECT trial_id, MIN(rowid) AS place FROM points GROUP BY trial_id) ON trial_id = id
                WHERE status IN ({marks}) ORDER BY place""",
            statuses,
        )
        return [Trial.from_json(row[0]) for row in rows]

    def ids(self, *statuses: str, in_study: bool = False) -> set[str]:
        """Of trials in one of these statuses; with `in_study` only of those that the study asks for."""
        marks = ", ".join("?" * len(statuses))
        query = f"SELECT id FROM trials WHERE status IN ({marks})" + f" AND {IN_STUDY}" * in_study
        return {row[0] for row in self.connection.execute(query, statuses)}

    def waiting(self) -> list[Trial]:
        """Trials that a run has to do: those never run, and those that a killed run left in the middle."""
        return self.trials("pending", "running")

    def broken_off(self) -> list[list[str]]:
        """The stacks that were under way when an earlier run stopped, as ids of trials."""
        rows = self.connection.execute(
            "SELECT run_id, started, id FROM trials WHERE status IN ('pending', 'running')"
            " AND started IS NOT NULL ORDER BY run_id, started, rowid"
        )
        return [
            [row[2] for row in group] for _, group in itertools.groupby(rows, key=lambda row: tuple(row)[:2])
        ]

    def counts(self) -> Counts:
        rows = self.connection.execute(
            f"SELECT status, COUNT(*) FROM trials WHERE {IN_STUDY} GROUP BY status"
        )
        return Counts(**dict(rows.fetchall()))

    def failures(self) -> list[Failure]:
        rows = self.connection.execute(
            f"SELECT trial_json, error FROM trials WHERE status = 'failed' AND {IN_STUDY} ORDER BY finished"
        )
        return [Failure(Trial.from_json(row[0]), row[1] or "") for row in rows]

    def last_run(self) -> dict[str, Any] | None:
        row = self.connection.execute("SELECT * FROM runs ORDER BY run_id DESC LIMIT 1").fetchone()
        return dict(row) if row else None


def _restored_in(run_id: int) -> str:
    return f"steps_restored_in_run_{run_id}"


def _write_epoch(db: sqlite3.Connection, trial_id: str, epoch: Epoch) -> None:
    """A value that is not a number (a loss that blew up) is stored as NULL: SQLite has no NaN."""
    values = {
        "train_loss": epoch.train_loss,
        "dev_loss": epoch.dev_loss,
        "seconds": epoch.seconds,
        **epoch.metrics,
    }
    db.executemany(
        "INSERT OR REPLACE INTO epochs VALUES (?, ?, ?, ?)",
        [(trial_id, epoch.epoch, metric, float(value)) for metric, value in values.items()],
    )


def _must_change_one(cursor: sqlite3.Cursor, what: str) -> None:
    if cursor.rowcount != 1:
        raise StoreError(
            f"could not {what}: it is not in the state it should be in; does something else write here?"
        )
