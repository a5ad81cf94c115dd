"""Main figures show the numbers of the analysis, and legends do not cover the data."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.markers import CARETDOWN, CARETUP
from synthetic_results import (
    incremental,
    keeping,
    lifelike,
    localized,
    permutation,
    prune,
    single_layer,
    trial,
    write_results,
)

from whichlayers.analysis.intervals import t_interval
from whichlayers.plots.captions import caption, clipped_caption, guess_caption
from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.facets import panel_columns
from whichlayers.plots.figures import draw, save
from whichlayers.plots.style import DARK, LIGHT
from whichlayers.results.frames import finished, load_points
from whichlayers.trial import Point, Surgery, Training


def read(folder, study_points, score=None, depth=6):
    return finished(load_points(write_results(folder, study_points, score or lifelike(depth), depth=depth)))


def lines_with(axes, marker):
    return [line for line in axes.lines if line.get_marker() == marker and len(line.get_xdata())]


def test_incremental_line_is_the_mean_and_its_bar_the_t_interval(tmp_path):
    points = read(tmp_path, incremental())
    figure = draw(points, "incremental")
    (axes,) = figure.axes
    (line,) = lines_with(axes, "o")
    assert list(line.get_xdata()) == list(range(7))
    expected = [t_interval(points.loc[points.x == k, "value"]) for k in range(7)]
    assert line.get_ydata() == pytest.approx([i.mean for i in expected])
    (bars,) = axes.collections
    drawn = [tuple(segment[:, 1]) for segment in bars.get_segments()]
    assert np.array(drawn) == pytest.approx(np.array([(i.low, i.high) for i in expected]))
    assert axes.get_ylabel() == "accuracy × 100"
    assert axes.yaxis.get_major_formatter().format_ticks([0.55, 0.6]) == ["55", "60"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list("0123456")
    assert len(lines_with(axes, ".")[0].get_xdata()) == 21  # every trial, since they are few
    assert figure.get_suptitle() == ""


def test_many_trials_are_not_drawn_one_by_one_and_one_trial_has_no_bar(tmp_path):
    many = draw(read(tmp_path / "many", incremental(trials=11, ks=(0, 6))), "incremental")
    assert lines_with(many.axes[0], ".") == []
    one = draw(read(tmp_path / "one", incremental(trials=1)), "incremental")
    assert all(len(bars.get_segments()) == 0 for bars in one.axes[0].collections)


def test_unfinished_cells_are_absent_and_do_not_break_the_figure(tmp_path):
    def score(p):
        return None if p.x in (2, 3) or p.trial.task == "CoLA" else lifelike(6)(p)

    figure = draw(read(tmp_path, incremental(("SST-2", "CoLA")), score), "incremental")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["SST-2"]
    assert lines_with(figure.axes[0], "o")[0].get_xdata() == pytest.approx([0, 1, 4, 5, 6])


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
def test_up_to_twelve_tasks_fill_their_rows_well(tasks):
    columns = panel_columns(tasks)
    rows = -(-tasks // columns)
    assert columns <= 4
    assert rows * columns - tasks < columns


def test_legend_and_panels_do_not_overlap(tmp_path):
    study_points = incremental(
        [f"task {i}" for i in range(5)], (500, 5000), 2, recipes=("as_described", "as_released")
    )
    figure = draw(read(tmp_path, study_points), "incremental")
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    (legend,) = figure.legends
    covered = legend.get_window_extent(renderer)
    assert all(axes.get_tightbbox(renderer).y0 >= covered.y1 - 1 for axes in figure.axes)
    assert covered.x0 >= 0
    assert covered.x1 <= figure.bbox.x1


def test_variants_differ_by_line_and_marker_and_models_have_rows(tmp_path):
    study_points = incremental(
        sizes=(500, 5000), recipes=("as_described", "bert_init"), models=("one", "two")
    )
    figure = draw(read(tmp_path, study_points), "incremental")
    assert len(figure.axes) == 2
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    curves = lines_with(figure.axes[0], "o") + lines_with(figure.axes[0], "s")
    assert len(curves) == 4
    assert len({line.get_color() for line in curves}) == 2
    assert len({line.get_linestyle() for line in curves}) == 2
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["500 examples", "5,000 examples", "as_described", "bert_init", "one trial"]


def test_an_interval_of_two_wild_trials_does_not_flatten_the_curve(tmp_path):
    points = read(
        tmp_path, incremental(trials=2), lambda p: 0.7 + 0.01 * p.x + 0.05 * p.trial.seed * (p.x == 3)
    )
    figure = draw(points, "incremental")
    low, high = figure.axes[0].get_ylim()
    assert high - low < 0.35
    (up,), (down,) = (lines_with(figure.axes[0], marker) for marker in (CARETUP, CARETDOWN))
    assert (list(up.get_xdata()), list(up.get_ydata())) == ([3], [high])  # arrowheads at the edges
    assert (list(down.get_xdata()), list(down.get_ydata())) == ([3], [low])
    assert "arrowhead" in clipped_caption(figure)
    assert "arrowhead" not in caption(points, "incremental")


def test_intervals_inside_the_panel_have_no_arrowheads(tmp_path):
    figure = draw(read(tmp_path, incremental(trials=5)), "incremental")
    assert lines_with(figure.axes[0], CARETUP) == lines_with(figure.axes[0], CARETDOWN) == []
    assert clipped_caption(figure) == ""


def luminance(color):
    return np.dot([int(color[i : i + 2], 16) for i in (1, 3, 5)], [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_sizes_go_from_light_to_dark_and_the_other_way_on_a_dark_page(n):
    light, dark = [luminance(c) for c in LIGHT.sizes(n)], [luminance(c) for c in DARK.sizes(n)]
    assert light == sorted(light, reverse=True)
    assert dark == sorted(dark)
    assert len(set(LIGHT.sizes(n))) == n


@pytest.mark.parametrize(
    ("make", "experiment", "curves"),
    [(localized, "localized", 2), (single_layer, "single_layer", 1), (prune, "prune", 2)],
)
def test_conditions_are_drawn_between_their_baselines(tmp_path, make, experiment, curves):
    points = read(tmp_path, make(("SST-2", "CoLA")))
    figure = draw(points, experiment)
    assert len(figure.axes) == 2
    axes = figure.axes[0]
    drawn = lines_with(axes, "o") + lines_with(axes, "s")
    assert len(drawn) == curves
    means = points[points.task == "SST-2"].groupby(["condition"])["value"].mean()
    level = [line.get_ydata()[0] for line in axes.lines if line.get_marker() in ("None", "", None)]
    assert means["all pretrained"] == pytest.approx(
        min(level, key=lambda y: abs(y - means["all pretrained"]))
    )


def test_permutations_are_circles_with_the_mean_over_permutations(tmp_path):
    points = read(tmp_path, permutation(trials=2))
    axes = draw(points, "permutation").axes[0]
    circles = next(line for line in axes.lines if line.get_marker() == "o")
    each = points[points.condition == "permuted"].groupby("x")["value"].mean()
    assert sorted(circles.get_ydata()) == pytest.approx(sorted(each))
    middle = next(line for line in axes.lines if line.get_marker() == "D")
    assert middle.get_ydata() == pytest.approx([each.mean()])


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ((0.7,), False),
        ((0.7, 0.8), False),
        ((0.7,) * 10, False),
        ((0.5, 0.6, 0.7, 0.8), False),
        ((0.5, 0.5, 0.6, 0.7, 0.8), True),
    ],
)
def test_few_or_equal_permutations_have_no_density(tmp_path, values, shape):
    study_points = permutation(permutations=len(values))
    points = read(
        tmp_path, study_points, lambda p: values[int(p.x) - 1] if p.condition == "permuted" else 0.9
    )
    (panel,) = draw(points, "permutation").panels
    (strip,) = [mark for mark in panel.marks if mark.kind == "strip"]
    assert bool(strip.outline) == shape
    text = caption(points, "permutation")
    assert ("density" in text) == (len(values) >= 5)
    heights = [height for _, height in strip.outline]
    assert not heights or (min(heights), max(heights)) == (min(values), max(values))
    assert ("permutations with the same score" in text) == (len(set(values)) < len(values))


def test_single_trials_are_next_to_their_own_bar_however_few_x_there_are(tmp_path):
    (panel,) = draw(read(tmp_path, prune(counts=(3,))), "prune").panels
    low, high = panel.axes.get_xlim()
    means = [line.get_xdata()[0] for line in lines_with(panel.axes, "o") + lines_with(panel.axes, "s")]
    dots = [line.get_xdata()[0] for line in lines_with(panel.axes, ".")]
    for mean, dot in zip(means, dots, strict=True):
        assert 0 < dot - mean < 0.04 * (high - low)
        assert min(means, key=lambda other: abs(other - dot + 1e-9)) == mean


def test_curves_stay_near_their_x_where_steps_are_small(tmp_path):
    factors = (0.7, 0.8, 0.9)
    study_points = [
        Point("lr_decay", condition, x, trial(seed=seed, surgery=keeping(kept, 6), training=training))
        for kept, condition in ((6, ""), (5, "top 1 reinitialized"))
        for x in factors
        for training in [Training(lr_factors=((0, x),))]
        for seed in range(2)
    ]
    (panel,) = draw(read(tmp_path, study_points), "lr_decay").panels
    assert [mark.kind for mark in panel.marks] == ["line", "line"]
    for mark in panel.marks:
        assert mark.shift
        assert max(map(abs, [mark.shift, *mark.offsets.values()])) < 0.02  # a fifth of a step


def test_the_caption_names_the_baselines_that_are_drawn(tmp_path):
    points = read(tmp_path, prune() + localized())
    assert "The dashed line shows the model with all of its layers pretrained, with its 95%" in caption(
        points, "prune"
    )
    assert "Dashed lines show the model with all or none of its layers" in caption(points, "localized")


def test_listed_drops_of_the_same_size_stay_apart(tmp_path):

    study_points = [Point("prune", "all pretrained", 0, trial())]
    kept = {"listed 3,4": (1, 2), "listed 1,2": (3, 4)}
    study_points += [Point("prune", name, 2, trial(surgery=Surgery(order=o))) for name, o in kept.items()]
    points = read(tmp_path, study_points, lambda p: 0.5, depth=4)
    assert set(points.condition) == {"all pretrained", "without 3, 4", "without 1, 2"}
    assert len(lines_with(draw(points, "prune").axes[0], "o")) == 1


def test_saved_in_three_formats_and_the_same_each_time(tmp_path):
    points = read(tmp_path, incremental())
    first = save(draw(points, "incremental"), tmp_path / "a", "incremental")
    second = save(draw(points, "incremental"), tmp_path / "b", "incremental")
    assert [path.suffix for path in first] == [".png", ".svg", ".pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_only_the_first_of_many_variants_is_in_the_main_figure(tmp_path):
    """Two recipes share one figure; with three it shows the first, and the caption says where the others are."""
    two, three = (
        read(tmp_path / str(len(recipes)), incremental(("SST-2",), (500,), 2, recipes=recipes))
        for recipes in (("as_described", "as_released"), ("as_described", "as_released", "bert_init"))
    )
    counts = [
        sum(mark.kind == "line" for mark in draw(points, "incremental").panels[0].marks)
        for points in (two, three)
    ]
    assert counts == [2, 1]
    assert "the figures below compare other settings" in caption(three, "incremental")
    assert "other settings" not in caption(two, "incremental")


# --- guessing ---


def guess_lines(axes):
    return [line.get_ydata()[0] for line in axes.lines if _is_dotted(line)]


def _is_dotted(line):
    return line.get_color() == LIGHT.muted and line.get_linewidth() == 1.2 and len(line.get_ydata()) == 2


@pytest.mark.parametrize(
    ("experiment", "study_points"),
    [("incremental", incremental), ("localized", localized), ("permutation", permutation), ("prune", prune)],
)
def test_guessing_is_a_line_with_a_legend_entry_and_in_the_caption(tmp_path, experiment, study_points):
    folder = write_results(
        tmp_path, study_points(tasks=("SST-2", "QNLI")), lifelike(6), guess={"SST-2": 0.509}
    )
    figure = draw(finished(load_points(folder)), experiment)
    sst, qnli = figure.axes
    assert guess_lines(sst) == [0.509]
    assert guess_lines(qnli) == []  # not known
    low, high = sst.get_ylim()
    assert low < 0.509 < high
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()].count("guessing") == 1
    assert guess_caption(figure) == (
        "The dotted line is guessing: always predicting the most frequent class of the training data; in the other"
        " panels it is far below the curves, or not known."
    )
    chart = chart_of(figure, experiment, "", "")
    (mark,) = [mark for mark in chart["marks"] if mark["label"] == "guessing"]
    assert (mark["panel"], mark["kind"], mark["rows"][0][1]) == (0, "level", 0.509)
    assert mark["tooltip"]["lines"] == [["mean accuracy: 50.9"]]


def test_guessing_far_below_the_curves_is_not_drawn(tmp_path):
    folder = write_results(tmp_path, incremental(), lambda p: 0.9 + 0.01 * p.x, guess={"SST-2": 0.83})
    figure = draw(finished(load_points(folder)), "incremental")
    assert guess_lines(figure.axes[0]) == []
    assert guess_caption(figure) == ""
    folder = write_results(
        tmp_path / "near", incremental(), lambda p: 0.9 + 0.01 * p.x, guess={"SST-2": 0.85}
    )
    figure = draw(finished(load_points(folder)), "incremental")
    assert guess_lines(figure.axes[0]) == [0.85]
    assert guess_caption(figure).endswith("of the training data.")
