"""Connections to results.db: its file name, the check that a file can be used, and the copy kept of an older version.

Read-only connections never block a run: in write-ahead mode, readers and the writer do not wait for each other.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write
from whichlayers.results.invalid_values import find_invalid, lost_model, unreadable_trials
from whichlayers.results.migrations import OLDEST_VERSION, show_as_current
from whichlayers.results.schema import REQUIRED_TABLES, SCHEMA_VERSION
from whichlayers.text import format_bytes

DATABASE = "results.db"
TIMEOUT = 30  # seconds to wait for a lock
# SQLite's result codes for files that are not databases, are damaged, or lack tables or columns
INVALID = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)
# what reading a damaged file raises: SQLite's messages quote the file, whose bytes may be no UTF-8
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)


class ResultsDBError(WhichlayersError):
    """results.db cannot be opened, read or written."""


def connect(path: Path, options: str, writable: bool = False) -> sqlite3.Connection:
    """Connect to an SQLite file without checking its tables.

    Args:
        path: The file.
        options: Parameters of the SQLite URI, such as "mode=rw".
        writable: Whether to switch the file to write-ahead mode.

    Raises:
        ResultsDBError: The file cannot be opened, or is not a database.
    """
    uri = f"{path.resolve().as_uri()}?{options}"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=TIMEOUT, isolation_level=None)
        if writable:
            _switch_to_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    except DAMAGE as error:
        raise sqlite_error(path, error, "written" if writable else "read") from error
    return connection


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead mode; wait for other connections for up to TIMEOUT seconds.

    SQLite itself does not wait if another connection switches the mode at the same time: it reports SQLITE_BUSY.
    """
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Connect for reading, and check the file. Works while a run writes, and in a folder without write permission.

    Files of an older schema version have the current columns on this connection; the file is not changed.

    Raises:
        ResultsDBError: There is no file, or `check` refuses it.
    """
    if not path.is_file():
        raise missing_error(path)
    try:
        connection = connect(path, "mode=ro")
    except ResultsDBError:
        if path.with_name(f"{path.name}-wal").exists():
            raise
        # a finished study on a read-only disk: SQLite cannot create the -shm file of WAL, and does not need it
        connection = connect(path, "mode=ro&immutable=1")
    try:
        version = check(path, connection)
        if version < SCHEMA_VERSION:
            show_as_current(connection, version)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def read_snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection that sees the database as it is now, whatever a run writes meanwhile.

    Raises:
        ResultsDBError: The file cannot be used (see `connect_readonly`), has a value that whichlayers never writes, or
            a query in the block fails.
    """
    with closing(connect_readonly(path)) as connection, readable_errors(path, connection):
        connection.execute("BEGIN")
        _check_values(path, connection)
        yield connection


@contextmanager
def readable_errors(path: Path, connection: sqlite3.Connection) -> Iterator[None]:
    """Convert the errors that a damaged file causes in the block: SQLite's own, and those of values in it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, WhichlayersError):
            raise
        cause = error if isinstance(error, DAMAGE) else error.__cause__  # pandas wraps SQLite's errors
        if isinstance(cause, DAMAGE):
            raise sqlite_error(path, cause, "read") from error
        try:
            invalid, trials = find_invalid(connection), unreadable_trials(connection)
        except DAMAGE as damage:
            raise sqlite_error(path, damage, "read") from error
        if invalid is not None:
            raise invalid_value_error(path, str(invalid)) from error
        if trials:
            raise invalid_value_error(path, f"the settings of trial {trials[0]} cannot be read") from error
        raise


def _check_values(path: Path, connection: sqlite3.Connection) -> None:
    """Raise unless all values of the file are valid. A file that did not change is checked once per process."""
    write_ahead_log = path.with_name(f"{path.name}-wal")
    states = [file.stat() for file in (path, write_ahead_log) if file.exists()]
    state = tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in states)
    if (path.resolve(), state) not in _checked:
        if (invalid := find_invalid(connection)) is not None:
            raise invalid_value_error(path, str(invalid))
        if (model := lost_model(connection)) is not None:
            raise ResultsDBError(
                f"{path} has no row of the model {model!r}, which is lost: `whichlayers run {path.parent}` adds it"
                " again"
            )
        _checked.clear()
        _checked.add((path.resolve(), state))


# path and state of the file checked last
_checked: set[tuple[Path, tuple[tuple[int, int, int], ...]]] = set()


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether the database has no tables: the process that creates it has not committed them, or was killed."""
    return not _tables(connection)


