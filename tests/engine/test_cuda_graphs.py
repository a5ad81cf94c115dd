"""Which lengths are captured, and what happens when capturing fails; a stand-in takes the place of CUDA."""

import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from whichlayers.engine.cuda_graphs import (
    CAPTURE_SECONDS,
    COMPILE_SECONDS,
    LENGTH_STEP,
    WARM_RUNS,
    StepRunner,
    few_lengths,
)


def test_a_length_is_compiled_where_it_saves_more_than_it_costs():
    lengths = np.array([5] * 900 + [17] * 3 + [40] * 1500 + [60] * 20)
    kept = few_lengths(lengths, seconds_per_token=1e-3)
    assert (kept >= lengths).all()
    assert kept[:900].tolist() == [16] * 900, "padded to 48 they would take 29 s more"
    assert kept[900:903].tolist() == [48] * 3, "three steps are not worth a compilation"
    assert kept[903:2403].tolist() == [48] * 1500
    assert kept[2403:].tolist() == [64] * 20, "the longest has nowhere to go"
    assert set(few_lengths(lengths, seconds_per_token=1e-5).tolist()) == {64}, "nothing pays in a small model"
    assert set(few_lengths(lengths, 1e-4, known={16, 48}).tolist()) == {16, 48, 64}, "there is code already"
    assert set(few_lengths(lengths, 1e-4, alike=10).tolist()) == {16, 48, 64}, "ten stacks share the cost"


@pytest.mark.parametrize("seed", range(5))
def test_no_other_choice_of_lengths_costs_less(seed):
    rng = np.random.default_rng(seed)
    lengths, rate, known = rng.integers(1, 90, 1200), 10 ** rng.uniform(-4, -2), {32, 64}

    def cost(kept):
        padded = np.array([min(k for k in kept if k >= n) for n in lengths])
        rounded = -(-lengths // LENGTH_STEP) * LENGTH_STEP
        each = sum(CAPTURE_SECONDS + (k not in known) * COMPILE_SECONDS for k in kept)
        return each + rate * (padded - rounded).sum()

    ladder = range(LENGTH_STEP, 97, LENGTH_STEP)
    choices = [c for n in range(1, 7) for c in itertools.combinations(ladder, n) if max(c) == 96]
    chosen = tuple(sorted(set(few_lengths(lengths, rate, known).tolist())))
    assert cost(chosen) == pytest.approx(min(map(cost, choices)))


class FakeRun:
    """Counts its steps; says which of them were captured."""

    def __init__(self, lengths):
        self.feed = SimpleNamespace(lengths=np.array(lengths), batch=8)
        self.trials, self.parameters = [None], []
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
