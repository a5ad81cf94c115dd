"""What is drawn on a panel: a line with bars and single trials, baselines in their band, entries of a legend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from whichlayers.analysis.baseline_differences import ALL, BASELINES, NONE
from whichlayers.analysis.intervals import Interval, summarise, t_interval
from whichlayers.plots.facets import Mark, Panel
from whichlayers.plots.style import CAP_SIZE, FEW, LINE_WIDTH, LINES, MARKER_SIZE, MARKERS, Theme

SPREAD = 0.3  # of a step on the x axis, over which the lines of a panel are set apart: bars do not hide bars

NEAR = (
    0.05  # of the x axis: the most between two lines, that a panel with few places does not tear them apart
)

ABOUT = ("experiment", "model", "task", "train_size", "condition", "variant", "setting", "kept")

Shown = dict[str, list[tuple[float, float, float]]]  # task -> (value, low, high) of all that is drawn


def line(
    panel: Panel,
    rows: pd.DataFrame,
    place: tuple[int, int],
    look: dict[str, Any],
    shown: Shown,
    single_trials: bool = True,
    name: str = "",
    bars: bool = True,
) -> bool:
    """Draws line i of n with its bars; says whether trials are shown one by one anywhere on it."""
    shift, beside = dodge(*place, panel)
    summary = summarise(rows, ["x"])
    half = (summary["high"] - summary["low"]).to_numpy() / 2
    colour = look["color"]
    sampled = summary.loc[summary["n"].between(2, FEW if single_trials else 0), "x"]
    faint = rows[rows["x"].isin(sampled)]
    panel.axes.plot(
        faint["x"] + shift + beside,
        faint["value"],
        ".",
        color=colour,
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
        ecolor=colour,
        elinewidth=1.0,
        capsize=CAP_SIZE,
        zorder=3,
    )
    panel.axes.plot(x, mean, zorder=4, **look)
    ends = (summary["low"], summary["high"]) if bars else (mean, mean)
    shown[panel.task] += list(zip(mean, *ends, strict=True))
    shown[panel.task] += [(value, value, value) for value in faint["value"]]
    trials = rows[["x", "seed", "value"]]
    panel.marks.append(Mark("line", look, about(rows), summary, trials, name, bars=bars))
    return not faint.empty


def about(rows: pd.DataFrame) -> dict[str, Any]:
    """What is one and the same in all rows, of all that a figure may tell apart."""
    return {name: rows[name].iloc[0] for name in ABOUT if name in rows and rows[name].nunique() == 1}


def baselines(
    panel: Panel,
    theme: Theme,
    shown: Shown,
    rows: pd.DataFrame | None = None,
    span: tuple[float, float] | None = None,
) -> None:
    """Mean and interval of "all pretrained" and "none pretrained" as a dashed line in a band."""
    rows = panel.points if rows is None else rows
    for condition in BASELINES:
        values = rows.loc[rows["condition"] == condition, "value"]
        if values.empty:
            continue
        i: Interval = t_interval(values)
        where: Any = span or (0, 1)
        transform = panel.axes.transData if span else panel.axes.get_yaxis_transform()
        panel.axes.plot(
            where, (i.mean, i.mean), transform=transform, zorder=1.5, **baseline_look(condition, theme)
        )
        if i.n > 1:
            low, high = (i.low, i.low), (i.high, i.high)
            panel.axes.fill_between(
                where, low, high, transform=transform, color=theme.muted, alpha=0.16, lw=0
            )
        shown[panel.task].append((i.mean, i.low, i.high))
        mine = rows[rows["condition"] == condition]
        x = float("nan") if span is None else sum(span) / 2
        table = pd.DataFrame([{"x": x, **vars(i)}])
        trials = mine.assign(x=x)[["x", "seed", "value"]]
        panel.marks.append(
            Mark("level", baseline_look(condition, theme), about(mine), table, trials, condition)
        )


def look(theme: Theme, colour: str, variant: int, marker: str | None = None) -> dict[str, Any]:
    """Of a line: the first variant is solid with filled markers, the others are broken with open ones."""
    return {
        "color": colour,
        "linewidth": LINE_WIDTH,
        "linestyle": LINES[variant % len(LINES)],
        "marker": marker or MARKERS[variant % len(MARKERS)],
        "markersize": MARKER_SIZE,
        "markerfacecolor": colour if variant == 0 else theme.background,
        "markeredgecolor": colour,
        "markeredgewidth": 1.0,
    }


def probe_look(theme: Theme) -> dict[str, Any]:
    dashes = {"linestyle": (0, (4, 2)), "marker": "D", "markersize": MARKER_SIZE - 1, "linewidth": 1.2}
    return {
        **dashes,
        "color": theme.conditions[1],
        "markerfacecolor": theme.background,
        "markeredgewidth": 0.9,
    }


def baseline_look(condition: str, theme: Theme) -> dict[str, Any]:
    dashes = (0, (6, 2)) if condition == ALL else (0, (2, 2))
    return {"color": theme.ink, "linewidth": 1.0, "linestyle": dashes, "alpha": 0.75}


def dodge(place: int, count: int, panel: Panel) -> tuple[float, float]:
    """How far line i of n is moved sideways, and how far from its bar its single trials stand."""
    most = NEAR * _span(panel)
    if count == 1:
        return 0.0, min(0.1, most)
    gap = min(SPREAD * min(1.0, count / 4) / (count - 1), most)
    return gap * (place - (count - 1) / 2), gap / 2


def _span(panel: Panel) -> float:
    """Of the x axis."""
    points = panel.points
    x = points.loc[~points["condition"].isin(BASELINES), "x"] if "condition" in points else points["x"]
    return 1.0 if x.empty else float(x.max() - x.min() + 1)


def with_trials(handles: list[Any], labels: list[str], few: bool, theme: Theme) -> None:
    if few:
        handles.append(Line2D([], [], color=theme.muted, marker=".", linestyle="", markersize=5, mew=0))
        labels.append("one trial")


def with_baselines(handles: list[Any], labels: list[str], points: pd.DataFrame, theme: Theme) -> None:
    for condition in (ALL, NONE):
        if (points["condition"] == condition).any():
            handles.append(Line2D([], [], **baseline_look(condition, theme)))
            labels.append(condition)
