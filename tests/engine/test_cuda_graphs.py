"""Steps as CUDA graphs, and what happens if capturing fails; with a fake of torch.cuda."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from whichlayers.engine import cuda_graphs
from whichlayers.engine.cuda_graphs import WARMUP_STEPS, StepRunner
from whichlayers.engine.step_sizes import choose_sizes


class FakeTrainer:
    """Records its steps, and which of them were captured."""

    def __init__(self, lengths):
        self.device = torch.device("cuda:1")
        sizes = np.array(lengths)
        self.train_loader = SimpleNamespace(
            step_sizes=lambda in_tokens: sizes, batch_size=8, width=max(lengths)
        )
        self.trials, self.parameters, self.size_in_tokens = [None], [], False
        self.eager, self.captured, self.capturing = [], [], False

    def train_step(self, length):
        (self.captured if self.capturing else self.eager).append(length)


class FakeGraph:
    replays = 0

    def replay(self):
        FakeGraph.replays += 1


@pytest.fixture
def cuda(monkeypatch):
    FakeGraph.replays = 0
    stream = SimpleNamespace(wait_stream=lambda other: None, device=None)
    state = SimpleNamespace(error=None, trainer=None, current=[])

    def new_stream(device):
        assert device == state.trainer.device
        stream.device = device
        return stream

    def synchronize(device):
        assert device == state.trainer.device

    @contextlib.contextmanager
    def graph(*args, **kwargs):
        if state.error:
            raise state.error
        state.trainer.capturing = True
        yield
        state.trainer.capturing = False

    for name, value in {
        "Stream": new_stream, "current_stream": lambda device: stream, "synchronize": synchronize,
        "set_stream": state.current.append,
        "stream": lambda s: contextlib.nullcontext(), "CUDAGraph": FakeGraph, "graph": graph,
        "graph_pool_handle": lambda: 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    cuda_graphs.side_stream.cache_clear()
    yield state
    cuda_graphs.side_stream.cache_clear()


def test_a_length_is_captured_after_it_has_run_and_then_replayed(cuda):
    cuda.trainer = trainer = FakeTrainer([16] * 30)
    runner = StepRunner(trainer, compiled=False, graphs=True)
    for step in range(30):
        runner(step)
    assert len(trainer.eager) == WARMUP_STEPS
    assert len(trainer.captured) == 1
    assert FakeGraph.replays == 30 - WARMUP_STEPS, "every step is run exactly once"
    runner.release()
    assert not runner.graphs
    assert runner.pool is None


def test_a_step_that_cannot_be_captured_runs_eagerly(cuda, caplog):
    cuda.trainer, cuda.error = (
        (trainer := FakeTrainer([16] * 30)),
        RuntimeError("operation not permitted when capturing"),
    )
    runner = StepRunner(trainer, compiled=False, graphs=True)
    for step in range(30):
        runner(step)
    assert len(trainer.eager) == 30
    assert FakeGraph.replays == 0
    assert "cannot be captured" in caplog.text
    assert len(cuda.current) == 1, "the stream before the capture is current again"


def test_running_out_of_memory_while_capturing_raises(cuda):
    cuda.trainer = trainer = FakeTrainer([16] * 30)
    cuda.error = RuntimeError("CUDA out of memory")
    runner = StepRunner(trainer, compiled=False, graphs=True)
    runner(0)
    with pytest.raises(RuntimeError, match="out of memory"):
        runner(1)


def test_sizes_that_are_not_compiled_cost_only_their_capture(cuda):
    lengths = [16] * 40 + [64] * 40
    cuda.trainer = trainer = FakeTrainer(lengths)
    weights = SimpleNamespace(name="layer", param=SimpleNamespace(numel=lambda: 5_000_000_000))
    trainer.parameters, trainer.initial_weights = [weights], SimpleNamespace(layer_of=lambda name: 1)
    assert set(StepRunner(trainer, compiled=False, graphs=True).sizes.tolist()) == {16, 64}
    seconds = 6 * 5e9 * 8 / 250e12
    assert set(choose_sizes(np.array(lengths), seconds).tolist()) == {64}, "two compilations do not pay"
