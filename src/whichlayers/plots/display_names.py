"""Display names of metrics and training sizes, for figures, tables and text."""

from __future__ import annotations

from whichlayers.catalog import quantity
from whichlayers.text import TIMES_100, format_score, in_points


def metric_name(metric: str) -> str:
    """Display name of a metric, e.g. "Matthews correlation" for "mcc"."""
    return quantity(metric).display_name


def axis_name(metric: str) -> str:
    """Name of a metric with its scale, as axis label: "accuracy × 100"."""
    return f"{metric_name(metric)} {TIMES_100}" if in_points(metric) else metric_name(metric)


def effect_unit(metric: str) -> str:
    """Unit of a difference in a metric: "points of accuracy"."""
    return f"points of {metric_name(metric)}" if in_points(metric) else metric_name(metric)


def format_effect(value: float, metric: str) -> str:
    """A difference with its unit, e.g. "+3.1 points of accuracy"."""
    return f"{format_score(value, metric, signed=True)} {effect_unit(metric)}"


def size_name(size: int) -> str:
    """A number of training examples, e.g. "1,000"; a dash for 0 (not finetuned)."""
    return f"{int(size):,}" if size else "–"
