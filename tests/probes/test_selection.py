"""The search for lambdas, the smallest set and retrained sets, on states where the salient neurons are known."""

import numpy as np
import pytest

from carryover.probes.elastic import ProbeTraining, Problem, accuracies, fit_probes
from carryover.probes.ranking import bottom, rank_by_weight, spread, top
from carryover.probes.selection import keep_only, minimal_set, retrained, search_lambdas
from carryover.probes.table import WordTable
from carryover.trial import CarryoverError

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
    grid = search_lambdas(*data, l1=(0.0, 1e-2), l2=(0.0, 1e-3, 10.0), training=TRAINING, on_step=told.append)
    assert sum(told) == 6 * 25
    assert [(p.l1, p.l2) for p in grid.points][:3] == [(0.0, 0.0), (0.0, 1e-3), (0.0, 10.0)]
    assert set(grid.ranking.order[:4]) == set(SALIENT)
    assert grid.best.score == max(p.score for p in grid.points)
    assert grid.best.l2 < 10
    assert spread(top(grid.ranking.order, 4), LAYERS, HIDDEN).tolist() == [0, 4, 0]


def test_what_the_score_is_made_of(data):
    """Each pair by itself: its accuracy, and the accuracy with all but a fifth of the neurons put to 0."""
    train, train_labels, dev, dev_labels, n_tags = data
    grid = search_lambdas(*data, l1=(1e-2,), l2=(1e-3, 1e-1), training=TRAINING)
    assert len(grid.points) == 2  # the probe without a penalty is trained, but no candidate here
    problems = [Problem(train.everything(), *pair) for pair in ((0, 0), (1e-2, 1e-3), (1e-2, 1e-1))]
    free, *probes = fit_probes(train, train_labels, n_tags, problems, TRAINING)
    [without] = accuracies(dev, dev_labels, [free])
    for point, probe in zip(grid.points, probes, strict=True):
        order = rank_by_weight(probe.weight).order
        flat = dev.flat.clone()
        outputs = []
        for kept in (order, order[:6], order[-6:]):
            masked = flat * np.isin(np.arange(30), kept)
            outputs.append(((masked @ probe.weight + probe.bias).argmax(1).numpy() == dev_labels).mean())
        assert [point.accuracy, point.top, point.bottom] == pytest.approx(outputs)
        assert point.score == pytest.approx(0.5 * (outputs[1] - outputs[2]) - 0.5 * (without - outputs[0]))


def test_a_diverging_probe_is_not_chosen(data):
    states = data[0].flat.clone()
    table = WordTable(states.view(-1, LAYERS, HIDDEN))
    grid = search_lambdas(
        table, *data[1:], l1=(0.0, float("inf")), l2=(0.0,), training=ProbeTraining(epochs=2)
    )
    assert grid.best.l1 == 0
    assert np.isnan(grid.points[1].score)


def test_no_set_is_as_accurate_as_a_probe_that_diverged(data):
    found = minimal_set(
        *data, order=np.arange(LAYERS * HIDDEN), l1=float("inf"), training=ProbeTraining(epochs=2)
    )
    assert np.isnan(found.oracle)
    assert found.count == 0


def test_an_empty_search(data):
    with pytest.raises(CarryoverError, match="at least one value"):
        search_lambdas(*data, l1=())


def test_keep_only(data):
    [probe] = fit_probes(data[0], data[1], TAGS, [Problem(np.arange(5))], ProbeTraining(epochs=1))
    masked = keep_only(probe, np.array([3, 1]))
    assert (masked.weight[[0, 2, 4]] == 0).all()
    assert (masked.weight[[1, 3]] == probe.weight[[1, 3]]).all()


def test_the_smallest_set_that_suffices(data):
    order = np.concatenate([SALIENT, np.setdiff1d(np.arange(30), SALIENT)])
    shares = [n / 30 for n in range(1, 31)]
    found = minimal_set(*data, order, delta=0.02, seeds=(0, 1), shares=shares, training=TRAINING)
    assert 3 <= found.count <= 4  # three neurons tell four tags apart
    assert found.neurons.tolist() == order[: found.count].tolist()
    assert found.accuracy >= found.oracle - 0.02
    assert [count for count, _ in found.tried] == list(range(1, found.count + 1))
    assert all(accuracy < found.oracle - 0.02 for _, accuracy in found.tried[:-1])
    far = minimal_set(*data, order, oracle=0.3, shares=shares, training=TRAINING)
    assert far.count == 1
    none = minimal_set(*data, order, oracle=1.1, shares=[0.1, 0.2], training=ProbeTraining(epochs=1))
    assert (none.count, len(none.tried)) == (6, 2)  # the largest that was tried, below the oracle
    with pytest.raises(CarryoverError, match="must rise"):
        minimal_set(*data, order, shares=[0.2, 0.1])


def test_sets_that_are_trained_again(data):
    order = np.concatenate([SALIENT, np.setdiff1d(np.arange(30), SALIENT)])
    sets = {"top": top(order, 4), "bottom": bottom(order, 4), "all": order}
    found = retrained(*data, sets, seeds=(0, 1, 2), training=TRAINING)
    assert list(found) == ["top", "bottom", "all"]
    assert found["top"].shape == (3,)
    assert found["top"].min() > 0.85
    assert found["bottom"].max() < 0.45
    train, train_labels, dev, dev_labels, n_tags = data
    [alone] = fit_probes(train, train_labels, n_tags, [Problem(order[:4], seed=1)], TRAINING)
    assert accuracies(dev, dev_labels, [alone])[0] == pytest.approx(found["top"][1])


def test_two_sets_of_labels_at_once(data):
    train, train_labels, dev, dev_labels, n_tags = data
    both = np.stack([train_labels, train_labels[::-1]])
    marks = np.stack([dev_labels, dev_labels[::-1]])
    found = retrained(train, both, dev, marks, n_tags, {"top": SALIENT}, seeds=(0, 1), training=TRAINING)
    assert found["top"].shape == (2, 2)
    assert found["top"][0].min() > 0.85 > 0.45 > found["top"][1].max()


def test_neurons_beyond_the_model(data):
    with pytest.raises(CarryoverError, match="there is no neuron 30"):
        retrained(*data, {"top": np.array([30])})
