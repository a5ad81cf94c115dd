"""Memory of stacks: allocations are counted correctly, and the measurement predicts larger stacks."""

import ctypes
import dataclasses
import os
from pathlib import Path

import pytest
import torch
from tiny import tiny_encoder, tiny_task

from whichlayers.engine import free_memory as free_memory_module
from whichlayers.engine import memory
from whichlayers.engine.cost import MemoryCost
from whichlayers.engine.free_memory import free_memory
from whichlayers.engine.memory import measure_memory
from whichlayers.engine.out_of_memory import out_of_memory_error, release_memory
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.models.structure import ModelStructure
from whichlayers.text import format_bytes
from whichlayers.trial import Training, Trial

CPU = torch.device("cpu")
TRIAL = Trial("tiny", "m", "tiny", "t", 52, 0, training=Training(epochs=1, batch_size=8))


@pytest.fixture(scope="module")
def encoder_and_data():
    return tiny_encoder("bert"), tiny_task()


def test_the_tracker_counts_live_bytes_and_their_peak():
    with memory._AllocationTracker() as tracker:
        a = torch.zeros(1000)
        b = a * 2  # 8,000 bytes alive
        view = a[:10]
        assert tracker.now() == 8000
        del b
        assert (tracker.now(), tracker.peak()) == (4000, 8000)
        tracker.restart()
        assert tracker.peak() == 4000
        del a
        assert tracker.now() == 4000, "a view keeps its storage"
        del view
        assert tracker.now() == 0


def test_the_tracker_does_not_count_views_of_what_existed_before():
    before = torch.zeros(1000)
    with memory._AllocationTracker() as tracker:
        views = [before.detach(), before[:10], before.add_(1)]
        copy = views[0].clone()
        assert (tracker.now(), tracker.peak()) == (4000, 4000)
        del copy, views
        assert tracker.now() == 0


def test_the_tracker_sees_what_autograd_saves():
    weight = torch.ones(100, 100, requires_grad=True)
    with memory._AllocationTracker() as tracker:
        x = weight
        for _ in range(5):
            x = x.sin()  # saves its input
        held = tracker.peak()
        assert held == 5 * 40_000
        loss = x.sum()
        (grad,) = torch.autograd.grad(loss, weight)
        assert tracker.peak() > held, "backward was not seen"
        del x, loss
        assert tracker.now() == grad.numel() * 4


def test_a_stack_takes_at_least_its_weights_and_moments_and_larger_ones_what_was_predicted(encoder_and_data):
    encoder, data = encoder_and_data
    cost = measure_memory([TRIAL], encoder, data, "cpu")
    trainer = StackTrainer([TRIAL], encoder, data, CPU, EngineSettings())
    weights = sum(p.param.numel() * 4 for p in trainer.parameters)
    assert cost.extra_trial > 3 * weights  # themselves and two moments
    assert cost.first_trial >= 0.95 * cost.extra_trial
    for trials in (3, 6):
        taken = memory._peak_memory([TRIAL] * trials, encoder, data, CPU, EngineSettings())
        assert taken == pytest.approx(cost.total(trials), rel=0.1)
    wider = dataclasses.replace(TRIAL, training=dataclasses.replace(TRIAL.training, batch_size=32))
    assert measure_memory([wider], encoder, data, "cpu").extra_trial > 1.2 * cost.extra_trial


@pytest.mark.parametrize(
    "settings", [EngineSettings(recompute=True), EngineSettings(precision="bfloat16", bfloat16_weights=True)]
)
def test_memory_is_measured_with_the_settings_of_the_engine(encoder_and_data, settings):
    encoder, data = encoder_and_data
    wide = dataclasses.replace(TRIAL, training=dataclasses.replace(TRIAL.training, batch_size=32))
    plain = measure_memory([wide], encoder, data, "cpu").first_trial
    assert measure_memory([wide], encoder, data, "cpu", settings).first_trial < 0.8 * plain


