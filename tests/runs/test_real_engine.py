"""The real engine under a real study: killed and taken up again, short of memory, in stacks of any size."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_subject import small_study

import whichlayers
from whichlayers.results.db import Store
from whichlayers.runs import machine
from whichlayers.runs.events import Note, Progress

TRIALS = 8


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other on a busy machine would take minutes over so small a model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_cores", lambda: 1)
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> whichlayers.Study:
    """4 points of a curve by 2 seeds, on the built-in sentiment task."""
    return small_study(
        tmp_path_factory.mktemp("subject"),
        experiments=["incremental"],
    )


@pytest.fixture(scope="module")
def undisturbed(study, tmp_path_factory) -> dict[tuple, float]:
    folder = tmp_path_factory.mktemp("undisturbed") / "study"
    whichlayers.run(study, folder, device="cpu", workers=0, max_stack=8)
    return values(folder)


def values(folder: Path) -> dict[tuple, float]:
    """Every number of every trial, the times aside."""
    with contextlib.closing(sqlite3.connect(folder / "results.db")) as db:
        rows = db.execute("SELECT trial_id, epoch, metric, value FROM epochs WHERE metric != 'seconds'")
        return {tuple(row[:3]): row[3] for row in rows}


def finished(folder: Path) -> dict[str, tuple]:
    """What tells whether a trial that was done has been touched again."""
    if not (folder / "results.db").exists():
        return {}
    with contextlib.closing(sqlite3.connect(folder / "results.db", timeout=10)) as db:
        try:
            rows = db.execute("SELECT id, run_id, started, finished FROM trials WHERE status = 'done'")
            return {row[0]: tuple(row[1:]) for row in rows}
        except sqlite3.OperationalError:  # its tables are not there yet
            return {}


def assert_same(found: dict[tuple, float], expected: dict[tuple, float]) -> None:
    assert found.keys() == expected.keys()
    assert len(expected) == TRIALS * 2 * 3  # epochs; accuracy and two losses
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-6 if key[2] == "accuracy" else 1e-4), key


def test_a_study_gives_the_same_numbers_in_stacks_of_3_as_in_one_of_8(study, undisturbed, tmp_path):
    results = whichlayers.run(study, tmp_path / "study", device="cpu", workers=0, max_stack=3)
    assert results.last_run.done == TRIALS
    assert_same(values(tmp_path / "study"), undisturbed)


def test_kill_9_of_a_real_study_loses_nothing_and_repeats_nothing(study, undisturbed, tmp_path):
    """Each trial by itself in one of two workers; compared with all of them in one stack."""
    (tmp_path / "small.toml").write_text(study.to_toml())
    folder = tmp_path / "small"
    command = [sys.executable, "-m", "whichlayers", "run", "small.toml", "--workers", "2", "--max-stack", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, "--device", "cpu"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    first = start()
    deadline = time.monotonic() + 120
    while not finished(folder):
        assert time.monotonic() < deadline
        assert first.poll() is None, first.communicate()[1].decode()
        time.sleep(0.01)
    time.sleep(random.random() * 0.3)
    first.kill()
    first.communicate()
    before = finished(folder)
    assert 0 < len(before) < TRIALS, "killed too late to show anything"

    again = start()
    _, messages = again.communicate(timeout=120)
    assert again.returncode == 0, messages.decode()
    assert f"{len(before)} of {TRIALS} trials are done" in messages.decode()
    after = finished(folder)
    assert len(after) == TRIALS
    assert {trial: after[trial] for trial in before} == before
    assert {run_id for trial, (run_id, _, _) in after.items() if trial not in before} == {2}
    assert_same(values(folder), undisturbed)


def test_stacks_that_run_out_of_memory_end_with_the_same_numbers(study, undisturbed, tmp_path, monkeypatch):
    import torch

    from whichlayers.engine import finetune as engine

    sizes = []

    class Tight(engine.StackRun):
        def __init__(self, trials, *others):
            super().__init__(trials, *others)
            sizes.append(len(trials))

        def train_step(self, length):
            super().train_step(length)
            if len(self.trials) > 2 and int(self.step_on_device) == 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(engine, "StackRun", Tight)
    notes = []
    results = whichlayers.run(
        study,
        tmp_path / "study",
        device="cpu",
        workers=0,
        max_stack=8,
        on_event=lambda e: notes.append(e.text) if isinstance(e, Note) else None,
    )
    assert (results.last_run.done, results.last_run.failed) == (TRIALS, 0)
    assert sizes[:2] == [8, 4]
    assert max(sizes[2:]) == 2
    assert sum(sizes[2:]) == TRIALS  # each once
    assert sum("out of memory" in note for note in notes) == 2
    assert_same(values(tmp_path / "study"), undisturbed)


def test_a_stack_broken_off_in_the_middle_goes_on_from_its_checkpoint(
    study, undisturbed, tmp_path, monkeypatch
):
    from whichlayers.engine import checkpoint
    from whichlayers.engine import finetune as engine

    steps, breaks_at = [], [20]

    class Counted(engine.StackRun):
        def train_step(self, length):
            if len(steps) in breaks_at:
                breaks_at.clear()
                raise KeyboardInterrupt
            steps.append(len(self.trials))
            super().train_step(length)

    monkeypatch.setattr(engine, "StackRun", Counted)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", float("inf"))

    def go(**options):
        return whichlayers.run(
            study,
            tmp_path / "study",
            device="cpu",
            workers=0,
            max_stack=6,
            checkpoint_minutes=1e-9,
            **options,
        )

    with pytest.raises(KeyboardInterrupt):
        go()
    assert list((tmp_path / "study" / "checkpoints").glob("*.safetensors"))
    before, news = len(steps), []
    assert go(on_event=news.append).last_run.done == TRIALS
    assert 60 <= len(steps) <= 62  # two stacks of 30 steps; at most two steps are done again
    assert_same(values(tmp_path / "study"), undisturbed)
    assert not (tmp_path / "study" / "checkpoints").exists()
    told = [event for event in news if isinstance(event, Progress)]
    restored = TRIALS // 2 * (before + 60 - len(steps))
    assert (told[0].steps_done, told[0].steps_restored) == (restored, restored)
    assert told[-1].steps_done == TRIALS * 30
    assert {event.steps_restored for event in told} == {told[0].steps_restored}
    with Store.read(tmp_path / "study" / "results.db") as store:
        assert [store.restored(run_id) for run_id in (1, 2)] == [0, restored]
