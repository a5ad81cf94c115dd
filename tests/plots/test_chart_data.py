"""Charts for the page hold what the figure files show: shifts, ranges, ticks and legend entries."""

from __future__ import annotations

import pytest
from synthetic_results import incremental, lifelike, permutation, write_results

from whichlayers.plots.artists import trial_offsets
from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.figures import draw
from whichlayers.results.frames import finished, load_points


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    study_points = incremental(("SST-2", "CoLA"), (500, 5000), 4) + permutation(permutations=5)
    return finished(load_points(write_results(tmp_path_factory.mktemp("charts"), study_points, lifelike(6))))


def test_positions_are_those_of_the_figure(points):
    figure = draw(points, "incremental")
    chart = chart_of(figure, "incremental", "", "")
    axes = figure.panels[0].axes
    lines = [line for line in axes.lines if line.get_marker() in ("o", "s")]
    marks = [mark for mark in chart["marks"] if mark["kind"] == "line" and mark["panel"] == 0]
    for line, mark in zip(lines, marks, strict=True):
        assert [row[0] + mark["shift"] for row in mark["rows"]] == pytest.approx(list(line.get_xdata()))
    dots = [line for line in axes.lines if line.get_marker() == "."]
    for line, mark in zip(dots, marks, strict=True):
        drawn = [x + mark["offsets"][seed] for x, seed, _ in mark["trials"]]
        assert drawn == pytest.approx(list(line.get_xdata()), abs=1e-3)


def test_ranges_and_ticks_are_those_of_the_figure_and_include_hidden_results(points):
    figure = draw(points, "incremental")
    for panel, data in zip(figure.panels, chart_of(figure, "incremental", "", "")["panels"], strict=True):
        low, high = panel.axes.get_ylim()
        plain, _, published, _ = data["scales"]
        assert plain["range"] == pytest.approx([low, high], rel=1e-5)
        ticks = [tick for tick in panel.axes.get_yticks() if low <= tick <= high]
        assert [tick for tick, _ in plain["ticks"]] == pytest.approx(ticks)
        texts = panel.axes.yaxis.get_major_formatter().format_ticks(ticks)
        assert [text for _, text in plain["ticks"]] == texts
        values = [v for mark in panel.marks if mark.kind == "published" for v in mark.table["mean"]]
        assert values
        assert (published or plain)["range"][0] <= min(values)
        assert (published or plain)["range"][1] >= max(values)


def test_published_results_share_one_neutral_legend_entry(points):
    chart = chart_of(draw(points, "incremental"), "incremental", "", "")
    labels = [entry["label"] for entry in chart["legend"]]
    assert labels == [
        "500 examples",
        "5,000 examples",
        "published: Tamkin et al. 2020 (same color as its curve)",
    ]
    listed = sorted(index for entry in chart["legend"] for index in entry["marks"])
    assert listed == list(range(len(chart["marks"])))
    assert chart["legend"][-1]["color"] not in [entry["color"] for entry in chart["legend"][:-1]]


def test_a_single_curve_is_named_by_its_size_as_in_the_files(points):
    one = draw(points[points["train_size"] == 500], "incremental")
    labels = [entry["label"] for entry in chart_of(one, "incremental", "", "")["legend"]]
    assert labels[0] == "500 examples"
    assert "mean" not in labels


def test_single_trials_are_shown_if_they_are_few(points):
    figure = draw(points, "incremental")
    assert chart_of(figure, "incremental", "", "")["trials"] is True
    figure.show_trials = False
    assert chart_of(figure, "incremental", "", "")["trials"] is False
    one = draw(points[points["seed"] == 0], "incremental")
    assert chart_of(one, "incremental", "", "")["trials"] is False


def test_offsets_are_distinct_and_within_their_width():
    offsets = trial_offsets(range(50), 0.3, 0.2)
    assert len(set(offsets.values())) == 50
    assert min(offsets.values()) >= 0.2
    assert max(offsets.values()) <= 0.4
    assert trial_offsets([7], 0.3, 0.2)[7] == offsets[7]
