"""results.db: all results of a study, in one SQLite file that survives `kill -9`.

Only the main process of a run writes. Any process may read at any time: in write-ahead mode, readers never block
the writer. Each method that writes is one transaction: a trial is either done with all its epochs, or not done.

`synchronous = NORMAL`: transactions that a killed process had committed are safe. Only a power failure can lose the
last commits; the file stays valid, and the affected trials run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from whichlayers.results.connection import (
    ResultsDBError,
    check,
    check_study,
    connect,
    connect_readonly,
    is_empty,
    keep_copy,
    readable_errors,
)
from whichlayers.results.migrations import migrate
from whichlayers.results.reader import IN_STUDY, ResultsReader
from whichlayers.results.records import (
    DataStatistics,
    EpochLike,
    ModelRow,
    RunRow,
    TaskRow,
    TrialResultLike,
    WeightChangeLike,
)
from whichlayers.results.schema import (
    SCHEMA,
    SCHEMA_VERSION,
    epoch_rows,
    neurons_text,
    run_row,
    statements,
    task_row,
    trial_row,
    weight_change_row,
)
from whichlayers.trial import Point, Trial
from whichlayers.version import __version__


class ResultsDB(ResultsReader):
    """An open results.db, from `ResultsDB.create`, `ResultsDB.open` or `ResultsDB.open_readonly`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self.connection = connection
        self.connection.row_factory = sqlite3.Row
        self.old_copy: Path | None = None  # copy of the file as it was before `open` migrated it

    # --- opening and closing ---

    @classmethod
    def create(cls, path: Path, study_name: str) -> ResultsDB:
        """Create a new database; its tables are created in one transaction."""
        db = cls(path, connect(path, "mode=rwc", writable=True), writable=True)
        meta = {
            "schema_version": str(SCHEMA_VERSION),
            "study_name": study_name,
            "created": repr(time.time()),
            "whichlayers_version": __version__,
        }
        with db.transaction() as connection:
            for statement in statements(SCHEMA):
                connection.execute(statement)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        return db

    @classmethod
    def open(cls, path: Path, study_name: str) -> ResultsDB:
        """Open the database of a study for writing; create it if it does not exist.

        A file of an older schema version is migrated, after a copy of it was made.

        Raises:
            ResultsDBError: The file holds another study, has an unsupported schema version, or cannot be used.
        """
        if not path.exists() or path.stat().st_size == 0:
            return cls.create(path, study_name)
        db = cls(path, connect(path, "mode=rw", writable=True), writable=True)
        if is_empty(db.connection):  # the process that created the file was killed
            db.close()
            return cls.create(path, study_name)
        try:
            with readable_errors(path, db.connection):
                if check_study(path, db.connection, study_name) < SCHEMA_VERSION:
                    db._migrate()
        except BaseException:
            db.close()
            raise
        return db

    @classmethod
    def check_writable(cls, path: Path, study_name: str) -> None:
        """Raise the ResultsDBError that `open` would raise for this file, but do not create or migrate anything."""
        with cls(path, connect(path, "mode=rw"), writable=False) as db:
            if not is_empty(db.connection):
                check_study(path, db.connection, study_name)
            with db.transaction():  # raises if the file cannot be written, and does not change it
                pass

    @classmethod
    def open_readonly(cls, path: Path) -> ResultsDB:
        """Open a database for reading. Works while a run writes, and in a folder without write permission."""
        return cls(path, connect_readonly(path), writable=False)

    def close(self) -> None:
        """Close the connection; a writer merges the write-ahead log into the file unless someone is reading."""
        if self.writable:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("PRAGMA busy_timeout = 0")
                self.connection.execute("PRAGMA journal_mode = DELETE")
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                with readable_errors(self.path, self.connection):
                    raise error
        finally:
            self.close()

    def _migrate(self) -> None:
        """Migrate the file to the current schema version in one transaction; a copy of it is kept."""
        with self.transaction() as connection:  # first: nobody writes between the copy and the migration
            version = check(self.path, connection)
            if version < SCHEMA_VERSION:  # else another process has just migrated it
                self.old_copy = keep_copy(self.path, version)
                migrate(connection, version)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all statements of the block, or none if it raises or is interrupted."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException as error:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise ResultsDBError(
                    f"{self.path} cannot be written ({error}): check permissions and free disk space, then run"
                    " the study again; finished trials are kept"
                ) from error
            raise

    # --- the study ---

    def set_points(
        self, points: Sequence[Point], tasks: Iterable[TaskRow], models: Iterable[ModelRow]
    ) -> None:
        """Replace the points of the study, and add their trials, tasks and models.

        Known trials keep their status and results. Trials that no point uses any more are deleted unless they are
        done: a later edit of the study may use them again.
        """
        trials: dict[str, Trial] = {}
        for point in points:
            trials.setdefault(point.trial.id, point.trial)
        tasks = list(tasks)
        metrics = {task.fingerprint: task.metric for task in tasks}
        with self.transaction() as connection:
            if task_rows := list(map(task_row, tasks)):
                connection.executemany(_upsert("tasks", list(task_rows[0]), "fingerprint"), task_rows)
            connection.executemany(
                "INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?, ?)",
                [(m.fingerprint, m.name, m.revision, m.family, m.depth) for m in models],
            )
            rows = [
                trial_row(trial_id, trial, metrics.get(trial.task_fingerprint))
                for trial_id, trial in trials.items()
            ]
            if rows:
                connection.executemany(_upsert("trials", list(rows[0]), "id"), rows)
            connection.execute("DELETE FROM points")
            connection.executemany(
                "INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?)",
                [(p.experiment, p.condition, p.x, p.trial.id) for p in points],
            )
            connection.execute(f"DELETE FROM trials WHERE status != 'done' AND NOT {IN_STUDY}")
            connection.execute("DELETE FROM epochs WHERE trial_id NOT IN (SELECT id FROM trials)")
            connection.execute("DELETE FROM weight_changes WHERE trial_id NOT IN (SELECT id FROM trials)")

    def set_folder(self, folder: Path) -> None:
        """Store the path of the study folder, to find files next to it after the folder was moved."""
        self._set_meta("folder", str(folder.resolve()))

    def set_notes(self, notes: Sequence[str]) -> None:
        """Store notes about the data, such as skipped rows; `status` and the report show them."""
        self._set_meta("notes", json.dumps(list(notes)))

    def set_data_statistics(self, statistics: Mapping[str, DataStatistics]) -> None:
        """Store the sizes of the study's tasks and corpora, by fingerprint; the report shows them."""
        values = {name: dataclasses.asdict(sizes) for name, sizes in statistics.items()}
        self._set_meta("data_statistics", json.dumps(values))

    def set_truncated(self, notes: dict[str, str], in_study: Collection[str]) -> None:
        """Store notes about truncated texts, each under a key; earlier ones are kept if their key is in `in_study`.

        A run that resumes a study reads only the data of its remaining trials.
        """
        known = json.loads(self.meta("truncated") or "{}") | notes
        self._set_meta("truncated", json.dumps({key: known[key] for key in known if key in in_study}))

    # --- a run ---

    def begin_run(self, run: RunRow) -> int:
        """Record a new run and return its id.

        Trials with status "running" were left by a run that was killed; they become pending.
        """
        with self.transaction() as connection:
            connection.execute("UPDATE trials SET status = 'pending' WHERE status = 'running'")
            connection.execute(
                "UPDATE runs SET outcome = 'killed' WHERE finished IS NULL AND outcome IS NULL"
            )
            cursor = connection.execute(
                "INSERT INTO runs(started, host, pid, device, threads, versions, git_commit, command)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (time.time(), *run_row(run)),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def end_run(self, run_id: int, outcome: str) -> None:
        """Record how a run ended; trials that were running become pending."""
        with self.transaction() as connection:
            connection.execute("UPDATE trials SET status = 'pending' WHERE status = 'running'")
            connection.execute(
                "UPDATE runs SET finished = ?, outcome = ? WHERE run_id = ?", (time.time(), outcome, run_id)
            )

    def retry_failed(self) -> int:
        """Make all failed trials pending and return their number."""
        with self.transaction() as connection:
            cursor = connection.execute(
                "UPDATE trials SET status = 'pending', error = NULL, started = NULL WHERE status = 'failed'"
            )
        return cursor.rowcount

    def start(self, trial_ids: Sequence[str], run_id: int) -> None:
        """Mark the trials of a stack as running; epochs of an earlier, interrupted attempt are deleted."""
        now = time.time()  # the same for all: `interrupted_stacks` groups trials by it
        with self.transaction() as connection:
            for trial_id in trial_ids:
                cursor = connection.execute(
                    "UPDATE trials SET status = 'running', started = ?, run_id = ?, error = NULL"
                    " WHERE id = ? AND status IN ('pending', 'running')",
                    (now, run_id, trial_id),
                )
                _check_one_changed(cursor, f"start trial {trial_id}")
                connection.execute("DELETE FROM epochs WHERE trial_id = ?", (trial_id,))

    def set_time_left(self, run_id: int, seconds: float, steps: int | None = None) -> None:
        """Record the time left of a run as estimated now, for `time_left`, and the steps left, for `watch`."""
        record = {"run": run_id, "at": time.time(), "seconds": seconds, "steps": steps}
        self._set_meta("time_left", json.dumps(record))

    def record_epoch(self, trial_id: str, epoch: EpochLike) -> None:
        """Store the values of one epoch of a running trial."""
        with self.transaction() as connection:
            _write_epoch(connection, trial_id, epoch)

    def finish(self, results: Iterable[TrialResultLike], time_fraction: float = 1.0) -> None:
        """Store the results of running trials: done with all their epochs, or failed with their error.

        Args:
            results: One result for each trial; `seconds` and `memory` are those of its whole stack.
            time_fraction: Fraction of the stack's time and memory that is stored for each trial, so that they add up.
        """
        with self.transaction() as connection:
            for result in results:
                for epoch in result.epochs:
                    _write_epoch(connection, result.trial_id, epoch)
                memory: float | None = getattr(result, "memory", None)
                # probes have no weight changes
                changes: Sequence[WeightChangeLike] = getattr(result, "weight_changes", ())
                connection.executemany(
                    "INSERT OR REPLACE INTO weight_changes VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [weight_change_row(result.trial_id, change) for change in changes],
                )
                cursor = connection.execute(
                    "UPDATE trials SET status = ?, error = ?, finished = ?, seconds = ?, trained_parameters = ?,"
                    " memory = ?, top_neurons = ? WHERE id = ? AND status = 'running'",
                    (
                        "failed" if result.error else "done",
                        result.error,
                        time.time(),
                        result.seconds * time_fraction,
                        getattr(result, "trained_parameters", None),  # probes have neither
                        None if memory is None else memory * time_fraction,
                        neurons_text(getattr(result, "top_neurons", None)),  # only word probes have them
                        result.trial_id,
                    ),
                )
                _check_one_changed(cursor, f"finish trial {result.trial_id}")

    def fail(self, trial_ids: Iterable[str], error: str) -> None:
        """Mark running trials as failed with this error message."""
        with self.transaction() as connection:
            for trial_id in trial_ids:
                cursor = connection.execute(
                    "UPDATE trials SET status = 'failed', error = ?, finished = ?"
                    " WHERE id = ? AND status = 'running'",
                    (error, time.time(), trial_id),
                )
                _check_one_changed(cursor, f"fail trial {trial_id}")

    def _set_meta(self, key: str, value: str) -> None:
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def _upsert(table: str, columns: Sequence[str], key: str) -> str:
    """The statement that inserts a row given by column, or updates the row with the same key."""
    values = ", ".join(f":{column}" for column in columns)
    updates = ", ".join(f"{column} = excluded.{column}" for column in columns if column != key)
    return f"INSERT INTO {table}({', '.join(columns)}) VALUES ({values}) ON CONFLICT({key}) DO UPDATE SET {updates}"


def _write_epoch(connection: sqlite3.Connection, trial_id: str, epoch: EpochLike) -> None:
    rows = epoch_rows(trial_id, epoch)
    connection.executemany("INSERT OR REPLACE INTO epochs VALUES (?, ?, ?, ?)", rows)


def _check_one_changed(cursor: sqlite3.Cursor, action: str) -> None:
    if cursor.rowcount != 1:
        raise ResultsDBError(
            f"could not {action}: it has an unexpected status; check that no other process writes to this database"
        )
