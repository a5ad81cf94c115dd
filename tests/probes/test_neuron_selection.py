"""The grid search for lambdas, minimal sets and retrained probes, on states whose salient neurons are known."""

import numpy as np
import pytest

from whichlayers.errors import WhichlayersError
from whichlayers.probes.evaluation import accuracies
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.lambda_search import keep_neurons, search_lambdas
from whichlayers.probes.neuron_ranking import (
    MinimalSetSearch,
    bottom_neurons,
    minimal_sets,
    neurons_per_layer,
    rank_by_weight,
    retrained_accuracies,
    top_neurons,
)
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes

LAYERS, HIDDEN, TAGS = 3, 10, 4
SALIENT = np.array([11, 13, 15, 17])  # in layer 1, one neuron per tag
TRAINING = ProbeTraining(epochs=25, batch_size=64, lr=0.02)


def synthetic_data(n, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, TAGS, n)
    states = rng.normal(size=(n, LAYERS * HIDDEN)).astype(np.float32)
    states[:, SALIENT] += 3 * np.eye(TAGS, dtype=np.float32)[labels]
    return HiddenStates(states.reshape(n, LAYERS, HIDDEN)), labels


@pytest.fixture(scope="module")
def data():
    return (*synthetic_data(500, 0), *synthetic_data(300, 1), TAGS)


def test_the_search_finds_the_salient_neurons(data):
    reported = []
    [grid] = search_lambdas(
        *data, l1=(0.0, 1e-2), l2=(0.0, 1e-3, 10.0), training=TRAINING, on_progress=reported.append
    )
    assert sum(reported) == 6 * 25
    assert [(p.l1, p.l2) for p in grid.points][:3] == [(0.0, 0.0), (0.0, 1e-3), (0.0, 10.0)]
    assert set(grid.ranking.order[:4]) == set(SALIENT)
    assert grid.best.top_accuracy == max(p.top_accuracy for p in grid.points)
    assert grid.best.l2 < 10
    assert neurons_per_layer(top_neurons(grid.ranking.order, 4), LAYERS, HIDDEN).tolist() == [0, 4, 0]


def test_each_pair_of_the_grid(data):
    """Its accuracy, and the accuracy with all but the top fifth of the neurons set to 0."""
    train, train_labels, dev, dev_labels, n_tags = data
    [grid] = search_lambdas(*data, l1=(1e-2,), l2=(1e-3, 1e-1), training=TRAINING)
    specs = [ProbeSpec(train.all_neurons(), *pair) for pair in ((1e-2, 1e-3), (1e-2, 1e-1))]
    probes = fit_probes(train, train_labels, n_tags, specs, TRAINING)
    for point, probe in zip(grid.points, probes, strict=True):
        order = rank_by_weight(probe.weight).order
        outputs = []
        for kept in (order, order[:6]):
            masked = dev.flat.clone() * np.isin(np.arange(30), kept)
            outputs.append(((masked @ probe.weight + probe.bias).argmax(1).numpy() == dev_labels).mean())
        assert [point.accuracy, point.top_accuracy] == pytest.approx(outputs)


def test_a_pair_that_costs_the_whole_probe_its_accuracy_is_not_chosen():
    """All neurons are weakly informative: a harsh penalty separates top from bottom neurons, but the probe is poor."""

    def weak(n, seed):
        rng = np.random.default_rng(seed)
        labels, codes = rng.integers(0, TAGS, n), np.random.default_rng(9).normal(size=(TAGS, 30))
        states = rng.normal(size=(n, 30)) + 0.6 * codes[labels]
        return HiddenStates(states.astype(np.float32).reshape(n, LAYERS, HIDDEN)), labels

    [grid] = search_lambdas(*weak(500, 0), *weak(300, 1), TAGS, l1=(0.2, 1e-3), l2=(0.0,), training=TRAINING)
    harsh, mild = grid.points
    assert mild.accuracy > harsh.accuracy + 0.1
    assert grid.best == mild


def test_a_diverging_probe_is_not_chosen(data):
    states = data[0].flat.clone()
    inputs = HiddenStates(states.view(-1, LAYERS, HIDDEN))
    [grid] = search_lambdas(
        inputs, *data[1:], l1=(0.0, float("inf")), l2=(0.0,), training=ProbeTraining(epochs=2)
    )
    assert grid.best.l1 == 0
    assert np.isnan(grid.points[1].top_accuracy)


def test_seeds_are_searched_together_as_one_by_one(data):
    options = {"l1": (0.0, 1e-2), "l2": (1e-3,), "training": TRAINING}
    together = search_lambdas(*data, seeds=(3, 5), **options)
    for seed, grid in zip((3, 5), together, strict=True):
        [alone] = search_lambdas(*data, seeds=(seed,), **options)
        assert [p.top_accuracy for p in grid.points] == pytest.approx([p.top_accuracy for p in alone.points])
        assert grid.probe.spec.seed == seed
        assert grid.ranking.order.tolist() == alone.ranking.order.tolist()


