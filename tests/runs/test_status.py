"""The time a study still needs, judged from what the run under way did itself."""

from __future__ import annotations

import pytest
from fakes import FakeEpoch, make_points, outcome
from test_db import MODELS, RUN, TASKS

from whichlayers.results.db import Store
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import study_lock
from whichlayers.runs.plan import steps_of
from whichlayers.runs.status import status

MINUTE = 60.0


@pytest.fixture
def seconds_left(tmp_path):
    """Of a study of three trials of two epochs, a minute into its run: after what is done to its store."""

    def told(does) -> float | None:
        with study_lock(tmp_path), Store.create(tmp_path / "results.db", "mine") as store:
            store.set_points(make_points(seeds=(0,), kept=(4, 3, 2)), TASKS, MODELS)
            run_id = store.begin_run(RUN)
            first = store.waiting()[0]
            store.start([first.id], run_id)
            does(store, run_id, first)
            return status(StudyFolder(tmp_path), now=store.last_run()["started"] + MINUTE).seconds_left

    return told


def test_one_of_three_trials_in_a_minute(seconds_left):
    def does(store, run_id, first):
        store.finish([outcome(first)])

    assert seconds_left(does) == pytest.approx(2 * MINUTE)


def test_an_epoch_of_a_trial_under_way_counts(seconds_left):
    def does(store, run_id, first):
        store.record_epoch(first.id, FakeEpoch(1, 1.0, 1.0, {}))

    assert seconds_left(does) == pytest.approx(5 * MINUTE)


def test_an_epoch_that_an_earlier_run_did_says_nothing_of_the_pace(seconds_left):
    def does(store, run_id, first):
        store.note_restored(run_id, steps_of(first) // 2)
        store.record_epoch(first.id, FakeEpoch(1, 1.0, 1.0, {}))
        store.record_epoch(first.id, FakeEpoch(2, 1.0, 1.0, {}))

    assert seconds_left(does) == pytest.approx(4 * MINUTE)


def test_nothing_is_said_before_the_run_has_done_anything_itself(seconds_left):
    def does(store, run_id, first):
        store.note_restored(run_id, steps_of(first) // 2 + 1)
        store.record_epoch(first.id, FakeEpoch(1, 1.0, 1.0, {}))

    assert seconds_left(does) is None
