"""The published results load completely and match curves of the same task, metric and training size only."""

from __future__ import annotations

import numpy as np
import pytest

from whichlayers.analysis.published import (
    matching_published_curves,
    published_correlations,
    published_curves,
    published_neuron_fraction,
    published_pruning,
    published_tables,
    published_word_probing,
    same_size,
)
from whichlayers.analysis.published_settings import (
    published_data,
    published_penalty,
    published_settings,
    published_times,
)


def test_both_files_load_completely():
    curves, tables = published_curves(), published_tables()
    assert (len(curves), len(tables)) == (187, 195)
    assert (
        curves[["source", "experiment", "task", "train_size", "metric", "x", "value"]].notna().all(axis=None)
    )
    assert curves.x.between(0, 12).all()
    assert not curves.duplicated(["source", "experiment", "task", "train_size", "x"]).any()


def test_curves_match_by_task_metric_and_size():
    (curve,) = matching_published_curves("incremental", "SST-2", "accuracy", 50000, 67349)
    assert curve.source == "Tamkin et al. 2020"
    assert list(curve.x) == list(range(13))
    assert curve.values[12] == 0.924
    assert matching_published_curves("incremental", "SST-2", "mcc", 50000, 67349) == []
    assert matching_published_curves("incremental", "builtin:sentiment", "accuracy", 500, 2000) == []
    assert matching_published_curves("incremental", "SST-2", "accuracy", 400, 67349) == []


def test_sizes_may_be_percentages_of_the_training_set():
    (tenth,) = matching_published_curves("incremental", "QNLI", "accuracy", 10474, 104743)
    assert (tenth.source, tenth.size) == ("Singh & Giovanardi 2020", "10%")
    assert same_size("1%", 673, 67349)
    assert not same_size("1%", 800, 67349)
    assert not same_size("1%", 673, None)
    assert same_size("500", 500, None)


@pytest.mark.parametrize("depth", [6, 12, 24])
def test_x_is_mapped_to_the_same_fraction_of_another_depth(depth):
    (curve,) = matching_published_curves("incremental", "SST-2", "accuracy", 5000, 67349)
    assert curve.x_for(depth) == pytest.approx(np.linspace(0, depth, 13))


def test_published_correlations_are_those_of_table_1():
    found = published_correlations()
    assert len(found) == 6
    assert found[frozenset({"CoLA", "QNLI"}), "spearman"] == (0.83, "p=0.0, N=10")


def test_published_numbers_of_the_tables():
    assert published_word_probing("bert", "UD-EWT:xpos", "")["top"] == pytest.approx(0.960)
    assert published_word_probing("xlnet", "PMB:sem", "QNLI")["bottom"] == pytest.approx(0.178)
    assert published_word_probing("bert", "CoNLL-2000:chunk", "")["selectivity selected"] == pytest.approx(
        0.2919
    )
    assert (
        published_word_probing("electra", "PMB:sem", "")
        == published_word_probing("bert", "builtin:pos", "")
        == {}
    )
    assert published_word_probing("bert", "UD-EWT:upos", "") == {}  # another tag set
    assert (published_neuron_fraction("CoNLL-2000:chunk"), published_neuron_fraction("PMB:sem")) == (
        0.1,
        0.05,
    )
    assert published_pruning("roberta", "QNLI")["prune bottom 6"] == pytest.approx(0.637)
    assert published_pruning("mpnet", "QNLI") == {}


def test_published_settings_are_those_of_the_papers():
    assert published_settings()[["source", "about", "name", "quantity", "value"]].notna().all(axis=None)
    assert not published_settings().duplicated(["about", "name", "quantity"]).any()
    assert published_data("QNLI") == {"train": 105000, "dev": 5400}
    assert published_data("PMB:sem") == {"train": 36928, "dev": 5301, "test": 10600, "classes": 73}
    assert published_data("UD-EWT:upos") == published_data("builtin:pos") == published_data("sem") == {}
    assert published_penalty("bert", "CoNLL-2000:chunk") == (1e-4, 1e-5)
    assert published_penalty("xlnet", "UD-EWT:xpos") == (1e-3, 1e-3)
    assert published_penalty("mpnet", "PMB:sem") is None


@pytest.mark.parametrize(
    ("experiment", "task", "size", "rows", "minutes"),
    [
        ("incremental", "SST-2", 500, 67349, [0.3 * 5]),
        ("incremental", "SST-2", 5000, 67349, [3 * 3]),
        ("localized", "anything", 5000, 6000, [3 * 3]),
        ("probing", "CoLA", 8551, 8551, [2.8 * 40]),
        ("probing", "mine", 8551, 8551, []),
        ("incremental", "QNLI", 104743, 104743, [160]),
        ("incremental", "QNLI", 10474, 104743, []),
        ("neurons", "UD-EWT:xpos", 0, 200000, [12 * 60]),
        ("word_probing", "UD-EWT:xpos", 0, 200000, []),
        ("permutation", "SST-2", 5000, 67349, []),
    ],
)
def test_published_times_match_experiment_and_size(experiment, task, size, rows, minutes):
    assert [t.minutes for t in published_times(experiment, task, size, rows)] == pytest.approx(minutes)


def test_published_times_have_their_source_and_note():
    (time,) = published_times("incremental", "QNLI", 104743, 104743)
    assert (time.source, time.note) == ("Singh & Giovanardi 2020", "2h 40min per experiment")
    (time,) = published_times("incremental", "SST-2", 500, 500)[:1]
    assert time.source == "Tamkin et al. 2020"


@pytest.mark.parametrize(("size", "same"), [(951, True), (949, False), (1049, True), (1051, False)])
def test_percentages_match_within_5_percent(size, same):
    assert same_size("1%", size, 100_000) == same


def test_a_published_curve_has_the_note_of_its_source():
    (curve,) = matching_published_curves("incremental", "SST-2", "accuracy", 50000, 67349)
    rows = published_curves()
    rows = rows[
        (rows["task"] == "SST-2") & (rows["train_size"] == "50000") & (rows["experiment"] == "incremental")
    ]
    assert curve.note == rows["note"].iloc[0]
    assert curve.size == "50000"


def test_published_word_probing_of_finetuned_models_has_no_selectivity():
    base, tuned = (published_word_probing("bert", "CoNLL-2000:chunk", task) for task in ("", "SST-2"))
    assert set(tuned) == {"top", "bottom"}
    assert set(base) > {"top", "bottom", "selectivity all"}
    assert published_neuron_fraction("PMB:sem") == published_neuron_fraction("mine") == 0.05
    assert published_pruning("bert", "SST-2") == pytest.approx(
        {"none": 0.924, "prune top 6": 0.903, "prune bottom 6": 0.881}
    )
