"""Metrics against their definitions, and against scikit-learn and scipy."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from whichlayers.catalog import METRICS
from whichlayers.data.metrics import choose_metrics, score
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
