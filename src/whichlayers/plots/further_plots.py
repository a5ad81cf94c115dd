"""The painters of the further figures: every trial, two settings side by side, epochs, weight change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.intervals import summarise
from whichlayers.plots.artists import Shown, about, line, look, with_trials
from whichlayers.plots.display_names import metric_name, short_names, size_name, x_axis
from whichlayers.plots.facets import (
    Mark,
    Panel,
    PanelFigure,
    columns_for,
    layer_ticks,
    legend_below,
    limit_y,
    make_panels,
    name_x,
)
from whichlayers.plots.published_overlay import draw_published, with_published
from whichlayers.plots.style import FEW, MARKER_SIZE, MARKERS, Theme
from whichlayers.results.frames import in_words, variant_names

DOTTED = (0, (1.2, 1.4))


def many_trials(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of sizes with too many trials for the main figure to show one by one."""
    cell = ["model", "task", "train_size", "variant", "x"]
    return rows[rows.groupby(cell)["seed"].transform("nunique") > FEW]


def draw_trials(rows: pd.DataFrame, theme: Theme) -> Figure:
    """A point a trial beside k, and the dotted mean."""
    rows = many_trials(rows)
    figure, panels = make_panels(rows, ["model", "train_size", "variant"], always=["train_size"])
    figure.trials_first = True
    shown: Shown = {panel.task: [] for panel in panels}
    colour = theme.conditions[0]
    mean: dict[str, Any] = {"color": theme.ink, "linestyle": DOTTED, "linewidth": 1.5}
    for panel in panels:
        aside = np.random.default_rng(0).uniform(-0.22, 0.22, len(panel.points))
        panel.axes.plot(
            panel.points["x"] + aside,
            panel.points["value"],
            "o",
            color=colour,
            alpha=0.35,
            markersize=2.6,
            mew=0,
        )
        table = summarise(panel.points, ["x"])
        panel.axes.plot(table["x"], table["mean"], zorder=4, **mean)
        single = panel.points[["x", "seed", "value"]]
        panel.marks.append(Mark("line", mean | {"single": colour}, about(panel.points), table, single))
        shown[panel.task] += [(value, value, value) for value in panel.points["value"]]
        layer_ticks(panel.axes, 0, panel.depth)
    limit_y(panels, shown)
    name_x(panels, x_axis("incremental"))
    point = Line2D([], [], color=colour, marker="o", linestyle="", markersize=4, alpha=0.6, mew=0)
    legend_below(figure, [point, Line2D([], [], **mean)], ["one trial", "mean"])
    return figure


def draw_comparison(rows: pd.DataFrame, column: str, theme: Theme) -> Figure:
    """A line a value of one setting; all else that differs has rows of panels of its own."""
    settings = [value for value in dict.fromkeys(rows.loc[~rows["untouched"], column]) if not pd.isna(value)]
    kept = rows[rows[column].isin(settings)].assign(**{column: settings[0]})
    kept["setting"] = rows.loc[kept.index, column]
    kept["variant"] = variant_names(kept)
    pairs = kept.groupby(["model", "task", "train_size", "variant"])["setting"].transform("nunique") > 1
    kept = kept[pairs] if pairs.any() else kept
    figure, panels = make_panels(kept, ["model", "train_size", "variant"])
    shown: Shown = {panel.task: [] for panel in panels}
    few = False
    looks = {
        value: look(theme, theme.conditions[i % len(theme.conditions)], 0, MARKERS[i % len(MARKERS)])
        for i, value in enumerate(settings)
    }
    for panel in panels:
        present = [value for value in settings if (panel.points["setting"] == value).any()]
        for place, value in enumerate(present):
            mine = panel.points[panel.points["setting"] == value]
            few |= line(panel, mine, (place, len(present)), looks[value], shown)
        layer_ticks(panel.axes, 0, panel.depth)
    limit_y(panels, shown)
    name_x(panels, x_axis("incremental"))
    handles = [Line2D([], [], **looks[value]) for value in settings]
    labels = [in_words(column, value) for value in settings]
    with_trials(handles, labels, few, theme)
    legend_below(figure, handles, labels)
    return figure


