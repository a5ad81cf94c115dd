"""Repair a damaged results.db: save every row that can be read into a new file, and keep the damaged one.

The tables are told apart by the number of columns of their rows, so that rows are found even if the list of tables is
lost. A finished trial of which results are missing becomes pending: the next run repeats it. Trials that are lost
altogether are added again by the next run, from the study file.
"""

from __future__ import annotations

import shutil
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from whichlayers.files import atomic_write, scratch_folder
from whichlayers.results.connection import DAMAGE, ResultsDBError, connect, missing_error
from whichlayers.results.folder import StudyFolder
from whichlayers.results.invalid_values import delete_invalid, find_invalid, unreadable_trials
from whichlayers.results.lock import study_lock
from whichlayers.results.migrations import ADDED_COLUMNS, ADDED_TASK_COLUMNS, fill_added_columns
from whichlayers.results.schema import SCHEMA, SCHEMA_VERSION, statements
from whichlayers.results.sqlite_pages import Pages, Row
from whichlayers.version import __version__

WITHOUT_ROWID = ("epochs", "weight_changes")


@dataclass(frozen=True)
class Repaired:
    """What `repair` saved. `copy` is the damaged file; None: the file was not damaged, and nothing was changed."""

    copy: Path | None
    rows: dict[str, int]  # rows of the new file, by table
    done: int  # finished trials in it
    reset: int  # trials that had been finished and lost results: they run again


def repair(folder: StudyFolder) -> Repaired:
    """Replace a damaged results.db by a new one with all rows that can be read.

    Raises:
        WhichlayersError: There is no file, a run is active, no row can be read, or the new file cannot be written.
    """
    path = folder.database
    if not path.is_file():
        raise missing_error(path)
    with study_lock(folder.path), scratch_folder(".repair-", folder.path) as scratch:
        if _is_intact(path):
            return Repaired(None, *_contents(path), 0)
        try:
            merged = _with_write_ahead_log(path, scratch / path.name)
            rows = list(Pages(merged.read_bytes()).rows())
        except OSError as error:
            raise ResultsDBError(
                f"{path} could not be copied to repair it ({error.strerror}): check free disk space; nothing was"
                " changed"
            ) from error
        if not any(_table_of(row) in ("trials", "epochs", "points") for row in rows):
            raise ResultsDBError(
                f"{path} has no row that can be read: restore it from a backup, or move it away and run the study"
                " again"
            )
        with atomic_write(path, fsync=True) as partial:
            reset = _write(partial, rows, folder)
            copy = _keep_damaged(path)
        return Repaired(copy, *_contents(path), reset)


def _is_intact(path: Path) -> bool:
    """Whether SQLite and whichlayers find no damage in the file."""
    try:
        with closing(connect(path, "mode=ro")) as connection:
            if [tuple(row) for row in connection.execute("PRAGMA integrity_check")] != [("ok",)]:
                return False
            meta = dict(connection.execute("SELECT key, value FROM meta"))
            if not str(meta.get("schema_version")).isdecimal() or "study_name" not in meta:
                return False
            return find_invalid(connection) is None and not unreadable_trials(connection)
    except (ResultsDBError, *DAMAGE):
        return False


