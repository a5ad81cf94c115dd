"""Elements that panels are drawn from: lines with error bars and single trials, baselines, legend entries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from whichlayers.analysis.intervals import Interval, summarize, t_interval
from whichlayers.experiments import display_of
from whichlayers.plots.facets import INTERVAL, Mark, Panel
from whichlayers.plots.style import (
    CAP_SIZE,
    LINE_WIDTH,
    LINES,
    MARKER_SIZE,
    MARKERS,
    MAX_SINGLE_TRIALS,
    Theme,
)
from whichlayers.trial import ALL_PRETRAINED, BASELINES

# Lines of a panel are moved sideways so that their error bars do not overlap.
DODGE_WIDTH = 0.3  # total width, as a fraction of one step of the x axis
MAX_DODGE_GAP = 0.05  # largest gap between two lines, as a fraction of the x axis
MAX_GUESS_GAP = 1.0  # of the line of guessing below the lowest value, as a multiple of the range of values
GUESS_LABEL = "guessing"

GOLDEN_RATIO = 0.618034

# Columns that may distinguish the curves of a figure.
ATTRIBUTES = ("experiment", "model", "task", "train_size", "condition", "variant", "setting", "curve")

DrawnValues = dict[str, list[tuple[float, float, float]]]  # task -> (value, low, high) of everything drawn


def draw_line(
    panel: Panel,
    rows: pd.DataFrame,
    place: tuple[int, int],
    style: dict[str, Any],
    drawn_values: DrawnValues,
    single_trials: bool = True,
    name: str = "",
    bars: bool = True,
    labels: Mapping[float, str] | None = None,
    jitter: bool = True,
) -> bool:
    """Draw the mean of `rows` over x with 95% t intervals, and record it as a mark of the panel.

    Args:
        panel: Panel to draw on; its `marks` get one more entry.
        rows: Trials of one curve, with columns x, seed and value.
        place: Index of this line and number of lines in the panel.
        style: Keyword arguments for `Axes.plot`.
        drawn_values: Gets what was drawn, to set the y limits later.
        single_trials: Whether to draw trials as faint points where a point has at most `MAX_SINGLE_TRIALS`.
        name: Name of the curve in the legend of the page, if its attributes do not determine it.
        bars: Whether to draw the intervals.
        labels: x -> text next to the point there, which `point_labels.draw_labels` draws.
        jitter: Whether single trials are moved sideways; the size is that of an axis of whole numbers.

    Returns:
        Whether any single trials were drawn.
    """
    shift, room = dodge(*place, panel)
    center, width = (shift + 0.6 * room, 0.7 * room) if jitter else (shift, 0.0)
    offsets = trial_offsets(rows["seed"], center, width)
    summary = summarize(rows, ["x"])
    half = (summary["high"] - summary["low"]).to_numpy() / 2
    color = style["color"]
    sampled = summary.loc[summary["n"].between(2, MAX_SINGLE_TRIALS if single_trials else 0), "x"]
    faint = rows[rows["x"].isin(sampled)]
    panel.axes.plot(
        faint["x"] + faint["seed"].map(offsets),
        faint["value"],
        ".",
        color=color,
        alpha=0.55,
        markersize=4,
        mew=0,
        zorder=2,
    )
    x, mean = summary["x"].to_numpy() + shift, summary["mean"].to_numpy()
    known = ~np.isnan(half) & bars
    panel.axes.errorbar(
        x[known],
        mean[known],
        half[known],
        fmt="none",
        ecolor=color,
        elinewidth=1.0,
        capsize=CAP_SIZE,
        zorder=3,
    )
    panel.axes.plot(x, mean, zorder=4, **style)
    texts = [(labels or {}).get(at, "") for at in summary["x"]]
    ends = (summary["low"], summary["high"]) if bars else (mean, mean)
    drawn_values[panel.task] += list(zip(mean, *ends, strict=True))
    drawn_values[panel.task] += [(value, value, value) for value in faint["value"]]
    trials = rows[["x", "seed", "value"]]
    panel.marks.append(
        Mark(
            "line",
            style,
            shared_attributes(rows),
            summary,
            trials,
            name,
            bars,
            shift,
            offsets,
            labels=texts if any(texts) else (),
        )
    )
    return not faint.empty


def shared_attributes(rows: pd.DataFrame) -> dict[str, Any]:
    """Values of the `ATTRIBUTES` columns that are the same in all rows."""
    return {name: rows[name].iloc[0] for name in ATTRIBUTES if name in rows and rows[name].nunique() == 1}


def draw_baselines(
    panel: Panel,
    theme: Theme,
    drawn_values: DrawnValues,
    rows: pd.DataFrame | None = None,
    span: tuple[float, float] | None = None,
    band: Literal["interval", "two_sd"] = "interval",
) -> None:
    """Draw "all pretrained" and "none pretrained" as dashed lines with bands.

    Args:
        rows: Rows to search for baselines; the points of the panel by default.
        span: Start and end of the lines on the x axis; the whole width by default.
        band: The 95% t interval of the mean, or two standard deviations of the trials on either side of it.
    """
    rows = panel.points if rows is None else rows
    for condition in BASELINES:
        baseline = rows[rows["condition"] == condition]
        if baseline.empty:
            continue
        i: Interval = t_interval(baseline["value"])
        bounds = INTERVAL
        if band == "two_sd":
            i = dataclasses.replace(i, low=i.mean - 2 * i.sd, high=i.mean + 2 * i.sd)
            bounds = "two standard deviations of the trials"
        ends: Any = span or (0, 1)
        transform = panel.axes.transData if span else panel.axes.get_yaxis_transform()
        style = baseline_style(condition, theme)
        panel.axes.plot(ends, (i.mean, i.mean), transform=transform, zorder=1.5, **style)
        if i.n > 1:
            low, high = (i.low, i.low), (i.high, i.high)
            panel.axes.fill_between(ends, low, high, transform=transform, color=theme.muted, alpha=0.16, lw=0)
        drawn_values[panel.task].append((i.mean, i.low, i.high))
        x = float("nan") if span is None else sum(span) / 2
        table = pd.DataFrame([{"x": x, **vars(i)}])
        trials = baseline.assign(x=x)[["x", "seed", "value"]]
        attributes = shared_attributes(baseline)
        name = display_of(baseline["experiment"].iloc[0]).baselines.get(condition, condition)
        panel.marks.append(Mark("level", style, attributes, table, trials, name, span=span, bounds=bounds))


def draw_guessing(panels: Sequence[Panel], theme: Theme, drawn_values: DrawnValues) -> bool:
    """Draw the score of guessing as a dotted line in each panel; call it after everything else was drawn.

    A panel does not get the line if the score is not known, or so far below the rest that the curves would become flat.

    Returns:
        Whether it was drawn in any panel.
    """
    style, any_drawn = guess_style(theme), False
    for panel in panels:
        guess, drawn = float(panel.points["guess"].iloc[0]), [v for v, *_ in drawn_values[panel.task]]
        if not guess >= min(drawn) - MAX_GUESS_GAP * (max(drawn) - min(drawn)):  # also if it is NaN
            continue
        panel.axes.axhline(guess, zorder=1.4, **style)
        drawn_values[panel.task].append((guess, guess, guess))
        attributes = {name: panel.points[name].iloc[0] for name in ("experiment", "model", "task")}
        table = pd.DataFrame([{"x": math.nan, "mean": guess}])
        panel.marks.append(Mark("level", style, attributes, table, name=GUESS_LABEL))
        any_drawn = True
    return any_drawn


def line_style(theme: Theme, color: str, variant: int, marker: str | None = None) -> dict[str, Any]:
    """Style of a curve: solid with filled markers for variant 0, dashed with open markers for the others."""
    return {
        "color": color,
        "linewidth": LINE_WIDTH,
        "linestyle": LINES[variant % len(LINES)],
        "marker": marker or MARKERS[variant % len(MARKERS)],
        "markersize": MARKER_SIZE,
        "markerfacecolor": color if variant == 0 else theme.background,
        "markeredgecolor": color,
        "markeredgewidth": 1.0,
    }


def category_style(theme: Theme, index: int, variant: int = 0) -> dict[str, Any]:
    """Style of the curve of condition, task or other category number `index`: a color and a marker of its own."""
    color = theme.conditions[index % len(theme.conditions)]
    return line_style(theme, color, variant, MARKERS[index % len(MARKERS)])


def probe_style(theme: Theme) -> dict[str, Any]:
    """Style of the curve of linear probes in the figure of the incremental experiment."""
    dashes = {"linestyle": (0, (4, 2)), "marker": "D", "markersize": MARKER_SIZE - 1, "linewidth": 1.2}
    return {
        **dashes,
        "color": theme.conditions[1],
        "markerfacecolor": theme.background,
        "markeredgewidth": 0.9,
    }


def baseline_style(condition: str, theme: Theme) -> dict[str, Any]:
    """Style of a baseline: long dashes for "all pretrained", short ones for "none pretrained"."""
    dashes = (0, (6, 2)) if condition == ALL_PRETRAINED else (0, (2, 2))
    return {"color": theme.ink, "linewidth": 1.0, "linestyle": dashes, "alpha": 0.75}


def guess_style(theme: Theme) -> dict[str, Any]:
    """Style of the line of guessing: dotted."""
    return {"color": theme.muted, "linewidth": 1.2, "linestyle": (0, (1, 1.5))}


def dodge(index: int, count: int, panel: Panel) -> tuple[float, float]:
    """Sideways shift of line `index` out of `count`, and the room for its single trials on its right."""
    step, extent = _x_step_and_extent(panel)
    most = MAX_DODGE_GAP * extent
    if count == 1:
        return 0.0, min(0.1 * step, most)
    gap = min(DODGE_WIDTH * step * min(1.0, count / 4) / (count - 1), most)
    return gap * (index - (count - 1) / 2), gap / 2


def trial_offsets(seeds: Iterable[int], center: float, width: float) -> dict[int, float]:
    """Sideways shift of the trials of each seed: spread over `width`, so that equal values do not hide each other.

    Multiples of the golden ratio place any number of seeds evenly, and a seed has the same position at every x.
    """
    return {int(seed): center + width * ((int(seed) + 1) * GOLDEN_RATIO % 1 - 0.5) for seed in set(seeds)}


def _x_step_and_extent(panel: Panel) -> tuple[float, float]:
    """One step of the x axis (1, or less if values of x are closer) and its length, without the baselines' x."""
    points = panel.points
    x = points.loc[~points["condition"].isin(BASELINES), "x"] if "condition" in points else points["x"]
    values = np.unique(x)
    step = float(np.diff(values).min(initial=1.0))
    return step, step if values.size == 0 else float(values[-1] - values[0]) + step


def add_trial_legend(handles: list[Any], labels: list[str], has_single_trials: bool, theme: Theme) -> None:
    """Append the legend entry of single trials if any were drawn."""
    if has_single_trials:
        handles.append(Line2D([], [], color=theme.muted, marker=".", linestyle="", markersize=5, mew=0))
        labels.append("one trial")


def add_baseline_legend(handles: list[Any], labels: list[str], points: pd.DataFrame, theme: Theme) -> None:
    """Append the legend entries of the baselines that `points` contain."""
    for condition in BASELINES:
        rows = points[points["condition"] == condition]
        if len(rows):
            handles.append(Line2D([], [], **baseline_style(condition, theme)))
            labels.append(display_of(rows["experiment"].iloc[0]).baselines.get(condition, condition))


def add_guess_legend(handles: list[Any], labels: list[str], drawn: bool, theme: Theme) -> None:
    """Append the legend entry of guessing if it was drawn in any panel."""
    if drawn:
        handles.append(Line2D([], [], **guess_style(theme)))
        labels.append(GUESS_LABEL)
