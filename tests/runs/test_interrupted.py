"""A driver that is killed, stopped or doubled: nothing lost, nothing run twice, no process left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest
from running import assert_complete, computed, run

from whichlayers.results.db import Store, StoreError
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import Locked, holder, study_lock
from whichlayers.results.records import Counts
from whichlayers.runs.events import Note
from whichlayers.runs.status import status

SCRIPT = Path(fakes.__file__).with_name("drive_study.py")
TRIALS = 15


def drive(folder: Path, workers: int, max_stack: int = 2, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), str(workers), str(max_stack), "3"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def done_ids(folder: Path) -> set[str]:
    try:
        with Store.read(folder / "results.db") as store:
            return store.ids("done")
    except StoreError:  # not there yet
        return set()


def workers_of(folder: Path) -> list[int]:
    """Processes whose output goes into this folder's logs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "fd" / "1").startswith(f"{folder}/logs"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_at_any_moment_loses_nothing_and_repeats_nothing(folder, workers):
    moments = random.Random(workers)
    settled: set[str] = set()
    for _ in range(3):
        driver = drive(folder, workers, max_stack=1, FAKE_SECONDS="0.1")
        wait_until(lambda before=settled: done_ids(folder) > before)
        time.sleep(moments.uniform(0, 0.2))
        driver.kill()
        driver.communicate()
        wait_until(lambda: not workers_of(folder))  # nothing trains for nobody
        lines = len(computed(folder))
        settled = done_ids(folder)
        assert settled <= set(computed(folder))
    last = drive(folder, workers)
    output, _ = last.communicate(timeout=30)
    assert output.splitlines()[-1] == f"{TRIALS} 0"
    assert_complete(folder, TRIALS)
    assert not set(computed(folder)[lines:]) & settled  # what was done is not done again
    with Store.read(folder / "results.db") as store:
        outcomes = [row[0] for row in store.connection.execute("SELECT outcome FROM runs ORDER BY run_id")]
    assert outcomes == ["killed"] * 3 + ["complete"]


@pytest.mark.parametrize("moment", ["Note", "RunStarted", "Progress", "TrialDone"])
def test_killed_at_a_chosen_moment(folder, moment):
    driver = drive(folder, 0, DIE_AT=moment)
    driver.communicate(timeout=30)
    assert driver.returncode == -signal.SIGKILL
    before = done_ids(folder) if moment != "Note" else set()
    assert len(before) == {"Note": 0, "RunStarted": 0, "Progress": 0, "TrialDone": 2}[moment]
    lines = len(computed(folder))
    assert run(folder).done == TRIALS
    assert_complete(folder, TRIALS)
    assert not set(computed(folder)[lines:]) & before


@pytest.mark.parametrize(("workers", "number"), [(0, signal.SIGINT), (2, signal.SIGINT), (2, signal.SIGTERM)])
def test_ctrl_c_leaves_everything_in_order(folder, workers, number):
    driver = drive(folder, workers, FAKE_SECONDS="0.1")
    wait_until(lambda: done_ids(folder))
    driver.send_signal(number)
    output, _ = driver.communicate(timeout=10)
    assert "KeyboardInterrupt" in output
    assert workers_of(folder) == []
    with Store.read(folder / "results.db") as store:
        counts = store.counts()
        assert store.last_run()["outcome"] == "interrupted"
    assert counts.running == 0
    assert counts.done + counts.pending == TRIALS
    assert run(folder).ran == counts.pending
    assert_complete(folder, TRIALS)
    assert len(computed(folder)) >= TRIALS


def test_a_killed_worker_costs_nothing(folder):
    driver = drive(folder, 2, FAKE_SECONDS="0.1")
    wait_until(lambda: done_ids(folder))
    os.kill(workers_of(folder)[0], signal.SIGKILL)
    output, _ = driver.communicate(timeout=30)
    assert output.splitlines()[-1] == f"{TRIALS} 0"
    assert_complete(folder, TRIALS)


def test_a_second_run_says_who_holds_the_folder_and_does_nothing(folder):
    driver = drive(folder, 2, FAKE_SECONDS="0.2")
    wait_until(lambda: done_ids(folder))
    with pytest.raises(Locked, match=f"process {driver.pid} on "):
        run(folder)
    now = status(StudyFolder(folder))
    assert now.running is not None
    assert now.running.pid == driver.pid
    assert now.counts.total == TRIALS
    assert now.seconds_left is not None
    assert 0 < now.seconds_left < 60
    driver.kill()
    driver.communicate()
    assert holder(folder) is None
    after = status(StudyFolder(folder))
    assert (after.running, after.last_outcome, after.seconds_left) == (None, "killed", None)


def test_the_lock_is_taken_again_after_it_was_given_back(tmp_path):
    with study_lock(tmp_path):
        assert holder(tmp_path).pid == os.getpid()
        with pytest.raises(Locked), study_lock(tmp_path):
            pass
    assert holder(tmp_path) is None
    with study_lock(tmp_path):
        pass


def test_another_machine_that_shows_life_holds_the_folder(folder):
    """As on a file system that does not pass locks on: only the file tells."""
    run(folder, fakes.make_study(trials=1))
    lock = folder / ".lock"
    lock.write_text('{"host": "elsewhere", "pid": 7, "since": 1700000000.0}')
    with pytest.raises(Locked, match="process 7 on elsewhere, since 2023-11-1"):
        run(folder, fakes.make_study(trials=2))
    assert status(StudyFolder(folder)).running.host == "elsewhere"
    long_ago = time.time() - 1000
    os.utime(lock, (long_ago, long_ago))
    assert holder(folder) is None
    notes = []
    note = lambda event: notes.append(event.text) if isinstance(event, Note) else None  # noqa: E731
    assert run(folder, fakes.make_study(trials=2), on_event=note).done == 10
    assert "the run of process 7 on elsewhere, since" in notes[0]
    assert lock.read_text() == ""


def test_the_holder_shows_life(tmp_path, monkeypatch):
    monkeypatch.setattr("whichlayers.results.lock.HEARTBEAT", 0.05)
    with study_lock(tmp_path):
        os.utime(tmp_path / ".lock", (1000, 1000))
        wait_until(lambda: (tmp_path / ".lock").stat().st_mtime > 1000)


def test_status_of_a_study_that_was_run(folder):
    run(folder)
    now = status(StudyFolder(folder))
    assert (now.study, now.counts, now.last_outcome) == ("fake study", Counts(done=TRIALS), "complete")
    assert now.disk["results.db"] == (folder / "results.db").stat().st_size


def test_what_was_under_way_is_taken_up_again_in_the_same_stacks(folder):
    driver = drive(folder, 0, max_stack=4, DIE_AT="Progress", FAKE_SECONDS="0.3")
    driver.communicate(timeout=30)
    with Store.read(folder / "results.db") as store:
        under_way = store.broken_off()
        assert [set(stack) for stack in under_way] == [store.ids("running")]
    assert len(under_way[0]) == 4
    run(folder, max_stack=4)
    assert set(computed(folder)[:4]) == set(under_way[0])
    with Store.read(folder / "results.db") as store:
        assert store.broken_off() == []
