"""The online code against a loop over portions, and that more informative states compress more."""

import math

import numpy as np
import pytest
import torch

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.probes import mdl
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.mdl import PORTIONS, online_code
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes

TAGS = 4


def synthetic_data(signal, n=800):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, TAGS, n)
    states = rng.normal(size=(n, 6)).astype(np.float32)
    states[:, :TAGS] += signal * np.eye(TAGS, dtype=np.float32)[labels]
    return HiddenStates(states), labels


def test_bits_against_a_loop(monkeypatch):
    monkeypatch.setattr(mdl, "MIN_STEPS", 0)
    inputs, labels = synthetic_data(2.0)
    training = ProbeTraining(epochs=3, batch_size=32, lr=0.01)
    specs = [ProbeSpec(np.arange(6), seed=5), ProbeSpec(np.array([4, 5]), l2=1e-3, seed=5)]
    reported = []
    found = online_code(
        inputs, labels, TAGS, specs, portions=(0.1, 0.5, 1.0), training=training, on_progress=reported.append
    )
    assert sum(reported) == 4
    order = rng.permutation(5, "online code", 800)
    for spec, code in zip(specs, found, strict=True):
        bits = [80 * math.log2(TAGS)]
        for start, end in ((80, 400), (400, 800)):
            [probe] = fit_probes(inputs, labels, TAGS, [spec], training, rows=order[:start])
            sent = order[start:end]
            outputs = inputs.flat[sent][:, spec.neurons] @ probe.weight + probe.bias
            chance = torch.softmax(outputs, -1)[np.arange(len(sent)), labels[sent]]
            bits.append(float(-torch.log2(chance).sum()))
        assert code.portion_bits == pytest.approx(bits, rel=1e-4)
        assert code.bits == pytest.approx(sum(bits), rel=1e-4)
        assert code.uniform_bits == pytest.approx(1600)
        assert code.compression == pytest.approx(1600 / code.bits)


def test_more_informative_states_compress_more():
    training = ProbeTraining(lr=0.02, batch_size=64)
    codes = []
    for signal in (0.0, 1.0, 4.0):
        inputs, labels = synthetic_data(signal)
        codes += online_code(inputs, labels, TAGS, [ProbeSpec(inputs.all_neurons())], training=training)
    nothing, some, much = (code.compression for code in codes)
    assert 0.7 < nothing < 1.1 < some < much
    assert much > 2


def test_seeds_determine_the_order_of_words():
    inputs, labels = synthetic_data(1.0)
    specs = [ProbeSpec(np.arange(6), seed=seed) for seed in (0, 1, 0)]
    one, two, three = online_code(inputs, labels, TAGS, specs, training=ProbeTraining(epochs=1))
    assert one.bits == pytest.approx(three.bits) != two.bits


def test_seeds_together_cost_the_bits_of_each():
    inputs, labels = synthetic_data(1.0)
    specs = [ProbeSpec(np.arange(6), seed=seed) for seed in (0, 1)]
    training = ProbeTraining(epochs=1, batch_size=32)
    together = online_code(inputs, labels, TAGS, specs, training=training)
    for spec, code in zip(specs, together, strict=True):
        [alone] = online_code(inputs, labels, TAGS, [spec], training=training)
        assert code.portion_bits == pytest.approx(alone.portion_bits, rel=1e-5)


def test_small_corpora_have_fewer_portions():
    assert mdl._portion_ends(PORTIONS, 40) == [1, 2, 5, 10, 20, 40]
    assert mdl._portion_ends(PORTIONS, 100_000)[:3] == [100, 200, 400]


@pytest.mark.parametrize("wrong", [(), (0.5,), (0.5, 0.2, 1.0), (0.0, 1.0)])
def test_invalid_portions(wrong):
    inputs, labels = synthetic_data(1.0, n=20)
    with pytest.raises(WhichlayersError, match="portions must increase"):
        online_code(inputs, labels, TAGS, [ProbeSpec(np.arange(2))], portions=wrong)
