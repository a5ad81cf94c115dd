"""Choice of the captured lengths, and what happens if capturing fails; with a fake of torch.cuda."""

import contextlib
import functools
import itertools
import os
import stat
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import tiny_encoder, tiny_task
from torch._inductor.runtime import cache_dir_utils

from whichlayers.engine import cuda_graphs
from whichlayers.engine.cuda_graphs import (
    CAPTURE_SECONDS,
    COMPILE_SECONDS,
    LENGTH_STEP,
    WARMUP_STEPS,
    StepRunner,
    choose_sizes,
    is_worth_compiling,
    keep_compiled_code,
)
from whichlayers.engine.dataloader import used_token_ids
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.trial import Training, Trial


def test_a_length_is_compiled_where_it_saves_more_than_it_costs():
    lengths = np.array([5] * 900 + [17] * 3 + [40] * 1500 + [60] * 20)
    chosen = choose_sizes(lengths, seconds_per_unit=1e-3)
    assert (chosen >= lengths).all()
    assert chosen[:900].tolist() == [16] * 900, "padded to 48 they would take 29 s more"
    assert chosen[900:903].tolist() == [48] * 3, "a compilation does not pay for three steps"
    assert chosen[903:2403].tolist() == [48] * 1500
    assert chosen[2403:].tolist() == [64] * 20, "the longest cannot be padded to another length"
    assert set(choose_sizes(lengths, seconds_per_unit=1e-5).tolist()) == {64}, (
        "no compilation pays in a small model"
    )
    assert set(choose_sizes(lengths, 1e-4, known={16, 48}).tolist()) == {16, 48, 64}, (
        "these are compiled already"
    )
    assert set(choose_sizes(lengths, 1e-4, compile_seconds=1.8).tolist()) == {16, 48, 64}, (
        "ten stacks share the cost"
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_other_choice_of_lengths_costs_less(seed):
    rng = np.random.default_rng(seed)
    lengths, rate, known = rng.integers(1, 90, 1200), 10 ** rng.uniform(-4, -2), {32, 64}

    def cost(chosen):
        padded = np.array([min(k for k in chosen if k >= n) for n in lengths])
        rounded = -(-lengths // LENGTH_STEP) * LENGTH_STEP
        each = sum(CAPTURE_SECONDS + (k not in known) * COMPILE_SECONDS for k in chosen)
        return each + rate * (padded - rounded).sum()

    candidates = range(LENGTH_STEP, 97, LENGTH_STEP)
    choices = [c for n in range(1, 7) for c in itertools.combinations(candidates, n) if max(c) == 96]
    chosen = tuple(sorted(set(choose_sizes(lengths, rate, known).tolist())))
    assert cost(chosen) == pytest.approx(min(map(cost, choices)))


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


def test_only_long_training_is_worth_compiling():
    """A 12 x 128 BERT, 24 trials of 315 steps, against 39 trials of BERT-Base with 500 examples and with 5,000."""
    small, base = (128, 12), (768, 12)
    assert not is_worth_compiling(24 * 315 * 190, *small)
    assert not is_worth_compiling(24 * 315 * 190, *small, similar_stacks=5)
    assert not is_worth_compiling(39 * 315 * 190, *base)
    assert is_worth_compiling(39 * 315 * 190, *base, similar_stacks=17)
    assert is_worth_compiling(39 * 1875 * 190, *base)


def test_sizes_that_are_not_compiled_cost_only_their_capture(cuda):
    lengths = [16] * 40 + [64] * 40
    cuda.trainer = trainer = FakeTrainer(lengths)
    weights = SimpleNamespace(name="layer", param=SimpleNamespace(numel=lambda: 5_000_000_000))
    trainer.parameters, trainer.initial_weights = [weights], SimpleNamespace(layer_of=lambda name: 1)
    assert set(StepRunner(trainer, compiled=False, graphs=True).sizes.tolist()) == {16, 64}
    seconds = 6 * 5e9 * 8 / 250e12
    assert set(choose_sizes(np.array(lengths), seconds).tolist()) == {64}, "two compilations do not pay"


def test_stacks_of_one_shape_share_all_compiled_code(monkeypatch):
    """The second stack has other seeds, and so another number of word embeddings that it trains."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    counts, rows, data = [], [], tiny_task(n_train=200)
    for seeds in ((0, 1), (2, 3)):
        trials = [Trial("m", "m", "t", "t", 24, s, training=Training(batch_size=8)) for s in seeds]
        settings = EngineSettings(compiled=True)
        trainer = StackTrainer(trials, tiny_encoder("bert"), data, torch.device("cpu"), settings)
        trainer.train_step(16)
        counts.append(len(graphs))
        rows.append(max(map(len, used_token_ids(trials, data))))
    torch._dynamo.reset()
    assert rows[0] != rows[1]
    assert counts[0] == counts[1] > 0


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that it is restored after the test
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    return tmp_path / "whichlayers"


def test_compiled_code_is_kept_in_a_private_folder_of_the_user(cache_home):
    cache_home.mkdir()
    (cache_home / "compiled").mkdir(mode=0o777)
    assert keep_compiled_code() == cache_home / "compiled"
    assert stat.S_IMODE((cache_home / "compiled").stat().st_mode) == 0o700
    assert cache_dir_utils.cache_dir() == str(cache_home / "compiled")


def test_a_folder_of_compiled_code_that_the_user_chose_is_left_alone(cache_home, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    assert keep_compiled_code() is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "mine")
    assert not cache_home.exists()


def test_a_folder_of_compiled_code_that_may_belong_to_others_is_not_used(cache_home, tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").chmod(0o755)
    cache_home.mkdir()
    (cache_home / "compiled").symlink_to(tmp_path / "elsewhere")
    assert keep_compiled_code() is None
    assert "compiled code is not kept between runs" in caplog.text
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o755
