"""All probes at once against one at a time, against torch's own AdamW, and against scikit-learn."""

import dataclasses

import numpy as np
import pytest
import torch

from whichlayers import rng
from whichlayers.data.batches import epoch_order, subset
from whichlayers.errors import WhichlayersError
from whichlayers.probes import probe_trainer
from whichlayers.probes.evaluation import predict
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import FittedProbe
from whichlayers.probes.run_sentence_probes import ProbeJob, fit_sentence_probes
from whichlayers.trial import Probe

N, LAYERS, HIDDEN, CLASSES = 150, 3, 10, 3


def synthetic_data(kind="classification", seed=0, n=N):
    """States (n, layers, H) that are more informative the higher the layer; classes overlap."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, LAYERS, HIDDEN)).astype(np.float32)
    truth = np.random.default_rng(99).normal(size=(HIDDEN, CLASSES))
    outputs = states[:, -1] @ truth + rng.gumbel(size=(n, CLASSES))
    for layer in range(LAYERS - 1):
        states[:, layer] += 0.5 * layer * states[:, -1]
    if kind == "regression":
        return states, outputs[:, 0].astype(np.float32)
    return states, outputs.argmax(1)


def jobs_of(probes, seeds, size=120):
    return [ProbeJob(probe, seed, subset(N, size, seed)) for seed, probe in zip(seeds, probes, strict=True)]


def plain_loop(states, labels, job, kind, outputs):
    """One probe with torch.nn, torch.optim and autograd; it shares only the random numbers with `fit`."""
    probe, size = job.probe, len(job.rows)
    n_held_out = round(probe.held_out * size)
    order = rng.permutation(job.seed, "held out", size)
    held_out, rows = job.rows[order[:n_held_out]], job.rows[np.sort(order[n_held_out:])]
    x, y = torch.from_numpy(states[:, probe.layer]), torch.from_numpy(labels)
    if probe.standardize:
        x = (x - x[rows].mean(0)) / x[rows].std(0, correction=0)
    model = torch.nn.Linear(HIDDEN, outputs)
    torch.nn.init.zeros_(model.bias)
    order_seed = job.seed if job.order_seed is None else job.order_seed
    weights_seed = job.seed if job.weights_seed is None else job.weights_seed
    model.weight.data = rng.normal(weights_seed, "classifier.weight", (outputs, HIDDEN), 0.02)
    optimizer = torch.optim.AdamW(
        [
            {"params": [model.weight], "weight_decay": probe.weight_decay},
            {"params": [model.bias], "weight_decay": 0.0},
        ],
        lr=probe.lr,
    )

    def loss_on(batch):
        outputs_of_batch = model(x[batch])
        if kind == "regression":
            return torch.nn.functional.mse_loss(outputs_of_batch[:, 0], y[batch])
        return torch.nn.functional.cross_entropy(outputs_of_batch, y[batch])

    best, best_epoch, best_outputs = float("inf"), 0, None
    for epoch in range(1, probe.max_epochs + 1):
        for batch in np.array_split(
            rows[epoch_order(len(rows), order_seed, epoch - 1)],
            range(probe.batch_size, len(rows), probe.batch_size),
        ):
            optimizer.zero_grad()
            loss_on(batch).backward()
            optimizer.step()
        with torch.no_grad():
            now = float(loss_on(held_out)) if n_held_out else -epoch
        if now < best:
            best, best_epoch, best_outputs = now, epoch, model(x).detach()
        elif epoch - best_epoch >= probe.patience:
            break
    return best_epoch, best_outputs


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_each_probe_equals_a_plain_loop(kind):
    states, labels = synthetic_data(kind)
    outputs = 1 if kind == "regression" else CLASSES
    plain = Probe(2, lr=0.05, max_epochs=12, patience=2, batch_size=16)
    probes = [
        plain,
        dataclasses.replace(plain, layer=0),
        dataclasses.replace(plain, lr=0.3),
        dataclasses.replace(plain, weight_decay=0.5, standardize=True),
        dataclasses.replace(plain, layer=1, patience=5, max_epochs=7),
    ]
    jobs = jobs_of(probes, [0, 0, 1, 2, 3])
    own_seeds = [(None, None), (1, None), (None, 1), (0, 3), (2, 2)]  # of order and initial weights
    jobs += [
        dataclasses.replace(jobs[i], order_seed=order, weights_seed=weights)
        for i in (0, 3)
        for order, weights in own_seeds[1:]
    ]
    inputs = HiddenStates(states)
    fitted = fit_sentence_probes(inputs, labels, jobs, outputs, kind)
    found = predict(inputs, fitted)
    epochs = []
    for job, logits, probe in zip(jobs, found, fitted, strict=True):
        epoch, expected = plain_loop(states, labels, job, kind, outputs)
        assert probe.epoch == epoch
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-3)
        epochs.append(epoch)
    assert len(set(epochs)) > 2  # they stop at different epochs


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_alone_and_together(kind):
    states, labels = synthetic_data(kind)
    outputs = 1 if kind == "regression" else CLASSES
    plain = Probe(0, lr=0.05, max_epochs=15, patience=2)
    probes = [
        dataclasses.replace(plain, layer=layer, standardize=layer == 1)
        for layer in range(LAYERS)
        for _ in range(4)
    ]
    jobs = jobs_of(probes, [0, 1, 2, 3] * LAYERS)
    together = fit_sentence_probes(HiddenStates(states), labels, jobs, outputs, kind)
    assert len({f.epochs_run for f in together}) > 2
    for job, one in zip(jobs, together, strict=True):
        (alone,) = fit_sentence_probes(HiddenStates(states), labels, [job], outputs, kind)
        assert (alone.epoch, alone.epochs_run) == (one.epoch, one.epochs_run)
        torch.testing.assert_close(alone.weight, one.weight, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(alone.bias, one.bias, atol=1e-5, rtol=1e-4)


def converged(kind, outputs, standardize):
    states, labels = synthetic_data(kind)
    rows = np.arange(N)
    probes = [
        Probe(layer, held_out=0, max_epochs=1200, batch_size=N, lr=2e-2, standardize=standardize)
        for layer in range(LAYERS)
    ]
    fitted = fit_sentence_probes(
        HiddenStates(states), labels, [ProbeJob(p, 0, rows) for p in probes], outputs, kind
    )
    assert {f.epoch for f in fitted} == {1200}  # nothing held out: the last epoch is used
    return states, labels, fitted


@pytest.mark.parametrize("standardize", [False, True])
def test_at_convergence_it_is_logistic_regression(standardize):
    from sklearn.linear_model import LogisticRegression

    states, labels, fitted = converged("classification", CLASSES, standardize)
    fresh, fresh_labels = synthetic_data(seed=1, n=400)
    probabilities = predict(HiddenStates(fresh), fitted).softmax(-1).numpy()
    for layer, probe in enumerate(fitted):
        reference = LogisticRegression(C=np.inf, tol=1e-8, max_iter=2000).fit(states[:, layer], labels)
        centered = probe.weight - probe.weight.mean(1, keepdim=True)  # softmax only depends on differences
        np.testing.assert_allclose(centered.T, reference.coef_, atol=5e-3)
        np.testing.assert_allclose(probabilities[layer], reference.predict_proba(fresh[:, layer]), atol=2e-3)
        accuracy = (probabilities[layer].argmax(-1) == fresh_labels).mean()
        assert accuracy == pytest.approx(reference.score(fresh[:, layer], fresh_labels), abs=0.01)


def test_at_convergence_it_is_least_squares():
    from sklearn.linear_model import LinearRegression

    states, labels, fitted = converged("regression", 1, standardize=False)
    for layer, probe in enumerate(fitted):
        reference = LinearRegression().fit(states[:, layer], labels)
        np.testing.assert_allclose(probe.weight[:, 0], reference.coef_, atol=2e-3)
        np.testing.assert_allclose(probe.bias, reference.intercept_, atol=2e-3)


def test_two_classes_on_realistic_features_reach_logistic_regression():
    """Features of unequal scale, as hidden states are: standardized, the probe converges all the same."""
    from sklearn.linear_model import LogisticRegression

    states, labels = synthetic_data()
    labels = (labels > 0).astype(np.int64)
    scaled = states * np.geomspace(1e-3, 1e3, HIDDEN, dtype=np.float32) + 3
    probe = Probe(2, held_out=0, max_epochs=1200, batch_size=N, lr=2e-2, standardize=True)
    (fitted,) = fit_sentence_probes(HiddenStates(scaled), labels, [ProbeJob(probe, 0, np.arange(N))], 2)
    probabilities = predict(HiddenStates(scaled), [fitted]).softmax(-1)[0, :, 1].numpy()
    reference = LogisticRegression(C=np.inf, tol=1e-8, max_iter=2000).fit(states[:, 2], labels)
    np.testing.assert_allclose(probabilities, reference.predict_proba(states[:, 2])[:, 1], atol=5e-3)


def test_the_selected_epoch_has_the_lowest_held_out_loss():
    states, labels = synthetic_data()
    probe = Probe(2, lr=0.1, max_epochs=30, patience=4)
    (job,) = jobs_of([probe], [5])
    (fitted,) = fit_sentence_probes(HiddenStates(states), labels, [job], CLASSES)
    assert fitted.epochs_run == fitted.epoch + 4
    held = job.rows[rng.permutation(5, "held out", 120)[:12]]
    outputs = predict(HiddenStates(states), [fitted])[0]
    loss = torch.nn.functional.cross_entropy(outputs[held], torch.from_numpy(labels[held]))
    assert fitted.held_out_loss == pytest.approx(float(loss), rel=1e-4)
    by_hand = [
        fit_sentence_probes(
            HiddenStates(states),
            labels,
            [ProbeJob(dataclasses.replace(probe, max_epochs=e), 5, job.rows)],
            CLASSES,
        )
        for e in range(1, fitted.epochs_run + 1)
    ]
    assert min(f.held_out_loss for (f,) in by_hand) == pytest.approx(fitted.held_out_loss)


def test_held_out_examples_are_never_trained_on():
    states, labels = synthetic_data()
    (job,) = jobs_of([Probe(1, max_epochs=1)], [7])
    (fitted,) = fit_sentence_probes(HiddenStates(states), labels, [job], CLASSES)
    held = job.rows[rng.permutation(7, "held out", 120)[:12]]
    changed = labels.copy()
    changed[held] = (changed[held] + 1) % CLASSES
    (other,) = fit_sentence_probes(HiddenStates(states), changed, [job], CLASSES)
    assert other.held_out_loss != fitted.held_out_loss
    assert torch.equal(other.weight, fitted.weight)
    changed = labels.copy()
    changed[np.setdiff1d(job.rows, held)[:5]] += 1
    (trained_on,) = fit_sentence_probes(HiddenStates(states), changed % CLASSES, [job], CLASSES)
    assert not torch.equal(trained_on.weight, fitted.weight)


def test_a_probe_that_diverges_fails_alone():
    states, labels = synthetic_data("regression")
    jobs = jobs_of([Probe(2, max_epochs=5), Probe(2, lr=1e30, max_epochs=5)], [0, 0])
    good, bad = fit_sentence_probes(HiddenStates(states), labels, jobs, 1, "regression")
    assert good.error is None
    assert "smaller lr" in (bad.error or "")
    assert torch.isfinite(good.weight).all()


def test_progress_adds_up_to_every_epoch_of_every_probe():
    states, labels = synthetic_data()
    jobs = jobs_of([Probe(2, lr=0.2, max_epochs=20, patience=1), Probe(0, max_epochs=9)], [0, 1])
    reported = []
    fit_sentence_probes(HiddenStates(states), labels, jobs, CLASSES, on_progress=reported.append)
    assert sum(reported) == 29


def test_large_states_are_evaluated_in_blocks(monkeypatch):
    states, labels = synthetic_data()
    jobs = jobs_of([Probe(2, max_epochs=3, standardize=True), Probe(1, max_epochs=3)], [0, 1])
    whole = fit_sentence_probes(HiddenStates(states), labels, jobs, CLASSES)
    monkeypatch.setattr(probe_trainer, "BLOCK_BYTES", {"cpu": 1})
    parts = fit_sentence_probes(HiddenStates(states), labels, jobs, CLASSES)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one.weight, other.weight)
        assert one.held_out_loss == pytest.approx(other.held_out_loss)
    torch.testing.assert_close(predict(HiddenStates(states), whole), predict(HiddenStates(states), parts))


def test_a_constant_feature_and_half_precision():
    states, labels = synthetic_data()
    states[:, :, 0] = 4.0
    (job,) = jobs_of([Probe(2, max_epochs=3, standardize=True)], [0])
    (fitted,) = fit_sentence_probes(HiddenStates(states), labels, [job], CLASSES)
    assert torch.isfinite(fitted.weight).all()
    (half,) = fit_sentence_probes(HiddenStates(states.astype(np.float16)), labels, [job], CLASSES)
    torch.testing.assert_close(half.weight, fitted.weight, atol=5e-3, rtol=1e-2)
    assert isinstance(half, FittedProbe)


@pytest.mark.parametrize(
    ("probes", "sizes", "message"),
    [
        ([], [], "at least one"),
        ([Probe(0), Probe(1, batch_size=4)], [20, 20], "agree"),
        ([Probe(0), Probe(1)], [20, 21], "agree"),
        ([Probe(0)], [1], "held_out = 0"),
    ],
)
def test_invalid_jobs(probes, sizes, message):
    states, labels = synthetic_data()
    jobs = [ProbeJob(p, 0, subset(N, size, 0)) for p, size in zip(probes, sizes, strict=True)]
    with pytest.raises(WhichlayersError, match=message):
        fit_sentence_probes(HiddenStates(states), labels, jobs, CLASSES)
