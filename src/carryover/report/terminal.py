"""The results as tables in the terminal: a row a task and size, a column a k; wide ones are folded."""

from __future__ import annotations

import math
from pathlib import Path

from rich import box
from rich.table import Table

from carryover.analysis.frame import finished, load_points
from carryover.report.labels import experiment_name, in_order
from carryover.report.tables import Cell, Grid, grid

MOST_COLUMNS = 7  # of values; with task and size they fit in 100 characters


def summary_table(folder: Path) -> Table:
    """All experiments of a study, one below the other. Values are × 100: mean ± half the 95% t interval."""
    points = finished(load_points(folder))
    page = Table.grid()
    for experiment in in_order(points["experiment"]):
        page.add_row(f"[bold]{experiment_name(experiment)}[/bold]")
        for table in fold(grid(points, experiment)):
            page.add_row(table)
    page.add_row(
        "[dim]× 100, mean ± half the width of its 95% t interval; no ± where one trial has finished[/dim]"
    )
    return page


def fold(whole: Grid) -> list[Table]:
    """Tables of at most so many columns each, as even as they can be: 13 become 7 and 6."""
    pieces = math.ceil(len(whole.columns) / MOST_COLUMNS)
    share = math.ceil(len(whole.columns) / pieces)
    return [_table(whole, slice(i * share, (i + 1) * share)) for i in range(pieces)]


def _table(whole: Grid, chosen: slice) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in whole.heads:
        numeric = head == "examples"
        table.add_column(
            head, justify="right" if numeric else "left", max_width=16, overflow="fold", no_wrap=numeric
        )
    for column in whole.columns[chosen]:
        table.add_column(column, justify="right", no_wrap=True)
    previous: tuple[str, ...] = ()
    for row in whole.rows:
        shown = tuple(
            "" if head == before else head for head, before in zip(row.heads, previous, strict=False)
        )
        repeated = 0 if not previous or row.heads[0] != previous[0] else 1
        heads = (*shown[:repeated], *row.heads[repeated:])
        table.add_row(*(_escape(head) for head in heads), *(_text(cell) for cell in row.cells[chosen]))
        previous = row.heads
    return table


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "[dim]·[/dim]"
    mean = f"{100 * cell.mean:.1f}"
    return mean if math.isnan(cell.half_width) else f"{mean} [dim]±{100 * cell.half_width:.1f}[/dim]"


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
