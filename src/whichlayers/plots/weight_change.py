"""Weight change of each layer: how far finetuning moved its matrices, unscaled or scaled to [0, 1]."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from whichlayers.plots.artists import DrawnValues, add_trial_legend, draw_line, line_style
from whichlayers.plots.display_names import size_name
from whichlayers.plots.facets import (
    add_legend_below,
    label_x_axis,
    make_panels,
    set_layer_ticks,
    set_y_limits,
)
from whichlayers.plots.published_overlay import add_published_legend, draw_published
from whichlayers.plots.style import Theme
from whichlayers.text import join_list, short_names

SCALED = "spectral norm, min-max scaled"  # metric name in the published data
MAX_RANGES = 8  # of scaled weight changes, listed in the caption


def draw_weight_change(
    changes: pd.DataFrame, theme: Theme, metric: str = "distance", overlay: bool = False
) -> Figure:
    """Draw how much finetuning changed each layer, one curve per training size; with `overlay`, published curves too.

    Args:
        changes: Columns model, task, train_size, variant, layer, seed, value, depth and train_rows.
        metric: What the values are; decides the y label and which published curves are comparable.
    """
    points = changes.rename(columns={"layer": "x"}).assign(metric=metric)
    figure, panels = make_panels(points, ["model", "variant"])
    sizes = sorted(set(points["train_size"]))
    colors = dict(zip(sizes, theme.sizes(len(sizes)), strict=True))
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    has_trials, sources = False, set[str]()
    for panel in panels:
        present = [size for size in sizes if (panel.points["train_size"] == size).any()]
        for index, size in enumerate(present):
            curve = panel.points[panel.points["train_size"] == size]
            style = line_style(theme, colors[size], 0)
            has_trials |= draw_line(panel, curve, (index, len(present)), style, drawn_values)
            sources |= draw_published(panel, curve, "weight-change", style, drawn_values, overlay)
        set_layer_ticks(panel.axes, 1, panel.depth)
        if metric == SCALED:
            drawn_values[panel.task] += [(0.0, 0.0, 0.0), (1.0, 1.0, 1.0)]  # the whole range is shown
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, "layer")
    handles = [Line2D([], [], **line_style(theme, colors[size], 0)) for size in sizes]
    labels = [f"{size_name(size)} examples" for size in sizes]
    add_trial_legend(handles, labels, has_trials, theme)
    add_published_legend(handles, labels, sources, theme)
    add_legend_below(figure, handles, labels)
    return figure


def scaled_ranges(moved: pd.DataFrame) -> str:
    """What 0 and 1 of the scaled weight change stand for: the smallest and largest mean change of a layer."""
    curve = ["model", "task", "train_size", "variant"]
    by_trial = moved.groupby([*curve, "seed"], sort=False)["value"].agg(["min", "max"])
    means = by_trial.groupby(curve, sort=False).mean()
    ends = list(zip(means["min"], means["max"], strict=True))
    several = len(by_trial) > len(means)  # trials of a curve
    if len(ends) > MAX_RANGES:
        low, high = ([end[i] for end in ends] for i in (0, 1))
        return (
            f"Before scaling, 0 stands for {min(low):.3g} to {max(low):.3g} and 1 for {min(high):.3g} to "
            f"{max(high):.3g}, depending on the curve{' (means over trials)' if several else ''}."
        )
    models, tasks = short_names(moved["model"]), short_names(moved["task"])
    named = [
        f"{low:.3g} to {high:.3g} ({tasks[task]}, {size_name(size)} examples"
        + (f", {models[model]}" if len(models) > 1 else "")
        + (f", {variant})" if variant else ")")
        for (model, task, size, variant), (low, high) in zip(means.index, ends, strict=True)
    ]
    return f"Before scaling, 0 to 1 is {join_list(named)}{'; means over trials' if several else ''}."
