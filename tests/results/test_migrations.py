"""results.db of older schema versions: read as they are, migrated when written, with a copy; safe at any moment."""

from __future__ import annotations

import dataclasses
import errno
import json
import lzma
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from fakes import MODELS, RUN, TASKS, make_points
from synthetic_results import downgrade, incremental, lifelike, write_results

import whichlayers
from whichlayers.cli.status import read_status
from whichlayers.results import connection, migrations
from whichlayers.results import db as db_module
from whichlayers.results.connection import ResultsDBError
from whichlayers.results.db import ResultsDB
from whichlayers.results.export import epochs_frame, points_frame
from whichlayers.results.folder import StudyFolder
from whichlayers.results.frames import (
    SEED_COLUMNS,
    load_baseline_weight_change,
    load_epochs,
    load_points,
    load_runs,
    load_study_summary,
    load_top_neurons,
    load_trials,
)
from whichlayers.results.records import TaskRow
from whichlayers.results.schema import SCHEMA_VERSION, trial_row
from whichlayers.text import format_bytes
from whichlayers.trial import Point, Trial

TESTS = Path(__file__).parents[1]
KILLED = TESTS / "golden" / "study" / "killed" / "results.db"  # of version 0.1, its run was killed
TRIALS = [json.loads(line) for line in (TESTS / "golden" / "trials.jsonl").read_text().splitlines()]
COMMITTED = TESTS.parent / "results" / "tamkin2020-all-mpnet-base-v2" / "results.db.xz"
FRAMES = (load_points, load_epochs, load_trials, load_runs, load_baseline_weight_change)
EXPORTS = (points_frame, epochs_frame)
VERSION_4 = ("reinit_pooler", "adapter", "trained_parameters", "memory")
VERSION_5 = ("top_neurons",)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A results.db of version 0.1: finetuning, probes and word probes, some of them finished."""
    (tmp_path / "old").mkdir()
    return Path(shutil.copy(KILLED, tmp_path / "old" / "results.db"))


def frames(folder: Path) -> list[pd.DataFrame]:
    return [load(folder) for load in FRAMES] + [export(StudyFolder(folder)) for export in EXPORTS]


def assert_same_frames(found: list[pd.DataFrame], expected: list[pd.DataFrame]) -> None:
    for one, other in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(one, other)


def table(database: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(database)) as db:
        return db.execute(query).fetchall()


def dump(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as db:
        return list(db.iterdump())


def version_of(database: Path) -> str:
    return table(database, "SELECT value FROM meta WHERE key = 'schema_version'")[0][0]


def migrate(database: Path) -> Path | None:
    """Open the database for writing and close it; returns the path of the copy."""
    name = table(database, "SELECT value FROM meta WHERE key = 'study_name'")[0][0]
    with ResultsDB.open(database, name) as db:
        return db.old_copy


# --- the columns ---


@pytest.mark.parametrize("in_file", [True, False], ids=["migrated", "only read"])
def test_old_trials_have_the_columns_that_a_new_file_has(tmp_path, in_file):
    trials = {row["id"]: Trial.from_json(row["trial_json"]) for row in TRIALS}
    points = [Point("e", "", float(n), trial) for n, trial in enumerate(trials.values())]
    with ResultsDB.create(tmp_path / "results.db", "golden") as db:
        db.set_points(points, TASKS, MODELS)
        expected = [tuple(row) for row in db.connection.execute("SELECT * FROM trials ORDER BY id")]
        names = [row[1] for row in db.connection.execute("PRAGMA table_info(trials)")]
    assert {row[names.index("kind")] for row in expected} == {"finetune", "probe", "word_probe"}
    downgrade(tmp_path / "results.db")
    opened = ResultsDB.open(tmp_path / "results.db", "golden") if in_file else None
    with opened or ResultsDB.open_readonly(tmp_path / "results.db") as db:
        found = db.connection.execute(f"SELECT {', '.join(names)} FROM trials ORDER BY id")
        assert [tuple(row) for row in found] == expected


def test_the_columns_are_those_of_the_stored_trials(old):
    migrate(old)
    metrics = dict(table(old, "SELECT fingerprint, metric FROM tasks"))
    with ResultsDB.open_readonly(old) as db:
        rows = [dict(row) for row in db.connection.execute("SELECT * FROM trials")]
    assert len(rows) == 102
    for row in rows:
        trial = Trial.from_json(row["trial_json"])
        expected = trial_row(row["id"], trial, metrics.get(trial.task_fingerprint))
        assert {name: row[name] for name in expected} == expected


def test_a_migrated_file_has_the_tables_of_a_new_one(old, tmp_path):
    migrate(old)
    ResultsDB.create(tmp_path / "new.db", "new").close()
    names = "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite%' ORDER BY name"
    assert table(old, names) == table(tmp_path / "new.db", names)
    for (name,) in table(old, names):
        columns = f"SELECT name, type FROM pragma_table_info('{name}')"
        assert table(old, columns) == table(tmp_path / "new.db", columns), name


def test_version_4_has_no_neurons(old):
    migrate(old)
    expected = frames(old.parent)
    with closing(sqlite3.connect(old)) as db:
        for column in VERSION_5:
            db.execute(f"ALTER TABLE trials DROP COLUMN {column}")
        db.execute("UPDATE meta SET value = '4' WHERE key = 'schema_version'")
        db.commit()
    assert load_top_neurons(old.parent).empty
    assert_same_frames(frames(old.parent), expected)
    assert migrate(old) == old.with_name("results.db.v4")
    assert_same_frames(frames(old.parent), expected)
    assert load_top_neurons(old.parent).empty


def test_version_3_has_no_adapters_and_no_costs(old):
    migrate(old)
    expected = frames(old.parent)
    with closing(sqlite3.connect(old)) as db:
        for column in (*VERSION_4, *VERSION_5):
            db.execute(f"ALTER TABLE trials DROP COLUMN {column}")
        db.execute("UPDATE meta SET value = '3' WHERE key = 'schema_version'")
        db.commit()
    assert_same_frames(frames(old.parent), expected)
    assert migrate(old) == old.with_name("results.db.v3")
    assert version_of(old) == str(SCHEMA_VERSION)
    assert_same_frames(frames(old.parent), expected)
    assert load_points(old.parent)["memory"].isna().all()


def test_version_2_has_no_seeds_of_components(old, tmp_path):
    """A file as the early versions of 0.2 wrote it: read as it is, and migrated with a copy."""
    migrate(old)
    expected = frames(old.parent)
    with closing(sqlite3.connect(old)) as db:
        for column in (*SEED_COLUMNS, *VERSION_4, *VERSION_5):
            db.execute(f"ALTER TABLE trials DROP COLUMN {column}")
        for column in ("guess_scores", "class_counts"):
            db.execute(f"ALTER TABLE tasks DROP COLUMN {column}")
        db.execute("UPDATE meta SET value = '2' WHERE key = 'schema_version'")
        db.commit()
    assert_same_frames(frames(old.parent), expected)
    assert version_of(old) == "2"
    assert migrate(old) == old.with_name("results.db.v2")
    assert (version_of(old), version_of(old.with_name("results.db.v2"))) == (str(SCHEMA_VERSION), "2")
    assert_same_frames(frames(old.parent), expected)
    assert load_points(old.parent)[SEED_COLUMNS].eq(load_points(old.parent)["seed"], axis=0).all(axis=None)


@pytest.mark.parametrize("columns", [None, {}], ids=["no entry", "no columns"])
def test_a_version_may_add_no_columns(old, monkeypatch, columns):
    expected, current = load_points(old.parent), SCHEMA_VERSION
    if columns is not None:
        monkeypatch.setitem(migrations.ADDED_COLUMNS, current + 1, columns)
    for module in (connection, db_module, migrations):
        monkeypatch.setattr(module, "SCHEMA_VERSION", current + 1)
    for version in (1, current):
        assert version_of(old) == str(version)
        pd.testing.assert_frame_equal(load_points(old.parent), expected)
        migrate(old)
        assert version_of(old) == str(current + 1)
        pd.testing.assert_frame_equal(load_points(old.parent), expected)
        with closing(sqlite3.connect(old)) as db:
            db.execute(f"UPDATE meta SET value = '{current}' WHERE key = 'schema_version'")
            db.commit()


# --- reading ---


def test_reading_an_old_file_gives_the_same_frames_and_does_not_change_it(old):
    before = old.read_bytes()
    read = frames(old.parent)
    summary, now = load_study_summary(old.parent), read_status(StudyFolder(old.parent))
    assert old.read_bytes() == before
    assert [file.name for file in old.parent.iterdir()] == ["results.db"]
    assert (summary.whichlayers_version, now.counts.done, now.counts.total) == ("0.1.0", 76, 102)
    assert migrate(old) == old.with_name("results.db.v1")
    assert version_of(old) == str(SCHEMA_VERSION)
    assert_same_frames(frames(old.parent), read)
    assert load_study_summary(old.parent) == summary


def test_an_old_file_can_be_read_in_a_folder_without_write_permission(old):
    expected = load_points(old.parent)
    old.parent.chmod(0o555)
    try:
        pd.testing.assert_frame_equal(load_points(old.parent), expected)
    finally:
        old.parent.chmod(0o755)


def test_an_old_file_is_read_while_an_older_version_writes_it(old):
    with closing(sqlite3.connect(old, isolation_level=None, timeout=0)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE trials SET status = 'done' WHERE status = 'pending'")
        with ResultsDB.open_readonly(old) as reader:
            assert reader.counts().done == 76
            writer.execute("COMMIT")
            assert reader.counts().pending == 0
            assert {trial.kind for trial in reader.trials("done")} == {"finetune", "probe", "word_probe"}
            assert reader.interrupted_stacks()


def test_the_first_files_of_version_1_lack_weight_changes(old):
    with closing(sqlite3.connect(old)) as db:
        db.execute("DROP VIEW weight_change")
        db.execute("DROP TABLE weight_changes")
    assert load_baseline_weight_change(old.parent).empty
    migrate(old)
    assert load_baseline_weight_change(old.parent).empty
    assert table(old, "SELECT COUNT(*) FROM weight_changes") == [(0,)]


def test_the_committed_results_can_be_read_and_migrated(tmp_path):
    database = tmp_path / "results.db"
    database.write_bytes(lzma.decompress(COMMITTED.read_bytes()))
    read = frames(tmp_path)
    assert len(read[-2]) >= 1300
    migrate(database)
    assert_same_frames(frames(tmp_path), read)


# --- migrating ---


def test_the_copy_is_the_old_file_and_can_be_put_back(old):
    before, points = dump(old), load_points(old.parent)
    copy = migrate(old)
    assert dump(copy) == before
    assert {file.name for file in old.parent.iterdir()} == {"results.db", "results.db.v1"}
    assert migrate(old) is None  # once
    assert dump(copy) == before
    copy.replace(old)
    assert version_of(old) == "1"
    pd.testing.assert_frame_equal(load_points(old.parent), points)
    assert migrate(old) == copy


def test_what_is_only_in_the_write_ahead_log_is_copied_too(old):
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA journal_mode = WAL');"
        " db.execute(\"UPDATE trials SET error = 'late'\"); db.commit(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(old)], check=False)
    assert old.with_name("results.db-wal").stat().st_size > 0
    copy = migrate(old)
    for file in (old, copy):
        assert table(file, "SELECT DISTINCT error FROM trials") == [("late",)]


def test_a_migrated_study_is_resumed(old):
    with ResultsDB.open(old, "old") as db:
        assert (len(db.unfinished_trials()), len(db.trial_ids("done"))) == (26, 76)
        run_id = db.begin_run(RUN)
        trial = db.unfinished_trials()[0]
        db.start([trial.id], run_id)
        db.set_points(make_points(), TASKS, MODELS)
        assert db.counts().total == 15


def test_checking_a_folder_does_not_migrate_it(old):
    StudyFolder(old.parent).check_available("old")
    with pytest.raises(ResultsDBError, match="holds the study 'old', not 'new'"):
        StudyFolder(old.parent).check_available("new")
    with pytest.raises(ResultsDBError, match="holds the study 'old', not 'new'"):
        ResultsDB.open(old, "new")
    assert version_of(old) == "1"
    assert [file.name for file in old.parent.iterdir()] == ["results.db"]


def test_processes_that_open_an_old_file_at_once_migrate_it_once(old):
    with ThreadPoolExecutor(4) as pool:
        copies = list(pool.map(lambda _: migrate(old), range(4)))
    assert sorted(copy is not None for copy in copies) == [False, False, False, True]
    assert version_of(old) == str(SCHEMA_VERSION)
    assert version_of(old.with_name("results.db.v1")) == "1"


KILL = """
import os, signal, sqlite3, sys
from pathlib import Path
from whichlayers.results import connection, db

