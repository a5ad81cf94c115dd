"""The search for lambdas, the smallest set and retrained sets, on states where the salient neurons are known."""

import numpy as np
import pytest

from whichlayers.errors import WhichlayersError
from whichlayers.probes.elastic_net import ProbeTraining, Problem, accuracies, fit_probes
from whichlayers.probes.neuron_ranking import bottom, rank_by_weight, spread, top
from whichlayers.probes.neuron_selection import Candidate, keep_only, minimal_sets, retrained, search_lambdas
from whichlayers.probes.word_table import WordTable

LAYERS, HIDDEN, TAGS = 3, 10, 4
SALIENT = np.array([11, 13, 15, 17])  # in layer 1, a neuron a tag
TRAINING = ProbeTraining(epochs=25, batch_size=64, lr=0.02)


def made_up(n, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, TAGS, n)
    states = rng.normal(size=(n, LAYERS * HIDDEN)).astype(np.float32)
    states[:, SALIENT] += 3 * np.eye(TAGS, dtype=np.float32)[labels]
    return WordTable(states.reshape(n, LAYERS, HIDDEN)), labels


@pytest.fixture(scope="module")
def data():
    return (*made_up(500, 0), *made_up(300, 1), TAGS)


def test_the_search_finds_the_salient_neurons(data):
    told = []
    [grid] = search_lambdas(
        *data, l1=(0.0, 1e-2), l2=(0.0, 1e-3, 10.0), training=TRAINING, on_step=told.append
    )
    assert sum(told) == 6 * 25
    assert [(p.l1, p.l2) for p in grid.points][:3] == [(0.0, 0.0), (0.0, 1e-3), (0.0, 10.0)]
    assert set(grid.ranking.order[:4]) == set(SALIENT)
    assert grid.best.top == max(p.top for p in grid.points)
    assert grid.best.l2 < 10
    assert spread(top(grid.ranking.order, 4), LAYERS, HIDDEN).tolist() == [0, 4, 0]


def test_each_pair_by_itself(data):
    """Its accuracy, and the accuracy with all but the first fifth of the neurons put to 0."""
    train, train_labels, dev, dev_labels, n_tags = data
    [grid] = search_lambdas(*data, l1=(1e-2,), l2=(1e-3, 1e-1), training=TRAINING)
    problems = [Problem(train.everything(), *pair) for pair in ((1e-2, 1e-3), (1e-2, 1e-1))]
    probes = fit_probes(train, train_labels, n_tags, problems, TRAINING)
    for point, probe in zip(grid.points, probes, strict=True):
        order = rank_by_weight(probe.weight).order
        outputs = []
        for kept in (order, order[:6]):
            masked = dev.flat.clone() * np.isin(np.arange(30), kept)
            outputs.append(((masked @ probe.weight + probe.bias).argmax(1).numpy() == dev_labels).mean())
        assert [point.accuracy, point.top] == pytest.approx(outputs)


def test_a_pair_that_costs_the_whole_probe_its_accuracy_is_not_chosen():
    """All neurons know a little: a harsh penalty parts first from last well, and leaves a poor probe."""

    def weak(n, seed):
        rng = np.random.default_rng(seed)
        labels, codes = rng.integers(0, TAGS, n), np.random.default_rng(9).normal(size=(TAGS, 30))
        states = rng.normal(size=(n, 30)) + 0.6 * codes[labels]
        return WordTable(states.astype(np.float32).reshape(n, LAYERS, HIDDEN)), labels

    [grid] = search_lambdas(*weak(500, 0), *weak(300, 1), TAGS, l1=(0.2, 1e-3), l2=(0.0,), training=TRAINING)
    harsh, mild = grid.points
    assert mild.accuracy > harsh.accuracy + 0.1
    assert grid.best == mild


def test_a_diverging_probe_is_not_chosen(data):
    states = data[0].flat.clone()
    table = WordTable(states.view(-1, LAYERS, HIDDEN))
    [grid] = search_lambdas(
        table, *data[1:], l1=(0.0, float("inf")), l2=(0.0,), training=ProbeTraining(epochs=2)
    )
    assert grid.best.l1 == 0
    assert np.isnan(grid.points[1].top)


def test_seeds_are_searched_together_as_one_by_one(data):
    options = {"l1": (0.0, 1e-2), "l2": (1e-3,), "training": TRAINING}
    together = search_lambdas(*data, seeds=(3, 5), **options)
    for seed, grid in zip((3, 5), together, strict=True):
        [alone] = search_lambdas(*data, seeds=(seed,), **options)
        assert [p.top for p in grid.points] == pytest.approx([p.top for p in alone.points])
        assert grid.probe.problem.seed == seed
        assert grid.ranking.order.tolist() == alone.ranking.order.tolist()


