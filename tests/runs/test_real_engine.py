"""A study with the real engine: killed and resumed, out of memory, in stacks of any size."""

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
from small_study import small_study

import whichlayers
from whichlayers.results.losses import read_losses
from whichlayers.runs import machine
from whichlayers.runs.events import Note, Progress

TRIALS = 8


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """With several threads, such a small model would take minutes on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_cores", lambda: 1)
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> whichlayers.Study:
    """4 points of a curve by 2 seeds, on the built-in sentiment task."""
    return small_study(
        tmp_path_factory.mktemp("model"),
        experiments=["incremental"],
    )


@pytest.fixture(scope="module")
def uninterrupted(study, tmp_path_factory) -> dict[tuple, float]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "study"
    whichlayers.run(study, folder, device="cpu", workers=0, max_stack=8)
    curves = read_losses(folder)
    assert curves.keys() == finished(folder).keys()  # the training loss of every trial is kept
    assert all(len(curve.losses) > 2 for curve in curves.values())
    return values(folder)


def values(folder: Path) -> dict[tuple, float]:
    """All stored values of all trials, except times."""
    with contextlib.closing(sqlite3.connect(folder / "results.db")) as db:
        rows = db.execute("SELECT trial_id, epoch, metric, value FROM epochs WHERE metric != 'seconds'")
        return {tuple(row[:3]): row[3] for row in rows}


def finished(folder: Path) -> dict[str, tuple]:
    """Run and times of all finished trials, which change if a trial runs again."""
    if not (folder / "results.db").exists():
        return {}
    with contextlib.closing(sqlite3.connect(folder / "results.db", timeout=10)) as db:
        try:
            rows = db.execute("SELECT id, run_id, started, finished FROM trials WHERE status = 'done'")
            return {row[0]: tuple(row[1:]) for row in rows}
        except sqlite3.OperationalError:  # its tables do not exist yet
            return {}


def assert_same(found: dict[tuple, float], expected: dict[tuple, float]) -> None:
    assert found.keys() == expected.keys()
    assert len(expected) == TRIALS * 2 * 3  # epochs; accuracy and two losses
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-6 if key[2] == "accuracy" else 1e-4), key


def test_a_study_gives_the_same_numbers_in_stacks_of_3_as_in_one_of_8(study, uninterrupted, tmp_path):
    results = whichlayers.run(study, tmp_path / "study", device="cpu", workers=0, max_stack=3)
    assert results.last_run.done == TRIALS
    assert_same(values(tmp_path / "study"), uninterrupted)


def test_kill_9_of_a_real_study_loses_no_trial_and_repeats_none(study, uninterrupted, tmp_path):
    """Compares stacks of one trial in two workers with a single stack in one process."""
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
    assert 0 < len(before) < TRIALS, "killed too late for this test"

    again = start()
    _, messages = again.communicate(timeout=120)
    assert again.returncode == 0, messages.decode()
    assert f"{len(before)} of {TRIALS} trials already done" in messages.decode()
    after = finished(folder)
    assert len(after) == TRIALS
    assert {trial: after[trial] for trial in before} == before
    assert {run_id for trial, (run_id, _, _) in after.items() if trial not in before} == {2}
    assert_same(values(folder), uninterrupted)


def test_stacks_that_run_out_of_memory_end_with_the_same_numbers(study, uninterrupted, tmp_path, monkeypatch):
    import torch

    from whichlayers.engine import finetune as engine

    sizes = []

    class LowMemoryTrainer(engine.StackTrainer):
        def __init__(self, trials, *others):
            super().__init__(trials, *others)
            sizes.append(len(trials))

        def train_step(self, length):
            super().train_step(length)
            if len(self.trials) > 2 and int(self.step_on_device) == 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(engine, "StackTrainer", LowMemoryTrainer)
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
    assert sum(sizes[2:]) == TRIALS  # each of them once
    assert sum("out of memory" in note for note in notes) == 2
    assert_same(values(tmp_path / "study"), uninterrupted)


def test_an_interrupted_stack_is_resumed_from_its_checkpoint(study, uninterrupted, tmp_path, monkeypatch):
    from whichlayers.engine import checkpoint
    from whichlayers.engine import finetune as engine

    steps, interrupt_at = [], [20]

    class CountingTrainer(engine.StackTrainer):
        def train_step(self, length):
            if len(steps) in interrupt_at:
                interrupt_at.clear()
                raise KeyboardInterrupt
            steps.append(len(self.trials))
            super().train_step(length)

    monkeypatch.setattr(engine, "StackTrainer", CountingTrainer)
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", float("inf"))

    def run(**options):
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
        run()
    assert list((tmp_path / "study" / "checkpoints").glob("*.safetensors"))
    before, events = len(steps), []
    assert run(on_event=events.append).last_run.done == TRIALS
    assert 60 <= len(steps) <= 62  # two stacks of 30 steps; at most two steps are done again
    assert_same(values(tmp_path / "study"), uninterrupted)
    assert not (tmp_path / "study" / "checkpoints").exists()
    progress = [event for event in events if isinstance(event, Progress)]
    restored = TRIALS // 2 * (before + 60 - len(steps))
    assert (progress[0].steps_done, progress[0].steps_restored) == (restored, restored)
    assert progress[-1].steps_done == TRIALS * 30
    assert {event.steps_restored for event in progress} == {progress[0].steps_restored}
