"""Panels on a page: one a task, a new row for every model (or size, or variant), a legend below them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from whichlayers.analysis.frame_utils import each_group
from whichlayers.plots.display_names import metric_name, short_names, size_name

RANGES = {
    "accuracy": (0.0, 1.0),
    "f1": (0.0, 1.0),
    "macro_f1": (0.0, 1.0),
    "distance": (0.0, math.inf),
    "spectral norm, min-max scaled": (0.0, 1.0),
    "dev_loss": (0.0, math.inf),
    "spread": (0.0, 1.0),
    "neurons": (0.0, 1.0),
    "compression": (0.0, math.inf),
}  # every other metric we know lies in -1 to 1
MOST_COLUMNS = 4


@dataclass(frozen=True)
class Mark:
    """One thing drawn on a panel, in numbers: so that the page can draw it anew, and let it be asked."""

    kind: Literal["line", "level", "strip", "published"]
    look: dict[str, Any]
    about: dict[str, Any]  # what is one and the same in its rows: model, task, train_size, condition ...
    table: pd.DataFrame  # x, mean, low, high, sd, n
    trials: pd.DataFrame | None = None  # x, seed, value
    name: str = ""  # where what it is about does not say it
    outline: Sequence[tuple[float, float]] = ()  # of a density: (height, width from 0 to 1)
    bars: bool = True  # False: its intervals are in the table alone, for want of room


@dataclass(frozen=True)
class Panel:
    """One set of axes, the points that belong in it, and what was drawn on it."""

    axes: Axes
    task: str
    metric: str
    depth: int
    points: pd.DataFrame
    subtitle: str = ""
    marks: list[Mark] = field(default_factory=list)


class PanelFigure(Figure):
    """A figure that knows its panels."""

    panels: Sequence[Panel] = ()
    trials_first: bool | None = None  # whether single trials are shown at first; None: where they are few
    together: bool = False  # whether all panels have one y axis, from zero


def range_of(metric: str) -> tuple[float, float]:
    """What values a metric can have at all."""
    return RANGES.get(metric, (-1.0, 1.0))


def columns_for(tasks: int) -> int:
    """1 to 4 tasks stand side by side; more are broken into rows that are as even as they can be."""
    if tasks <= MOST_COLUMNS:
        return tasks
    return 3 if tasks in (5, 6, 9) else MOST_COLUMNS


def make_panels(
    points: pd.DataFrame, groups: Sequence[str], told: str = "", always: Sequence[str] = ()
) -> tuple[PanelFigure, list[Panel]]:
    """A panel for every task with points in a group; `groups` are the columns that get a row of their own, unless
    the task decides them: then all tasks share a row. What differs stands below a panel's title, as does the column
    `told`; the groups `always` do in any case."""
    tasks = list(dict.fromkeys(points["task"]))
    columns = columns_for(len(tasks))
    rows_each = math.ceil(len(tasks) / columns)
    decided = points.groupby("task")[list(groups)].nunique().max() == 1
    in_rows = [g for g in groups if g == "model" or not (decided[g] and points[g].nunique() > 1)]
    blocks = list(each_group(points, in_rows))
    width = 5.2 if columns == 1 else {2: 3.7, 3: 3.0}.get(columns, 2.6)
    rows = rows_each * len(blocks)
    height = 3.2 if columns == 1 and rows == 1 else 2.35
    figure = PanelFigure(figsize=(width * columns, height * rows + 0.45), layout="constrained")
    grid = figure.add_gridspec(rows, columns)
    short, varying = short_names(tasks), [g for g in groups if g in always or points[g].nunique() > 1]
    varying += [told] if told and (points[told] != "").any() else []
    models = short_names(points["model"])
    panels = []
    for block, (_, chosen) in enumerate(blocks):
        for place, task in enumerate(tasks):
            mine = chosen[chosen["task"] == task]
            if mine.empty:
                continue
            row = block * rows_each + place // columns
            axes = figure.add_subplot(grid[row, place % columns])
            axes.set_title(short[task], pad=14 if varying else 6)
            parts = [_group_name(g, mine[g].iloc[0], models) for g in varying]
            text = " · ".join(part for part in parts if part)
            if text:
                axes.text(0, 1.02, text, transform=axes.transAxes, fontsize=7.5, va="bottom")
            axes.set_ylabel(metric_name(mine["metric"].iloc[0]))
            panels.append(Panel(axes, task, mine["metric"].iloc[0], int(mine["depth"].iloc[0]), mine, text))
    figure.panels = panels
    return figure, panels


def _group_name(group: str, value: Any, models: dict[str, str]) -> str:
    if group == "model":
        return models[value]
    return f"{size_name(value)} examples" if group == "train_size" else str(value)


def name_x(panels: Sequence[Panel], label: str) -> None:
    """The name of the x axis once a column, below its lowest panel."""
    lowest: dict[int, Panel] = {}
    for panel in panels:
        spec = panel.axes.get_subplotspec()
        assert spec is not None
        lowest[spec.colspan.start] = panel
    for panel in lowest.values():
        panel.axes.set_xlabel(label)


def layer_ticks(axes: Axes, first: int, last: int, room: int = 13) -> None:
    """Integer ticks, all of them or every second, third ... so that at most `room` are labelled."""
    step = math.ceil((last - first + 1) / room)
    axes.xaxis.set_major_locator(FixedLocator(list(range(first, last + 1, step))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(FixedLocator(list(range(first, last + 1))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(first - 0.5, last + 0.5)


def limit_y(
    panels: Sequence[Panel], shown: dict[str, list[tuple[float, float, float]]], together: bool = False
) -> None:
    """One y range a task, from (value, low, high) of all that is drawn; very wide intervals are cut off.

    Two trials have an interval of 12.7 standard errors either way: drawn in full it would flatten the curve.
    `together`: one range for all tasks, from zero.
    """
    tasks = list(dict.fromkeys(panel.task for panel in panels))
    for group in [tasks] if together else [[task] for task in tasks]:
        mine = [panel for panel in panels if panel.task in group]
        value, low, high = np.array([row for task in group for row in shown[task]], dtype=float).T
        lowest, top = float(value.min()), float(value.max())
        room = max(top - lowest, 0.02)
        floor, ceiling = range_of(mine[0].metric)
        least = max(np.nanmin(np.append(low, lowest)), lowest - 0.75 * room, floor)
        most = min(np.nanmax(np.append(high, top)), top + 0.75 * room, ceiling)
        margin = 0.05 * max(most - least, 0.02)
        bottom = min(0.0, least) if together else least - margin
        for panel in mine:
            panel.axes.set_ylim(bottom, most + margin)


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Outside the axes, where it covers no data; as many columns as the width holds."""
    characters = 2.0 * figure.get_figwidth() * 72 / 8  # about as many as an 8 pt line holds
    columns = len(labels)
    while (
        columns > 1
        and columns * (max(len(line) for text in labels for line in text.splitlines()) + 11) > characters
    ):
        columns = math.ceil(columns / 2) if columns > 4 else columns - 1
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
