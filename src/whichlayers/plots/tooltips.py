"""Wording of the tooltips of the page. The script of the page only shows them."""

from __future__ import annotations

import math

from whichlayers.analysis.intervals import SIGNIFICANT
from whichlayers.plots.display_names import metric_name
from whichlayers.text import beyond_note, counted, format_range, format_score


def point_lines(
    position: str, metric: str, mean: float, interval: tuple[float, float], bounds: str, sd: float, n: float
) -> list[str]:
    """Lines of the tooltip of a point of a chart.

    Args:
        position: Name and value of x; empty for a horizontal line.
        metric: Metric of the panel.
        mean: Mean, or the value of a published result.
        interval: Its bounds; NaN if there are none.
        bounds: What the interval is.
        sd: Standard deviation of the trials, or NaN.
        n: Number of trials; NaN if it does not apply.
    """
    lines = [position] if position else []
    lines.append(f"mean {metric_name(metric)}: {format_score(mean, metric)}")
    if text := format_range(*interval, metric):
        lines.append(f"{bounds}: {text}{beyond_note(*interval, metric)}")
    if n and not math.isnan(n):
        spread = format_score(sd, metric)
        lines.append(f"n = {n:g}" + (f", sd {spread}" if spread else ", so there is no interval"))
    return lines


def box_lines(mean: float, half: float, n: int, significant: bool, metric: str) -> list[str]:
    """Lines of the tooltip of a box of a layer diagram: effect, interval, number of pairs and test."""
    effect = f"effect: {format_score(mean, signed=True)} points ({metric_name(metric)} × 100)"
    pairs = f"n = {counted(n, 'paired trial')}"
    if math.isnan(half):
        return [effect, "a single pair of trials, so there is no interval", pairs]
    interval = f"95% interval: {format_range(mean - half, mean + half, signed=True)}"
    test = (
        f"significantly different from zero (adjusted p below {SIGNIFICANT})"
        if significant
        else f"not significantly different from zero (adjusted p at least {SIGNIFICANT})"
    )
    return [effect, interval, pairs, test]
