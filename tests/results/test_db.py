"""results.db: values are read back as written, writes are atomic, other or damaged files are refused."""

from __future__ import annotations

import json
import math
import sqlite3
import stat
from pathlib import Path

import pytest
from fakes import MODELS, RUN, TASKS, FakeEpoch, FakeTrialResult, fake_result, make_points, make_trial

from whichlayers.results.connection import ResultsDBError, connect
from whichlayers.results.db import ResultsDB
from whichlayers.results.records import Counts
from whichlayers.results.schema import adapter_json
from whichlayers.trial import Adapter, Point, Surgery, Training


@pytest.fixture
def db(tmp_path: Path):
    with ResultsDB.create(tmp_path / "results.db", "mine") as db:
        yield db


def filled(db: ResultsDB, points=None) -> int:
    db.set_points(points or make_points(), TASKS, MODELS)
    return db.begin_run(RUN)


def epochs_of(db: ResultsDB, trial_id: str) -> dict[tuple[int, str], float]:
    rows = db.connection.execute("SELECT epoch, metric, value FROM epochs WHERE trial_id = ?", (trial_id,))
    return {(row[0], row[1]): row[2] for row in rows}


def test_trials_come_back_as_they_went_in_and_in_study_order(db):
    points = make_points(seeds=(2, 0), kept=(4, 1))
    trial = make_trial(7, (1, 2), head="pooler")
    odd = [Point("permutation", "permuted", 1.0, make_trial(0)), Point("x", "y", 0.5, trial)]
    filled(db, points + odd)
    # the pretrained baseline of seed 0 is shared by two experiments and runs once
    assert db.unfinished_trials() == [p.trial for p in points] + [trial]
    assert db.counts() == Counts(pending=5)
    assert db.connection.execute("SELECT COUNT(*) FROM points").fetchone()[0] == 6


def test_a_trial_is_done_with_all_its_epochs(db):
    run_id = filled(db)
    trial = db.unfinished_trials()[0]
    db.start([trial.id], run_id)
    assert db.counts() == Counts(pending=14, running=1)
    db.finish([fake_result(trial)])
    assert db.counts() == Counts(pending=14, done=1)
    assert set(epochs_of(db, trial.id)) == {
        (epoch, metric) for epoch in (1, 2) for metric in ("train_loss", "dev_loss", "seconds", "accuracy")
    }
    assert trial not in db.unfinished_trials()


def test_what_a_run_has_done_so_far_and_the_penalties_it_found(db):
    points = make_points()
    db.set_points(points, TASKS, MODELS)
    ended, running = points[0].trial, points[1].trial
    first = db.begin_run(RUN)
    db.start([ended.id], first)
    db.finish([FakeTrialResult(ended.id, [FakeEpoch(1, 1.0, 1.0, {"l1": 0.1, "l2": 0.01})])])
    second = db.begin_run(RUN)
    db.start([running.id], second)
    assert db.trial_ids("done", "failed", run_id=first) == {ended.id}
    assert db.trial_ids("done", "failed", run_id=second) == set()
    assert db.penalties() == [(ended, (0.1, 0.01))]


def test_what_an_interrupted_attempt_left_is_cleared_when_the_trial_starts_again(db):
    run_id = filled(db)
    trial = db.unfinished_trials()[0]
    db.start([trial.id], run_id)
    db.record_epoch(trial.id, FakeEpoch(9, 1.0, 1.0, {"accuracy": 0.1}))
    second = db.begin_run(RUN)  # the first run was killed: end_run was not called
    assert db.counts() == Counts(pending=15)
    assert trial in db.unfinished_trials()
    db.start([trial.id], second)
    assert epochs_of(db, trial.id) == {}
    outcomes = dict(db.connection.execute("SELECT run_id, outcome FROM runs").fetchall())
    assert outcomes == {run_id: "killed", second: None}


def test_a_done_trial_is_neither_started_nor_finished_again(db):
    run_id = filled(db)
    trial = db.unfinished_trials()[0]
    db.start([trial.id], run_id)
    db.finish([fake_result(trial)])
    with pytest.raises(ResultsDBError, match="start trial"):
        db.start([trial.id], run_id)
    with pytest.raises(ResultsDBError, match="finish trial"):
        db.finish([fake_result(trial)])


