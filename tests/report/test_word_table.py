"""Columns of tables in the terminal become narrower between words; lines in pipes are whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.padding import Padding

from whichlayers.cli import format as cli_format
from whichlayers.cli.format import console, make_table
from whichlayers.report.word_table import shrink

ROWS = [("re-initialized layers 1 and 2", "−12.3"), ("all layers pretrained and nothing else", "+4.5")]


def table():
    found = make_table("condition", "difference", "result", right=("difference",))
    for name, number in ROWS:
        found.add_row(name, number, "not shown to be equivalent")
    return found


def show(width, renderable=None):
    out = Console(width=width, record=True, file=io.StringIO())
    out.print(renderable or table())
    return out.export_text()


@pytest.mark.parametrize("width", [40, 45, 60, 80])
def test_words_are_whole_and_the_width_is_kept(width):
    text = show(width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    words = {"condition", "difference", "result", "equivalent", "−12.3", "+4.5"}
    assert words.union(*(name.split() for name, _ in ROWS)) <= set(text.split())


def test_numbers_are_whole_where_nothing_fits(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    buffer = io.StringIO()
    out = console()
    out.file = buffer
    out.print(table())
    assert {"−12.3", "+4.5", "difference"} <= set(buffer.getvalue().split())


def test_the_same_table_can_be_shown_at_several_widths():
    one = table()
    narrow, wide = show(45, one), show(200, one)
    assert len(narrow.splitlines()) > len(wide.splitlines()) == 3


def test_shrink_takes_from_the_widest_first():
    assert shrink([10, 4, 8], [2, 4, 2], 5) == [6, 4, 7]
    assert shrink([5, 4], [5, 3], 9) == [5, 3]


def test_lines_in_a_pipe_are_neither_broken_nor_padded(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    buffer, out = io.StringIO(), console()
    out.file = buffer
    assert out.is_piped
    out.print(Padding(table(), (0, 0, 0, 4)))
    out.print("word " * 100 + "end")
    lines = buffer.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[1].split("  ")[2:4] == [ROWS[0][0], ""]
    assert lines[3] == "word " * 100 + "end"
    assert not any(line.endswith(" ") for line in lines)
    assert max(map(len, lines)) < cli_format.UNBROKEN
