"""The time left of a study, as stored by the run that estimates it."""

from __future__ import annotations

import time

import pytest
from fakes import MODELS, RUN, TASKS, make_points

from whichlayers.cli.status import read_status
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import study_lock


@pytest.fixture
def db(tmp_path):
    with study_lock(tmp_path), ResultsDB.create(tmp_path / "results.db", "mine") as db:
        db.set_points(make_points(seeds=(0,), kept=(4, 3, 2)), TASKS, MODELS)
        yield db


def test_the_stored_estimate_counts_down(db, tmp_path):
    db.set_time_left(db.begin_run(RUN), 300.0)
    now = time.time()
    assert read_status(StudyFolder(tmp_path), now).seconds_left == pytest.approx(300, abs=5)
    assert read_status(StudyFolder(tmp_path), now + 60).seconds_left == pytest.approx(240, abs=5)
    assert read_status(StudyFolder(tmp_path), now + 600).seconds_left == 0


def test_the_time_is_unknown_before_a_run_has_estimated_it_itself(db, tmp_path):
    assert read_status(StudyFolder(tmp_path)).seconds_left is None  # no run yet
    db.set_time_left(db.begin_run(RUN), 300.0)
    db.begin_run(RUN)
    assert read_status(StudyFolder(tmp_path)).seconds_left is None


def test_a_study_that_is_not_running_has_no_time_left(tmp_path):
    with ResultsDB.create(tmp_path / "results.db", "mine") as db:
        db.set_time_left(db.begin_run(RUN), 300.0)
    assert read_status(StudyFolder(tmp_path)).seconds_left is None