def test_finishing_a_stack_is_all_or_nothing(db):
    run_id = filled(db)
    a, b = db.unfinished_trials()[:2]
    db.start([a.id], run_id)
    with pytest.raises(ResultsDBError):
        db.finish([fake_result(a), fake_result(b)])  # b was never started
    assert db.counts() == Counts(pending=14, running=1)
    assert epochs_of(db, a.id) == {}


def test_failures_keep_their_error_until_they_are_retried(db):
    run_id = filled(db)
    a, b = db.unfinished_trials()[:2]
    db.start([a.id, b.id], run_id)
    db.finish([fake_result(a, error="diverged")])
    db.fail([b.id], "boom")
    assert [(f.trial, f.error) for f in db.failures()] == [(a, "diverged"), (b, "boom")]
    assert a not in db.unfinished_trials()
    assert db.retry_failed() == 2
    assert db.failures() == []
    assert {a, b} <= set(db.unfinished_trials())


def test_an_edited_study_keeps_what_is_done_and_deletes_other_trials_that_it_no_longer_has(db):
    run_id = filled(db, make_points(seeds=(0, 1)))
    done, dropped = db.unfinished_trials()[0], db.unfinished_trials()[1]
    db.start([done.id], run_id)
    db.finish([fake_result(done)])
    db.set_points([p for p in make_points(seeds=(0, 5)) if p.trial.id != dropped.id], TASKS, MODELS)
    assert db.counts() == Counts(pending=9, done=1)
    assert dropped not in db.unfinished_trials()
    db.set_points(make_points(seeds=(9,)), TASKS, MODELS)  # contains no finished trial
    assert db.counts() == Counts(pending=5)
    db.set_points(make_points(seeds=(0, 1)), TASKS, MODELS)  # and back again: the result is still there
    assert db.counts() == Counts(pending=9, done=1)


def test_columns_say_what_the_trial_says(db):
    trial = make_trial(3, (2, 3))
    fast = Training(epochs=2, lr_factors=((2, 5.0), (3, 5.0)))
    mixed = Training(epochs=2, lr_factors=((2, 5.0), (3, 1.0)))
    surgery = Surgery(reinit=(2, 3), recipe="bert_init", keep_layer_norm=True)
    trials = [
        make_trial(3),
        trial,
        trial.__class__(**{**trial.__dict__, "training": fast, "surgery": surgery}),
        trial.__class__(**{**trial.__dict__, "training": mixed}),
    ]
    filled(db, [Point("e", "", float(i), t) for i, t in enumerate(trials)])
    rows = db.connection.execute("SELECT recipe, keep_layer_norm, reinit_lr_factor, train_size FROM trials")
    assert [tuple(row) for row in rows] == [
        ("as_described", 0, 1.0, 16),
        ("as_described", 0, 1.0, 16),
        ("bert_init", 1, 5.0, 16),
        ("as_described", 0, None, 16),
    ]


def test_a_loss_that_is_not_a_number_is_null(db):
    run_id = filled(db)
    trial = db.unfinished_trials()[0]
    db.start([trial.id], run_id)
    db.finish([FakeTrialResult(trial.id, [FakeEpoch(1, math.nan, math.inf, {})])])
    assert epochs_of(db, trial.id)[1, "train_loss"] is None
    assert epochs_of(db, trial.id)[1, "dev_loss"] == math.inf


def test_readers_neither_block_nor_are_blocked(db):
    run_id = filled(db)
    trial = db.unfinished_trials()[0]
    with ResultsDB.open_readonly(db.path) as reader:
        reader.connection.execute("BEGIN")
        assert reader.counts() == Counts(pending=15)
        db.start([trial.id], run_id)  # would wait for a lock if the reader held one
        assert reader.counts() == Counts(pending=15)  # its snapshot
        reader.connection.execute("COMMIT")
        assert reader.counts() == Counts(pending=14, running=1)
        with pytest.raises(ResultsDBError, match="readonly"), reader.transaction() as connection:
            connection.execute("DELETE FROM trials")
        with db.transaction() as connection:
            connection.execute("UPDATE meta SET value = 'x' WHERE key = 'created'")
            assert reader.counts().total == 15  # not held up by an open write


