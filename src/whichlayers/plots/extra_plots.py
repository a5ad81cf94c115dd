"""Drawing functions of the further figures: all trials, comparisons of settings, learning curves, weight change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from whichlayers.analysis.intervals import summarize
from whichlayers.experiments import display_of
from whichlayers.plots.artists import DrawnValues, add_trial_legend, draw_line, line_style, shared_attributes
from whichlayers.plots.display_names import short_names, size_name
from whichlayers.plots.facets import (
    Mark,
    Panel,
    PanelFigure,
    add_legend_below,
    label_x_axis,
    label_y_axis,
    make_panels,
    panel_columns,
    set_layer_ticks,
    set_y_limits,
)
from whichlayers.plots.published_overlay import add_published_legend, draw_published
from whichlayers.plots.style import MARKER_SIZE, MARKERS, MAX_SINGLE_TRIALS, Theme
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import setting_label, variant_labels

DOTTED = (0, (1.2, 1.4))


def many_trials(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of points with too many trials for the main figure to show each of them."""
    cell = ["model", "task", "train_size", "variant", "x"]
    return rows[rows.groupby(cell)["seed"].transform("nunique") > MAX_SINGLE_TRIALS]


def draw_trials(rows: pd.DataFrame, theme: Theme) -> Figure:
    """Draw one point per trial over k, and their mean as a dotted line."""
    rows = many_trials(rows)
    figure, panels = make_panels(rows, ["model", "train_size", "variant"], always=["train_size"])
    figure.show_trials = True
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    color = theme.conditions[0]
    mean: dict[str, Any] = {"color": theme.ink, "linestyle": DOTTED, "linewidth": 1.5}
    for panel in panels:
        jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(panel.points))
        panel.axes.plot(
            panel.points["x"] + jitter,
            panel.points["value"],
            "o",
            color=color,
            alpha=0.35,
            markersize=2.6,
            mew=0,
        )
        table = summarize(panel.points, ["x"])
        panel.axes.plot(table["x"], table["mean"], zorder=4, **mean)
        single = panel.points[["x", "seed", "value"]]
        panel.marks.append(
            Mark("line", mean | {"single": color}, shared_attributes(panel.points), table, single)
        )
        drawn_values[panel.task] += [(value, value, value) for value in panel.points["value"]]
        set_layer_ticks(panel.axes, 0, panel.depth)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, display_of("incremental").x_label)
    point = Line2D([], [], color=color, marker="o", linestyle="", markersize=4, alpha=0.6, mew=0)
    add_legend_below(figure, [point, Line2D([], [], **mean)], ["one trial", "mean"])
    return figure


def draw_comparison(rows: pd.DataFrame, column: str, theme: Theme) -> Figure:
    """Draw one curve per value of a setting.

    Args:
        rows: Rows of the incremental experiment.
        column: Column that holds the setting; curves that differ otherwise get separate panels.
        theme: Colors.
    """
    settings = [value for value in dict.fromkeys(rows.loc[~rows["untouched"], column]) if not pd.isna(value)]
    compared = rows[rows[column].isin(settings)].assign(**{column: settings[0]})
    compared["setting"] = rows.loc[compared.index, column]
    compared["variant"] = variant_labels(compared)
    pairs = compared.groupby(["model", "task", "train_size", "variant"])["setting"].transform("nunique") > 1
    compared = compared[pairs] if pairs.any() else compared
    figure, panels = make_panels(compared, ["model", "train_size", "variant"])
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    has_trials = False
    styles = {
        value: line_style(theme, theme.conditions[i % len(theme.conditions)], 0, MARKERS[i % len(MARKERS)])
        for i, value in enumerate(settings)
    }
    for panel in panels:
        present = [value for value in settings if (panel.points["setting"] == value).any()]
        for index, value in enumerate(present):
            curve = panel.points[panel.points["setting"] == value]
            has_trials |= draw_line(panel, curve, (index, len(present)), styles[value], drawn_values)
        set_layer_ticks(panel.axes, 0, panel.depth)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, display_of("incremental").x_label)
    handles = [Line2D([], [], **styles[value]) for value in settings]
    labels = [setting_label(column, value) for value in settings]
    add_trial_legend(handles, labels, has_trials, theme)
    add_legend_below(figure, handles, labels)
    return figure


