"""losses.db: bounded, follows restarts, and never in the way of a run; TensorBoard files hold its values."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from synthetic_results import incremental, lifelike, write_results

from whichlayers.errors import WhichlayersError
from whichlayers.results import losses
from whichlayers.results.folder import StudyFolder
from whichlayers.results.losses import LossCurve, LossLog, read_losses
from whichlayers.results.trial_details import TrialTable, trial_details


def test_values_are_written_and_read(tmp_path):
    log = LossLog(tmp_path)
    for step in (10, 20, 30):
        log.record(step, {"a": 1 / step, "b": 2 / step})
    log.forget(["a"])
    found = read_losses(tmp_path)
    assert found["b"] == LossCurve((10, 20, 30), (0.2, 0.1, 0.066667))
    assert set(read_losses(tmp_path, ["a"])) == {"a"}
    assert read_losses(tmp_path / "nowhere") == {}


def test_a_relative_folder_is_read(tmp_path, monkeypatch):
    log = LossLog(tmp_path / "study")
    log.path.parent.mkdir()
    log.record(1, {"a": 0.5})
    log.flush()
    monkeypatch.chdir(tmp_path)
    assert read_losses(Path("study")) == {"a": LossCurve((1,), (0.5,))}


def test_a_trial_that_starts_again_replaces_its_values(tmp_path):
    log = LossLog(tmp_path)
    for step, loss in ((10, 1.0), (20, 0.9), (10, 0.8)):
        log.record(step, {"a": loss})
    log.flush()
    assert read_losses(tmp_path)["a"] == LossCurve((10,), (0.8,))


def test_only_the_last_trials_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "MAX_TRIALS", 5)
    log = LossLog(tmp_path)
    for number in range(12):
        log.record(1, {f"{number:02d}": 1.0})
        log.forget([f"{number:02d}"])
    assert sorted(read_losses(tmp_path)) == ["07", "08", "09", "10", "11"]


def test_a_file_that_cannot_be_written_is_given_up(tmp_path):
    (tmp_path / losses.LOSSES).write_text("not a database, but long enough to be read as one" * 10)
    log = LossLog(tmp_path)
    log.record(1, {"a": 1.0})
    log.flush()
    assert log.broken
    assert read_losses(tmp_path) == {}


@pytest.fixture
def study(tmp_path):
    return write_results(tmp_path / "s", incremental(trials=2), lambda p: lifelike(6)(p) if p.x < 5 else None)


def test_tensorboard_reads_the_values(study):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from whichlayers.results.tensorboard import export_tensorboard

    (first, *_) = TrialTable.load(study).select(status="done")[0]
    log = LossLog(study)
    for step in (5, 10):
        log.record(step, {first["trial_id"]: 1 / step})
    log.flush()
    target = export_tensorboard(StudyFolder(study))
    runs = list(target.rglob("events.out.tfevents.*"))
    assert len(runs) == 10
    (run,) = [path for path in runs if first["trial_id"][:8] in path.parent.name]
    events = accumulator.EventAccumulator(str(run.parent)).Reload()
    details = trial_details(study, first["trial_id"])
    accuracy = [(event.step, event.value) for event in events.Scalars("epoch/accuracy")]
    assert accuracy == [(e["epoch"], pytest.approx(e["accuracy"], abs=1e-6)) for e in details.epochs]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [
        (5, pytest.approx(0.2)),
        (10, pytest.approx(0.1)),
    ]
    assert export_tensorboard(StudyFolder(study)) == target  # replaces its own files
    other = study / "other"
    other.mkdir()
    with pytest.raises(WhichlayersError, match="choose another folder"):
        export_tensorboard(StudyFolder(study), other)


def test_trials_are_searched_and_sorted(study):
    table = TrialTable.load(study)
    rows, total = table.select("sst-2 incremental", status="done", sort="score", descending=True, limit=3)
    assert (len(rows), total, len(table.rows)) == (3, 10, 14)
    with sqlite3.connect(study / "results.db") as db:
        best = db.execute("SELECT MAX(value) FROM epochs WHERE metric = 'accuracy' AND epoch = 2").fetchone()[
            0
        ]
    assert rows[0]["score"] == best >= rows[1]["score"] >= rows[2]["score"]
    unsorted, _ = table.select(sort="score")
    assert [row["score"] is None for row in unsorted] == [False] * 10 + [True] * 4  # empty values last
    assert table.select("no such word")[1] == 0
