"""The results as tables in the terminal: a row a task and size, a column a k; folded to the terminal's width."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from whichlayers.plots.display_names import experiment_name, in_order, metric_name, short_names
from whichlayers.report.tables import Cell, Grid, grid
from whichlayers.results.frames import finished, load_points

HEAD_WIDTHS = (16, 12, 8)  # of task, model and so on; longer ones go over several lines
FEWEST_COLUMNS = 3  # of values a table, before heads are made narrower
UNLIMITED = 10_000
LEGEND = "mean ± half of its 95% t interval; no ± where one trial has finished"
TIMES_100, AS_IT_IS = "× 100", "how many times shorter than by a uniform code"


def summary_table(folder: Path) -> Group:
    """All experiments of a study, one below the other. Shares are × 100; mean ± half the 95% t interval."""
    points = finished(load_points(folder))
    parts: list[Text | FoldedGrid] = []
    for experiment in in_order(points["experiment"]):
        whole = grid(points, experiment)
        what = _metrics(points[points["experiment"] == experiment])
        scale = f"{what} {TIMES_100}" if whole.share else AS_IT_IS
        head = Text(experiment_name(experiment), style="bold").append(f"  {whole.x}; {scale}", style="dim")
        parts += [head, FoldedGrid(whole)]
    return Group(*parts, Text(LEGEND, style="dim"))


def _metrics(rows: pd.DataFrame) -> str:
    """accuracy; or, of tasks with several: SST-2 accuracy, CoLA Matthews correlation."""
    short = short_names(rows["task"])
    of = {short[task]: metric_name(metric) for task, metric in zip(rows["task"], rows["metric"], strict=True)}
    names = dict.fromkeys(of.values())
    return next(iter(names)) if len(names) == 1 else ", ".join(f"{task} {name}" for task, name in of.items())


@dataclass(frozen=True)
class FoldedGrid:
    """One grid as however many tables the width at hand asks for. No number is ever cut."""

    whole: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=UNLIMITED)

        def fits(table: Table) -> bool:
            return Measurement.get(console, unlimited, table).maximum <= options.max_width

        for table in fold(self.whole, fits):
            yield from ("", table)
        yield ""


def fold(whole: Grid, fits: Callable[[Table], bool]) -> list[Table]:
    """As few tables as fit, as even as they can be: 13 columns become 7 and 6. If need be with narrow heads;
    where even a single column of values does not fit, one a table, which the terminal may wrap."""
    count = len(whole.columns)
    if fits(alone := _table(whole, slice(0, count), UNLIMITED)):
        return [alone]
    for head_width in HEAD_WIDTHS:
        most = count if head_width == HEAD_WIDTHS[-1] else max(1, count // FEWEST_COLUMNS)
        for pieces in range(1, most + 1):
            tables = [_table(whole, part, head_width) for part in _even(count, pieces)]
            if all(map(fits, tables)):
                return tables
    return tables


def _even(count: int, pieces: int) -> list[slice]:
    """13 in 4: 4, 3, 3 and 3."""
    ends = [math.ceil(count * i / pieces) for i in range(pieces + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


def _table(whole: Grid, chosen: slice, head_width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head in whole.heads:
        if head == "examples":
            table.add_column(head, justify="right", no_wrap=True)
        else:
            table.add_column(head, max_width=head_width, overflow="fold")
    columns = zip(*(row.cells[chosen] for row in whole.rows), strict=True)
    shown = [_aligned(column, whole.share) for column in columns]
    for name, texts in zip(whole.columns[chosen], shown, strict=True):
        width = max(len(name), texts[0].cell_len)
        table.add_column(Text(name, justify="right"), no_wrap=True, min_width=width)
    previous: tuple[str, ...] = ()
    for row, cells in zip(whole.rows, zip(*shown, strict=True), strict=True):
        repeated = row.heads[:1] == previous[:1]
        heads = ("", *row.heads[1:]) if repeated else row.heads
        table.add_row(*map(escape, heads), *cells)
        previous = row.heads
    return table


def _aligned(column: tuple[Cell | None, ...], share: bool) -> list[Text]:
    """A column's cells, all equally wide, with points and ± below each other."""
    means = [
        "·" if cell is None else f"{100 * cell.mean:.1f}" if share else f"{cell.mean:.2f}" for cell in column
    ]
    spreads = ["" if cell is None else _spread(cell, share) for cell in column]
    left, right = max(map(len, means)), max(map(len, spreads))
    return [
        Text(mean.rjust(left)).append(spread.ljust(right), style="dim")
        for mean, spread in zip(means, spreads, strict=True)
    ]


def _spread(cell: Cell, share: bool = True) -> str:
    """±5.2, ±56: a decimal of a wide interval says nothing. Empty where there is one trial."""
    if math.isnan(cell.half_width):
        return ""
    if not share:
        return f" ±{cell.half_width:.2f}"
    half = 100 * cell.half_width
    return f" ±{half:.1f}" if half < 9.95 else f" ±{half:.0f}"
