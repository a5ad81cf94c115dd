"""Rankings of neurons against the definitions, written out step by step."""

import itertools

import numpy as np
import pytest
import torch

from whichlayers.errors import WhichlayersError
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.neuron_ranking import (
    bottom_neurons,
    neuron_count,
    neurons_per_layer,
    random_neurons,
    rank_at_random,
    rank_by_weight,
    rank_probeless,
    top_neurons,
)


def smallest_set(column, mass):
    """Take the largest weight, and the next, until the sum is reached."""
    taken, total = [], 0.0
    for neuron in sorted(range(len(column)), key=lambda i: (-abs(column[i]), i)):
        if total >= mass * np.abs(column).sum():
            break
        taken.append(neuron)
        total += abs(column[neuron])
    return taken


def step_by_step(weight, steps):
    """The union over tags as the mass increases; within a step the largest fraction of a tag's mass first."""
    mass_of = np.abs(weight) / np.abs(weight).sum(0)
    order, added_at = [], []
    for step in range(1, steps + 1):
        union = set().union(*(smallest_set(column, step / steps) for column in weight.T)) - set(order)
        new = sorted(union, key=lambda i: (-mass_of[i].max(), i))
        order += new
        added_at += [step] * len(new)
    return order, added_at


@pytest.mark.parametrize("steps", [7, 100])
@pytest.mark.parametrize("seed", range(4))
def test_ranking_by_weight(seed, steps):
    weight = np.random.default_rng(seed).standard_t(2, size=(40, 5))
    found = rank_by_weight(torch.from_numpy(weight), steps)
    order, added_at = step_by_step(weight, steps)
    assert found.order.tolist() == order
    assert found.step.tolist() == added_at
    assert sorted(order) == list(range(40))


def test_signs_and_a_tags_scale_do_not_matter():
    weight = np.random.default_rng(0).normal(size=(30, 4))
    other = weight * np.array([1, -100, 0.01, 3])
    assert rank_by_weight(weight).order.tolist() == rank_by_weight(other).order.tolist()


def test_ties_are_broken_by_index():
    assert rank_by_weight(np.ones((6, 3))).order.tolist() == list(range(6))
    assert rank_by_weight(np.array([[1.0], [2.0], [-2.0], [1.0]])).order.tolist() == [1, 2, 0, 3]


def test_neurons_without_weight_come_last():
    weight = np.zeros((5, 2))
    weight[3, 0], weight[1, 0] = 2, -1  # the second tag has no weight at all
    assert rank_by_weight(weight).order.tolist() == [3, 1, 0, 2, 4]


def test_weights_that_are_not_finite():
    with pytest.raises(WhichlayersError, match="cannot be ranked"):
        rank_by_weight(np.array([[np.nan]]))


def test_probeless_ranking(monkeypatch):
    """All pairs of tags; a tag without words is ignored."""
    monkeypatch.setattr("whichlayers.probes.neuron_ranking.ROWS_PER_BLOCK", 7)
    rng = np.random.default_rng(0)
    states = rng.normal(size=(60, 2, 5)).astype(np.float32)
    labels = rng.choice([0, 1, 3, -1], 60)
    flat = states.reshape(60, -1)
    means = {tag: flat[labels == tag].mean(0) for tag in (0, 1, 3)}
    overall = sum(np.abs(means[a] - means[b]) for a, b in itertools.combinations(means, 2))
    assert rank_probeless(HiddenStates(states), labels, 4).tolist() == np.argsort(-overall).tolist()
    rows = np.arange(30)
    few = rank_probeless(HiddenStates(states), labels, 4, rows)
    assert few.tolist() == rank_probeless(HiddenStates(states[:30]), labels[:30], 4).tolist()


def test_sets():
    order = np.array([4, 2, 0, 1, 3])
    assert top_neurons(order, 2).tolist() == [4, 2]
    assert bottom_neurons(order, 2).tolist() == [3, 1]
    assert len(set(random_neurons(order, 3, seed=0).tolist())) == 3
    assert random_neurons(order, 5, seed=0).tolist() == random_neurons(order, 5, seed=0).tolist()
    assert rank_at_random(50, 0).tolist() != rank_at_random(50, 1).tolist()
    assert sorted(rank_at_random(50, 1)) == list(range(50))


@pytest.mark.parametrize("take", [top_neurons, bottom_neurons, lambda order, n: random_neurons(order, n, 0)])
@pytest.mark.parametrize("count", [0, 6])
def test_more_neurons_than_there_are(take, count):
    with pytest.raises(WhichlayersError, match=f"cannot select {count} of 5 neurons"):
        take(np.arange(5), count)


def test_fractions():
    assert neuron_count(0.05, 9984) == 499
    assert neuron_count(0.0001, 50) == 1
    assert neuron_count(1, 50) == 50
    for wrong in (0, -0.1, 1.2):
        with pytest.raises(WhichlayersError, match="a fraction of neurons"):
            neuron_count(wrong, 50)


def test_neurons_per_layer():
    assert neurons_per_layer(np.array([0, 7, 8, 16, 17, 23]), n_layers=3, hidden_size=8).tolist() == [2, 1, 3]
    assert neurons_per_layer(np.array([], np.int64), 3, 8).tolist() == [0, 0, 0]
    with pytest.raises(WhichlayersError, match="there is no neuron 24"):
        neurons_per_layer(np.array([24]), 3, 8)
