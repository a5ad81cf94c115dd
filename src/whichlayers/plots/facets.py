"""Layout of figures: one panel per task, a row of panels per model (or size, or variant), a legend below."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWN, CARETUP
from matplotlib.ticker import FixedLocator, Formatter, FuncFormatter, MaxNLocator, NullFormatter

from whichlayers.catalog import quantity
from whichlayers.plots.display_names import axis_name, size_name
from whichlayers.results.frame_utils import each_group
from whichlayers.text import in_points, short_names

INTERVAL = "95% interval"
MAX_COLUMNS = 4
ARROW_SIZE = 4.0  # of the arrowhead of an interval that extends beyond its panel, in points


@dataclass(frozen=True)
class Mark:
    """Data of one element of a panel (a curve, a baseline ...), from which the page draws it again."""

    kind: Literal["line", "level", "strip", "published"]  # level: horizontal line; strip: permutations
    style: dict[str, Any]  # keyword arguments of `Axes.plot`
    attributes: dict[str, Any]  # what all of its rows share: model, task, train_size, condition ...
    table: pd.DataFrame  # x, mean, low, high, sd, n
    trials: pd.DataFrame | None = None  # x, seed, value
    name: str = ""  # legend entry, if the attributes do not determine it
    bars: bool = True  # False: intervals are not drawn, only shown on hover
    shift: float = 0.0  # sideways shift of the points, in units of x
    offsets: Mapping[int, float] = field(default_factory=dict)  # seed -> sideways shift of its trials
    span: tuple[float, float] | None = None  # start and end of a level; None: the whole width
    bounds: str = INTERVAL  # what `low` and `high` of the table are
    outline: Sequence[tuple[float, float]] = ()  # polygon of a density: (x, y)
    band: bool = False  # whether files show the interval as a band instead of a bar
    labels: Sequence[str] = ()  # text next to each row of the table; empty: none has one


@dataclass(frozen=True)
class Panel:
    """One set of axes, the points it shows, and the marks drawn on it."""

    axes: Axes
    task: str
    metric: str
    depth: int
    points: pd.DataFrame
    subtitle: str = ""
    marks: list[Mark] = field(default_factory=list)


class PanelFigure(Figure):
    """A matplotlib figure that keeps its panels."""

    panels: Sequence[Panel] = ()
    show_trials: bool | None = None  # whether the page initially shows single trials; None: if they are few
    shared_y: bool = False  # whether all panels have the same y range, starting at zero


def metric_range(metric: str) -> tuple[float, float]:
    """Lowest and highest possible value of a metric."""
    return quantity(metric).low, quantity(metric).high


def panel_columns(tasks: int) -> int:
    """Number of columns for panels of this many tasks: at most `MAX_COLUMNS`, with rows of similar length."""
    if tasks <= MAX_COLUMNS:
        return tasks
    return 3 if tasks in (5, 6, 9) else MAX_COLUMNS


def make_panels(
    points: pd.DataFrame, groups: Sequence[str], subtitle_column: str = "", always: Sequence[str] = ()
) -> tuple[PanelFigure, list[Panel]]:
    """Create a figure with one panel per task and group.

    Args:
        points: Points to distribute over the panels.
        groups: Columns whose values get separate rows of panels. A column that the task determines does not:
            then all tasks share a row.
        subtitle_column: Column whose value is added to the subtitle of each panel.
        always: Members of `groups` to name in the subtitle even if they have a single value.

    Returns:
        The figure and its panels, with titles and y labels but nothing drawn on them.
    """
    tasks = list(dict.fromkeys(points["task"]))
    columns = panel_columns(len(tasks))
    rows_each = math.ceil(len(tasks) / columns)
    determined = points.groupby("task")[list(groups)].nunique().max() == 1
    in_rows = [g for g in groups if g == "model" or not (determined[g] and points[g].nunique() > 1)]
    blocks = list(each_group(points, in_rows))
    width = 5.2 if columns == 1 else {2: 3.7, 3: 3.0}.get(columns, 2.6)
    rows = rows_each * max(sum((chosen["task"] == task).any() for _, chosen in blocks) for task in tasks)
    height = 3.2 if columns == 1 and rows == 1 else 2.35
    figure = PanelFigure(figsize=(width * columns, height * rows + 0.45), layout="constrained")
    grid = figure.add_gridspec(rows, columns)
    short, varying = short_names(tasks), [g for g in groups if g in always or points[g].nunique() > 1]
    varying += [subtitle_column] if subtitle_column and (points[subtitle_column] != "").any() else []
    models = short_names(points["model"])
    panels: list[Panel] = []
    placed = dict.fromkeys(tasks, 0)  # panels of each task so far: a task without a block leaves no gap
    for _, chosen in blocks:
        for position, task in enumerate(tasks):
            rows_of_task = chosen[chosen["task"] == task]
            if rows_of_task.empty:
                continue
            row = placed[task] * rows_each + position // columns
            placed[task] += 1
            axes = figure.add_subplot(grid[row, position % columns])
            axes.set_title(short[task], pad=14 if varying else 6)
            parts = [_group_name(g, rows_of_task[g].iloc[0], models) for g in varying]
            text = " · ".join(part for part in parts if part)
            if text:
                axes.text(0, 1.02, text, transform=axes.transAxes, fontsize=7.5, va="bottom")
            label_y_axis(axes, rows_of_task["metric"].iloc[0])
            panels.append(
                Panel(
                    axes,
                    task,
                    rows_of_task["metric"].iloc[0],
                    int(rows_of_task["depth"].iloc[0]),
                    rows_of_task,
                    text,
                )
            )
    figure.panels = panels
    return figure, panels


def _group_name(group: str, value: Any, models: dict[str, str]) -> str:
    if group == "model":
        return models[value]
    return f"{size_name(value)} examples" if group == "train_size" else str(value)


def label_y_axis(axes: Axes, metric: str) -> None:
    """Label the y axis with the metric; its ticks are in points if the metric is a fraction of 1."""
    axes.set_ylabel(axis_name(metric))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(ScoreFormatter(100 if in_points(metric) else 1))


class ScoreFormatter(Formatter):
    """Tick labels of `scale` times the value, all with as many decimals as the finest of them needs."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, value: float, position: int | None = None) -> str:
        ticks = [f"{round(self.scale * float(tick), 9):g}" for tick in self.locs]
        decimals = max((len(text.partition(".")[2]) for text in ticks), default=0)
        return f"{round(self.scale * value, 9) + 0.0:.{decimals}f}".replace("-", "−")


