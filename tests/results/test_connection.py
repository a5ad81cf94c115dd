"""Opening results.db: whoever reads it, one message for each file that cannot be used."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
from synthetic_results import incremental, lifelike, write_results

from whichlayers.errors import WhichlayersError
from whichlayers.results import connection
from whichlayers.results.connection import ResultsDBError, connect, connect_readonly, read_snapshot
from whichlayers.results.db import ResultsDB
from whichlayers.results.export import epochs_frame, points_frame
from whichlayers.results.folder import StudyFolder, find_folder
from whichlayers.results.frames import load_epochs, load_points, load_runs, load_study_summary

READERS = {
    "connect_readonly": lambda folder: connect_readonly(folder / "results.db"),
    "ResultsDB": lambda folder: ResultsDB.open_readonly(folder / "results.db"),
    "load_points": load_points,
    "load_study_summary": load_study_summary,
    "points_frame": lambda folder: points_frame(StudyFolder(folder)),
    "epochs_frame": lambda folder: epochs_frame(StudyFolder(folder)),
}


def nothing(file):
    pass


def without_tables(file):
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA journal_mode = WAL")


def text(file):
    file.write_bytes(b"this is no database" * 100)


def foreign(file):
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE recipes(cake)")


def message_in_other_bytes(file):
    """Write a schema that SQLite quotes in its error message, with a byte that is not UTF-8."""
    write_results(file.parent, incremental(), lifelike(6))
    file.write_bytes(file.read_bytes().replace(b"CREATE TABLE points(", b"CREATE TABL\x80 points(", 1))


def of_version(number):
    def prepare(file):
        write_results(file.parent, incremental(), lifelike(6), version=number)

    return prepare


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (nothing, "{folder} holds no results.db: give the folder of a study that was run"),
        (
            without_tables,
            "{file} holds no study yet: its run has just started, or was stopped while starting; if it is not running,"
            " run the study again",
        ),
        (
            text,
            "{file} is not a valid results database (file is not a database): save what can be read with"
            " `whichlayers repair {folder}`, or restore it from a backup",
        ),
        (
            message_in_other_bytes,
            "{file} is not a valid results database ('utf-8' codec can't decode byte 0x80 in position 47: invalid start"
            " byte): save what can be read with `whichlayers repair {folder}`, or restore it from a backup",
        ),
        (
            foreign,
            "{file} is a database, but not a results database of whichlayers: give another folder",
        ),
        (
            of_version(6),
            "{file} was written by a newer whichlayers (0.1.0) with schema version 6, and this whichlayers supports"
            " versions 1 to 5: upgrade whichlayers",
        ),
        (
            of_version(0),
            "{file} was written by an older whichlayers (0.1.0) with schema version 0, and this whichlayers supports"
            " versions 1 to 5: use the version that wrote it, or run the study again in a new folder",
        ),
    ],
    ids=["missing", "unfinished", "not a database", "damaged schema", "foreign", "newer", "older"],
)
def test_all_readers_give_the_same_message(tmp_path, prepare, message, read):
    file = tmp_path / "results.db"
    prepare(file)
    with pytest.raises(ResultsDBError) as caught:
        read(tmp_path)
    assert str(caught.value) == message.format(folder=tmp_path, file=file)


def test_a_missing_file_has_the_same_message_when_a_folder_is_searched(tmp_path):
    with pytest.raises(ResultsDBError) as caught:
        find_folder(tmp_path)
    assert str(caught.value) == f"{tmp_path} holds no results.db: give the folder of a study that was run"


@pytest.mark.parametrize("load", [load_points, load_runs], ids=["in chunks", "at once"])
def test_a_query_that_fails_names_the_file(tmp_path, load):
    folder = write_results(tmp_path, incremental(), lifelike(6))
    with sqlite3.connect(folder / "results.db") as db:
        db.execute("ALTER TABLE trials RENAME COLUMN run_id TO run")
        db.execute("ALTER TABLE trials RENAME COLUMN head TO top")
    with pytest.raises(
        ResultsDBError, match=r"results\.db is not a valid results database \(no such column: "
    ):
        load(folder)


def test_other_errors_in_a_snapshot_are_not_changed(tmp_path):
    folder = write_results(tmp_path, incremental(), lifelike(6))
    for error in (WhichlayersError("mine"), ValueError("mine")):
        with pytest.raises(type(error), match=r"^mine$"), read_snapshot(folder / "results.db"):
            raise error


def test_a_snapshot_does_not_change_while_a_run_writes(tmp_path):
    folder = write_results(tmp_path, incremental(), lifelike(6))
    count = "SELECT COUNT(*) FROM epochs"
    with read_snapshot(folder / "results.db") as db:
        before = db.execute(count).fetchone()
        with sqlite3.connect(folder / "results.db", timeout=0) as writer:  # does not wait for the reader
            writer.execute("DELETE FROM epochs")
        writer.close()
        assert db.execute(count).fetchone() == before
    assert load_epochs(folder).empty


@pytest.fixture
def writer(tmp_path):
    """A connection to a new results.db that is not in write-ahead mode, with an open write transaction."""
    write_results(tmp_path, incremental(), lifelike(6))
    other = sqlite3.connect(tmp_path / "results.db", isolation_level=None, check_same_thread=False)
    assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    other.execute("BEGIN IMMEDIATE")
    with closing(other):
        yield other


def test_opening_for_writing_waits_until_another_process_has_written(tmp_path, writer):
    timer = threading.Timer(0.3, writer.execute, ["COMMIT"])
    timer.start()
    with closing(connect(tmp_path / "results.db", "mode=rw", writable=True)) as opened:
        assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    timer.join()


def test_opening_for_writing_fails_if_another_process_keeps_the_file_locked(tmp_path, writer, monkeypatch):
    monkeypatch.setattr(connection, "TIMEOUT", 0.2)
    with pytest.raises(ResultsDBError, match=r"results.db cannot be written \(database is locked\)"):
        connect(tmp_path / "results.db", "mode=rw", writable=True)
