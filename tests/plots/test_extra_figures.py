"""Further figures exist if their data do, for any number of tasks, with missing points and with single trials."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
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
from synthetic_words import word_points

from whichlayers.experiments import sort_experiments
from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.extra_figures import extra_figures
from whichlayers.plots.figures import draw
from whichlayers.plots.published_overlay import overlay_caption
from whichlayers.plots.style import DARK
from whichlayers.plots.weight_change import MAX_RANGES, scaled_ranges
from whichlayers.results.frames import finished, load_baseline_weight_change, load_epochs, load_points
from whichlayers.trial import Point, Training

TASKS = ("SST-2", "CoLA", "QNLI", "MRPC", "RTE")


def probing(tasks=("SST-2",), trials=2, depth=6):
    from whichlayers.trial import Probe

    return [
        Point("probing", "", k, trial(task, 9000, seed, probe=Probe(k)))
        for task in tasks
        for k in range(1, depth + 1)
        for seed in range(trials)
    ]


def in_settings(depth=6, trials=2):
    """5 times the learning rate, and kept layer norms, next to the defaults; two recipes."""
    points = incremental(sizes=(5000,), trials=trials, depth=depth, recipes=("as_described", "as_released"))
    for k in range(depth):
        factors = tuple((n, 5.0) for n in range(k + 1, depth + 1))
        for seed in range(trials):
            plain = trial(size=5000, seed=seed, surgery=keeping(k, depth))
            kept = dataclasses.replace(plain, surgery=keeping(k, depth, keep_layer_norm=True))
            faster = dataclasses.replace(plain, training=Training(lr_factors=factors))
            points += [Point("incremental", "", k, t) for t in (kept, faster)]
    return points


def everything(folder, study_points, score=None, **options):
    write_results(folder, study_points, score or lifelike(6), **options)
    points = finished(load_points(folder))
    return points, extra_figures(
        points, load_epochs(folder), load_baseline_weight_change(folder), overlay=True
    )


def lines(figure, marker=None):
    every = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata()) > 1]
    return [line for line in every if marker is None or line.get_marker() == marker]


@pytest.mark.parametrize(("tasks", "trials"), [(1, 1), (2, 2), (3, 1), (4, 1), (5, 1)])
def test_all_figures_render_for_one_to_five_tasks_with_holes(tmp_path, tasks, trials):
    names, rng = TASKS[:tasks], np.random.default_rng(tasks)
    study_points = incremental(names, (500,), trials, ks=(0, 3, 5, 6)) + localized(names, trials=trials)
    study_points += (
        single_layer(names[:1], trials=trials)
        + permutation(names, trials=trials, permutations=3)
        + probing(names[:1], trials)
    )

    def score(p):
        return None if rng.random() < 0.15 else lifelike(6)(p)

    points, further = everything(tmp_path, study_points, score, epochs=5, moved=lambda p, layer: float(layer))
    for experiment in sort_experiments(points["experiment"]):
        figure = draw(points, experiment, overlay=True)
        assert len(figure.axes) >= points.loc[points.experiment == experiment, "task"].nunique()
    several = {"tasks"} if len(set(names) - {"CoLA"}) > 1 else set()  # CoLA has a metric of its own
    spread = {"permutation_two_sd"} if trials > 1 else set()
    assert {one.key for one in further} == {"learning_curves", "weight_change"} | several | spread
    for figure_spec in further:
        assert figure_spec.draw().axes


def test_a_plain_study_has_no_further_figure(tmp_path):
    assert everything(tmp_path, incremental())[1] == []


def test_every_trial_is_a_point_and_the_dotted_line_their_mean(tmp_path):
    points, (figure_spec,) = everything(tmp_path, incremental(trials=12, ks=(0, 3, 6)))
    assert (figure_spec.key, figure_spec.title) == ("trials", "All trials, 500 examples")
    assert figure_spec.caption.startswith("Training sizes with more than 10 trials per point (500 examples)")
    assert [panel.subtitle for panel in figure_spec.draw().panels] == ["500 examples"]
    cloud, mean = lines(figure_spec.draw())
    assert len(cloud.get_xdata()) == 36
    assert mean.get_ydata() == pytest.approx(points.groupby("x")["value"].mean())


def test_settings_are_compared_one_at_a_time(tmp_path):
    points, further = everything(tmp_path, in_settings())
    found = {figure_spec.key: figure_spec.draw() for figure_spec in further}
    assert list(found) == ["recipes", "higher_lr", "layer_norm"]
    for figure in found.values():
        assert len(figure.axes) == 1
    labels = {key: [t.get_text() for t in figure.legends[0].get_texts()] for key, figure in found.items()}
    assert labels["recipes"][:2] == ["as_described", "as_released"]
    assert labels["higher_lr"][:2] == ["one lr for all layers", "re-initialized layers at 5× lr"]
    assert labels["layer_norm"][:2] == ["layer norms reset", "layer norms kept"]
    fast = points[
        (points.reinit_lr_factor == 5) & ~points.keep_layer_norm & (points.recipe == "as_described")
    ]
    (line,) = lines(found["higher_lr"], "s")
    assert line.get_ydata() == pytest.approx(fast.groupby("x")["value"].mean())


def test_epochs_show_both_ends_and_the_middle(tmp_path):
    points, (figure_spec,) = everything(tmp_path, incremental(sizes=(500, 5000)), epochs=10)
    figure = figure_spec.draw()
    assert len(figure.axes) == 4
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [f"{k} layers kept" for k in (0, 3, 6)]
    last = [line.get_ydata()[-1] for line in figure.axes[0].lines]
    chosen = points[(points.train_size == 500) & points.x.isin([0, 3, 6])]
    assert last == pytest.approx(chosen.groupby("x")["value"].mean().tolist())


def test_trials_evaluated_at_their_end_alone_have_no_curve_of_epochs(tmp_path):
    sizes = incremental(sizes=(500,)) + incremental(sizes=(5000,))
    folder = write_results(tmp_path, sizes, lifelike(6), epochs=10)
    points, epochs = finished(load_points(folder)), load_epochs(folder)
    small = points.loc[points["train_size"] == 500, "trial_id"]
    ends = epochs[(epochs["epoch"] == 10) | ~epochs["trial_id"].isin(small)]
    assert extra_figures(points, epochs[epochs["epoch"] == 10]) == []
    (figure_spec,) = extra_figures(points, ends)
    assert {panel.subtitle for panel in figure_spec.draw().panels} == {"5,000 examples"}
    for axes in figure_spec.draw().axes:
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_weight_change_is_that_of_whole_models(tmp_path):
    def moved(p, layer):
        return float(layer) if not p.trial.surgery.reinit else 99.0

    _, (figure_spec,) = everything(tmp_path, incremental(), moved=moved)
    (line,) = lines(figure_spec.draw(), "o")
    assert line.get_ydata() == pytest.approx([1, 2, 3, 4, 5, 6])


def test_scaled_weight_change_has_the_published_curve(tmp_path):
    """Singh & Giovanardi, Figure 3: the spectral norm, each curve from 0 to 1; the published one is for all of CoLA."""
    points, _ = everything(tmp_path, incremental(("SST-2", "CoLA"), (5000,)), train_rows=5000)
    rows = [
        (trial, f"layer.{layer}.output.dense.weight", layer, kind, 2.0 + layer)
        for trial in points["trial_id"]
        for layer in range(1, 7)
        for kind in ("frobenius", "spectral")
    ]
    weights = pd.DataFrame(rows, columns=["trial_id", "name", "layer", "kind", "value"])
    found = {one.key: one for one in extra_figures(points, None, weights, overlay=True)}
    figure = found["weight_change_scaled"].draw()
    lines_drawn = [mark for panel in figure.panels for mark in panel.marks if mark.kind == "line"]
    assert all(
        mark.table["mean"].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1]) for mark in lines_drawn
    )
    for panel in figure.panels:
        low, high = panel.axes.get_ylim()
        assert low <= 0 < 1 <= high  # the whole range is shown
    caption = found["weight_change_scaled"].caption
    assert "0 to 1 is 3 to 8 (SST-2, 5,000 examples) and 3 to 8 (CoLA, 5,000 examples)" in caption
    published = {
        p.task: m.table["mean"].max() for p in figure.panels for m in p.marks if m.kind == "published"
    }
    assert published == {"CoLA": 1.0}
    assert any("published" in text.get_text() for text in figure.legends[0].get_texts())


@pytest.mark.parametrize("curves", [1, MAX_RANGES + 1])
def test_ranges_of_single_trials_are_no_means(curves):
    rows = [("m", "SST-2", size, "", seed, 2.0) for size in range(100, 100 + curves) for seed in (0, 1)]
    moved = pd.DataFrame(rows, columns=["model", "task", "train_size", "variant", "seed", "value"])
    assert "means over trials" in scaled_ranges(moved)
    assert "means over trials" not in scaled_ranges(moved[moved["seed"] == 0])


def test_shares_of_training_sets_of_several_sizes_have_a_figure(tmp_path):
    points, _ = everything(tmp_path, incremental(("SST-2", "CoLA"), (500, 5000)), train_rows=5000)
    points.loc[points.task == "CoLA", ["train_size", "train_rows"]] *= 2
    (figure_spec,) = extra_figures(points)
    assert [t.get_text() for t in figure_spec.draw().legends[0].get_texts()][:2] == [
        "10% of the data",
        "100% of the data",
    ]


def test_probes_are_a_dashed_line_next_to_the_curves(tmp_path):
    points, _ = everything(tmp_path, incremental() + probing())
    figure = draw(points, "incremental")
    (line,) = lines(figure, "D")
    assert list(line.get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert "linear probe of layer k, frozen model" in [t.get_text() for t in figure.legends[0].get_texts()]


def test_of_probes_with_several_poolings_the_first_is_the_dashed_line(tmp_path):
    probes = [
        dataclasses.replace(
            p,
            condition=f"pooling {pooling}",
            trial=dataclasses.replace(p.trial, probe=dataclasses.replace(p.trial.probe, pooling=pooling)),
        )
        for pooling in ("mean", "summary")
        for p in probing()
    ]
    points, _ = everything(tmp_path, incremental() + probes)
    figure = draw(points, "incremental")
    assert len(lines(figure, "D")) == 1
    names = [t.get_text() for t in figure.legends[0].get_texts()]
    assert "linear probe of layer k, frozen model, pooling mean" in names


def test_published_curves_are_drawn_only_on_request_and_only_where_comparable(tmp_path):
    points, _ = everything(tmp_path, incremental(("SST-2", "builtin:sentiment"), (500, 900)))
    assert lines(draw(points, "incremental"), "x") == []
    with_published = draw(points, "incremental", DARK, overlay=True)
    (line,) = lines(with_published, "x")
    assert line.axes is with_published.axes[0]
    assert line.get_xdata() == pytest.approx(np.linspace(0, 6, 13))  # 12 layers on 6
    last = [t.get_text() for t in with_published.legends[0].get_texts()][-1]
    assert last == "published: Tamkin et al. 2020\n(same color as its curve)"
    assert "rescaled to the depth of this model" in overlay_caption(points, "incremental")
    assert overlay_caption(points[points.train_size == 900], "incremental") == ""
    draw(points.assign(train_rows=np.nan), "incremental", overlay=True)  # an old study may not know them


def test_one_size_in_several_variants_takes_colors_for_them(tmp_path):
    points, further = everything(tmp_path, incremental(recipes=("as_described", "bert_init")))
    assert "recipes" not in {figure_spec.key for figure_spec in further}  # this figure is that comparison
    figure = draw(points, "incremental")
    assert [t.get_text() for t in figure.legends[0].get_texts()][:2] == ["as_described", "bert_init"]
    assert len({line.get_color() for line in lines(figure) if line.get_marker() in "os"}) == 2


def test_two_recipes_at_two_sizes_are_compared_in_a_figure_of_their_own(tmp_path):
    _, further = everything(tmp_path, incremental(sizes=(500, 5000), recipes=("as_described", "bert_init")))
    assert "recipes" in {figure_spec.key for figure_spec in further}


@pytest.mark.parametrize(
    ("share", "whole"), [(1.0, 8551), (0.6, 104743), (10.0, 67349), (100.0, 2490), (25.0, 3668)]
)
def test_percentages_are_those_of_the_study_file(share, whole):
    from whichlayers.plots.curves import _percent_of_training_set

    assert _percent_of_training_set(int(share / 100 * whole), whole) == share
    assert _percent_of_training_set(round(share / 100 * whole), whole) == share


def test_the_sizes_of_a_weight_change_are_in_the_pages_legend_where_each_task_has_its_own(tmp_path):
    study_points = prune(("SST-2",), size=500) + prune(("CoLA",), size=900)
    _, further = everything(tmp_path, study_points, moved=lambda p, layer: layer + p.trial.seed)
    figure_spec = next(figure_spec for figure_spec in further if figure_spec.key == "weight_change")
    chart = chart_of(figure_spec.draw(), figure_spec.key, "", "")
    assert {mark["label"] for mark in chart["marks"]} == {"500 examples", "900 examples"}


def test_weight_change_is_in_the_section_of_the_measured_models(tmp_path):
    word_level = word_points(models=("bert-base-uncased",), corpora=("UD-EWT:xpos",), depth=6)
    points, _ = everything(tmp_path, word_level + prune(), lambda p: 0.9, moved=lambda p, layer: layer)
    pruned = points[points["experiment"] == "prune"]["trial_id"]
    weights = load_baseline_weight_change(tmp_path)
    further = extra_figures(points, None, weights[weights["trial_id"].isin(pruned)])
    assert {figure_spec.experiment for figure_spec in further if figure_spec.key == "weight_change"} == {
        "prune"
    }


def test_tasks_of_about_the_same_size_share_a_panel(tmp_path):
    study_points = incremental(("SST-2", "CoLA"), (673, 6735)) + incremental(("QNLI",), (628, 5000))
    points, further = everything(tmp_path, study_points)
    one = next(one for one in further if one.key == "tasks")
    figure = one.draw()
    (panel,) = figure.panels  # 6,735 and 5,000 are too far apart, and CoLA has another metric
    assert panel.task == "673 examples"
    for mark in panel.marks:
        task, size = mark.attributes["task"], mark.attributes["train_size"]
        rows = points[(points["task"] == task) & (points["train_size"] == size)]
        assert mark.table["mean"].tolist() == pytest.approx(rows.groupby("x")["value"].mean().tolist())
    assert [m.attributes["task"] for m in panel.marks] == ["SST-2", "QNLI"]
    chart = chart_of(figure, "tasks", "", "")
    assert [entry["label"] for entry in chart["legend"]][:2] == [
        "SST-2, 673 examples",
        "QNLI, 628 examples",
    ]
    assert "Figure 1c" in one.caption


def test_bands_of_two_standard_deviations_around_the_baselines(tmp_path):
    points, further = everything(
        tmp_path, permutation(trials=4), lambda p: lifelike(6)(p) + 0.01 * p.trial.seed
    )
    one = next(one for one in further if one.key == "permutation_two_sd")
    figure = one.draw()
    marks = {mark["kind"]: mark for mark in chart_of(figure, one.key, "", "")["marks"]}
    for kind, bounds in {"level": "two standard deviations of the trials", "strip": "95% interval"}.items():
        assert any(line.startswith(f"{bounds}: ") for line in marks[kind]["tooltip"]["lines"][0])
    assert marks["strip"]["trials"][0][3].startswith("permutation ")
    assert "mean ± 2 sd of trials" in [text.get_text() for text in figure.legends[0].get_texts()]
    bands = [c.get_paths()[0].get_extents() for c in figure.axes[0].collections if c.get_alpha() == 0.16]
    expected = []
    for condition in ("all pretrained", "none pretrained"):
        values = points.loc[points["condition"] == condition, "value"].to_numpy()
        expected.append((values.mean() - 2 * values.std(ddof=1), values.mean() + 2 * values.std(ddof=1)))
    assert [(b.y0, b.y1) for b in bands] == [pytest.approx(pair) for pair in expected]
    assert "two standard deviations" in one.caption


def test_no_bands_for_baselines_with_one_trial(tmp_path):
    _, further = everything(tmp_path, permutation(trials=1))
    assert "permutation_two_sd" not in {one.key for one in further}