def smallest(data, candidates, **options):
    """By place; each found once."""
    rounds = list(minimal_sets(*data, candidates, **options))
    found = {c: least for one in rounds for c, least in one.items()}
    assert sum(map(len, rounds)) == len(found) == len(candidates)
    return [found[c] for c in range(len(candidates))]


def test_no_set_is_as_accurate_as_a_probe_that_diverged(data):
    order = np.arange(LAYERS * HIDDEN)
    broken, sound = smallest(
        data, [Candidate(order, l1=float("inf")), Candidate(order)], training=ProbeTraining(epochs=2)
    )
    assert np.isnan(broken.oracle)
    assert broken.count == 0
    assert sound.count > 0


def test_an_empty_search(data):
    with pytest.raises(WhichlayersError, match="at least one value"):
        search_lambdas(*data, l1=())


def test_keep_only(data):
    [probe] = fit_probes(data[0], data[1], TAGS, [Problem(np.arange(5))], ProbeTraining(epochs=1))
    masked = keep_only(probe, np.array([3, 1]))
    assert (masked.weight[[0, 2, 4]] == 0).all()
    assert (masked.weight[[1, 3]] == probe.weight[[1, 3]]).all()


def test_the_smallest_set_that_suffices(data):
    order = np.concatenate([SALIENT, np.setdiff1d(np.arange(30), SALIENT)])
    shares = [n / 30 for n in range(1, 31)]
    [found] = smallest(data, [Candidate(order, delta=0.02)], shares=shares, training=TRAINING)
    assert 3 <= found.count <= 4  # three neurons tell four tags apart
    assert found.neurons.tolist() == order[: found.count].tolist()
    assert found.accuracy >= found.oracle - 0.02
    assert [count for count, _ in found.tried] == list(range(1, found.count + 1))
    assert all(accuracy < found.oracle - 0.02 for _, accuracy in found.tried[:-1])
    [far] = smallest(data, [Candidate(order, oracle=0.3)], shares=shares, training=TRAINING)
    assert far.count == 1
    [none] = smallest(
        data, [Candidate(order, oracle=1.1)], shares=[0.1, 0.2], training=ProbeTraining(epochs=1)
    )
    assert (none.count, len(none.tried)) == (6, 2)  # the largest that was tried, below the oracle
    with pytest.raises(WhichlayersError, match="must rise"):
        smallest(data, [Candidate(order)], shares=[0.2, 0.1])


def test_candidates_find_their_sets_together_as_one_by_one(data):
    good = np.concatenate([SALIENT, np.setdiff1d(np.arange(30), SALIENT)])
    candidates = [
        Candidate(good, delta=0.02),
        Candidate(np.roll(good, 3), l2=1e-3, seed=1, delta=0.02),
        Candidate(good, seed=2, delta=0.2),
    ]
    options = {"shares": [n / 30 for n in range(1, 31)], "training": TRAINING}
    together = smallest(data, candidates, **options)
    assert together[1].count > together[0].count > together[2].count
    for candidate, found in zip(candidates, together, strict=True):
        [alone] = smallest(data, [candidate], **options)
        assert (found.count, found.neurons.tolist()) == (alone.count, alone.neurons.tolist())
        assert [a for _, a in found.tried] == pytest.approx([a for _, a in alone.tried])


def test_sets_that_are_trained_again(data):
    order = np.concatenate([SALIENT, np.setdiff1d(np.arange(30), SALIENT)])
    sets = [top(order, 4), bottom(order, 4), order]
    found = retrained(*data, [Problem(mine, seed=seed) for mine in sets for seed in (0, 1, 2)], TRAINING)
    assert found.shape == (9,)
    assert found[:3].min() > 0.85
    assert found[3:6].max() < 0.45
    train, train_labels, dev, dev_labels, n_tags = data
    [alone] = fit_probes(train, train_labels, n_tags, [Problem(order[:4], seed=1)], TRAINING)
    assert accuracies(dev, dev_labels, [alone])[0] == pytest.approx(found[1])


def test_two_sets_of_labels_at_once(data):
    train, train_labels, dev, dev_labels, n_tags = data
    both = np.stack([train_labels, train_labels[::-1]])
    marks = np.stack([dev_labels, dev_labels[::-1]])
    problems = [Problem(SALIENT, seed=seed, task=task) for task in (0, 1) for seed in (0, 1)]
    found = retrained(train, both, dev, marks, n_tags, problems, TRAINING)
    assert found[:2].min() > 0.85 > 0.45 > found[2:].max()


def test_neurons_beyond_the_model(data):
    with pytest.raises(WhichlayersError, match="there is no neuron 30"):
        retrained(*data, [Problem(np.array([30]))])
