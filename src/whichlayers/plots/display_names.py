"""Display names of metrics, models and tasks, for figures, tables and text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from whichlayers.catalog import METRICS
from whichlayers.text import DIFFERENCE, TIMES_100, in_points

MEASURES = {  # what is measured besides the metrics of tasks
    "distance": "weight change",
    "dev_loss": "evaluation loss",
    "spectral norm, min-max scaled": "weight change, scaled",
    "spread": "fraction of the top neurons",
    "neurons": "fraction of all neurons",
    "compression": "compression",
}


def metric_name(metric: str) -> str:
    """Display name of a metric, e.g. "Matthews correlation" for "mcc"."""
    whole = metric.removeprefix(DIFFERENCE)
    name = METRICS[whole].display_name if whole in METRICS else MEASURES.get(whole, whole)
    return metric.removesuffix(whole) + name


def axis_name(metric: str) -> str:
    """Name of a metric with its scale, as axis label: "accuracy × 100"."""
    return f"{metric_name(metric)} {TIMES_100}" if in_points(metric) else metric_name(metric)


def effect_unit(metric: str) -> str:
    """Unit of a difference in a metric: "points of accuracy"."""
    return f"points of {metric_name(metric)}" if in_points(metric) else metric_name(metric)


def size_name(size: int) -> str:
    """A number of training examples, e.g. "1,000"; a dash for 0 (not finetuned)."""
    return f"{int(size):,}" if size else "–"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Map each name to a short form without "package:", "builtin:" or directories, if that stays unique."""
    full = sorted(set(names))
    short = {name: _shorten(name) for name in full}
    short_forms = list(short.values())
    return {name: text if short_forms.count(text) == 1 else name for name, text in short.items()}


def _shorten(name: str) -> str:
    for prefix in ("package:", "builtin:"):
        name = name.removeprefix(prefix)
    return PurePath(name).name if name.startswith(("/", ".", "~")) else name
