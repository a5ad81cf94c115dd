"""Standardized hidden states of words, against the StandardScaler of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from whichlayers.probes import hidden_states
from whichlayers.probes.evaluation import accuracies
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes

LAYERS, HIDDEN = 3, 5


def synthetic_data(n=70, seed=0, dtype=np.float32):
    """Neurons with large means and very different scales; the third is constant."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, LAYERS * HIDDEN)) * np.logspace(-2, 2, LAYERS * HIDDEN) + 30
    states[:, 2] = 30.1
    return states.reshape(n, LAYERS, HIDDEN).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_neurons_are_standardized_as_in_scikit_learn(dtype, monkeypatch):
    monkeypatch.setattr(hidden_states, "CHUNK_BYTES", 400)  # a few rows at once
    train, test = synthetic_data(dtype=dtype), synthetic_data(20, seed=1, dtype=dtype)
    scale = HiddenStates(train).compute_scale()
    found = HiddenStates(test).standardize(scale).rows(slice(None))
    flat = [states.reshape(len(states), -1).astype(np.float64) for states in (train, test)]
    expected = StandardScaler().fit(flat[0]).transform(flat[1])
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found[:, 3:], expected[:, 3:], atol=2e-3)
    assert (found[:, 2] == found[0, 2]).all()  # no amplified noise
    assert abs(float(found[0, 2])) < 0.1


def test_a_scale_applies_to_slices_of_rows_and_neurons():
    raw = HiddenStates(synthetic_data())
    scaled = raw.standardize(raw.compute_scale())
    everything = scaled.rows(slice(None))
    chosen = np.array([4, 11, 7])
    assert torch.equal(scaled.slice_rows(slice(10, 30)).rows(slice(None)), everything[10:30])
    assert torch.equal(
        scaled.select_neurons(chosen).rows(torch.tensor([3, 1])), everything[[3, 1]][:, chosen]
    )
    assert torch.equal(raw.rows(slice(None)), torch.from_numpy(synthetic_data().reshape(70, -1)))  # untouched


def test_probes_of_standardized_neurons_do_not_depend_on_scale():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    states = rng.normal(size=(300, LAYERS, HIDDEN)).astype(np.float32)
    states[:, 1, :3] += 2 * np.eye(3, dtype=np.float32)[labels]
    training = ProbeTraining(epochs=3, batch_size=32, lr=0.01)

    def accuracy(states, standardized):
        inputs = HiddenStates(states)
        inputs = inputs.standardize(inputs.compute_scale()) if standardized else inputs
        probes = fit_probes(inputs, labels, 3, [ProbeSpec(inputs.layer_neurons(1))], training)
        return accuracies(inputs, labels, probes)[0]

    small = states * 0.01 + 5
    assert accuracy(small, True) == pytest.approx(accuracy(states, True), abs=0.01)
    assert accuracy(small, False) < accuracy(small, True) - 0.1
