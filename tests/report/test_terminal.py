"""Tables in the terminal: the right numbers, within the width, folded where the model is deep."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from synthetic_results import incremental, lifelike, localized, single_layer, write_results

from whichlayers.analysis.intervals import t_interval
from whichlayers.plots.tooltips import point_lines
from whichlayers.report.build import write_report
from whichlayers.report.tables import summary, summary_grid
from whichlayers.report.terminal import summary_table
from whichlayers.results.frames import finished, load_points
from whichlayers.text import format_score


def show(folder, width=100):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(summary_table(folder))
    return console.export_text()


def test_the_metric_is_named(tmp_path):
    same, different = (
        show(write_results(tmp_path / tasks[-1], incremental(tasks, (500,), 2), lifelike(6)), width=140)
        for tasks in (("SST-2", "QNLI"), ("SST-2", "CoLA"))
    )
    assert "pretrained layers kept (k); accuracy × 100" in same
    assert "SST-2 accuracy, CoLA Matthews correlation × 100" in different


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("depth", [6, 12, 24])
def test_folds_to_the_width_and_truncates_nothing(tmp_path, depth, width):
    tasks = ("builtin:question-answer", "CoLA")
    folder = write_results(tmp_path, incremental(tasks, (500, 50000), 3, depth), lifelike(depth), depth=depth)
    text = show(folder, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    pieces = text.count("examples")
    assert (
        pieces
        <= {80: {6: 2, 12: 3, 24: 6}, 100: {6: 2, 12: 3, 24: 5}, 120: {6: 1, 12: 2, 24: 4}}[width][depth]
    )
    for task in ("question-answer", "CoLA"):
        assert sum(line.startswith(task) for line in text.splitlines()) == pieces
    heads = [line.split()[2:] for line in text.splitlines() if "examples" in line]
    assert [int(k) for ks in heads for k in ks] == list(range(depth + 1))
    assert max(map(len, heads)) - min(map(len, heads)) <= 1
    points = finished(load_points(folder))
    expected = sorted(map(format_score, summary(points)["mean"]))
    assert sorted(re.findall(r"(−?\d+\.\d) ±", text)) == expected


def test_long_label_columns_become_narrow_before_a_number_is_truncated(tmp_path):
    tasks = ("a-task-with-a-name-that-never-ends", "CoLA")
    study_points = incremental(tasks, (500,), 3, recipes=("as_described", "bert_init")) + localized()
    folder = write_results(tmp_path, study_points, lifelike(6))
    for width in (40, 60, 80):
        text = show(folder, width)
        assert max(map(len, text.splitlines())) <= width
        means = summary(finished(load_points(folder)))
        counted = means[means["experiment"] == "incremental"]
        found = re.findall(r"−?\d+\.\d ±", text.partition("Localized")[0])
        assert len(found) == len(counted)
        assert "".join(re.findall(r"a-task[\w-]*", text)[:1]).startswith("a-task")


def test_words_of_headers_and_labels_are_not_broken(tmp_path):
    study_points = localized(tasks=("SST-2", "QNLI"), size=500)
    study_points += [
        replace(p, condition="re-initialized") for p in study_points if p.condition == "block preserved"
    ]
    folder = write_results(tmp_path, study_points, lifelike(6))
    for width in (60, 70, 80):
        text = show(folder, width)
        assert max(map(len, text.splitlines())) <= width
        words = set(text.split())
        assert {"condition", "re-initialized", "preserved"} <= words


def test_cells_are_mean_and_half_width_times_100(tmp_path):
    def score(p):
        spread = {0: 0.02, 3: 0.2, 6: 0.0}[int(p.x)]
        return None if p.x == 6 and p.trial.seed else 0.5 + spread * p.trial.seed

    lines = show(write_results(tmp_path, incremental(ks=(0, 3, 6)), score)).splitlines()
    row = next(line for line in lines if "SST-2" in line)
    small, large = (100 * t_interval([0.5, 0.5 + d, 0.5 + 2 * d]).half_width for d in (0.02, 0.2))
    assert small < 10 < large
    assert row.split() == ["SST-2", "500", "52.0", f"±{small:.1f}", "70.0", f"±{large:.0f}", "50.0"]


def test_compression_is_not_a_fraction_and_corpora_are_not_tasks(tmp_path):
    from synthetic_words import forgetting, word_points

    study_points = word_points(("bert-base-uncased",), ("SST-2",), ("UD-EWT:xpos",), depth=6)
    folder = write_results(tmp_path, study_points, forgetting(6), depth=6)
    points = finished(load_points(folder))
    _, _, text = show(folder).partition("Description length")
    means = points[points["experiment"] == "description_length"].groupby(["condition", "x"])["value"].mean()
    for mean in means:
        assert f"{mean:.2f}" in text
        assert f"{100 * mean:.1f}" not in text
    assert "how many times shorter than a uniform code" in text
    assert "corpus" in text
    assert "task" not in text
    assert not summary_grid(points, "description_length").in_points
    assert summary_grid(points, "neurons").in_points
    pretrained = [r for r in summary_grid(points, "word_probing").rows if r.labels[-1] == "pretrained"]
    assert [row.labels[1] for row in pretrained] == ["–"]


def test_baselines_come_first_and_conditions_have_rows(tmp_path):
    points = finished(load_points(write_results(tmp_path, localized(), lifelike(6))))
    table = summary_grid(points, "localized")
    assert table.columns == ("all", "none", "1", "2", "3", "4")
    assert table.label_columns == ("task", "examples", "condition")
    assert [row.labels[2] for row in table.rows] == ["block re-initialized", "block preserved"]
    assert table.rows[0].cells[0] == table.rows[1].cells[0]


def test_grid_and_summary_agree(tmp_path):
    study_points = incremental(("SST-2", "CoLA"), recipes=("as_described", "bert_init"))
    points = finished(load_points(write_results(tmp_path, study_points, lifelike(6))))
    rows = summary(points)
    cells = [cell for row in summary_grid(points, "incremental").rows for cell in row.cells]
    assert len(cells) == len(rows) == 2 * 2 * 7
    assert sorted(cell.mean for cell in cells) == pytest.approx(sorted(rows["mean"]))


def test_names_with_brackets_are_not_markup(tmp_path):
    assert "[bold]task" in show(write_results(tmp_path, incremental(("[bold]task",)), lifelike(6)))


@pytest.mark.parametrize(("spread", "expected"), [(0.3, True), (0.01, False)])
def test_intervals_beyond_the_possible_scores_are_pointed_out(tmp_path, spread, expected):
    """A t interval of two trials ends 12.7 standard errors from the mean, here above 100 points or below 0."""
    study_points = incremental(trials=2, ks=(0, 6)) + single_layer(trials=2, size=500)
    folder = write_results(
        tmp_path, study_points, lambda p: 0.6 + spread * p.trial.seed + 0.1 * (not p.trial.surgery.reinit)
    )
    points = finished(load_points(folder))
    note, inline = "Some t intervals extend beyond the possible values", "beyond the possible values"
    assert (note in show(folder)) == expected
    assert (note in summary_grid(points, "incremental").note) == expected
    assert (note in summary_grid(points, "single_layer").note) == expected
    page = write_report(folder).read_text(encoding="utf-8")
    assert page.count(note) >= 3 * expected
    assert (inline in page) == expected
    lines = point_lines("k = 6", "accuracy", 0.9, (-0.2, 1.4), "95% interval", 0.1, 2)
    assert "95% interval: −20.0 to 140.0, beyond the possible values" in lines
    lines = point_lines("k = 6", "difference in accuracy", 0.1, (-1.2, 1.4), "95% interval", 0.1, 2)
    assert "95% interval: −120.0 to 140.0, beyond the possible differences" in lines
