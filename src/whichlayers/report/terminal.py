"""Summary tables for the terminal: one row per task and size, one column per k, split to fit its width."""

from __future__ import annotations

import itertools
import math
import textwrap
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

from whichlayers.experiments import display_of, sort_experiments
from whichlayers.plots.display_names import metric_name
from whichlayers.report.tables import GridCell, SummaryGrid, summary_grid
from whichlayers.report.word_table import LONGEST_WORD, WordTable
from whichlayers.results.frames import finished, load_points
from whichlayers.results.shared_seeds import seed_notes
from whichlayers.text import TIMES_100, longest_word, short_names

LABEL_WIDTHS = (16, 12, 8)  # maximum widths of the label columns to try; longer text is wrapped
MIN_COLUMNS = 3  # value columns per table, before the label columns are made narrower
UNLIMITED = 10_000
LEGEND = "mean ± half of the 95% t interval; no ± with a single finished trial"
COMPRESSION = "compression: how many times shorter than a uniform code"


def summary_table(folder: Path) -> Group:
    """Summary tables of all experiments of a study: means ± half of the 95% t interval, fractions × 100."""
    every = load_points(folder)
    points = finished(every)
    parts: list[Text | FoldedGrid] = []
    notes = []
    for experiment in sort_experiments(points["experiment"]):
        whole = summary_grid(points, experiment)
        notes.append(whole.note)
        metrics = _metrics(points[points["experiment"] == experiment])
        scale = f"{metrics} {TIMES_100}" if whole.in_points else COMPRESSION
        title = Text(display_of(experiment).title, style="bold").append(
            f"  {whole.x_label}; {scale}", style="dim"
        )
        parts += [title, FoldedGrid(whole)]
    legend = [LEGEND, *dict.fromkeys(filter(None, notes)), *seed_notes(every)]
    return Group(*parts, *(Text(line, style="dim") for line in legend))


def _metrics(rows: pd.DataFrame) -> str:
    """Metric of the tasks: "accuracy", or if they differ "SST-2 accuracy, CoLA Matthews correlation"."""
    short = short_names(rows["task"])
    of = {short[task]: metric_name(metric) for task, metric in zip(rows["task"], rows["metric"], strict=True)}
    names = dict.fromkeys(of.values())
    return next(iter(names)) if len(names) == 1 else ", ".join(f"{task} {name}" for task, name in of.items())


@dataclass(frozen=True)
class FoldedGrid:
    """A rich renderable that splits a grid into as many tables as the width requires. Numbers are never truncated."""

    whole: SummaryGrid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=UNLIMITED)

        def fits(table: Table) -> bool:
            return Measurement.get(console, unlimited, table).maximum <= options.max_width

        for table in fold(self.whole, fits):
            yield from ("", table)
        yield ""


def fold(whole: SummaryGrid, fits: Callable[[Table], bool]) -> list[Table]:
    """Split a grid into as few tables as fit, with similar numbers of columns: 13 columns become 7 and 6.

    The label columns become narrower if necessary. If even a single value column does not fit, each table has one, and
    the terminal may wrap it.
    """
    count = len(whole.columns)
    if fits(alone := _table(whole, slice(0, count), UNLIMITED)):
        return [alone]
    for label_width in LABEL_WIDTHS:
        most = count if label_width == LABEL_WIDTHS[-1] else max(1, count // MIN_COLUMNS)
        for pieces in range(1, most + 1):
            tables = [_table(whole, part, label_width) for part in _even(count, pieces)]
            if all(map(fits, tables)):
                return tables
    return tables


def _even(count: int, pieces: int) -> list[slice]:
    """Split `count` columns into parts of similar size: 13 into 4, 3, 3 and 3."""
    ends = [math.ceil(count * i / pieces) for i in range(pieces + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


def _table(whole: SummaryGrid, chosen: slice, label_width: int) -> Table:
    """The label columns and the chosen value columns of a grid; a repeated first label is left out."""
    table = WordTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(whole.label_columns):
        if name == "examples":
            table.add_column(name, justify="right", no_wrap=True)
        else:
            words = longest_word([name, *(row.labels[i] for row in whole.rows)])
            table.add_column(name, max_width=max(label_width, min(words, LONGEST_WORD)), overflow="fold")
    columns = zip(*(row.cells[chosen] for row in whole.rows), strict=True)
    texts_by_column = [_aligned(column) for column in columns]
    for name, texts in zip(whole.columns[chosen], texts_by_column, strict=True):
        width = max(label_width, longest_word([name]), texts[0].cell_len)
        lines = textwrap.wrap(name, width)  # headers such as "all parameters trained"
        table.add_column(Text("\n".join(lines), justify="right"), no_wrap=True)
    previous: tuple[str, ...] = ()
    for row, cells in zip(whole.rows, zip(*texts_by_column, strict=True), strict=True):
        repeated = row.labels[:1] == previous[:1]
        labels = ("", *row.labels[1:]) if repeated else row.labels
        table.add_row(*map(escape, labels), *cells)
        previous = row.labels
    return table


def _aligned(column: tuple[GridCell | None, ...]) -> list[Text]:
    """Cells of a column, all of the same width, with decimal points and ± aligned."""
    means = ["·" if cell is None else cell.text for cell in column]
    halves = [f" {cell.half_text}" if cell is not None and cell.half_text else "" for cell in column]
    left, right = max(map(len, means)), max(map(len, halves))
    return [
        Text(mean.rjust(left)).append(half.ljust(right), style="dim")
        for mean, half in zip(means, halves, strict=True)
    ]