def _with_write_ahead_log(path: Path, target: Path) -> Path:
    """Copy the file to `target`, with what a killed run had written to the log next to it."""
    log = path.with_name(f"{path.name}-wal")
    shutil.copyfile(path, target)
    if log.exists():
        shutil.copyfile(log, target.with_name(f"{target.name}-wal"))
        try:
            with closing(sqlite3.connect(target)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except DAMAGE:  # page 1 is damaged: SQLite reads neither file
            shutil.copyfile(path, target)
    return target


def _columns() -> dict[str, list[str]]:
    """The columns of all tables of the current version."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements(SCHEMA):
            connection.execute(statement)
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: [c[1] for c in connection.execute(f"PRAGMA table_info({name})")] for name in names}


COLUMNS = _columns()
# columns are only ever added at the end, so rows of older versions are shorter
ADDED = {
    "trials": sum(map(len, ADDED_COLUMNS.values())),
    "tasks": sum(map(len, ADDED_TASK_COLUMNS.values())),
}


def _table_of(row: Row) -> str | None:
    """The table that a row belongs to; None for rows of other tables and entries of indices."""
    count = len(row.values)
    for table, columns in COLUMNS.items():
        if (row.kind == "index") == (table in WITHOUT_ROWID) and (
            len(columns) - ADDED.get(table, 0) <= count <= len(columns)
        ):
            is_list_of_tables = table == "models" and not isinstance(row.values[3], str)
            return None if is_list_of_tables else table
    return None


def _write(target: Path, rows: Iterable[Row], folder: StudyFolder) -> int:
    """Write a new database with these rows; returns the number of finished trials that lost results."""
    found: dict[str, list[Row]] = {table: [] for table in COLUMNS}
    for row in rows:
        if (table := _table_of(row)) is not None:
            found[table].append(row)
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")  # a file that is not complete is deleted
        connection.execute("BEGIN")
        for statement in statements(SCHEMA):
            connection.execute(statement)
        for table, table_rows in found.items():
            _insert(connection, table, table_rows)
        version = _version(connection, found["trials"])
        fill_added_columns(connection, version)
        delete_invalid(connection)
        _set_meta(connection, folder)
        reset = _reset_incomplete(connection)
        connection.execute("COMMIT")
    return reset


def _insert(connection: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    """Insert rows with their row ids. Rows that violate a constraint, such as a key that is there, are left out."""
    columns = COLUMNS[table]
    has_rowid = table not in WITHOUT_ROWID
    for row in rows:
        names, values = columns[: len(row.values)], list(row.values)
        if table == "runs":
            values[0] = row.rowid  # an INTEGER PRIMARY KEY is stored as the row id
        elif has_rowid:
            names, values = ["rowid", *names], [row.rowid, *values]
        marks = ", ".join("?" * len(values))
        try:
            connection.execute(f"INSERT OR IGNORE INTO {table}({', '.join(names)}) VALUES ({marks})", values)
        except (sqlite3.DatabaseError, OverflowError):  # a value that SQLite refuses
            continue


def _version(connection: sqlite3.Connection, trials: list[Row]) -> int:
    """The schema version of the damaged file: as stored, or from the number of columns of its trials."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is not None and str(row[0]).isdecimal() and 1 <= int(row[0]) <= SCHEMA_VERSION:
        return int(row[0])
    longest = max((len(row.values) for row in trials), default=len(COLUMNS["trials"]))
    length = len(COLUMNS["trials"])
    for version in range(SCHEMA_VERSION, 1, -1):
        if longest >= length:
            return version
        length -= len(ADDED_COLUMNS.get(version, {}))
    return 1


def _set_meta(connection: sqlite3.Connection, folder: StudyFolder) -> None:
    """Set the schema version and, if it is lost, the name of the study."""
    values = {"schema_version": str(SCHEMA_VERSION), "repaired_by": __version__}
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
    try:
        name = str(tomllib.loads(folder.study_file.read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, RecursionError):
        name = folder.path.resolve().name
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('study_name', ?)", (name,))


def _reset_incomplete(connection: sqlite3.Connection) -> int:
    """Make finished trials pending that lost results; returns their number.

    A trial is complete if it has its primary metric in its last epoch, as many epochs as it was trained for, and as
    many values as the other finished trials with the same settings.
    """
    query = """
        SELECT t.id, t.kind, t.epochs, t.primary_metric, t.task_fingerprint, t.training, t.neurons, t.ranking,
            COUNT(e.metric), MAX(e.epoch),
            MAX(CASE WHEN e.metric = t.primary_metric THEN e.epoch END)
        FROM trials t LEFT JOIN epochs e ON e.trial_id = t.id WHERE t.status = 'done' GROUP BY t.id
    """
    rows = [tuple(row) for row in connection.execute(query)]
    most: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        most[row[1:8]] = max(most[row[1:8]], row[8])
    incomplete = [
        (row[0],)
        for row in rows
        if row[8] < most[row[1:8]]
        or row[9] is None
        or (row[3] is not None and row[10] != row[9])
        or (row[1] == "finetune" and row[9] != row[2])
    ]
    connection.executemany("UPDATE trials SET status = 'pending', started = NULL WHERE id = ?", incomplete)
    connection.executemany("DELETE FROM epochs WHERE trial_id = ?", incomplete)
    connection.execute("UPDATE trials SET status = 'pending' WHERE status = 'running'")
    return len(incomplete)


def _keep_damaged(path: Path) -> Path:
    """Copy the damaged file, and the log next to it, to NAME.damaged; then delete the log, which must not be applied
    to the new file."""
    copy = path.with_name(f"{path.name}.damaged")
    number = 2
    while copy.exists():
        copy = path.with_name(f"{path.name}.damaged{number}")
        number += 1
    log = path.with_name(f"{path.name}-wal")
    for source, target in ((path, copy), (log, copy.with_name(f"{copy.name}-wal"))):
        if source.exists():
            with atomic_write(target, fsync=True) as partial:
                shutil.copyfile(source, partial)
    for name in (log, path.with_name(f"{path.name}-shm")):
        name.unlink(missing_ok=True)
    return copy


def _contents(path: Path) -> tuple[dict[str, int], int]:
    """The number of rows of each table, and of finished trials."""
    with closing(connect(path, "mode=ro")) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        rows = {
            table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
            for table in COLUMNS
            if table in tables
        }
        done = connection.execute("SELECT COUNT(*) FROM trials WHERE status = 'done'").fetchone()[0]
    return rows, done