def epoch_curves(rows: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Learning curves at the smallest, middle and largest k of each curve, for its first variant.

    Returns:
        A frame with model, task, train_size, metric, x (k), seed, depth, epoch, quantity (the metric or dev_loss)
        and value.
    """
    chosen = []
    for _, curve in each_group(rows, ["model", "task", "train_size"]):
        first = curve[curve["variant"] == curve["variant"].iloc[0]]
        depth, ks = int(first["depth"].iloc[0]), sorted(set(first["x"]))
        middle = min(ks, key=lambda k: abs(k - depth / 2))
        chosen.append(first[first["x"].isin({ks[0], middle, ks[-1]})])
    columns = ["trial_id", "model", "task", "train_size", "metric", "x", "seed", "depth"]
    trials = pd.concat(chosen)[columns].drop_duplicates(["trial_id", "x"])
    long = trials.merge(epochs.rename(columns={"metric": "quantity"}), on="trial_id")
    return long[(long["quantity"] == long["metric"]) | (long["quantity"] == "dev_loss")]


def draw_epochs(curves: pd.DataFrame, theme: Theme) -> Figure:
    """Draw learning curves: for each task and size a panel of the metric above one of the loss, one color per k."""
    tasks = list(dict.fromkeys(curves["task"]))
    columns = panel_columns(len(tasks))
    rows_each = math.ceil(len(tasks) / columns)
    blocks = list(each_group(curves.sort_values("train_size", kind="stable"), ["model", "train_size"]))
    width = 5.2 if columns == 1 else 3.7 if columns == 2 else 3.0
    pairs = rows_each * len(blocks)
    figure = PanelFigure(figsize=(width * columns, 3.7 * pairs + 0.4), layout="constrained")
    panels = []
    grid = figure.add_gridspec(2 * pairs, columns)
    ks = sorted(set(curves["x"]))
    styles = {
        k: line_style(theme, color, 0, MARKERS[i % len(MARKERS)]) | {"markersize": MARKER_SIZE - 0.5}
        for i, (k, color) in enumerate(zip(ks, theme.sizes(len(ks)), strict=True))
    }
    short, models = short_names(tasks), short_names(curves["model"])
    for block, ((model, size), chosen) in enumerate(blocks):
        for position, task in enumerate(tasks):
            rows_of_task = chosen[chosen["task"] == task]
            if rows_of_task.empty:
                continue
            named = [
                short[task],
                f"{size_name(size)} examples",
                *([models[model]] if len(models) > 1 else []),
            ]
            top = 2 * (block * rows_each + position // columns)
            for row, quantity in enumerate((rows_of_task["metric"].iloc[0], "dev_loss")):
                axes = figure.add_subplot(grid[top + row, position % columns])
                points = rows_of_task[rows_of_task["quantity"] == quantity]
                depth, subtitle = int(rows_of_task["depth"].iloc[0]), " · ".join(named[1:])
                panel = Panel(axes, f"{task}: {quantity}", quantity, depth, points, subtitle)
                panels.append(panel)
                _draw_epoch_lines(panel, styles)
                label_y_axis(axes, quantity)
                if row:
                    axes.set_xlabel("epoch")
                else:
                    axes.set_title(" · ".join(named))
    figure.panels = panels
    add_legend_below(figure, [Line2D([], [], **styles[k]) for k in ks], [_layers_kept(k) for k in ks])
    return figure


def _draw_epoch_lines(panel: Panel, styles: dict[float, dict[str, Any]]) -> None:
    axes = panel.axes
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for (k,), rows in each_group(panel.points.sort_values("x", kind="stable"), ["x"]):
        curve = rows.drop(columns="x").rename(columns={"epoch": "x"}).assign(curve=_layers_kept(k))
        table, color = summarize(curve, ["x"]), styles[k]["color"]
        axes.plot(table["x"], table["mean"], **styles[k])
        axes.fill_between(table["x"], table["low"], table["high"], color=color, alpha=0.16, lw=0)
        panel.marks.append(
            Mark("line", styles[k], shared_attributes(curve), table, curve[["x", "seed", "value"]])
        )


def _layers_kept(k: float) -> str:
    """Name of the curve of k in the legend of learning curves."""
    return f"{k:g} layer kept" if k == 1 else f"{k:g} layers kept"


def draw_weight_change(
    changes: pd.DataFrame, theme: Theme, metric: str = "distance", overlay: bool = False
) -> Figure:
    """Draw how much finetuning changed each layer, one curve per training size; with `overlay`, published curves too.

    Args:
        changes: Columns model, task, train_size, layer, seed, value, depth and train_rows.
        metric: What the values are; decides the y label and which published curves are comparable.
    """
    points = changes.rename(columns={"layer": "x"}).assign(metric=metric, variant="")
    figure, panels = make_panels(points, ["model"])
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
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, "layer")
    handles = [Line2D([], [], **line_style(theme, colors[size], 0)) for size in sizes]
    labels = [f"{size_name(size)} examples" for size in sizes]
    add_trial_legend(handles, labels, has_trials, theme)
    add_published_legend(handles, labels, sources, theme)
    add_legend_below(figure, handles, labels)
    return figure