count = int(sys.argv[2])

def kill_later(*_):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)

connect, replace = connection.connect, os.replace

def traced(*args, **options):
    opened = connect(*args, **options)
    opened.set_trace_callback(kill_later)  # before each statement
    return opened

def replace_traced(*args):
    kill_later()
    replace(*args)
    kill_later()

connection.connect = db.connect = traced
os.replace = replace_traced
db.ResultsDB.open(Path(sys.argv[1]), "old").close()
"""


def test_a_migration_that_is_killed_at_any_moment_leaves_a_file_that_can_be_read_and_migrated(old):
    expected = load_points(old.parent)
    before = old.read_bytes()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    versions, moment, finished = [], 0, False
    while not finished:
        moment += 1
        for file in old.parent.iterdir():
            file.unlink()
        old.write_bytes(before)
        done = subprocess.run([sys.executable, "-c", KILL, str(old), str(moment)], env=environment)
        finished = done.returncode == 0
        assert finished or done.returncode == -signal.SIGKILL
        pd.testing.assert_frame_equal(load_points(old.parent), expected)  # with the log of the killed process
        versions.append(version_of(old))
        assert (migrate(old) is None) == (versions[-1] == str(SCHEMA_VERSION))
        assert {file.name for file in old.parent.iterdir()} == {"results.db", "results.db.v1"}
        assert version_of(old.with_name("results.db.v1")) == "1"
        pd.testing.assert_frame_equal(load_points(old.parent), expected)
    assert versions == sorted(versions)
    assert versions.count("1") >= 20  # each ALTER TABLE is a moment
    assert versions.count(str(SCHEMA_VERSION)) >= 1


# --- errors ---


def test_a_copy_that_cannot_be_written_leaves_the_file_as_it_was(old, monkeypatch):
    before = dump(old)

    def full_disk(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(connection, "atomic_write", full_disk)
        with pytest.raises(ResultsDBError) as caught:
            migrate(old)
    assert str(caught.value) == (
        f"{old} has schema version 1. Before it is migrated to version {SCHEMA_VERSION} it is copied to results.db.v1,"
        " which failed"
        " ([Errno 28] No space left on device): check permissions and free disk space"
        f" ({format_bytes(old.stat().st_size)}), then run the study"
        " again; results.db is not changed"
    )
    old.with_name("results.db.v1").mkdir()
    with pytest.raises(ResultsDBError, match=r"copied to results\.db\.v1, which failed .*Is a directory"):
        migrate(old)
    assert dump(old) == before
    old.with_name("results.db.v1").rmdir()
    assert [file.name for file in old.parent.iterdir()] == ["results.db"]


def test_a_disk_that_is_full_during_the_migration_leaves_the_file_as_it_was(old, monkeypatch):
    before = dump(old)
    connect = connection.connect

    def nearly_full(*args, **options):
        opened = connect(*args, **options)
        pages = opened.execute("PRAGMA page_count").fetchone()[0]
        opened.execute(f"PRAGMA max_page_count = {pages}")
        return opened

    with monkeypatch.context() as patched:
        patched.setattr("whichlayers.results.db.connect", nearly_full)
        with pytest.raises(
            ResultsDBError, match=r"results\.db cannot be written \(database or disk is full\)"
        ):
            migrate(old)
    assert dump(old) == before
    assert migrate(old) is not None


def test_a_migrated_file_names_the_version_that_migrated_it(old):
    migrate(old)
    with closing(sqlite3.connect(old)) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
        db.commit()
    with pytest.raises(ResultsDBError, match=f"a newer whichlayers .{whichlayers.__version__}. with schema"):
        load_points(old.parent)


def test_a_version_that_is_no_number_is_damage(tmp_path):
    folder = write_results(tmp_path, incremental(), lifelike(6))
    with closing(sqlite3.connect(folder / "results.db")) as db:
        db.execute("UPDATE meta SET value = 'two' WHERE key = 'schema_version'")
        db.commit()
    with pytest.raises(
        ResultsDBError, match=r"is damaged \(it has the schema version 'two'\): save what can be"
    ):
        load_points(folder)


def test_the_score_of_guessing_of_an_old_file_is_unknown_until_the_study_is_run(old):
    assert load_points(old.parent)["guess"].isna().all()
    migrate(old)
    assert set(table(old, "SELECT guess_scores, class_counts FROM tasks")) == {(None, None)}
    points = load_points(old.parent)
    assert points["guess"].isna().all()
    assert {(task.guess, len(task.class_counts)) for task in load_study_summary(old.parent).tasks} == {
        (None, 0)
    }
    with ResultsDB.open(old, "old") as db:
        known = [
            TaskRow(*row, guess_scores={"accuracy": 0.6}, class_counts={"a": 3, "b": 2})
            for row in db.connection.execute(
                "SELECT fingerprint, name, kind, metric, metrics, train_rows FROM tasks"
            ).fetchall()
        ]
        known = [dataclasses.replace(row, metrics=tuple(json.loads(row.metrics))) for row in known]
        db.set_points(make_points(), [*known, *TASKS], MODELS)
    assert {
        row for (row,) in table(old, "SELECT guess_scores FROM tasks WHERE guess_scores IS NOT NULL")
    } == {'{"accuracy": 0.6}'}


def test_notes_on_truncated_texts_are_kept_while_their_data_are_in_the_study(tmp_path):
    with ResultsDB.create(tmp_path / "results.db", "s") as db:
        db.set_notes(["a note"])
        db.set_truncated({"a": "of a", "b": "of b"}, {"a", "b", "c"})
        assert db.notes() == ["a note", "of a", "of b"]
        db.set_truncated({"c": "of c"}, {"b", "c"})  # a run that resumed c; a is no longer in the study
        assert db.notes() == ["a note", "of b", "of c"]
