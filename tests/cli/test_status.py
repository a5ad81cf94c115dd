"""The time left of a study, estimated from the progress of the current run."""

from __future__ import annotations

import pytest
from fakes import MODELS, RUN, TASKS, FakeEpoch, fake_result, make_points

from whichlayers.cli.status import read_status
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import study_lock
from whichlayers.runs.plan import trial_steps

MINUTE = 60.0


@pytest.fixture
def seconds_left(tmp_path):
    """The time left of a study of three trials of two epochs, one minute after its run started.

    The argument is a function that records the progress of the run.
    """

    def after(record_progress) -> float | None:
        with study_lock(tmp_path), ResultsDB.create(tmp_path / "results.db", "mine") as db:
            db.set_points(make_points(seeds=(0,), kept=(4, 3, 2)), TASKS, MODELS)
            run_id = db.begin_run(RUN)
            first = db.unfinished_trials()[0]
            db.start([first.id], run_id)
            record_progress(db, run_id, first)
            return read_status(StudyFolder(tmp_path), now=db.last_run()["started"] + MINUTE).seconds_left

    return after


def test_one_of_three_trials_in_a_minute(seconds_left):
    def record_progress(db, run_id, first):
        db.finish([fake_result(first)])

    assert seconds_left(record_progress) == pytest.approx(2 * MINUTE)


def test_epochs_of_a_running_trial_count(seconds_left):
    def record_progress(db, run_id, first):
        db.record_epoch(first.id, FakeEpoch(1, 1.0, 1.0, {}))

    assert seconds_left(record_progress) == pytest.approx(5 * MINUTE)


def test_restored_epochs_do_not_count_as_progress_of_the_run(seconds_left):
    def record_progress(db, run_id, first):
        db.set_restored_steps(run_id, trial_steps(first) // 2)
        db.record_epoch(first.id, FakeEpoch(1, 1.0, 1.0, {}))
        db.record_epoch(first.id, FakeEpoch(2, 1.0, 1.0, {}))

    assert seconds_left(record_progress) == pytest.approx(4 * MINUTE)


def test_the_time_is_unknown_before_the_run_has_made_progress_itself(seconds_left):
    def record_progress(db, run_id, first):
        db.set_restored_steps(run_id, trial_steps(first) // 2 + 1)
        db.record_epoch(first.id, FakeEpoch(1, 1.0, 1.0, {}))

    assert seconds_left(record_progress) is None
