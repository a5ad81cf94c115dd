"""Tables in the terminal: the right numbers, within the width, folded where the model is deep."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from synthetic_results import incremental, lifelike, localized, write_results

from carryover.analysis.frame import finished, load_points
from carryover.analysis.intervals import t_interval
from carryover.report.tables import grid, summary
from carryover.report.terminal import summary_table


def show(folder, width=100):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(summary_table(folder))
    return console.export_text()


@pytest.mark.parametrize(("depth", "headers"), [(6, 1), (12, 2), (24, 4)])
def test_fits_in_a_hundred_columns(tmp_path, depth, headers):
    made = incremental(("builtin:question-answer", "CoLA"), (500, 50000), 3, depth)
    text = show(write_results(tmp_path, made, lifelike(depth), depth=depth))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert "…" not in text
    assert text.count("examples") == headers
    shown = [int(k) for line in text.splitlines() if "examples" in line for k in re.findall(r"\d+", line)]
    assert shown == list(range(depth + 1))


def test_cells_are_mean_and_half_width_times_100(tmp_path):
    folder = write_results(
        tmp_path, incremental(ks=(0, 6)), lambda p: None if p.x and p.trial.seed else 0.5 + p.trial.seed / 10
    )
    half = 100 * t_interval([0.5, 0.6, 0.7]).half_width
    row = next(line for line in show(folder).splitlines() if "SST-2" in line)
    assert row.split() == ["SST-2", "500", "60.0", f"±{half:.1f}", "50.0"]


def test_baselines_come_first_and_conditions_have_rows(tmp_path):
    points = finished(load_points(write_results(tmp_path, localized(), lifelike(6))))
    table = grid(points, "localized")
    assert table.columns == ("all", "none", "1", "2", "3", "4")
    assert table.heads == ("task", "examples", "condition")
    assert [row.heads[2] for row in table.rows] == ["block re-initialised", "block preserved"]
    assert table.rows[0].cells[0] == table.rows[1].cells[0]


def test_grid_and_summary_agree(tmp_path):
    made = incremental(("SST-2", "CoLA"), recipes=("as_described", "bert_init"))
    points = finished(load_points(write_results(tmp_path, made, lifelike(6))))
    rows = summary(points)
    cells = [cell for row in grid(points, "incremental").rows for cell in row.cells]
    assert len(cells) == len(rows) == 2 * 2 * 7
    assert sorted(cell.mean for cell in cells) == pytest.approx(sorted(rows["mean"]))


def test_names_with_brackets_are_not_markup(tmp_path):
    assert "[bold]task" in show(write_results(tmp_path, incremental(("[bold]task",)), lifelike(6)))
