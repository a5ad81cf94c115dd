"""Steps whose inputs are all on the device train the same probes; on a CPU they run one by one."""

import numpy as np
import pytest
import torch

from whichlayers.probes import elastic_net
from whichlayers.probes.cuda_graphs import GraphedStep
from whichlayers.probes.elastic_net import ProbeSpec, ProbeTraining, fit_probes
from whichlayers.probes.linear_probe import ProbeJob, SentenceStates, fit
from whichlayers.probes.word_states import WordStates
from whichlayers.trial import Probe


def test_each_batch_once_with_its_offset_and_number():
    seen = []
    replay = GraphedStep(
        lambda offset, number: seen.append((int(offset), float(number))),
        8,
        torch.device("cpu"),
        total_steps=5,
        steps_done=10,
    )
    replay.run(3)
    replay.run(2)
    assert seen == [(0, 11.0), (8, 12.0), (16, 13.0), (0, 14.0), (8, 15.0)]


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
    plain = fit(SentenceStates(states), labels, jobs, outputs, kind)

    class OnDevice(torch.Tensor):
        is_cuda = True  # pretend to be on a GPU

    calls = []
    real = GraphedStep.run
    monkeypatch.setattr(GraphedStep, "run", lambda self, steps: (calls.append(steps), real(self, steps)))
    inputs = SentenceStates(states)
    inputs.flat = inputs.flat.as_subclass(OnDevice)
    replayed = fit(inputs, labels, jobs, outputs, kind)
    assert calls == [91 // 8] * 4, "full batches are replayed, the rest of an epoch is not"
    for one, other in zip(plain, replayed, strict=True):
        assert one.epoch == other.epoch
        torch.testing.assert_close(torch.Tensor(other.weight), one.weight, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block", [1 << 27, 20_000])
def test_word_probes_by_offset_equal_plain_ones(monkeypatch, block):
    """Whether all rows are loaded at once or some batches at a time; the rest of an epoch is a step of its own."""
    rng = np.random.default_rng(2)
    inputs, labels = WordStates(rng.normal(size=(101, 2, 8)).astype(np.float32)), rng.integers(0, 3, (2, 101))
    specs = [
        *(ProbeSpec(inputs.layer_neurons(layer), 1e-3, 1e-3, seed) for layer in (0, 1) for seed in (0, 1)),
        ProbeSpec(np.array([3, 9]), seed=1, task=1),
    ]
    training = ProbeTraining(epochs=3, batch_size=16, lr=1e-2)
    monkeypatch.setitem(elastic_net.BLOCK_BYTES, "cpu", block)
    plain = fit_probes(inputs, labels, 3, specs, training)
    monkeypatch.setattr(elastic_net, "GRAPHED_DEVICES", {"cpu"})
    taken = []
    real = GraphedStep.run
    monkeypatch.setattr(GraphedStep, "run", lambda self, steps: (taken.append(steps), real(self, steps)))
    by_offset = fit_probes(inputs, labels, 3, specs, training)
    assert sum(taken) == 2 * 3 * (101 // 16), "two groups, three epochs"
    for one, other in zip(plain, by_offset, strict=True):
        torch.testing.assert_close(other.weight, one.weight)
        assert other.train_loss == pytest.approx(one.train_loss)
