"""Timing of stacks: simulated clocks and made-up steps whose cost is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from whichlayers.engine import timing
from whichlayers.engine.dataloader import EvalChunk
from whichlayers.engine.timer import Timer

CPU = torch.device("cpu")
FIXED, PER_TOKEN = 0.2, 0.01


class Machine:
    """Clocks of a machine on which other programs make everything `slowdown` times slower."""

    def __init__(self, slowdown: float = 1.0) -> None:
        self.slowdown, self.now, self.cpu = slowdown, 0.0, 0.0

    def work(self, seconds: float) -> None:
        self.cpu += seconds
        self.now += seconds * self.slowdown

    def timer(self) -> Timer:
        return Timer(CPU, lambda: self.now, lambda: self.cpu)


def test_costs_are_cpu_seconds_and_the_slowdown_is_separate():
    machine = Machine(slowdown=3.0)
    timer = machine.timer()
    assert timer.slowdown == 1.0
    assert timer(lambda: machine.work(2.0)) == pytest.approx(2.0)
    machine.slowdown = 1.0
    assert timer(lambda: machine.work(2.0)) == pytest.approx(2.0)
    assert timer.slowdown == pytest.approx(2.0)


def test_steps_are_a_linear_function_of_their_tokens():
    tokens = np.array([50.0, 100.0, 150.0, 80.0])
    fixed, slope, error = timing.fit_step_seconds(tokens, FIXED + PER_TOKEN * tokens)
    assert (fixed, slope) == (pytest.approx(FIXED), pytest.approx(PER_TOKEN))
    assert error == pytest.approx(0, abs=1e-9)
    # few steps: proportional to the tokens, and the deviation from that is the error
    fixed, slope, error = timing.fit_step_seconds(tokens[:2], FIXED + PER_TOKEN * tokens[:2])
    assert fixed == 0
    assert slope == pytest.approx(1.9 / 150)
    assert 0 < error < 0.1
    # neither part is negative
    assert timing.fit_step_seconds(tokens, 2 - PER_TOKEN * tokens)[:2] == (pytest.approx(1.05), 0)
    assert timing.fit_step_seconds(tokens, PER_TOKEN * (tokens - 20))[0] == 0
    assert timing.fit_step_seconds(np.full(5, 9.0), np.full(5, 3.0))[:2] == (0, pytest.approx(3 / 9))


def make_trainer(machine: Machine, steps: int = 200, packed: bool = True):
    """A trainer of one trial whose steps cost FIXED + PER_TOKEN * tokens, the first ones three times that."""
    lengths = np.random.default_rng(0).integers(5, 60, steps)
    ran = []

    def run(step: int) -> None:
        ran.append(step)
        machine.work((3 if len(ran) <= 3 else 1) * (FIXED + PER_TOKEN * float(lengths[step])))

    loader = SimpleNamespace(
        batch_size=1,
        step_lengths=lengths,
        batch_rows=torch.arange(steps).view(1, steps, 1),
        row_lengths=torch.from_numpy(lengths if packed else np.ones_like(lengths)),
    )
    trainer = SimpleNamespace(
        trials=[None],
        train_loader=loader,
        step_on_device=torch.zeros(()),
        step_runner=run,
        packed=packed,
    )
    return trainer, lengths, ran


@pytest.mark.parametrize("packed", [True, False])
def test_first_steps_are_not_counted_as_steps(monkeypatch, packed):
    machine = Machine(slowdown=2.0)
    trainer, lengths, ran = make_trainer(machine, packed=packed)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: machine.now)
    steps = timing._time_eager_steps(trainer, machine.timer(), deadline=10.0)
    assert len(ran) == 8  # until the deadline, by the clock
    assert steps.mean == pytest.approx(FIXED + PER_TOKEN * lengths.mean())
    assert steps.fixed == pytest.approx(FIXED)
    assert steps.error < 1e-6
    assert steps.warm_up == pytest.approx(2 * sum(FIXED + PER_TOKEN * lengths[step] for step in ran[:3]))


def test_some_steps_are_timed_after_the_deadline(monkeypatch):
    machine = Machine()
    trainer, lengths, ran = make_trainer(machine)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: machine.now)
    steps = timing._time_eager_steps(trainer, machine.timer(), deadline=-1.0)
    assert len(ran) == timing.EAGER_WARMUP_STEPS + timing.MIN_STEPS
    assert steps.mean == pytest.approx(FIXED + PER_TOKEN * lengths.mean(), rel=0.1)


@pytest.mark.parametrize(("deadline", "rows"), [(1e9, 160), (0.0, 10)])
def test_evaluation_is_timed_on_whole_chunks_if_there_is_time(monkeypatch, deadline, rows):
    machine, seen = Machine(), []

    def compute_logits(chunks) -> None:
        for chunk in chunks:
            seen.append(len(chunk.inputs["input_ids"]))
            machine.work(PER_TOKEN * chunk.tokens)

    def chunk(length: int) -> EvalChunk:
        inputs = {name: torch.ones(160, length, dtype=torch.long) for name in ("input_ids", "attention_mask")}
        return EvalChunk(inputs, 160 * length)

    chunks = [chunk(length) for length in (5, 8, 13, 20, 30, 40, 60)]
    split = SimpleNamespace(labels=np.array([0, 1]))
    trainer = SimpleNamespace(
        model=torch.nn.Identity(),
        device=CPU,
        trials=[None],
        packed=True,
        data=SimpleNamespace(metrics=("accuracy",)),
        eval_loaders={"dev": SimpleNamespace(chunks=chunks, split=split)},
        compute_logits=compute_logits,
    )
    monkeypatch.setattr(timing.time, "perf_counter", lambda: machine.now)
    monkeypatch.setattr(timing, "score", lambda *args: machine.work(0.5))
    seconds = timing._time_evaluation(trainer, machine.timer(), deadline)
    assert seconds == pytest.approx(PER_TOKEN * sum(one.tokens for one in chunks) + 0.5)
    assert seen == [10, 10] + [rows] * timing.CHUNKS
