"""The figures: mean with 95% t interval for every cell, trials as faint points where they are few.

    figure = draw(finished(load_points(folder)), "incremental")
    save(figure, folder / "figures", "incremental")

A `Figure` is made directly and never through pyplot, so nothing here touches global state or needs a display.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from carryover.analysis.contrasts import ALL, BASELINES, NONE
from carryover.analysis.intervals import Interval, summarise, t_interval
from carryover.analysis.walk import each_group
from carryover.report.labels import condition_name, size_name, x_axis
from carryover.report.layout import Panel, layer_ticks, legend_below, limit_y, make_panels, name_x
from carryover.report.style import CAP_SIZE, FEW, LIGHT, LINE_WIDTH, LINES, MARKER_SIZE, MARKERS, Theme

FORMATS = ("png", "svg", "pdf")
SPREAD = 0.3  # of a step on the x axis, over which the lines of a panel are set apart: bars do not hide bars

Shown = dict[str, list[tuple[float, float, float]]]  # task -> (value, low, high) of all that is drawn


def draw(points: pd.DataFrame, experiment: str, theme: Theme = LIGHT) -> Figure:
    """The figure of one experiment, from finished points."""
    chosen = points[points["experiment"] == experiment]
    painter: Callable[[pd.DataFrame, str, Theme], Figure] = {
        "incremental": draw_incremental,
        "permutation": draw_permutations,
    }.get(experiment, draw_conditions)
    with theme.applied():
        figure = painter(chosen, experiment, theme)
        figure.draw_without_rendering()  # lays out the panels, once for all formats
        figure.set_layout_engine("none")
    return figure


def save(figure: Figure, folder: Path, name: str, theme: Theme = LIGHT) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for ending in FORMATS:
        path = folder / f"{name}.{ending}"
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
        with theme.applied():
            figure.savefig(path, dpi=200, metadata=undated)
        paths.append(path)
    return paths


def draw_incremental(points: pd.DataFrame, experiment: str, theme: Theme) -> Figure:
    """Layers kept against the metric: a line a size, from light to dark; variants by line and marker."""
    figure, panels = make_panels(points, ["model"])
    sizes, variants = sorted(set(points["train_size"])), list(dict.fromkeys(points["variant"]))
    colours = dict(zip(sizes, theme.sizes(len(sizes)), strict=True))
    shown: Shown = {panel.task: [] for panel in panels}
    few = False
    for panel in panels:
        series = list(
            each_group(panel.points.sort_values("train_size", kind="stable"), ["train_size", "variant"])
        )
        for place, ((size, variant), rows) in enumerate(series):
            look = _look(theme, colours[size], variants.index(variant))
            few |= _line(panel, rows, (place, len(series)), look, shown)
        layer_ticks(panel.axes, 0, panel.depth)
    limit_y(panels, shown)
    name_x(panels, x_axis(experiment))
    handles = [Line2D([], [], **_look(theme, colours[size], 0)) for size in sizes]
    labels = [f"{size_name(size)} examples" for size in sizes]
    if len(variants) > 1:
        handles += [Line2D([], [], **_look(theme, theme.ink, i)) for i in range(len(variants))]
        labels += [variant or "as usual" for variant in variants]
    _with_trials(handles, labels, few, theme)
    legend_below(figure, handles, labels)
    return figure


def draw_conditions(points: pd.DataFrame, experiment: str, theme: Theme) -> Figure:
    """A line a condition over x, between the dashed baselines of the same model, task and size."""
    figure, panels = make_panels(points, ["model", "train_size", "variant"])
    conditions = [c for c in dict.fromkeys(points["condition"]) if c not in BASELINES]
    cells = points[~points["condition"].isin(BASELINES)]
    shown: Shown = {panel.task: [] for panel in panels}
    few = False
    for panel in panels:
        _baselines(panel, theme, shown)
        present = [c for c in conditions if (panel.points["condition"] == c).any()]
        for condition in present:
            i = conditions.index(condition)
            look = _look(theme, theme.conditions[i % len(theme.conditions)], 0, MARKERS[i % len(MARKERS)])
            rows = panel.points[panel.points["condition"] == condition]
            few |= _line(panel, rows, (present.index(condition), len(present)), look, shown)
        if not cells.empty:
            layer_ticks(panel.axes, int(cells["x"].min()), int(cells["x"].max()))
    limit_y(panels, shown)
    name_x(panels, x_axis(experiment))
    handles, labels = [], []
    for i, condition in enumerate(conditions):
        colour, marker = theme.conditions[i % len(theme.conditions)], MARKERS[i % len(MARKERS)]
        handles.append(Line2D([], [], **_look(theme, colour, 0, marker)))
        labels.append(condition_name(experiment, condition))
    _with_trials(handles, labels, few, theme)
    _with_baselines(handles, labels, points, theme)
    legend_below(figure, handles, labels)
    return figure


def draw_permutations(points: pd.DataFrame, experiment: str, theme: Theme) -> Figure:
    """A circle a permutation with their density beside it, their mean and interval; a column a size."""
    figure, panels = make_panels(points, ["model", "variant"])
    colour = theme.conditions[0]
    shown: Shown = {panel.task: [] for panel in panels}
    for panel in panels:
        sizes = sorted(set(panel.points["train_size"]))
        for place, size in enumerate(sizes):
            rows = panel.points[panel.points["train_size"] == size]
            _baselines(panel, theme, shown, rows, (place - 0.42, place + 0.42))
            each = rows[~rows["condition"].isin(BASELINES)].groupby("x")["value"].mean().to_numpy()
            if each.size:
                _strip(panel.axes, place, each, colour, theme)
                interval = t_interval(each)
                shown[panel.task] += [(interval.mean, interval.low, interval.high)]
                shown[panel.task] += [(value, *_density_range(each)) for value in each]
        panel.axes.set_xticks(range(len(sizes)), [size_name(size) for size in sizes])
        panel.axes.set_xlim(-0.6, len(sizes) - 0.4)
    limit_y(panels, shown)
    name_x(panels, x_axis(experiment))
    circle = Line2D([], [], marker="o", linestyle="", markerfacecolor="none", color=colour, markersize=5)
    mean = Line2D([], [], color=colour, marker="D", linestyle="", markersize=MARKER_SIZE)
    handles, labels = [circle, mean], ["one permutation", "mean of the permutations"]
    _with_baselines(handles, labels, points, theme)
    legend_below(figure, handles, labels)
    return figure


def _line(
    panel: Panel, rows: pd.DataFrame, place: tuple[int, int], look: dict[str, Any], shown: Shown
) -> bool:
    """Draws line i of n with its bars; says whether trials are shown one by one anywhere on it."""
    shift, beside = _dodge(*place)
    summary = summarise(rows, ["x"])
    half = (summary["high"] - summary["low"]).to_numpy() / 2
    colour = look["color"]
    sampled = summary.loc[summary["n"].between(2, FEW), "x"]
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
    known = ~np.isnan(half)
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
    shown[panel.task] += list(zip(mean, summary["low"], summary["high"], strict=True))
    shown[panel.task] += [(value, value, value) for value in faint["value"]]
    return not faint.empty


def _baselines(
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
            where, (i.mean, i.mean), transform=transform, zorder=1.5, **_baseline_look(condition, theme)
        )
        if i.n > 1:
            low, high = (i.low, i.low), (i.high, i.high)
            panel.axes.fill_between(
                where, low, high, transform=transform, color=theme.muted, alpha=0.16, lw=0
            )
        shown[panel.task].append((i.mean, i.low, i.high))


def _strip(axes: Axes, place: int, values: np.ndarray, colour: str, theme: Theme) -> None:
    """Circles left of the middle, density right of it, mean and interval between."""
    jitter = np.random.default_rng(0).uniform(-0.26, -0.1, values.size)
    axes.plot(
        place + jitter, values, "o", mfc="none", color=colour, markersize=5, mew=1.0, alpha=0.85, zorder=3
    )
    if values.size > 2 and np.ptp(values) > 0:
        density = stats.gaussian_kde(values)
        heights = np.linspace(*_density_range(values), 120)
        shape = density(heights) / density(heights).max()
        axes.fill_betweenx(heights, place + 0.08, place + 0.08 + 0.28 * shape, color=colour, alpha=0.22, lw=0)
    i = t_interval(values)
    bar = None if np.isnan(i.half_width) else i.half_width
    axes.errorbar(
        place,
        i.mean,
        bar,
        fmt="D",
        color=colour,
        markersize=MARKER_SIZE,
        capsize=CAP_SIZE,
        elinewidth=1.2,
        zorder=4,
    )


def _density_range(values: np.ndarray) -> tuple[float, float]:
    """Two bandwidths beyond the data, where the density has all but gone."""
    room = (
        2 * stats.gaussian_kde(values).factor * np.std(values, ddof=1)
        if values.size > 2 and np.ptp(values)
        else 0
    )
    return float(values.min() - room), float(values.max() + room)


def _look(theme: Theme, colour: str, variant: int, marker: str | None = None) -> dict[str, Any]:
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


def _baseline_look(condition: str, theme: Theme) -> dict[str, Any]:
    dashes = (0, (6, 2)) if condition == ALL else (0, (2, 2))
    return {"color": theme.ink, "linewidth": 1.0, "linestyle": dashes, "alpha": 0.75}


def _dodge(place: int, count: int) -> tuple[float, float]:
    """How far line i of n is moved sideways, and how far from its bar its single trials stand."""
    if count == 1:
        return 0.0, 0.1
    gap = SPREAD * min(1.0, count / 4) / (count - 1)
    return gap * (place - (count - 1) / 2), gap / 2


def _with_trials(handles: list[Any], labels: list[str], few: bool, theme: Theme) -> None:
    if few:
        handles.append(Line2D([], [], color=theme.muted, marker=".", linestyle="", markersize=5, mew=0))
        labels.append("one trial")


def _with_baselines(handles: list[Any], labels: list[str], points: pd.DataFrame, theme: Theme) -> None:
    for condition in (ALL, NONE):
        if (points["condition"] == condition).any():
            handles.append(Line2D([], [], **_baseline_look(condition, theme)))
            labels.append(condition)