def test_a_finished_study_can_be_read_where_nothing_may_be_written(tmp_path):
    path = tmp_path / "results.db"
    with ResultsDB.create(path, "mine") as db:
        filled(db)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with ResultsDB.open_readonly(path) as reader:
            assert reader.counts() == Counts(pending=15)
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_a_closed_database_is_one_file_and_an_open_one_stays_readable(tmp_path):
    path = tmp_path / "results.db"
    with ResultsDB.create(path, "mine") as db:
        filled(db)
    assert [file.name for file in tmp_path.iterdir()] == ["results.db"]
    with ResultsDB.open(path, "mine") as db, ResultsDB.open_readonly(path) as reader:
        db.retry_failed()
        reader.connection.execute("BEGIN")
        reader.counts()
        db.close()  # must not wait for the reader
        assert reader.counts() == Counts(pending=15)


def test_another_study_a_newer_schema_and_damage_have_different_errors(tmp_path):
    path = tmp_path / "results.db"
    ResultsDB.create(path, "mine").close()
    with pytest.raises(ResultsDBError, match="holds the study 'mine', not 'yours'"):
        ResultsDB.open(path, "yours")

    with ResultsDB.open(path, "mine") as db, db.transaction() as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    for opening in (lambda: ResultsDB.open(path, "mine"), lambda: ResultsDB.open_readonly(path)):
        with pytest.raises(ResultsDBError, match=r"newer whichlayers .* with schema version 99"):
            opening()

    path.write_bytes(b"this is no database" * 100)
    for opening in (lambda: ResultsDB.open(path, "mine"), lambda: ResultsDB.open_readonly(path)):
        with pytest.raises(ResultsDBError, match="is not a valid results database"):
            opening()

    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes(cake)")
    with pytest.raises(ResultsDBError, match="not a results database of whichlayers"):
        ResultsDB.open(path, "mine")
    with pytest.raises(ResultsDBError, match=r"holds no nowhere\.db: give the folder"):
        ResultsDB.open_readonly(tmp_path / "nowhere.db")


def test_a_file_that_may_not_be_written_is_not_called_damaged(tmp_path):
    path = tmp_path / "results.db"
    ResultsDB.create(path, "mine").close()
    with pytest.raises(
        ResultsDBError, match=r"cannot be written \(attempt to write a readonly database\): check permissions"
    ):
        connect(path, "mode=ro", writable=True)  # as on a disk that is read-only
    with pytest.raises(
        ResultsDBError, match=r"cannot be written \(unable to open database file\): check permissions"
    ):
        ResultsDB.create(Path("/proc/results.db"), "mine")


def test_a_database_whose_creation_was_killed_is_created_again(tmp_path):
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")  # the file exists, its tables do not
    with pytest.raises(ResultsDBError, match="holds no study yet"):
        ResultsDB.open_readonly(path)
    with ResultsDB.open(path, "mine") as db:
        assert db.meta("study_name") == "mine"


def test_a_full_disk_is_a_clear_error_and_changes_nothing(db):
    filled(db)
    pages = db.connection.execute("PRAGMA page_count").fetchone()[0]
    db.connection.execute(f"PRAGMA max_page_count = {pages}")
    many = make_points(seeds=range(2000), kept=(1,))
    with pytest.raises(ResultsDBError, match=r"cannot be written.*full"):
        db.set_points(many, TASKS, MODELS)
    assert db.counts() == Counts(pending=15)


def test_weight_changes_are_kept_raw_and_relative(db):
    from whichlayers.engine.results import EpochRecord, TrialResult, WeightChange

    run_id = filled(db)
    trial = db.unfinished_trials()[0]
    db.start([trial.id], run_id)
    change = WeightChange("encoder.layer.0.output.dense.weight", 1, 2.0, 0.5, 8.0, 1.0)
    record = EpochRecord(1, 0.5, 0.6, {"accuracy": 0.9}, 1.0)
    db.finish([TrialResult(trial.id, [record], weight_changes=[change])])
    query = "SELECT kind, value FROM weight_change WHERE trial_id = ?"
    found = {row[0]: row[1] for row in db.connection.execute(query, (trial.id,))}
    relative = {"frobenius, relative": 0.25, "spectral, relative": 0.5}
    assert found == {"frobenius": 2.0, "spectral": 0.5, **relative}


def test_adapters_are_shown_with_the_settings_that_their_method_uses():
    lora, ia3 = (Adapter(method, (2, 1), ("query",)) for method in ("lora", "ia3"))
    assert json.loads(adapter_json(lora)).keys() == {
        "method",
        "layers",
        "targets",
        "rank",
        "alpha",
        "dropout",
    }
    assert json.loads(adapter_json(ia3)) == {"method": "ia3", "layers": [2, 1], "targets": ["query"]}
