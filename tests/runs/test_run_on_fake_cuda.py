"""A whole study on a fake GPU, with the next stack prepared beside training; see tests/helpers/fake_graphs.py."""

import logging
import pickle

import pytest
import torch
from fake_graphs import fake_graphs
from small_study import small_study

from whichlayers.engine import compile_ahead, cuda_graphs, free_memory
from whichlayers.runs.run_study import run


class FakeProcess:
    """In place of `CompileProcess`: keeps the jobs as they would be sent to it."""

    def __init__(self, job: compile_ahead.CompileJob) -> None:
        jobs.append(pickle.loads(pickle.dumps(job)))

    def wait(self, timeout: float) -> int:
        return 0

    def kill(self) -> None:
        raise AssertionError("there is nothing to kill")


jobs: list[compile_ahead.CompileJob] = []


@pytest.mark.slow
def test_stacks_are_measured_prepared_captured_and_recorded(tmp_path, monkeypatch, caplog):
    jobs.clear()
    training = {"epochs": 2, "max_length": 32}
    experiments = [{"kind": "incremental", "keep": [3]}, "probing"]
    study = small_study(tmp_path, train_sizes=[32, 48], trials=1, experiments=experiments, training=training)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "fake")
    monkeypatch.setattr(cuda_graphs, "MIN_STEPS_TO_CAPTURE", 4)
    monkeypatch.setattr(compile_ahead, "should_compile", lambda *args: True)
    monkeypatch.setattr(compile_ahead, "CompileProcess", FakeProcess)
    with fake_graphs(monkeypatch) as graphs, caplog.at_level(logging.DEBUG, "whichlayers"):
        monkeypatch.setattr(free_memory, "free_memory", lambda device: 1 << 34)
        summary = run(study, tmp_path / "out", device="cuda", workers=0)
        assert graphs.replays > 0
    assert (summary.done, summary.failed) == (summary.trials, 0)
    # the thread that prepares a stack sees no GPU here: using it would be an error
    prepared = [text for text in caplog.messages if "the next stack" in text]
    assert prepared
    assert not [text for text in prepared if "could not" in text]
    assert jobs
    assert all(job.device == "cuda" for job in jobs)
    warnings = [r.getMessage() for r in caplog.records if r.name.startswith("whichlayers") and r.levelno > 20]
    assert warnings == []
