"""Which lengths are captured, and what happens when capturing fails; a stand-in takes the place of CUDA."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from carryover.engine.capture import WARM_RUNS, StepRunner, _few_lengths


def test_lengths_are_rounded_up_and_rare_ones_merged_upwards():
    lengths = np.array([5] * 30 + [17] * 3 + [40] * 50 + [60] * 2)
    kept = _few_lengths(lengths)
    assert (kept >= lengths).all()
    assert kept[:30].tolist() == [16] * 30
    assert kept[30:33].tolist() == [48] * 3, "three steps of 32 are not worth a compilation"
    assert kept[33:83].tolist() == [48] * 50
    assert kept[83:].tolist() == [64] * 2, "the longest has nowhere to go"


class FakeRun:
    """Counts its steps; says which of them were captured."""

    def __init__(self, lengths):
        self.feed = SimpleNamespace(lengths=np.array(lengths))
        self.plain, self.captured, self.capturing = [], [], False

    def train_step(self, length):
        (self.captured if self.capturing else self.plain).append(length)


class FakeGraph:
    replays = 0

    def replay(self):
        FakeGraph.replays += 1


@pytest.fixture
def cuda(monkeypatch):
    FakeGraph.replays = 0
    stream = SimpleNamespace(wait_stream=lambda other: None)
    state = SimpleNamespace(error=None, run=None)

    @contextlib.contextmanager
    def graph(*args, **kwargs):
        if state.error:
            raise state.error
        state.run.capturing = True
        yield
        state.run.capturing = False

    for name, value in {
        "Stream": lambda: stream, "current_stream": lambda: stream, "synchronize": lambda: None,
        "stream": lambda s: contextlib.nullcontext(), "CUDAGraph": FakeGraph, "graph": graph,
        "graph_pool_handle": lambda: 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    return state


def test_a_length_is_captured_after_it_has_run_and_then_replayed(cuda):
    cuda.run = run = FakeRun([16] * 30)
    runner = StepRunner(run, compiled=False, graphs=True)
    for step in range(30):
        runner(step)
    assert len(run.plain) == WARM_RUNS
    assert len(run.captured) == 1
    assert FakeGraph.replays == 30 - WARM_RUNS, "every step is run exactly once"


def test_a_step_that_cannot_be_captured_goes_on_uncaptured(cuda, caplog):
    cuda.run, cuda.error = (run := FakeRun([16] * 30)), RuntimeError("operation not permitted when capturing")
    runner = StepRunner(run, compiled=False, graphs=True)
    for step in range(30):
        runner(step)
    assert len(run.plain) == 30
    assert FakeGraph.replays == 0
    assert "cannot be captured" in caplog.text


def test_running_out_of_memory_while_capturing_is_told(cuda):
    cuda.run, cuda.error = (run := FakeRun([16] * 30)), RuntimeError("CUDA out of memory")
    runner = StepRunner(run, compiled=False, graphs=True)
    runner(0)
    with pytest.raises(RuntimeError, match="out of memory"):
        runner(1)
