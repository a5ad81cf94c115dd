"""results.db: what goes in comes out; nothing half-done, no other study, nothing damaged is used."""

from __future__ import annotations

import math
import sqlite3
import stat
from pathlib import Path

import pytest
from fakes import FakeEpoch, FakeOutcome, make_points, make_trial, outcome

from whichlayers.results.db import Store, StoreError
from whichlayers.results.records import Counts, ModelRow, RunRow, TaskRow
from whichlayers.trial import Point, Surgery, Training

TASKS = [
    TaskRow(
        "data of builtin:sentiment", "builtin:sentiment", "classification", "accuracy", ("accuracy",), 100
    )
]
MODELS = [ModelRow("model of fake-org/fake", "fake-org/fake", None, "bert", 4)]
RUN = RunRow("host", 1, "cpu", 2, {"torch": "2"}, None, "whichlayers run")


@pytest.fixture
def store(tmp_path: Path):
    with Store.create(tmp_path / "results.db", "mine") as store:
        yield store


def filled(store: Store, points=None) -> int:
    store.set_points(points or make_points(), TASKS, MODELS)
    return store.begin_run(RUN)


def epochs_of(store: Store, trial_id: str) -> dict[tuple[int, str], float]:
    rows = store.connection.execute("SELECT epoch, metric, value FROM epochs WHERE trial_id = ?", (trial_id,))
    return {(row[0], row[1]): row[2] for row in rows}


def test_trials_come_back_as_they_went_in_and_in_study_order(store):
    points = make_points(seeds=(2, 0), kept=(4, 1))
    trial = make_trial(7, (1, 2), head="pooler")
    odd = [Point("permutation", "permuted", 1.0, make_trial(0)), Point("x", "y", 0.5, trial)]
    filled(store, points + odd)
    # the pretrained baseline of seed 0 is shared by two experiments and runs once
    assert store.waiting() == [p.trial for p in points] + [trial]
    assert store.counts() == Counts(pending=5)
    assert store.connection.execute("SELECT COUNT(*) FROM points").fetchone()[0] == 6


def test_a_trial_is_done_with_all_its_epochs(store):
    run_id = filled(store)
    trial = store.waiting()[0]
    store.start([trial.id], run_id)
    assert store.counts() == Counts(pending=14, running=1)
    store.finish([outcome(trial)])
    assert store.counts() == Counts(pending=14, done=1)
    assert set(epochs_of(store, trial.id)) == {
        (epoch, metric) for epoch in (1, 2) for metric in ("train_loss", "dev_loss", "seconds", "accuracy")
    }
    assert trial not in store.waiting()


def test_what_an_interrupted_attempt_left_is_cleared_when_the_trial_starts_anew(store):
    run_id = filled(store)
    trial = store.waiting()[0]
    store.start([trial.id], run_id)
    store.record_epoch(trial.id, FakeEpoch(9, 1.0, 1.0, {"accuracy": 0.1}))
    second = store.begin_run(RUN)  # the first one was killed: it never said that it ended
    assert store.counts() == Counts(pending=15)
    assert trial in store.waiting()
    store.start([trial.id], second)
    assert epochs_of(store, trial.id) == {}
    outcomes = dict(store.connection.execute("SELECT run_id, outcome FROM runs").fetchall())
    assert outcomes == {run_id: "killed", second: None}


def test_a_done_trial_is_neither_started_nor_finished_again(store):
    run_id = filled(store)
    trial = store.waiting()[0]
    store.start([trial.id], run_id)
    store.finish([outcome(trial)])
    with pytest.raises(StoreError, match="start trial"):
        store.start([trial.id], run_id)
    with pytest.raises(StoreError, match="finish trial"):
        store.finish([outcome(trial)])


def test_finishing_a_stack_is_all_or_nothing(store):
    run_id = filled(store)
    a, b = store.waiting()[:2]
    store.start([a.id], run_id)
    with pytest.raises(StoreError):
        store.finish([outcome(a), outcome(b)])  # b was never started
    assert store.counts() == Counts(pending=14, running=1)
    assert epochs_of(store, a.id) == {}


def test_failures_keep_their_error_until_they_are_retried(store):
    run_id = filled(store)
    a, b = store.waiting()[:2]
    store.start([a.id, b.id], run_id)
    store.finish([outcome(a, error="diverged")])
    store.fail([b.id], "boom")
    assert [(f.trial, f.error) for f in store.failures()] == [(a, "diverged"), (b, "boom")]
    assert a not in store.waiting()
    assert store.retry_failed() == 2
    assert store.failures() == []
    assert {a, b} <= set(store.waiting())


def test_an_edited_study_keeps_what_is_done_and_forgets_what_it_no_longer_asks_for(store):
    run_id = filled(store, make_points(seeds=(0, 1)))
    done, dropped = store.waiting()[0], store.waiting()[1]
    store.start([done.id], run_id)
    store.finish([outcome(done)])
    store.set_points([p for p in make_points(seeds=(0, 5)) if p.trial.id != dropped.id], TASKS, MODELS)
    assert store.counts() == Counts(pending=9, done=1)
    assert dropped not in store.waiting()
    store.set_points(make_points(seeds=(9,)), TASKS, MODELS)  # asks for nothing that is done
    assert store.counts() == Counts(pending=5)
    store.set_points(make_points(seeds=(0, 1)), TASKS, MODELS)  # and back again: the result is still there
    assert store.counts() == Counts(pending=9, done=1)