def check(path: Path, connection: sqlite3.Connection) -> int:
    """The schema version of the file.

    Raises:
        ResultsDBError: It is not a results database, or its version is not supported.
    """
    try:
        tables = _tables(connection)
        meta = dict(connection.execute("SELECT key, value FROM meta")) if tables >= REQUIRED_TABLES else {}
    except DAMAGE as error:
        raise sqlite_error(path, error, "read") from error
    if not tables:
        raise ResultsDBError(
            f"{path} holds no study yet: its run has just started, or was stopped while starting; if it is not"
            " running, run the study again"
        )
    if not tables >= REQUIRED_TABLES:
        raise ResultsDBError(
            f"{path} is a database, but not a results database of whichlayers: give another folder"
        )
    stored = meta.get("schema_version")
    if not isinstance(stored, str | int) or not re.fullmatch("[0-9]{1,9}", str(stored)):
        problem = "no schema version" if stored is None else f"the schema version {str(stored)[:40]!r}"
        raise ResultsDBError(f"{path} is damaged (it has {problem}): {repair_advice(path)}")
    version = int(stored)
    if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
        keys = ("migrated_by", "whichlayers_version", "carryover_version")
        writer = next((meta[key] for key in keys if meta.get(key)), "unknown version")
        age, advice = ("a newer", "upgrade whichlayers")
        if version < OLDEST_VERSION:
            age, advice = (
                "an older",
                "use the version that wrote it, or run the study again in a new folder",
            )
        raise ResultsDBError(
            f"{path} was written by {age} whichlayers ({writer}) with schema version {version}, and this"
            f" whichlayers supports versions {OLDEST_VERSION} to {SCHEMA_VERSION}: {advice}"
        )
    return version


def check_study(path: Path, connection: sqlite3.Connection, study_name: str) -> int:
    """The schema version of the file of a study.

    Raises:
        ResultsDBError: `check` refuses the file, or it holds another study.
    """
    version = check(path, connection)
    row = connection.execute("SELECT value FROM meta WHERE key = 'study_name'").fetchone()
    if row is None:
        raise ResultsDBError(f"{path} is damaged (it has no study name): {repair_advice(path)}")
    if row[0] != study_name:
        raise ResultsDBError(
            f"{path} holds the study {row[0]!r}, not {study_name!r}: give another folder, or name the study"
            f" {row[0]!r} if it is an edited version of that one"
        )
    return version


def keep_copy(path: Path, version: int) -> Path:
    """Copy the file, as it is before it is migrated, to NAME.vVERSION next to it, and return the path of the copy.

    A copy that is there already, of an interrupted migration for example, is replaced.

    Raises:
        ResultsDBError: The copy cannot be written.
    """
    target = path.with_name(f"{path.name}.v{version}")
    try:
        for partial in path.parent.glob(f"{target.name}.*.partial"):  # of a migration that was killed
            partial.unlink()
        with (
            atomic_write(target, fsync=True) as partial,
            closing(connect(path, "mode=ro")) as source,
            closing(sqlite3.connect(partial)) as copy,
        ):
            copy.execute("PRAGMA journal_mode = OFF")  # a copy that fails is deleted
            source.backup(copy)
    except (OSError, sqlite3.Error) as error:
        raise ResultsDBError(
            f"{path} has schema version {version}. Before it is migrated to version {SCHEMA_VERSION} it is copied to"
            f" {target.name}, which failed ({error}): check permissions and free disk space"
            f" ({format_bytes(path.stat().st_size)}), then run the study again; {path.name} is not changed"
        ) from error
    return target


def missing_error(path: Path, advice: str = "") -> ResultsDBError:
    """The error for a folder without results.db; `advice` is what else to do, such as "run the study, or "."""
    return ResultsDBError(
        f"{path.parent} holds no {path.name}: {advice}give the folder of a study that was run"
    )


def repair_advice(path: Path) -> str:
    """What to do about a damaged file."""
    return f"save what can be read with `whichlayers repair {path.parent}`, or restore it from a backup"


def invalid_value_error(path: Path, problem: str) -> ResultsDBError:
    """The error for a file with a value that whichlayers never writes."""
    return ResultsDBError(f"{path} is damaged ({problem}): {repair_advice(path)}")


def sqlite_error(
    path: Path, error: sqlite3.DatabaseError | UnicodeDecodeError, action: str
) -> ResultsDBError:
    """The error for a file that SQLite refuses, one of `DAMAGE`; `action` is "read" or "written"."""
    reason = " ".join(str(error).split())
    # Python's errors for text in the file, or in SQLite's message, that is not UTF-8
    not_text = isinstance(error, UnicodeDecodeError) or reason.startswith("Could not decode")
    if not_text or getattr(error, "sqlite_errorcode", 0) & 0xFF in INVALID:
        return ResultsDBError(f"{path} is not a valid results database ({reason}): {repair_advice(path)}")
    return ResultsDBError(
        f"{path} cannot be {action} ({reason}): check permissions and free disk space, or give another folder"
    )


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
