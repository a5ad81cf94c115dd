"""Metrics against their definitions, and against scikit-learn and scipy."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk
from sklearn.dummy import DummyClassifier, DummyRegressor

from whichlayers.catalog import METRICS
from whichlayers.data.metrics import choose_metrics, guess_scores, score
from whichlayers.errors import WhichlayersError


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_binary_metrics_by_their_definitions(rng):
    labels, predictions = rng.integers(0, 2, 300), rng.integers(0, 2, 300)
    predictions[:200] = labels[:200]
    tp = float(np.sum((labels == 1) & (predictions == 1)))
    fp = float(np.sum((labels == 0) & (predictions == 1)))
    fn = float(np.sum((labels == 1) & (predictions == 0)))
    tn = float(np.sum((labels == 0) & (predictions == 0)))
    mcc = (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    f1, f1_of_0 = 2 * tp / (2 * tp + fp + fn), 2 * tn / (2 * tn + fn + fp)
    expected = {"accuracy": (tp + tn) / 300, "f1": f1, "mcc": mcc, "macro_f1": (f1 + f1_of_0) / 2}
    assert score(tuple(expected), predictions, labels) == pytest.approx(expected)


def test_many_classes_against_sklearn(rng):
    labels, predictions = rng.integers(0, 4, 500), rng.integers(0, 4, 500)
    found = score(("accuracy", "macro_f1", "mcc"), predictions, labels)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, predictions))
    assert found["macro_f1"] == pytest.approx(sk.f1_score(labels, predictions, average="macro"))
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(labels, predictions))


def test_correlations_against_scipy_and_their_definition(rng):
    labels = rng.uniform(0, 5, 400).round(1).astype(np.float32)
    predictions = (labels + rng.normal(0, 1, 400)).astype(np.float32)
    found = score(("pearson", "spearman"), predictions, labels)
    x, y = predictions.astype(float), labels.astype(float)
    by_hand = np.mean((x - x.mean()) * (y - y.mean())) / (x.std() * y.std())
    assert found["pearson"] == pytest.approx(by_hand)
    assert found["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic)
    assert 0.5 < found["pearson"] < 1


def test_constant_predictions_score_zero_without_a_warning(recwarn):
    zeros = np.zeros(10, dtype=np.int64)
    labels = np.arange(10) % 2
    assert score(("mcc", "f1"), zeros, labels) == {"mcc": 0.0, "f1": 0.0}
    flat = np.full(10, 2.5, dtype=np.float32)
    assert score(("pearson", "spearman"), flat, labels.astype(np.float32)) == {
        "pearson": 0.0,
        "spearman": 0.0,
    }
    assert not recwarn.list


def test_diverged_values_score_nan():
    found = score(("pearson", "spearman"), np.array([1.0, np.nan, 2.0]), np.array([1.0, 2.0, 3.0]))
    assert np.isnan(found["pearson"])
    assert np.isnan(found["spearman"])


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="of equal length"):
        score(("accuracy",), np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(ValueError, match="not empty"):
        score(("accuracy",), np.zeros(0), np.zeros(0))


def test_choice_of_metrics():
    assert choose_metrics("classification", 2, None) == ("accuracy", ("accuracy", "f1", "macro_f1", "mcc"))
    assert choose_metrics("classification", 3, "mcc")[0] == "mcc"
    assert choose_metrics("regression", 0, "spearman") == ("spearman", ("pearson", "spearman"))
    for kind, classes in (("classification", 2), ("classification", 5), ("regression", 0)):
        assert set(choose_metrics(kind, classes, None)[1]) <= set(METRICS)


@pytest.mark.parametrize(
    ("kind", "classes", "metric", "offered"),
    [
        ("classification", 3, "f1", "macro_f1"),
        ("classification", 2, "pearson", "accuracy"),
        ("regression", 0, "accuracy", "pearson, spearman"),
    ],
)
def test_an_unsuitable_metric_is_rejected(kind, classes, metric, offered):
    with pytest.raises(WhichlayersError, match=offered):
        choose_metrics(kind, classes, metric)


# --- guessing ---


@pytest.mark.parametrize(
    ("train", "metrics"),
    [
        ((0.3, 0.7), ("accuracy", "f1", "macro_f1", "mcc")),
        ((0.7, 0.3), ("accuracy", "f1", "macro_f1", "mcc")),
        ((0.2, 0.5, 0.3), ("accuracy", "macro_f1", "mcc")),
    ],
)
def test_guessing_is_the_most_frequent_class_of_the_training_labels(rng, train, metrics):
    n = len(train)
    labels, dev, other = rng.choice(n, 400, p=train), rng.integers(0, n, 150), rng.integers(0, n, 90)
    dummy = DummyClassifier(strategy="most_frequent").fit(np.zeros((400, 1)), labels)
    found = guess_scores(metrics, labels, {"": dev, "other": other})
    for name, split in {"": dev, "_other": other}.items():
        expected = score(metrics, dummy.predict(np.zeros((len(split), 1))), split)
        assert {metric: found[f"{metric}{name}"] for metric in metrics} == expected
    assert len(found) == 2 * len(metrics)
    assert found["mcc"] == 0.0
    assert found["accuracy"] == np.mean(
        dev == np.argmax(train)
    )  # not the most frequent class of the dev labels


def test_the_f1_of_guessing_is_zero_only_if_class_0_is_more_frequent():
    dev = np.array([0, 1, 1, 1])
    assert guess_scores(("f1",), np.array([0, 0, 1]), {"": dev}) == {"f1": 0.0}
    assert guess_scores(("f1",), np.array([0, 1, 1]), {"": dev}) == {"f1": pytest.approx(6 / 7)}


def test_a_tie_is_guessed_as_the_first_class():
    assert guess_scores(("accuracy",), np.array([1, 0, 1, 0]), {"": np.array([0, 0, 0, 1])}) == {
        "accuracy": 0.75
    }


def test_guessing_targets_correlates_with_nothing(rng):
    train, dev = (rng.uniform(0, 5, n).astype(np.float32) for n in (200, 100))
    dummy = DummyRegressor(strategy="mean").fit(np.zeros((200, 1)), train).predict(np.zeros((100, 1)))
    found = guess_scores(("pearson", "spearman"), train, {"": dev})
    assert found == score(("pearson", "spearman"), dummy, dev) == {"pearson": 0.0, "spearman": 0.0}
