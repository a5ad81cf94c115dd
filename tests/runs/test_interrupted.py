"""A run that is killed, stopped or started twice: no result is lost, no trial repeated, no process left."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import fakes
import pytest
from running import assert_complete, computed_trials, run_fake_study

from whichlayers.cli.status import read_status
from whichlayers.results.db import ResultsDB, ResultsDBError
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import StudyLockedError, lock_holder, study_lock
from whichlayers.results.records import Counts
from whichlayers.runs.events import Note

SCRIPT = Path(fakes.__file__).with_name("drive_study.py")
TRIALS = 15


def start_run(folder: Path, workers: int, max_stack: int = 2, **environment: str) -> subprocess.Popen[str]:
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
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def done_ids(folder: Path) -> set[str]:
    try:
        with ResultsDB.open_readonly(folder / "results.db") as db:
            return db.trial_ids("done")
    except ResultsDBError:  # does not exist yet
        return set()


def workers_of(folder: Path) -> list[int]:
    """Ids of the processes whose output goes to the logs of this folder."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "fd" / "1").startswith(f"{folder}/logs"):
                pids.append(int(process.name))
        except OSError:
            continue
    return pids


@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_at_any_time_loses_no_trial_and_repeats_none(folder, workers):
    rng = random.Random(workers)
    done: set[str] = set()
    for _ in range(3):
        process = start_run(folder, workers, max_stack=1, FAKE_SECONDS="0.1")
        wait_until(lambda before=done: done_ids(folder) > before)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.communicate()
        wait_until(lambda: not workers_of(folder))  # workers exit with the main process
        lines = len(computed_trials(folder))
        done = done_ids(folder)
        assert done <= set(computed_trials(folder))
    last = start_run(folder, workers)
    output, _ = last.communicate(timeout=30)
    assert output.splitlines()[-1] == f"{TRIALS} 0"
    assert_complete(folder, TRIALS)
    assert not set(computed_trials(folder)[lines:]) & done  # finished trials are not repeated
    with ResultsDB.open_readonly(folder / "results.db") as db:
        outcomes = [row[0] for row in db.connection.execute("SELECT outcome FROM runs ORDER BY run_id")]
    assert outcomes == ["killed"] * 3 + ["complete"]


def test_killed_between_the_file_and_its_tables(folder):
    """results.db is not empty, but has no tables yet."""
    folder.mkdir()
    with closing(sqlite3.connect(folder / "results.db")) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t(x)")
        db.execute("DROP TABLE t")
    assert (folder / "results.db").stat().st_size > 0
    assert run_fake_study(folder).done == TRIALS
    assert_complete(folder, TRIALS)


@pytest.mark.parametrize("event", ["Note", "RunStarted", "Progress", "TrialDone"])
def test_killed_at_a_chosen_event(folder, event):
    process = start_run(folder, 0, KILL_AT_EVENT=event)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    before = done_ids(folder) if event != "Note" else set()
    assert len(before) == {"Note": 0, "RunStarted": 0, "Progress": 0, "TrialDone": 2}[event]
    lines = len(computed_trials(folder))
    assert run_fake_study(folder).done == TRIALS
    assert_complete(folder, TRIALS)
    assert not set(computed_trials(folder)[lines:]) & before


@pytest.mark.parametrize(("workers", "number"), [(0, signal.SIGINT), (2, signal.SIGINT), (2, signal.SIGTERM)])
def test_ctrl_c_leaves_a_study_that_can_be_resumed(folder, workers, number):
    process = start_run(folder, workers, FAKE_SECONDS="0.1")
    wait_until(lambda: done_ids(folder))
    process.send_signal(number)
    output, _ = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in output
    assert workers_of(folder) == []
    with ResultsDB.open_readonly(folder / "results.db") as db:
        counts = db.counts()
        assert db.last_run()["outcome"] == "interrupted"
    assert counts.running == 0
    assert counts.done + counts.pending == TRIALS
    assert run_fake_study(folder).ran == counts.pending
    assert_complete(folder, TRIALS)
    assert len(computed_trials(folder)) >= TRIALS