def epoch_curves(rows: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """model, task, train_size, metric, x (k), epoch, seed, quantity, value: the ends and the middle of each curve.

    Of the variants of a curve, the first.
    """
    chosen = []
    for _, curve in each_group(rows, ["model", "task", "train_size"]):
        mine = curve[curve["variant"] == curve["variant"].iloc[0]]
        depth, ks = int(mine["depth"].iloc[0]), sorted(set(mine["x"]))
        middle = min(ks, key=lambda k: abs(k - depth / 2))
        chosen.append(mine[mine["x"].isin({ks[0], middle, ks[-1]})])
    columns = ["trial_id", "model", "task", "train_size", "metric", "x", "seed", "depth"]
    few = pd.concat(chosen)[columns].drop_duplicates(["trial_id", "x"])
    long = few.merge(epochs.rename(columns={"metric": "quantity"}), on="trial_id")
    return long[(long["quantity"] == long["metric"]) | (long["quantity"] == "dev_loss")]


def draw_epochs(curves: pd.DataFrame, theme: Theme) -> Figure:
    """Two panels a task and size, the metric above the loss; a colour a k. Sizes stand below one another."""
    tasks = list(dict.fromkeys(curves["task"]))
    columns = columns_for(len(tasks))
    rows_each = math.ceil(len(tasks) / columns)
    blocks = list(each_group(curves.sort_values("train_size", kind="stable"), ["model", "train_size"]))
    width = 5.2 if columns == 1 else 3.7 if columns == 2 else 3.0
    pairs = rows_each * len(blocks)
    figure = PanelFigure(figsize=(width * columns, 3.7 * pairs + 0.4), layout="constrained")
    panels = []
    grid = figure.add_gridspec(2 * pairs, columns)
    ks = sorted(set(curves["x"]))
    looks = {
        k: look(theme, colour, 0, MARKERS[i % len(MARKERS)]) | {"markersize": MARKER_SIZE - 0.5}
        for i, (k, colour) in enumerate(zip(ks, theme.sizes(len(ks)), strict=True))
    }
    short, models = short_names(tasks), short_names(curves["model"])
    for block, ((model, size), chosen) in enumerate(blocks):
        for place, task in enumerate(tasks):
            mine = chosen[chosen["task"] == task]
            if mine.empty:
                continue
            named = [
                short[task],
                f"{size_name(size)} examples",
                *([models[model]] if len(models) > 1 else []),
            ]
            top = 2 * (block * rows_each + place // columns)
            for row, quantity in enumerate((mine["metric"].iloc[0], "dev_loss")):
                axes = figure.add_subplot(grid[top + row, place % columns])
                told = mine[mine["quantity"] == quantity]
                depth, told_by = int(mine["depth"].iloc[0]), " · ".join(named[1:])
                panel = Panel(axes, f"{task}: {quantity}", quantity, depth, told, told_by)
                panels.append(panel)
                _epoch_lines(panel, looks)
                axes.set_ylabel("evaluation loss" if row else metric_name(quantity))
                if row:
                    axes.set_xlabel("epoch")
                else:
                    axes.set_title(" · ".join(named))
    figure.panels = panels
    legend_below(figure, [Line2D([], [], **looks[k]) for k in ks], [f"{k:g} layers kept" for k in ks])
    return figure


def _epoch_lines(panel: Panel, looks: dict[float, dict[str, Any]]) -> None:
    axes = panel.axes
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for (k,), mine in each_group(panel.points.sort_values("x", kind="stable"), ["x"]):
        mine = mine.drop(columns="x").rename(columns={"epoch": "x"}).assign(kept=f"{k:g} layers kept")
        table, colour = summarise(mine, ["x"]), looks[k]["color"]
        axes.plot(table["x"], table["mean"], **looks[k])
        axes.fill_between(table["x"], table["low"], table["high"], color=colour, alpha=0.16, lw=0)
        panel.marks.append(Mark("line", looks[k], about(mine), table, mine[["x", "seed", "value"]]))


def draw_weight_change(
    moved: pd.DataFrame, theme: Theme, metric: str = "distance", overlay: bool = False
) -> Figure:
    """How far each layer moved: a line a size, from light to dark; what was published of this metric beside it."""
    points = moved.rename(columns={"layer": "x"}).assign(metric=metric, variant="")
    figure, panels = make_panels(points, ["model"])
    sizes = sorted(set(points["train_size"]))
    colours = dict(zip(sizes, theme.sizes(len(sizes)), strict=True))
    shown: Shown = {panel.task: [] for panel in panels}
    few, sources = False, set[str]()
    for panel in panels:
        present = [size for size in sizes if (panel.points["train_size"] == size).any()]
        for place, size in enumerate(present):
            mine, drawn = panel.points[panel.points["train_size"] == size], look(theme, colours[size], 0)
            few |= line(panel, mine, (place, len(present)), drawn, shown)
            sources |= draw_published(panel, mine, "weight-change", drawn, shown, overlay)
        layer_ticks(panel.axes, 1, panel.depth)
    limit_y(panels, shown)
    name_x(panels, "layer")
    handles = [Line2D([], [], **look(theme, colours[size], 0)) for size in sizes]
    labels = [f"{size_name(size)} examples" for size in sizes]
    with_trials(handles, labels, few, theme)
    with_published(handles, labels, sources, theme)
    legend_below(figure, handles, labels)
    return figure
