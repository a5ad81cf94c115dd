"""The figure of the permutations: a circle each, their density, their mean, and the baselines about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from whichlayers.analysis.baseline_differences import BASELINES
from whichlayers.analysis.intervals import Interval, t_interval
from whichlayers.plots.artists import Shown, about, baselines, with_baselines
from whichlayers.plots.display_names import size_name, x_axis
from whichlayers.plots.facets import Mark, legend_below, limit_y, make_panels, name_x
from whichlayers.plots.style import CAP_SIZE, MARKER_SIZE, Theme

LEAST_FOR_DENSITY = 5  # fewer circles have no shape to speak of
MEAN: dict[str, Any] = {"marker": "D", "linestyle": "", "markersize": MARKER_SIZE}


def draw_permutations(points: pd.DataFrame, experiment: str, theme: Theme) -> Figure:
    """A circle a permutation with their density beside it, their mean and interval; a column a size."""
    figure, panels = make_panels(points, ["model", "variant"])
    colour = theme.conditions[0]
    shown: Shown = {panel.task: [] for panel in panels}
    for panel in panels:
        sizes = sorted(set(panel.points["train_size"]))
        for place, size in enumerate(sizes):
            rows = panel.points[panel.points["train_size"] == size]
            baselines(panel, theme, shown, rows, (place - 0.42, place + 0.42))
            permuted = rows[~rows["condition"].isin(BASELINES)]
            means = permuted.groupby("x")["value"].mean()
            each = means.to_numpy()
            if each.size:
                interval = t_interval(each)
                outline = _strip(panel.axes, place, each, interval, colour)
                table = pd.DataFrame([{"x": place, **vars(interval)}])
                single = pd.DataFrame({"x": place, "seed": means.index, "value": each})
                drawn = MEAN | {"color": colour}
                panel.marks.append(Mark("strip", drawn, about(permuted), table, single, outline=outline))
                shown[panel.task] += [(interval.mean, interval.low, interval.high)]
                shown[panel.task] += [(value, *_density_range(each)) for value in each]
        panel.axes.set_xticks(range(len(sizes)), [size_name(size) for size in sizes])
        panel.axes.set_xlim(-0.6, len(sizes) - 0.4)
    limit_y(panels, shown)
    name_x(panels, x_axis(experiment))
    circle = Line2D([], [], marker="o", linestyle="", markerfacecolor="none", color=colour, markersize=5)
    mean = Line2D([], [], color=colour, **MEAN)
    handles, labels = [circle, mean], ["one permutation", "mean of the permutations"]
    with_baselines(handles, labels, points, theme)
    legend_below(figure, handles, labels)
    return figure


def _strip(
    axes: Axes, place: int, values: np.ndarray, mean: Interval, colour: str
) -> list[tuple[float, float]]:
    """Circles left of the middle, density right of it, mean and interval between; gives the density's outline."""
    outline: list[tuple[float, float]] = []
    jitter = np.random.default_rng(0).uniform(-0.26, -0.1, values.size)
    axes.plot(
        place + jitter, values, "o", mfc="none", color=colour, markersize=5, mew=1.0, alpha=0.85, zorder=3
    )
    if _has_density(values):
        density = stats.gaussian_kde(values)
        heights = np.linspace(*_density_range(values), 60)
        shape = density(heights) / density(heights).max()
        outline = list(zip(heights.tolist(), shape.tolist(), strict=True))
        axes.fill_betweenx(heights, place + 0.08, place + 0.08 + 0.28 * shape, color=colour, alpha=0.22, lw=0)
    bar = None if np.isnan(mean.half_width) else mean.half_width
    axes.errorbar(
        place,
        mean.mean,
        bar,
        fmt="D",
        color=colour,
        markersize=MARKER_SIZE,
        capsize=CAP_SIZE,
        elinewidth=1.2,
        zorder=4,
    )
    return outline


def _has_density(values: np.ndarray) -> bool:
    return bool(values.size >= LEAST_FOR_DENSITY and np.ptp(values) > 0)


def _density_range(values: np.ndarray) -> tuple[float, float]:
    """That of the data: a density that goes on where there are none says more than is known."""
    return float(values.min()), float(values.max())