def test_a_killed_worker_loses_no_trial(folder):
    process = start_run(folder, 2, FAKE_SECONDS="0.1")
    wait_until(lambda: done_ids(folder))
    os.kill(workers_of(folder)[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=30)
    assert output.splitlines()[-1] == f"{TRIALS} 0"
    assert_complete(folder, TRIALS)


def test_a_second_run_is_refused_and_names_the_holder_of_the_lock(folder):
    process = start_run(folder, 2, FAKE_SECONDS="0.2")
    wait_until(lambda: done_ids(folder))
    with pytest.raises(StudyLockedError, match=f"process {process.pid} on "):
        run_fake_study(folder)
    wait_until(lambda: read_status(StudyFolder(folder)).seconds_left is not None)
    now = read_status(StudyFolder(folder))
    assert now.running is not None
    assert now.running.pid == process.pid
    assert now.counts.total == TRIALS
    assert 0 <= now.seconds_left < 60
    process.kill()
    process.communicate()
    assert lock_holder(folder) is None
    after = read_status(StudyFolder(folder))
    assert (after.running, after.last_outcome, after.seconds_left) == (None, "killed", None)


def test_the_lock_can_be_acquired_again_after_its_release(tmp_path):
    with study_lock(tmp_path):
        assert lock_holder(tmp_path).pid == os.getpid()
        with pytest.raises(StudyLockedError), study_lock(tmp_path):
            pass
    assert lock_holder(tmp_path) is None
    with study_lock(tmp_path):
        pass


def test_a_holder_on_another_machine_with_a_recent_heartbeat_locks_the_folder(folder):
    """As on a file system that does not propagate locks: only the content of the file shows the holder."""
    run_fake_study(folder, fakes.make_study(trials=1))
    lock = folder / ".lock"
    lock.write_text('{"host": "elsewhere", "pid": 7, "since": 1700000000.0}')
    with pytest.raises(StudyLockedError, match="process 7 on elsewhere, since 2023-11-1"):
        run_fake_study(folder, fakes.make_study(trials=2))
    assert read_status(StudyFolder(folder)).running.host == "elsewhere"
    long_ago = time.time() - 1000
    os.utime(lock, (long_ago, long_ago))
    assert lock_holder(folder) is None
    notes = []
    note = lambda event: notes.append(event.text) if isinstance(event, Note) else None  # noqa: E731
    assert run_fake_study(folder, fakes.make_study(trials=2), on_event=note).done == 10
    assert "the previous run (process 7 on elsewhere, since" in notes[0]
    assert lock.read_text() == ""


def test_the_holder_sends_heartbeats(tmp_path, monkeypatch):
    monkeypatch.setattr("whichlayers.results.lock.HEARTBEAT", 0.05)
    with study_lock(tmp_path):
        os.utime(tmp_path / ".lock", (1000, 1000))
        wait_until(lambda: (tmp_path / ".lock").stat().st_mtime > 1000)


def test_status_of_a_study_that_was_run(folder):
    run_fake_study(folder)
    now = read_status(StudyFolder(folder))
    assert (now.study, now.counts, now.last_outcome) == ("fake study", Counts(done=TRIALS), "complete")
    assert now.disk["results.db"] == (folder / "results.db").stat().st_size


def test_interrupted_stacks_are_resumed_with_the_same_trials(folder):
    process = start_run(folder, 0, max_stack=4, KILL_AT_EVENT="Progress", FAKE_SECONDS="0.3")
    process.communicate(timeout=30)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        interrupted = db.interrupted_stacks()
        assert [set(stack) for stack in interrupted] == [db.trial_ids("running")]
    assert len(interrupted[0]) == 4
    run_fake_study(folder, max_stack=4)
    assert set(computed_trials(folder)[:4]) == set(interrupted[0])
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert db.interrupted_stacks() == []
