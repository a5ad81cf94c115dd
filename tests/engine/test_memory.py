"""How much memory a stack takes: the meter counts right, and what was measured is what larger stacks take."""

import dataclasses

import pytest
import torch
from tiny import tiny_encoder, tiny_task

from whichlayers.engine import memory
from whichlayers.engine.memory import Need, free_memory, largest_stack, measure
from whichlayers.engine.results import EngineSettings
from whichlayers.engine.stack_trainer import StackRun
from whichlayers.errors import WhichlayersError
from whichlayers.trial import Training, Trial

CPU = torch.device("cpu")
TRIAL = Trial("tiny", "m", "tiny", "t", 52, 0, training=Training(epochs=1, batch_size=8))


@pytest.fixture(scope="module")
def subjects():
    return tiny_encoder("bert"), tiny_task()


def test_the_meter_counts_what_is_alive_and_the_most_there_was():
    with memory._Meter() as meter:
        a = torch.zeros(1000)
        b = a * 2  # 8,000 bytes alive
        view = a[:10]
        assert meter.now() == 8000
        del b
        assert (meter.now(), meter.peak()) == (4000, 8000)
        meter.restart()
        assert meter.peak() == 4000
        del a
        assert meter.now() == 4000, "a view keeps its storage"
        del view
        assert meter.now() == 0


def test_the_meter_sees_what_autograd_keeps():
    weight = torch.ones(100, 100, requires_grad=True)
    with memory._Meter() as meter:
        x = weight
        for _ in range(5):
            x = x.sin()  # saves its input
        held = meter.peak()
        assert held == 5 * 40_000
        loss = x.sum()
        (grad,) = torch.autograd.grad(loss, weight)
        assert meter.peak() > held, "backward was not seen"
        del x, loss
        assert meter.now() == grad.numel() * 4


def test_a_stack_takes_at_least_its_weights_and_moments_and_larger_ones_what_was_foretold(subjects):
    encoder, data = subjects
    need = measure([TRIAL], encoder, data, "cpu")
    run = StackRun([TRIAL], encoder, data, CPU, EngineSettings())
    weights = sum(p.work.numel() * 4 for p in run.parameters)
    assert need.more > 3 * weights  # themselves and two moments
    assert need.first >= need.more
    for trials in (3, 6):
        taken = memory._peak([TRIAL] * trials, encoder, data, CPU, EngineSettings())
        assert taken == pytest.approx(need.of(trials), rel=0.1)
    wider = dataclasses.replace(TRIAL, training=dataclasses.replace(TRIAL.training, batch_size=32))
    assert measure([wider], encoder, data, "cpu").more > 1.2 * need.more


def test_measuring_changes_neither_the_encoder_nor_the_result(subjects):
    from whichlayers.engine.finetune import finetune

    encoder, data = subjects
    before = {name: p.clone() for name, p in encoder.named_parameters()}
    expected = finetune([TRIAL], encoder, data)[0].epochs[0].dev_loss
    measure([TRIAL], encoder, data, "cpu")
    assert all(torch.equal(p, before[name]) for name, p in encoder.named_parameters())
    assert finetune([TRIAL], encoder, data)[0].epochs[0].dev_loss == expected


def test_the_largest_stack_is_what_fits_and_never_more_than_there_are_trials(subjects, monkeypatch):
    encoder, data = subjects
    need = measure([TRIAL], encoder, data, "cpu")
    trials = [dataclasses.replace(TRIAL, seed=seed) for seed in range(9)]

    def size(free):
        monkeypatch.setattr(memory, "free_memory", lambda device: free)
        return largest_stack(trials, encoder, data, "cpu")

    assert size(None) == size(1 << 40) == 9
    assert size(int(need.of(4) / 0.9) + 5000) == 4
    assert size(int(need.of(1) / 0.9) + 5000) == 1
    with pytest.raises(
        WhichlayersError, match=r"tiny on tiny does not fit into memory: one trial needs 0.0\d GB"
    ):
        size(need.of(1) // 2)
    monkeypatch.setattr(memory, "_peak", lambda *args: pytest.fail("tried what cannot fit"))
    with pytest.raises(WhichlayersError, match=r"0\.00 GB may be used on cpu"):
        size(100)


def test_two_trials_that_run_out_of_memory_mean_one_at_a_time(subjects, monkeypatch):
    real = memory._peak

    def tight(trials, *others):
        if len(trials) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return real(trials, *others)

    monkeypatch.setattr(memory, "_peak", tight)
    need = measure([TRIAL], *subjects, "cpu")
    assert need == Need(need.first, need.first)


def test_a_control_group_with_less_than_the_machine_sets_the_limit(tmp_path, monkeypatch):
    assert free_memory() > 1 << 20
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    for name, text in {
        "memory.max": "2000000",
        "memory.current": "1500000",
        "memory.stat": "anon 5\ninactive_file 100000\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert free_memory() == 600_000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory() > 1 << 20


def test_a_trial_of_a_single_step_can_be_measured(subjects):
    short = dataclasses.replace(TRIAL, train_size=8)
    assert measure([short], *subjects, "cpu").more > 0
