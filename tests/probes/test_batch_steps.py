"""Steps whose inputs are all on the device train the same probes; on a CPU they run one by one."""

import numpy as np
import pytest
import torch

from whichlayers.engine.cuda_graphs import BatchSteps
from whichlayers.probes import probe_trainer
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.run_sentence_probes import ProbeJob, fit_sentence_probes
from whichlayers.trial import Probe


def test_each_batch_once_with_its_offset():
    seen = []
    steps = BatchSteps(lambda offset: seen.append(int(offset)), 8, torch.device("cpu"), total_steps=5)
    steps.run(3)
    steps.run(2)
    assert seen == [0, 8, 16, 0, 8]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_steps_by_offset_and_number_equal_plain_ones(monkeypatch, kind):
    rng = np.random.default_rng(1)
    states = rng.normal(size=(101, 2, 8)).astype(np.float32)
    labels = rng.integers(0, 3, 101) if kind == "classification" else rng.normal(size=101)
    outputs = 3 if kind == "classification" else 1
    jobs = [
        ProbeJob(Probe(layer, max_epochs=4, lr=1e-2, weight_decay=0.1), seed, np.arange(101))
        for layer in (0, 1)
        for seed in (0, 1)
    ]
    plain = fit_sentence_probes(HiddenStates(states), labels, jobs, outputs, kind)

    monkeypatch.setattr(probe_trainer, "GRAPHED_DEVICES", {"cpu"})
    calls = []
    real = BatchSteps.run
    monkeypatch.setattr(BatchSteps, "run", lambda self, steps: (calls.append(steps), real(self, steps)))
    replayed = fit_sentence_probes(HiddenStates(states), labels, jobs, outputs, kind)
    assert calls == [91 // 8] * 4, "full batches are replayed, the rest of an epoch is not"
    for one, other in zip(plain, replayed, strict=True):
        assert one.epoch == other.epoch
        torch.testing.assert_close(other.weight, one.weight, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block", [1 << 24, 20_000])
def test_word_probes_by_offset_equal_plain_ones(monkeypatch, block):
    """Whether all rows are loaded at once or some batches at a time; the rest of an epoch is a step of its own."""
    rng = np.random.default_rng(2)
    inputs, labels = (
        HiddenStates(rng.normal(size=(101, 2, 8)).astype(np.float32)),
        rng.integers(0, 3, (2, 101)),
    )
    specs = [
        *(ProbeSpec(inputs.layer_neurons(layer), 1e-3, 1e-3, seed) for layer in (0, 1) for seed in (0, 1)),
        ProbeSpec(np.array([3, 9]), seed=1, task=1),
    ]
    training = ProbeTraining(epochs=3, batch_size=16, lr=1e-2)
    monkeypatch.setitem(probe_trainer.BLOCK_BYTES, "cpu", block)
    plain = fit_probes(inputs, labels, 3, specs, training)
    monkeypatch.setattr(probe_trainer, "GRAPHED_DEVICES", {"cpu"})
    taken = []
    real = BatchSteps.run
    monkeypatch.setattr(BatchSteps, "run", lambda self, steps: (taken.append(steps), real(self, steps)))
    by_offset = fit_probes(inputs, labels, 3, specs, training)
    assert sum(taken) == 2 * 3 * (101 // 16), "two groups, three epochs"
    for one, other in zip(plain, by_offset, strict=True):
        torch.testing.assert_close(other.weight, one.weight)
        assert other.train_loss == pytest.approx(one.train_loss)