def label_x_axis(panels: Sequence[Panel], label: str) -> None:
    """Label the x axis of the lowest panel of each column."""
    lowest: dict[int, Panel] = {}
    for panel in panels:
        spec = panel.axes.get_subplotspec()
        assert spec is not None
        lowest[spec.colspan.start] = panel
    for panel in lowest.values():
        panel.axes.set_xlabel(label)


def set_layer_ticks(axes: Axes, first: int, last: int, max_labels: int = 13) -> None:
    """Set integer ticks from `first` to `last`, at most `max_labels` of them labeled."""
    step = math.ceil((last - first + 1) / max_labels)
    axes.xaxis.set_major_locator(FixedLocator(list(range(first, last + 1, step))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(FixedLocator(list(range(first, last + 1))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(first - 0.5, last + 0.5)


def set_y_limits(
    panels: Sequence[Panel], drawn_values: dict[str, list[tuple[float, float, float]]], shared_y: bool = False
) -> None:
    """Set the y range of the panels of each task, clipping very wide intervals.

    The 95% t interval of two trials spans 12.7 standard errors on either side; drawn in full, it would flatten
    the curve.

    Args:
        drawn_values: Task -> (value, low, high) of everything drawn in its panels.
        shared_y: Use one range for all tasks, starting at zero.
    """
    tasks = list(dict.fromkeys(panel.task for panel in panels))
    for group in [tasks] if shared_y else [[task] for task in tasks]:
        group_panels = [panel for panel in panels if panel.task in group]
        value, low, high = np.array([row for task in group for row in drawn_values[task]], dtype=float).T
        lowest, top = float(value.min()), float(value.max())
        extent = max(top - lowest, 0.02)
        floor, ceiling = metric_range(group_panels[0].metric)
        least = max(np.nanmin(np.append(low, lowest)), lowest - 0.75 * extent, floor)
        most = min(np.nanmax(np.append(high, top)), top + 0.75 * extent, ceiling)
        margin = 0.05 * max(most - least, 0.02)
        bottom = min(0.0, least) if shared_y else least - margin
        for panel in group_panels:
            panel.axes.set_ylim(bottom, most + margin)
            _draw_arrows(panel)


def _draw_arrows(panel: Panel) -> None:
    """Draw an arrowhead where an error bar leaves the panel, instead of the cap that would be outside."""
    bottom, top = panel.axes.get_ylim()
    for mark in panel.marks:
        if mark.kind not in ("line", "strip") or not mark.bars or mark.band:
            continue
        low, high = mark.table["low"] < bottom, mark.table["high"] > top
        # their tip is at the edge
        for beyond, edge, marker in ((low, bottom, CARETDOWN), (high, top, CARETUP)):
            x = mark.table.loc[beyond, "x"] + mark.shift
            if len(x):
                style: dict[str, Any] = {"linestyle": "", "markersize": ARROW_SIZE, "mew": 0, "zorder": 5}
                panel.axes.plot(x, [edge] * len(x), marker=marker, color=mark.style["color"], **style)


def has_clipped_bars(figure: Figure) -> bool:
    """Whether an interval of the figure that has an error bar extends beyond its panel."""
    for panel in figure.panels if isinstance(figure, PanelFigure) else ():
        bottom, top = panel.axes.get_ylim()
        for mark in panel.marks:
            drawn = mark.kind in ("line", "strip") and mark.bars
            if drawn and ((mark.table["low"] < bottom) | (mark.table["high"] > top)).any():
                return True
    return False


def widen_y_limits(limits: tuple[float, float], values: Iterable[float]) -> tuple[float, float]:
    """Limits that also include `values`, with the margin of `set_y_limits` on the sides that move."""
    low, high = limits
    least, most = min([low, *values]), max([high, *values])
    margin = 0.05 * (most - least)
    return (least if least == low else least - margin, most if most == high else most + margin)


def add_legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Add a legend below all panels, with as many columns as the width of the figure allows."""
    characters = 2.0 * figure.get_figwidth() * 72 / 8  # about as many as an 8 pt line holds
    columns = len(labels)
    while (
        columns > 1
        and columns * (max(len(line) for text in labels for line in text.splitlines()) + 11) > characters
    ):
        columns = math.ceil(columns / 2) if columns > 4 else columns - 1
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def fix_layout(figure: Figure) -> Figure:
    """Compute the layout once and freeze it, for all file formats."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure
