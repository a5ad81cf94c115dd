"""Batched elastic-net probes against a plain torch loop, one probe at a time, and against scikit-learn."""

import numpy as np
import pytest
import torch
from torch import nn

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.probes import hidden_states, probe_specs, probe_trainer
from whichlayers.probes.evaluation import accuracies, code_lengths, tag_accuracies
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import FittedProbe, ProbeSpec, ProbeTraining, layer_specs
from whichlayers.probes.probe_trainer import fit_probes

N, LAYERS, HIDDEN, TAGS = 300, 3, 8, 4


def synthetic_data(n=N, seed=0):
    """States (n, layers, H) whose tags depend on some neurons, with noise; labels (2, n), the second task random."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, LAYERS, HIDDEN)).astype(np.float32)
    rule = np.random.default_rng(99).normal(size=(LAYERS * HIDDEN, TAGS))
    rule[5:] = 0
    labels = (states.reshape(n, -1) @ rule + rng.gumbel(size=(n, TAGS))).argmax(1)
    return states, np.stack([labels, rng.integers(0, TAGS, n)])


def plain_loop(states, labels, spec, training, rows=None):
    """One probe, with autograd, torch.optim.Adam and nn.Linear."""
    x = torch.from_numpy(states.reshape(len(states), -1)[:, spec.neurons])
    y = torch.from_numpy(np.atleast_2d(labels)[spec.task])
    rows = np.arange(len(x)) if rows is None else rows
    linear = nn.Linear(x.shape[1], TAGS)
    start = (2 * rng.uniform(spec.seed, "probe", (x.shape[1] + 1, TAGS)) - 1) / x.shape[1] ** 0.5
    with torch.no_grad():
        linear.weight.copy_(start[:-1].T)
        linear.bias.copy_(start[-1])
    adam = torch.optim.Adam(linear.parameters(), lr=training.lr)
    for epoch in range(training.epochs):
        order = rows[rng.permutation(spec.seed, f"order/{epoch}", len(rows))]
        for batch in np.array_split(order, range(training.batch_size, len(order), training.batch_size)):
            squares = linear.weight.square().sum()
            penalty = squares if training.norm == "squared" else squares.sqrt()
            loss = nn.functional.cross_entropy(linear(x[batch]), y[batch])
            loss = loss + spec.l1 * linear.weight.abs().sum() + spec.l2 * penalty
            adam.zero_grad()
            loss.backward()
            adam.step()
    return linear.weight.detach().T, linear.bias.detach()


def all_kinds():
    """Layers, all neurons, unsorted sets, several lambdas, seeds and tasks."""
    layer = [np.arange(k * HIDDEN, (k + 1) * HIDDEN) for k in range(LAYERS)]
    return [
        *(ProbeSpec(neurons, l1, 0.01, seed) for neurons in layer for l1 in (0, 1e-3) for seed in (0, 7)),
        ProbeSpec(np.arange(LAYERS * HIDDEN), 1e-3, 1e-2, seed=1),
        ProbeSpec(np.arange(LAYERS * HIDDEN), 0, 0, seed=1, task=1),
        ProbeSpec(np.array([20, 3, 11]), seed=2),
        ProbeSpec(np.array([1, 0, 23]), 0.1, seed=3, task=1),
    ]


@pytest.mark.parametrize("norm", ["squared", "plain"])
def test_batched_probes_equal_single_ones(norm):
    states, labels = synthetic_data()
    training = ProbeTraining(epochs=4, batch_size=64, lr=0.01, norm=norm)
    reported = []
    fitted = fit_probes(HiddenStates(states), labels, TAGS, all_kinds(), training, reported.append)
    assert sum(reported) == len(fitted) * 4
    for probe, spec in zip(fitted, all_kinds(), strict=True):
        weight, bias = plain_loop(states, labels, spec, training)
        torch.testing.assert_close(probe.weight, weight, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(probe.bias, bias, atol=2e-5, rtol=1e-4)
        assert (probe.spec.neurons == spec.neurons).all()


def test_a_subset_of_rows():
    states, labels = synthetic_data()
    rows = np.arange(0, N, 3)
    training = ProbeTraining(epochs=3, batch_size=16, lr=0.01)
    [probe] = fit_probes(
        HiddenStates(states), labels[0], TAGS, [ProbeSpec(np.arange(6), 1e-3)], training, rows=rows
    )
    weight, _ = plain_loop(states, labels, ProbeSpec(np.arange(6), 1e-3), training, rows)
    torch.testing.assert_close(probe.weight, weight, atol=2e-5, rtol=1e-4)


def test_each_seed_may_have_rows_of_its_own():
    states, labels = synthetic_data()
    rows = {seed: np.arange(seed, N - N % 2, 2) for seed in (0, 1)}
    training = ProbeTraining(epochs=3, batch_size=16, lr=0.01)
    specs = [ProbeSpec(np.arange(6), 1e-3, seed=seed) for seed in (0, 1)]
    found = fit_probes(HiddenStates(states), labels[0], TAGS, specs, training, rows=rows)
    for spec, probe in zip(specs, found, strict=True):
        weight, _ = plain_loop(states, labels, spec, training, rows[spec.seed])
        torch.testing.assert_close(probe.weight, weight, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("limit", ["groups", "blocks"])
def test_small_memory_changes_nothing(monkeypatch, limit):
    states, labels = synthetic_data()
    training = ProbeTraining(epochs=2, batch_size=64)
    inputs = HiddenStates(states)
    expected = fit_probes(inputs, labels, TAGS, all_kinds(), training)
    if limit == "groups":
        monkeypatch.setattr(probe_specs, "MAX_BYTES", 1)
        each = list(probe_specs.group_probes(all_kinds(), TAGS, 64, torch.device("cpu"), for_training=True))
        assert len(each) == len(all_kinds())
    else:
        monkeypatch.setattr(probe_trainer, "BLOCK_BYTES", {"cpu": 1})
        monkeypatch.setattr(hidden_states, "CHUNK_BYTES", 100)
    for one, other in zip(expected, fit_probes(inputs, labels, TAGS, all_kinds(), training), strict=True):
        torch.testing.assert_close(one.weight, other.weight, atol=1e-6, rtol=1e-5)


def test_half_precision_states():
    states, labels = synthetic_data()
    training = ProbeTraining(epochs=2, batch_size=64)
    rounded = states.astype(np.float16)
    one = fit_probes(HiddenStates(rounded), labels, TAGS, all_kinds(), training)
    other = fit_probes(HiddenStates(rounded.astype(np.float32)), labels, TAGS, all_kinds(), training)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.weight, b.weight)


@pytest.mark.parametrize(("l1", "l2"), [(0.02, 0.005), (0.0, 0.05), (0.03, 0.0)])
def test_converges_to_scikit_learns_elastic_net(l1, l2):
    """saga minimizes C * sum(loss) + ratio * |W| + (1 - ratio) / 2 * |W|^2: the same, once divided by C * n."""
    from sklearn.linear_model import LogisticRegression

    states, labels = synthetic_data()
    x, y = states[:, 0], labels[0]
    strength = N * (l1 + 2 * l2)
    saga = LogisticRegression(
        C=1 / strength, l1_ratio=l1 * N / strength, solver="saga", tol=1e-5, max_iter=5000
    ).fit(x, y)
    training = ProbeTraining(epochs=5000, batch_size=N, lr=1e-3)
    [probe] = fit_probes(HiddenStates(states), y, TAGS, [ProbeSpec(np.arange(HIDDEN), l1, l2)], training)
    weight = probe.weight.numpy()
    if l2:  # without it, all tags' weights of a neuron may be moved alike at no cost
        np.testing.assert_allclose(weight, saga.coef_.T, atol=5e-3)

    def objective(weight, bias):
        log = torch.log_softmax(torch.from_numpy(x @ weight + bias), -1).numpy()
        return -log[np.arange(N), y].mean() + l1 * np.abs(weight).sum() + l2 * (weight**2).sum()

    assert objective(weight, probe.bias.numpy()) == pytest.approx(
        objective(saga.coef_.T.astype(np.float32), saga.intercept_.astype(np.float32)), abs=2e-4
    )
    if l1 and l2:
        assert (np.abs(weight[np.abs(saga.coef_.T) < 1e-6]) < 2e-3).all()


def test_layer_specs():
    inputs = HiddenStates(synthetic_data()[0])
    found = layer_specs(inputs, seeds=(0, 1), l1=(0.0, 0.1), l2=(0.2,), tasks=(0, 1))
    assert len(found) == LAYERS * 2 * 2 * 2
    assert [(p.l1, p.l2, p.seed, p.task) for p in found[:4]] == [
        (0.0, 0.2, 0, 0),
        (0.0, 0.2, 0, 1),
        (0.0, 0.2, 1, 0),
        (0.0, 0.2, 1, 1),
    ]
    assert found[-1].neurons.tolist() == list(range(16, 24))


# --- scores ---


def test_scores_against_a_loop():
    states, labels = synthetic_data()
    inputs = HiddenStates(states)
    probes = fit_probes(inputs, labels, TAGS, all_kinds(), ProbeTraining(epochs=10, batch_size=64, lr=0.03))
    test, test_labels = synthetic_data(n=150, seed=1)
    test_labels[:, :10] = -1  # unseen tags
    flat = torch.from_numpy(test.reshape(150, -1))
    rows = np.arange(5, 150, 2)
    found = accuracies(HiddenStates(test), test_labels, probes)
    some = accuracies(HiddenStates(test), test_labels, probes, rows)
    by_tag = tag_accuracies(HiddenStates(test), test_labels, probes, TAGS, rows)
    nats = code_lengths(HiddenStates(test), test_labels, probes, np.arange(10, 150))
    for p, probe in enumerate(probes):
        targets = test_labels[probe.spec.task]
        outputs = flat[:, probe.spec.neurons] @ probe.weight + probe.bias
        right = outputs.argmax(1).numpy() == targets
        assert not right[:10].any()
        assert found[p] == pytest.approx(right.mean())
        assert some[p] == pytest.approx(right[rows].mean())
        for tag in range(TAGS):
            assert by_tag[p, tag] == pytest.approx(right[rows][targets[rows] == tag].mean())
        loss = nn.functional.cross_entropy(outputs[10:], torch.from_numpy(targets[10:]), reduction="sum")
        assert nats[p] == pytest.approx(float(loss), rel=1e-5)
    assert np.isinf(code_lengths(HiddenStates(test), test_labels, probes)).all()
    assert (found[:4] > 1.3 / TAGS).all()


def test_a_tag_that_does_not_occur_has_no_accuracy():
    states, labels = synthetic_data()
    inputs = HiddenStates(states)
    probes = fit_probes(inputs, labels, TAGS, [ProbeSpec(np.arange(4))], ProbeTraining(epochs=1))
    found = tag_accuracies(inputs, np.where(labels[0] == 2, 1, labels[0]), probes, TAGS)
    assert np.isnan(found[0]).tolist() == [False, False, True, False]


def test_states_that_are_not_finite():
    states, labels = synthetic_data()
    states[3, 1, 2] = np.nan
    inputs = HiddenStates(states)
    good, bad = fit_probes(
        inputs, labels[0], TAGS, [ProbeSpec(inputs.layer_neurons(0)), ProbeSpec(inputs.layer_neurons(1))]
    )
    assert good.error is None
    assert "not a finite number" in bad.error
    assert np.isnan(accuracies(inputs, labels[0], [good, bad])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("neurons", "message"),
    [
        ([24], "there is no neuron 24: this model has neurons 0 to 23 .3 layers of hidden size 8,"),
        ([-1, 3], "no neuron -1"),
        ([], "at least one neuron"),
        ([3, 3], "twice"),
    ],
)
def test_neurons_the_model_does_not_have(neurons, message):
    states, labels = synthetic_data()
    spec = ProbeSpec(np.array(neurons, np.int64))
    with pytest.raises(WhichlayersError, match=message):
        fit_probes(HiddenStates(states), labels[0], TAGS, [spec])
    probe = FittedProbe(spec, torch.zeros(len(neurons), TAGS), torch.zeros(TAGS), 0.0)
    with pytest.raises(WhichlayersError, match=message):
        accuracies(HiddenStates(states), labels[0], [probe])


def test_layers_the_model_does_not_have():
    with pytest.raises(WhichlayersError, match=r"layer = 3 cannot be probed: the layers are 1 to 2"):
        HiddenStates(synthetic_data()[0]).layer_neurons(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda labels: labels[:, :-1], "300 examples but 299 labels"),
        (lambda labels: labels - 1, "invalid training label -1: labels are 0 to 3"),
        (lambda labels: labels + 1, "invalid training label 4"),
        (lambda labels: labels[:1], "there is no task 1: the labels have 1 task,"),
    ],
)
def test_invalid_labels(change, message):
    states, labels = synthetic_data()
    with pytest.raises(WhichlayersError, match=message):
        fit_probes(HiddenStates(states), change(labels), TAGS, all_kinds())


def test_nothing_to_train():
    states, labels = synthetic_data()
    with pytest.raises(WhichlayersError, match="at least one probe"):
        fit_probes(HiddenStates(states), labels, TAGS, [])
    with pytest.raises(WhichlayersError, match="rows to train on"):
        fit_probes(HiddenStates(states), labels, TAGS, all_kinds(), rows=np.array([N]))
    uneven = {seed: np.arange(10 + seed) for seed in range(3)}
    with pytest.raises(WhichlayersError, match="same number of rows"):
        fit_probes(
            HiddenStates(states),
            labels[0],
            TAGS,
            [ProbeSpec(np.arange(6), seed=s) for s in (1, 2)],
            rows=uneven,
        )

    with pytest.raises(WhichlayersError, match="300 examples but 3 labels"):
        accuracies(
            HiddenStates(states),
            labels[:, :3],
            fit_probes(HiddenStates(states), labels, TAGS, all_kinds()[:1]),
        )
