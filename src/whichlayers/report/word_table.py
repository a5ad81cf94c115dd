"""Tables for the terminal whose columns become narrower between words and not inside them."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table

LONGEST_WORD = 24  # longer ones, such as paths, may be broken
NARROWEST = 8  # width down to which words are broken if a table does not fit otherwise


class WordTable(Table):
    """A table that gives its columns of text the width of their longest word or more. Numbers are never broken.

    Where that is too wide for the terminal, words are broken after all, and as a last resort the lines are longer.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=10_000)
        measured = [_measure(console, unlimited, column) for column in self.columns]
        natural = [widths.maximum for widths in measured]
        borders = Measurement.get(console, unlimited, self).maximum - sum(natural)
        excess = sum(natural) + borders - options.max_width
        if excess > 0:
            for lowest in (LONGEST_WORD, NARROWEST):
                least = [
                    min(m.maximum, max(min(m.minimum, lowest), m.minimum if c.no_wrap else 0))
                    for m, c in zip(measured, self.columns, strict=True)
                ]
                widths = shrink(natural, least, excess)
                if sum(natural) - sum(widths) >= excess:
                    break
            for column, width in zip(self.columns, widths, strict=True):
                column.width = width
            options = options.update(max_width=max(options.max_width, sum(widths) + borders))
        try:
            yield from super().__rich_console__(console, options)
        finally:
            for column in self.columns:
                column.width = None


def shrink(widths: list[int], least: list[int], excess: int) -> list[int]:
    """Take `excess` from the widest columns first, as far as their least widths allow."""
    found = list(widths)
    for _ in range(excess):
        spare = [i for i, width in enumerate(found) if width > least[i]]
        if not spare:
            break
        found[max(spare, key=lambda i: found[i])] -= 1
    return found


def _measure(console: Console, options: ConsoleOptions, column: Column) -> Measurement:
    """The width of the longest word of a column and that of its longest line, without padding."""
    cells = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
    low, high = max(cell.minimum for cell in cells), max(cell.maximum for cell in cells)
    if column.max_width is not None:
        high = max(min(high, column.max_width), min(low, LONGEST_WORD))
    return Measurement(high if column.no_wrap else min(low, high), high)