def test_measuring_changes_neither_the_encoder_nor_the_result(encoder_and_data):
    from whichlayers.engine.finetune import finetune

    encoder, data = encoder_and_data
    before = {name: p.clone() for name, p in encoder.named_parameters()}
    expected = finetune([TRIAL], encoder, data)[0].epochs[0].dev_loss
    measure_memory([TRIAL], encoder, data, "cpu")
    assert all(torch.equal(p, before[name]) for name, p in encoder.named_parameters())
    assert finetune([TRIAL], encoder, data)[0].epochs[0].dev_loss == expected


def test_the_largest_stack_is_what_fits_and_at_most_the_limit(encoder_and_data, monkeypatch):
    encoder, data = encoder_and_data
    cost = measure_memory([TRIAL], encoder, data, "cpu")
    trials = [dataclasses.replace(TRIAL, seed=seed) for seed in range(9)]

    def size(free):
        return measure_memory(trials, encoder, data, "cpu", free=free, limit=9).max_trials(free, 9)

    assert size(1 << 40) == 9
    assert size(int(cost.total(4) / 0.9) + 5000) == 4
    assert size(int(cost.total(1) / 0.9) + 5000) == 1
    assert size(cost.total(1) // 2) == 0
    error = out_of_memory_error(cost.first_trial, cost.total(1) // 2, TRIAL, "cpu")
    needed = format_bytes(cost.first_trial)
    assert f"tiny on tiny does not fit into memory: one trial needs {needed}," in str(error)
    monkeypatch.setattr(memory, "_peak_memory", lambda *args: pytest.fail("measured a stack that cannot fit"))
    assert size(100) == 0


def test_two_trials_that_run_out_of_memory_mean_one_at_a_time(encoder_and_data, monkeypatch):
    real = memory._peak_memory

    def tight(trials, *others):
        if len(trials) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return real(trials, *others)

    monkeypatch.setattr(memory, "_peak_memory", tight)
    cost = measure_memory([TRIAL], *encoder_and_data, "cpu")
    assert cost == MemoryCost(cost.first_trial, cost.first_trial)


def test_a_control_group_with_less_than_the_machine_sets_the_limit(tmp_path, monkeypatch):
    assert free_memory() > 1 << 20
    monkeypatch.setattr(free_memory_module, "CGROUPS", tmp_path)
    for name, text in {
        "memory.max": "2000000",
        "memory.current": "1500000",
        "memory.stat": "anon 5\ninactive_file 100000\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert free_memory() == 600_000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory() > 1 << 20


def test_a_trial_of_a_single_step_can_be_measured(encoder_and_data):
    short = dataclasses.replace(TRIAL, train_size=8)
    assert measure_memory([short], *encoder_and_data, "cpu").extra_trial > 0


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_trial_that_cannot_fit_is_not_tried(family, monkeypatch):
    """On the CPU, trying could end the process: the bound is as close to the measurement as the layers are."""
    encoder, data = tiny_encoder(family), tiny_task(pairs=False)
    trial = dataclasses.replace(TRIAL, head="last" if family == "llama" else "mean")
    frozen = dataclasses.replace(
        trial, training=Training(batch_size=8, lr_factors=((0, 0.0), (1, 0.0), (2, 0.0)))
    )
    for one in (trial, frozen):
        bound = memory._lower_bound(one, encoder, CPU)
        measured = measure_memory([one], encoder, data, "cpu").first_trial
        assert bound <= measured
        monkeypatch.setattr(memory, "_peak_memory", lambda *args: pytest.fail("it was tried"))
        assert measure_memory([one], encoder, data, "cpu", free=bound - 1).max_trials(bound - 1, 4) == 0
        monkeypatch.undo()
    layers = sum(p.numel() for layer in ModelStructure(encoder).layers for p in layer.parameters())
    assert memory._lower_bound(trial, encoder, CPU) == 24 * layers
    assert memory._lower_bound(frozen, encoder, CPU) == 24 * layers // 3


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_freed_memory_is_returned_to_the_system():
    """The process that measures would otherwise keep gigabytes that its workers need."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocks = [torch.ones(20_000) for _ in range(2_000)]  # 160 MB, in blocks that malloc takes from its heap
    last = blocks.pop()  # keeps the end of the heap in use
    del blocks
    before = resident()
    release_memory()
    assert before - resident() > 100e6
    assert float(last.sum()) == 20_000