def smallest(data, searches, **options):
    """Minimal sets by index of the search; each is found once."""
    rounds = list(minimal_sets(*data, searches, **options))
    found = {c: least for one in rounds for c, least in one.items()}
    assert sum(map(len, rounds)) == len(found) == len(searches)
    return [found[c] for c in range(len(searches))]


def test_no_set_is_as_accurate_as_a_probe_that_diverged(data):
    order = np.arange(LAYERS * HIDDEN)
    broken, sound = smallest(
        data,
        [MinimalSetSearch(order, l1=float("inf")), MinimalSetSearch(order)],
        training=ProbeTraining(epochs=2),
    )
    assert np.isnan(broken.oracle)
    assert broken.count == 0
    assert sound.count > 0


def test_an_empty_search(data):
    with pytest.raises(WhichlayersError, match="at least one value"):
        search_lambdas(*data, l1=())


def test_keep_neurons(data):
    [probe] = fit_probes(data[0], data[1], TAGS, [ProbeSpec(np.arange(5))], ProbeTraining(epochs=1))
    ablated = keep_neurons(probe, np.array([3, 1]))
    assert (ablated.weight[[0, 2, 4]] == 0).all()
    assert (ablated.weight[[1, 3]] == probe.weight[[1, 3]]).all()


def test_minimal_set(data):
    order = np.concatenate([SALIENT, np.setdiff1d(np.arange(30), SALIENT)])
    fractions = [n / 30 for n in range(1, 31)]
    [found] = smallest(data, [MinimalSetSearch(order, delta=0.02)], fractions=fractions, training=TRAINING)
    assert 3 <= found.count <= 4  # three neurons suffice for four tags
    assert found.neurons.tolist() == order[: found.count].tolist()
    assert found.accuracy >= found.oracle - 0.02
    assert [count for count, _ in found.tried] == list(range(1, found.count + 1))
    assert all(accuracy < found.oracle - 0.02 for _, accuracy in found.tried[:-1])
    [far] = smallest(data, [MinimalSetSearch(order, oracle=0.3)], fractions=fractions, training=TRAINING)
    assert far.count == 1
    [none] = smallest(
        data, [MinimalSetSearch(order, oracle=1.1)], fractions=[0.1, 0.2], training=ProbeTraining(epochs=1)
    )
    assert (none.count, len(none.tried)) == (6, 2)  # the largest that was tried, below the oracle
    with pytest.raises(WhichlayersError, match="must increase"):
        smallest(data, [MinimalSetSearch(order)], fractions=[0.2, 0.1])


def test_searches_run_together_as_one_by_one(data):
    good = np.concatenate([SALIENT, np.setdiff1d(np.arange(30), SALIENT)])
    searches = [
        MinimalSetSearch(good, delta=0.02),
        MinimalSetSearch(np.roll(good, 3), l2=1e-3, seed=1, delta=0.02),
        MinimalSetSearch(good, seed=2, delta=0.2),
    ]
    options = {"fractions": [n / 30 for n in range(1, 31)], "training": TRAINING}
    together = smallest(data, searches, **options)
    assert together[1].count > together[0].count > together[2].count
    for search, found in zip(searches, together, strict=True):
        [alone] = smallest(data, [search], **options)
        assert (found.count, found.neurons.tolist()) == (alone.count, alone.neurons.tolist())
        assert [a for _, a in found.tried] == pytest.approx([a for _, a in alone.tried])


def test_retrained_sets(data):
    order = np.concatenate([SALIENT, np.setdiff1d(np.arange(30), SALIENT)])
    sets = [top_neurons(order, 4), bottom_neurons(order, 4), order]
    found = retrained_accuracies(
        *data, [ProbeSpec(neurons, seed=seed) for neurons in sets for seed in (0, 1, 2)], TRAINING
    )
    assert found.shape == (9,)
    assert found[:3].min() > 0.85
    assert found[3:6].max() < 0.45
    train, train_labels, dev, dev_labels, n_tags = data
    [alone] = fit_probes(train, train_labels, n_tags, [ProbeSpec(order[:4], seed=1)], TRAINING)
    assert accuracies(dev, dev_labels, [alone])[0] == pytest.approx(found[1])


def test_two_sets_of_labels_at_once(data):
    train, train_labels, dev, dev_labels, n_tags = data
    both = np.stack([train_labels, train_labels[::-1]])
    both_dev = np.stack([dev_labels, dev_labels[::-1]])
    specs = [ProbeSpec(SALIENT, seed=seed, task=task) for task in (0, 1) for seed in (0, 1)]
    found = retrained_accuracies(train, both, dev, both_dev, n_tags, specs, TRAINING)
    assert found[:2].min() > 0.85 > 0.45 > found[2:].max()


def test_neurons_beyond_the_model(data):
    with pytest.raises(WhichlayersError, match="there is no neuron 30"):
        retrained_accuracies(*data, [ProbeSpec(np.array([30]))])
