"""The published results load completely and match curves of the same task, metric and training size only."""

from __future__ import annotations

import numpy as np
import pytest

from whichlayers.analysis.published import (
    matching_published_curves,
    published_correlations,
    published_curves,
    published_tables,
    same_size,
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