def test_columns_say_what_the_trial_says(store):
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
    filled(store, [Point("e", "", float(i), t) for i, t in enumerate(trials)])
    rows = store.connection.execute(
        "SELECT recipe, keep_layer_norm, reinit_lr_factor, train_size FROM trials"
    )
    assert [tuple(row) for row in rows] == [
        ("as_described", 0, 1.0, 16),
        ("as_described", 0, 1.0, 16),
        ("bert_init", 1, 5.0, 16),
        ("as_described", 0, None, 16),
    ]


def test_a_loss_that_is_not_a_number_is_null(store):
    run_id = filled(store)
    trial = store.waiting()[0]
    store.start([trial.id], run_id)
    store.finish([FakeOutcome(trial.id, [FakeEpoch(1, math.nan, math.inf, {})])])
    assert epochs_of(store, trial.id)[1, "train_loss"] is None
    assert epochs_of(store, trial.id)[1, "dev_loss"] == math.inf


def test_readers_neither_block_nor_are_blocked(store):
    run_id = filled(store)
    trial = store.waiting()[0]
    with Store.read(store.path) as reader:
        reader.connection.execute("BEGIN")
        assert reader.counts() == Counts(pending=15)
        store.start([trial.id], run_id)  # would wait for a lock if the reader held one
        assert reader.counts() == Counts(pending=15)  # its snapshot
        reader.connection.execute("COMMIT")
        assert reader.counts() == Counts(pending=14, running=1)
        with pytest.raises(StoreError, match="readonly"), reader.transaction() as db:
            db.execute("DELETE FROM trials")
        with store.transaction() as db:
            db.execute("UPDATE meta SET value = 'x' WHERE key = 'created'")
            assert reader.counts().total == 15  # not held up by an open write


def test_a_finished_study_can_be_read_where_nothing_may_be_written(tmp_path):
    path = tmp_path / "results.db"
    with Store.create(path, "mine") as store:
        filled(store)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with Store.read(path) as reader:
            assert reader.counts() == Counts(pending=15)
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_a_closed_store_is_one_file_and_an_open_one_stays_readable(tmp_path):
    path = tmp_path / "results.db"
    with Store.create(path, "mine") as store:
        filled(store)
    assert [file.name for file in tmp_path.iterdir()] == ["results.db"]
    with Store.open(path, "mine") as store, Store.read(path) as reader:
        store.retry_failed()
        reader.connection.execute("BEGIN")
        reader.counts()
        store.close()  # must not wait for the reader
        assert reader.counts() == Counts(pending=15)


def test_another_study_a_newer_schema_and_damage_are_told_apart(tmp_path):
    path = tmp_path / "results.db"
    Store.create(path, "mine").close()
    with pytest.raises(StoreError, match="holds the study 'mine', not 'yours'"):
        Store.open(path, "yours")

    with Store.open(path, "mine") as store, store.transaction() as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    for opening in (lambda: Store.open(path, "mine"), lambda: Store.read(path)):
        with pytest.raises(StoreError, match="schema version 99"):
            opening()

    path.write_bytes(b"this is no database" * 100)
    for opening in (lambda: Store.open(path, "mine"), lambda: Store.read(path)):
        with pytest.raises(StoreError, match="cannot be read as a results file"):
            opening()

    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes(cake)")
    with pytest.raises(StoreError, match="not one that whichlayers wrote"):
        Store.open(path, "mine")
    with pytest.raises(StoreError, match="no results at"):
        Store.read(tmp_path / "nowhere.db")


def test_a_file_that_may_not_be_written_is_not_called_damaged(tmp_path):
    path = tmp_path / "results.db"
    Store.create(path, "mine").close()
    with pytest.raises(
        StoreError, match=r"cannot be written \(attempt to write a readonly database\): may you"
    ):
        Store.connect(path, path.as_uri() + "?mode=ro&asked=mode=rw")  # as on a disk that is read-only
    with pytest.raises(StoreError, match=r"cannot be written \(unable to open database file\): may you"):
        Store.create(Path("/proc/results.db"), "mine")


def test_a_store_whose_maker_was_killed_at_once_is_made_again(tmp_path):
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")  # the file exists, its tables do not
    with pytest.raises(StoreError, match="holds no study yet"):
        Store.read(path)
    with Store.open(path, "mine") as store:
        assert store.meta("study_name") == "mine"


def test_a_full_disk_is_a_clear_error_and_changes_nothing(store):
    filled(store)
    pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
    store.connection.execute(f"PRAGMA max_page_count = {pages}")
    many = make_points(seeds=range(2000), kept=(1,))
    with pytest.raises(StoreError, match=r"cannot be written.*full"):
        store.set_points(many, TASKS, MODELS)
    assert store.counts() == Counts(pending=15)


def test_weight_changes_are_kept_raw_and_relative(store):
    from whichlayers.engine.results import EpochRecord, Outcome, WeightChange

    run_id = filled(store)
    trial = store.waiting()[0]
    store.start([trial.id], run_id)
    change = WeightChange("encoder.layer.0.output.dense.weight", 1, 2.0, 0.5, 8.0, 1.0)
    record = EpochRecord(1, 0.5, 0.6, {"accuracy": 0.9}, 1.0)
    store.finish([Outcome(trial.id, [record], weight_changes=[change])])
    query = "SELECT kind, value FROM weight_change WHERE trial_id = ?"
    found = {row[0]: row[1] for row in store.connection.execute(query, (trial.id,))}
    relative = {"frobenius, relative": 0.25, "spectral, relative": 0.5}
    assert found == {"frobenius": 2.0, "spectral": 0.5, **relative}
