"""Tables of words whose neurons are standardized, against scikit-learn's scaler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from whichlayers.probes import word_table as tables
from whichlayers.probes.elastic_net import ProbeTraining, Problem, accuracies, fit_probes
from whichlayers.probes.word_table import WordTable

LAYERS, HIDDEN = 3, 5


def made_up(n=70, seed=0, dtype=np.float32):
    """Neurons far from 0, of very different size; the third is the same for all words."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, LAYERS * HIDDEN)) * np.logspace(-2, 2, LAYERS * HIDDEN) + 30
    states[:, 2] = 30.1
    return states.reshape(n, LAYERS, HIDDEN).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_neurons_are_standardized_as_scikit_learn_does_it(dtype, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_BYTES", 400)  # a few rows at once
    train, test = made_up(dtype=dtype), made_up(20, seed=1, dtype=dtype)
    scale = WordTable(train).measured()
    found = WordTable(test).scaled(scale).rows(slice(None))
    flat = [states.reshape(len(states), -1).astype(np.float64) for states in (train, test)]
    expected = StandardScaler().fit(flat[0]).transform(flat[1])
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found[:, 3:], expected[:, 3:], atol=2e-3)
    assert (found[:, 2] == found[0, 2]).all()  # no noise made large
    assert abs(float(found[0, 2])) < 0.1


def test_a_scale_goes_with_some_rows_and_with_some_neurons():
    whole = WordTable(made_up())
    scaled = whole.scaled(whole.measured())
    everything = scaled.rows(slice(None))
    chosen = np.array([4, 11, 7])
    assert torch.equal(scaled.part(slice(10, 30)).rows(slice(None)), everything[10:30])
    assert torch.equal(scaled.narrowed(chosen).rows(torch.tensor([3, 1])), everything[[3, 1]][:, chosen])
    assert torch.equal(whole.rows(slice(None)), torch.from_numpy(made_up().reshape(70, -1)))  # untouched


def test_probes_of_standardized_neurons_do_not_see_how_large_they_were():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    states = rng.normal(size=(300, LAYERS, HIDDEN)).astype(np.float32)
    states[:, 1, :3] += 2 * np.eye(3, dtype=np.float32)[labels]
    training = ProbeTraining(epochs=3, batch_size=32, lr=0.01)

    def accuracy(states, standardized):
        table = WordTable(states)
        table = table.scaled(table.measured()) if standardized else table
        probes = fit_probes(table, labels, 3, [Problem(table.layer(1))], training)
        return accuracies(table, labels, probes)[0]

    small = states * 0.01 + 5
    assert accuracy(small, True) == pytest.approx(accuracy(states, True), abs=0.01)
    assert accuracy(small, False) < accuracy(small, True) - 0.1
