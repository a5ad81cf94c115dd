"""Evaluation metrics of GLUE, computed with scikit-learn and scipy.

`f1` is the F1 score of class 1, for binary tasks; `macro_f1` is the mean over classes. A correlation with constant
predictions is undefined and reported as 0, as scikit-learn does for mcc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from whichlayers.catalog import METRICS, Kind, metrics_of
from whichlayers.errors import WhichlayersError


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, predictions))


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, zero_division=0))


def _macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=0))


def _mcc(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import pearsonr

    return 0.0 if _constant(predictions, labels) else float(pearsonr(predictions, labels).statistic)


def _spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return 0.0 if _constant(predictions, labels) else float(spearmanr(predictions, labels).statistic)


def _constant(predictions: np.ndarray, labels: np.ndarray) -> bool:
    return bool(np.ptp(predictions) == 0 or np.ptp(labels) == 0)


SCORERS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {  # of the metrics in the catalog
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "mcc": _mcc,
    "pearson": _pearson,
    "spearman": _spearman,
}


def score(metrics: Sequence[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute metrics by name.

    Args:
        metrics: Names of the metrics.
        predictions: (n,) class indices for classification, or values for regression. If values are not finite
            (a diverged run), all metrics are NaN.
        labels: (n,) class indices or targets.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or predictions.ndim != 1 or not len(labels):
        raise ValueError(
            f"predictions {predictions.shape} and labels {labels.shape} must be 1-D, of equal length and not empty"
        )
    if predictions.dtype.kind == "f":
        predictions = predictions.astype(np.float64)  # sums of squares lose precision in float32
        labels = labels.astype(np.float64)
        if not np.isfinite(predictions).all():
            return {name: float("nan") for name in metrics}
    return {name: SCORERS[name](predictions, labels) for name in metrics}


def score_outputs(
    metrics: Sequence[str], kind: Kind, outputs: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Compute metrics from the outputs of a model; all are NaN if an output is not finite (a diverged run).

    Args:
        metrics: Names of the metrics.
        kind: Type of the task.
        outputs: (n, C) logits, or (n, 1) predictions of a regression.
        labels: (n,) class indices or targets.
    """
    if not np.isfinite(outputs).all():
        return {name: float("nan") for name in metrics}
    return score(metrics, outputs[:, 0] if kind == "regression" else outputs.argmax(-1), labels)


def name_by_split(scores: Mapping[str, float], split: str) -> dict[str, float]:
    """Scores on one of `Task.evals` by their names in results: those of an additional split carry its name.

    For example, accuracy is accuracy_mismatched on the split "mismatched" of MNLI.
    """
    return {f"{metric}_{split}" if split else metric: value for metric, value in scores.items()}


def guess_scores(
    metrics: Sequence[str], train_labels: np.ndarray, eval_labels: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Scores of guessing: of predicting the same for every row, without looking at the text.

    The prediction is the most frequent class of the training labels (the first of several), or the mean of the targets
    in regression, where every correlation is 0.

    Args:
        metrics: Names of the metrics.
        train_labels: (n,) class indices or targets of the training split.
        eval_labels: (m,) labels of each evaluation split by its name (see `Task.evals`).

    Returns:
        The scores of all splits, see `name_by_split`.
    """
    if train_labels.dtype.kind == "f":
        guess = train_labels.mean(dtype=np.float64)
    else:
        classes, counts = np.unique(train_labels, return_counts=True)
        guess = classes[counts.argmax()]
    scores: dict[str, float] = {}
    for name, labels in eval_labels.items():
        scores |= name_by_split(score(metrics, np.full(len(labels), guess), labels), name)
    return scores


def choose_metrics(
    kind: Kind, n_classes: int, metric: str | None, where: str = "metric"
) -> tuple[str, tuple[str, ...]]:
    """(primary metric, all metrics) of a custom task; `where` is the name of the setting in error messages."""
    allowed = tuple(m for m in metrics_of(kind) if n_classes == 2 or not METRICS[m].binary_only)
    metric = metric or allowed[0]
    if metric not in allowed:
        classes = f" with {n_classes} classes" if kind == "classification" else ""
        raise WhichlayersError(
            f"{where} = {metric!r} cannot be used for a {kind} task{classes}; choose one of {', '.join(allowed)}"
        )
    return metric, allowed
