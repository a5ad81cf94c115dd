"""Figures of the metric against what a setting costs: seconds and memory per trial."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from whichlayers.experiments import display_of
from whichlayers.plots.artists import (
    DrawnValues,
    add_guess_legend,
    category_style,
    draw_guessing,
    draw_line,
    line_style,
)
from whichlayers.plots.facets import add_legend_below, label_x_axis, make_panels, set_y_limits
from whichlayers.plots.point_labels import draw_labels
from whichlayers.plots.style import MARKER_SIZE, Theme
from whichlayers.results.frame_utils import each_group
from whichlayers.trial import BASELINES

# Columns of the results and the axis label of each; values are shown as `value * scale`.
COSTS: dict[str, tuple[str, float]] = {
    "seconds": ("seconds per trial", 1.0),
    "memory": ("GB of memory per trial", 1e-9),
}
CELL = ["model", "task", "train_size", "variant", "condition", "x"]


def costs(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows of an experiment whose cost is known, with x replaced by the mean cost of their setting.

    Args:
        rows: Finished points of one experiment.
        column: One of `COSTS`.

    Returns:
        The rows with the columns `setting_x`, their former x, and x in the unit of the axis.
    """
    known = rows[rows[column].notna()]
    mean = known.groupby(CELL, dropna=False)[column].transform("mean")
    return known.assign(setting_x=known["x"], x=mean * COSTS[column][1])


def draw_costs(rows: pd.DataFrame, experiment: str, column: str, theme: Theme) -> Figure:
    """Draw the mean of the metric with its 95% interval against the cost, a marker for each setting.

    Args:
        rows: Finished points of the experiment.
        experiment: Its name.
        column: One of `COSTS`.
        theme: Colors; each condition has the color and marker of the main figure.
    """
    display, points = display_of(experiment), costs(rows, column)
    figure, panels = make_panels(points, ["model", "train_size", "variant"])
    conditions = list(dict.fromkeys(points["condition"]))
    # the colors and markers of the main figure, which numbers the conditions without the baselines
    compared = [c for c in dict.fromkeys(rows["condition"]) if c not in BASELINES]
    styles = {c: _marker_style(theme, compared.index(c) if c in compared else None) for c in conditions}
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    for panel in panels:
        for condition in sorted(conditions, key=BASELINES.__contains__):  # baselines on top of equal settings
            cells = panel.points[panel.points["condition"] == condition]
            if cells.empty:
                continue
            name = display.baselines.get(condition) or display.condition_name(condition)
            draw_line(
                panel,
                cells,
                (0, 1),
                styles[condition],
                drawn_values,
                single_trials=False,
                name=name,
                labels=_setting_labels(cells),
                jitter=False,
            )
    has_guess = draw_guessing(panels, theme, drawn_values)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, COSTS[column][0])
    draw_labels(figure)
    handles = [Line2D([], [], **styles[condition]) for condition in conditions]
    labels = [display.baselines.get(c) or display.condition_name(c) for c in conditions]
    add_guess_legend(handles, labels, has_guess, theme)
    add_legend_below(figure, handles, labels)
    return figure


def _marker_style(theme: Theme, index: int | None) -> dict[str, Any]:
    """Style of condition number `index`; None: of a baseline."""
    if index is not None:
        return category_style(theme, index) | {"linestyle": ""}
    star = {"linestyle": "", "markersize": 2 * MARKER_SIZE, "markeredgewidth": 0.0}
    return line_style(theme, theme.ink, 0, "*") | star


def _setting_labels(cells: pd.DataFrame) -> dict[float, str]:
    """Cost -> the settings of a curve that have it; empty if the curve has a single setting."""
    if cells["setting_x"].nunique() < 2:
        return {}
    return {
        x: ", ".join(f"{setting:g}" for setting in sorted(set(same["setting_x"])))
        for (x,), same in each_group(cells, ["x"])
    }
