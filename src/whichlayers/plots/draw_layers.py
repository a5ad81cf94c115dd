"""Draw a layer diagram (see `whichlayers.plots.layer_diagram`) as a figure for files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from whichlayers.analysis.intervals import SIGNIFICANT
from whichlayers.plots.layer_diagram import (
    BOTTOM,
    INSET,
    TASK_GAP,
    TASK_HEIGHT,
    TITLES,
    TOP,
    LayerColumn,
    LayerDiagram,
    shade,
    text_color_on,
)
from whichlayers.plots.style import LIGHT, Theme
from whichlayers.text import format_half_width, format_score, short_names

MAX_COLUMNS_PER_ROW = 12
NOTE_HEIGHT = 0.13  # of a line of the note below the columns, in inches
LEGEND_HEIGHT = 0.36  # of the legend of colors, in inches


def draw_layers(diagram: LayerDiagram, theme: Theme = LIGHT) -> Figure:
    """Draw the columns side by side, grouped by task and wrapped into rows; layer 1 is at the bottom.

    A note below them names the model and the variant: a study may have several diagrams of one kind.
    """
    rows = _wrap(diagram.columns)
    widest = max(len(row) + TASK_GAP * len({column.task for column in row}) for row in rows)
    width, height = max(4.6, 0.72 * widest + 1.0), 0.27 * (diagram.end + TOP - BOTTOM)
    spare = width - (0.72 * widest + 1.0)  # with few columns, the note below them is wider than they are
    note = _note(diagram, width)
    note_height = 0.04 + NOTE_HEIGHT * len(note.splitlines())
    below = note_height + (LEGEND_HEIGHT if diagram.legend else 0.0)  # inches
    total_height = height * len(rows) + below
    with theme.applied():
        figure = Figure(figsize=(width, total_height))
        for index, row in enumerate(rows):
            bottom = (below + height * (len(rows) - 1 - index)) / total_height
            left = 0.86 + spare / 2
            axes = figure.add_axes((left / width, bottom, 1 - (left + 0.04) / width, height / total_height))
            axes.set_xlim(-0.06, max(widest, (width - left - 0.04) / 0.72) - TASK_GAP)
            _draw_row(axes, row, diagram, theme)
        y = (below - note_height / 2) / total_height
        figure.text(0.5, y, note, ha="center", va="center", size=6.4, color=theme.ink)
        _draw_legend(figure, diagram, theme)
    return figure


def _note(diagram: LayerDiagram, width: float) -> str:
    """What the figure shows, in lines that fit into its width."""
    units = (
        "points, single trials"
        if diagram.single_trials
        else f"points ± half of the 95% interval; hatched: adjusted p ≥ {SIGNIFICANT}"
    )
    note = f"{TITLES[diagram.kind]}: {units}"
    model = short_names([diagram.model])[diagram.model]
    named = f"{model}, {diagram.variant}" if diagram.variant else model
    return f"{named}\n{note if width > 6.6 else note.replace(': ', ':' + chr(10), 1)}"


def _draw_legend(figure: Figure, diagram: LayerDiagram, theme: Theme) -> None:
    """Draw the colors with their values at the bottom of the figure."""
    width, height = figure.get_size_inches()
    cell, left = 0.42, width / 2 - 0.42 * len(diagram.legend) / 2
    for index, (text, value) in enumerate(diagram.legend):
        color = shade(value, theme)
        place = ((left + index * cell) / width, 0.19 / height)
        figure.patches.append(
            Rectangle(
                place,
                cell / width,
                0.15 / height,
                facecolor=color,
                edgecolor=theme.muted,
                linewidth=0.4,
                transform=figure.transFigure,
                figure=figure,
            )
        )
        middle = (left + (index + 0.5) * cell) / width
        style: dict[str, Any] = {"ha": "center", "va": "center", "size": 6.2, "color": text_color_on(color)}
        figure.text(middle, 0.26 / height, text, **style)
    if diagram.legend:
        style = {"ha": "center", "va": "center", "size": 6.2, "color": theme.ink}
        figure.text(0.5, 0.09 / height, f"color: {diagram.legend_title}", **style)


def _wrap(columns: Sequence[LayerColumn]) -> list[list[LayerColumn]]:
    """Split into rows of at most `MAX_COLUMNS_PER_ROW`, without separating the columns of a task."""
    rows: list[list[LayerColumn]] = [[]]
    for task in dict.fromkeys(column.task for column in columns):
        of_task = [column for column in columns if column.task == task]
        if rows[-1] and len(rows[-1]) + len(of_task) > MAX_COLUMNS_PER_ROW:
            rows.append([])
        rows[-1] += of_task
    return rows


def _draw_row(axes: Axes, columns: Sequence[LayerColumn], diagram: LayerDiagram, theme: Theme) -> None:
    tasks = list(dict.fromkeys(column.task for column in columns))
    short = short_names([column.task for column in diagram.columns])
    lefts = [i + TASK_GAP * tasks.index(column.task) for i, column in enumerate(columns)]
    axes.set_ylim(BOTTOM, diagram.end + TOP)
    axes.set_axis_off()
    for left, column in zip(lefts, columns, strict=True):
        _draw_column(axes, left, column, diagram, theme)
    for task in tasks:
        of_task = [left for left, column in zip(lefts, columns, strict=True) if column.task == task]
        middle = (of_task[0] + of_task[-1] + 1) / 2
        style: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold", "size": 9}
        axes.text(middle, diagram.end + TASK_HEIGHT, short[task], **style)
    for height, text, is_layer in diagram.row_labels:
        color = theme.ink if is_layer else theme.muted
        axes.text(-0.12, height, text, ha="right", va="center", size=7.5, color=color)


def _draw_column(axes: Axes, left: float, column: LayerColumn, diagram: LayerDiagram, theme: Theme) -> None:
    for height, text, weight in diagram.column_labels(column):
        axes.text(
            left + 0.5, height, text, ha="center", va="center", size=7.5, weight=weight, color=theme.ink
        )
    for box in column.boxes:
        color, text_color = diagram.colors(box, theme)
        plain = box.significant or math.isnan(box.half)  # without an interval there is no test
        axes.add_patch(
            FancyBboxPatch(
                (left + INSET[0], box.first + INSET[1]),
                1 - 2 * INSET[0],
                box.last - box.first + 1 - 2 * INSET[1],
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=color,
                edgecolor=theme.muted if plain else (*to_rgb(text_color), 0.35),
                linewidth=0.5 if plain else 0.0,
                hatch=None if plain else "/////",
                hatch_linewidth=0.4,
            )
        )
        axes.text(
            left + 0.5,
            (box.first + box.last + 1) / 2,
            f"{format_score(box.mean, signed=True)} {format_half_width(box.half)}".rstrip(),
            ha="center",
            va="center",
            size=6.2,
            weight="bold" if box.significant else "normal",
            color=text_color,
            bbox=None if plain else {"facecolor": color, "edgecolor": "none", "pad": 0.8},
        )
