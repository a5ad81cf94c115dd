"""Figure of the permutation experiment: scores of all permutations, their density and mean, and the baselines."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy import stats

from whichlayers.analysis.intervals import Interval, t_interval
from whichlayers.experiments import display_of
from whichlayers.plots.artists import (
    DrawnValues,
    add_baseline_legend,
    add_guess_legend,
    draw_baselines,
    draw_guessing,
    shared_attributes,
    trial_offsets,
)
from whichlayers.plots.display_names import size_name
from whichlayers.plots.facets import (
    Mark,
    PanelFigure,
    add_legend_below,
    label_x_axis,
    make_panels,
    set_y_limits,
)
from whichlayers.plots.style import CAP_SIZE, MARKER_SIZE, Theme
from whichlayers.trial import BASELINES

MIN_FOR_DENSITY = 5  # permutations needed to draw a density
MEAN_STYLE: dict[str, Any] = {"marker": "D", "linestyle": "", "markersize": MARKER_SIZE}


def draw_with_two_sd(points: pd.DataFrame, theme: Theme) -> Figure:
    """Draw the figure with bands of two standard deviations around the baselines, as Tamkin et al. 2020 do."""
    return _draw(points, "permutation", theme, "two_sd")


def draw_permutations(points: pd.DataFrame, experiment: str, theme: Theme, overlay: bool = False) -> Figure:
    """Draw one circle per permutation, their density, mean and 95% interval, side by side for each training size."""
    return _draw(points, experiment, theme, "interval")


def _draw(
    points: pd.DataFrame, experiment: str, theme: Theme, band: Literal["interval", "two_sd"]
) -> PanelFigure:
    points = points[points["experiment"] == experiment]
    figure, panels = make_panels(points, ["model", "variant"])
    color = theme.conditions[0]
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    for panel in panels:
        sizes = sorted(set(panel.points["train_size"]))
        for position, size in enumerate(sizes):
            rows = panel.points[panel.points["train_size"] == size]
            draw_baselines(panel, theme, drawn_values, rows, (position - 0.42, position + 0.42), band)
            permuted = rows[~rows["condition"].isin(BASELINES)]
            means = permuted.groupby("x")["value"].mean()
            each = means.to_numpy()
            if each.size:
                interval = t_interval(each)
                offsets = trial_offsets(means.index, -0.18, 0.16)
                outline = _strip(panel.axes, position, means, offsets, interval, color)
                table = pd.DataFrame([{"x": position, **vars(interval)}])
                single = pd.DataFrame({"x": position, "seed": means.index, "value": each})
                drawn = MEAN_STYLE | {"color": color}
                attributes = shared_attributes(permuted)
                panel.marks.append(
                    Mark("strip", drawn, attributes, table, single, offsets=offsets, outline=outline)
                )
                drawn_values[panel.task] += [(interval.mean, interval.low, interval.high)]
                drawn_values[panel.task] += [(value, *_density_range(each)) for value in each]
        panel.axes.set_xticks(range(len(sizes)), [size_name(size) for size in sizes])
        panel.axes.set_xlim(-0.6, len(sizes) - 0.4)
    has_guess = draw_guessing(panels, theme, drawn_values)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, display_of(experiment).x_label)
    circle = Line2D([], [], marker="o", linestyle="", markerfacecolor="none", color=color, markersize=5)
    mean = Line2D([], [], color=color, **MEAN_STYLE)
    handles: list[Any] = [circle, mean]
    labels = ["one permutation", "mean over permutations"]
    add_baseline_legend(handles, labels, points, theme)
    if band == "two_sd":
        handles.append(Patch(color=theme.muted, alpha=0.16, lw=0))
        labels.append("mean ± 2 sd of trials")
    add_guess_legend(handles, labels, has_guess, theme)
    add_legend_below(figure, handles, labels)
    return figure


def _strip(
    axes: Axes, position: int, means: pd.Series, offsets: dict[int, float], mean: Interval, color: str
) -> list[tuple[float, float]]:
    """Draw circles on the left, the mean with its interval in the middle, the density on the right.

    Returns:
        Outline of the density as (x, y); empty if none is drawn.
    """
    outline: list[tuple[float, float]] = []
    x, values = position + means.index.map(offsets).to_numpy(), means.to_numpy()
    axes.plot(x, values, "o", mfc="none", color=color, markersize=5, mew=1.0, alpha=0.85, zorder=3)
    if _has_density(values):
        density = stats.gaussian_kde(values)
        heights = np.linspace(*_density_range(values), 60)
        left = position + 0.08
        widths = 0.28 * density(heights) / density(heights).max()
        curve = zip((left + widths).tolist(), heights.tolist(), strict=True)
        outline = [(left, float(heights[0])), *curve, (left, float(heights[-1]))]
        axes.fill(*zip(*outline, strict=True), color=color, alpha=0.22, lw=0)
    bar = None if np.isnan(mean.half_width) else mean.half_width
    axes.errorbar(
        position,
        mean.mean,
        bar,
        fmt="D",
        color=color,
        markersize=MARKER_SIZE,
        capsize=CAP_SIZE,
        elinewidth=1.2,
        zorder=4,
    )
    return outline


def _has_density(values: np.ndarray) -> bool:
    return bool(values.size >= MIN_FOR_DENSITY and np.ptp(values) > 0)


def _density_range(values: np.ndarray) -> tuple[float, float]:
    """Range in which the density is drawn: that of the data, without extrapolation."""
    return float(values.min()), float(values.max())
