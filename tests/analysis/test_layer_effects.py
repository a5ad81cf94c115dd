"""What layers are worth, by each source, on results whose answer is known."""

from __future__ import annotations

import pytest
from scipy import stats
from synthetic_results import incremental, lifelike, localized, single_layer, write_results

from whichlayers.analysis.incremental_curves import layer_worth
from whichlayers.analysis.layer_effects import SOURCES, ends, layer_values
from whichlayers.results.frames import finished, load_points

LOST = {1: 0.1, 2: 0.2, 3: 0.1}


def score(point):
    """Each layer that is re-initialised costs its own share, and a little noise."""
    redrawn = point.trial.surgery.reinit
    noise = 0.001 * ((point.trial.seed * 7 + len(redrawn)) % 5)
    return 0.9 - sum(LOST.get(layer, 0.0) for layer in redrawn) + noise


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    made = incremental(sizes=(5000,), trials=5) + single_layer(trials=5) + localized(trials=5)
    return finished(load_points(write_results(tmp_path_factory.mktemp("worth"), made, score)))


def test_each_source_finds_the_layers_that_matter(points):
    values = layer_values(points)
    assert tuple(dict.fromkeys(values["source"])) == SOURCES
    assert (values["first"] == values["last"]).all()
    by_layer = {source: rows.set_index("first")["mean"] for source, rows in values.groupby("source")}
    for source in ("incremental", "single_layer"):
        for layer in range(1, 7):
            assert by_layer[source][layer] == pytest.approx(LOST.get(layer, 0.0), abs=0.006)
    # layer 1 lies in the block 1-3 alone; layer 2 in 1-3 and 2-4
    for source in ("block reinitialized", "block preserved"):
        assert by_layer[source][1] == pytest.approx(0.4, abs=0.006)
        assert by_layer[source][2] == pytest.approx((0.4 + 0.3) / 2, abs=0.006)
        assert by_layer[source][6] == pytest.approx(0.0, abs=0.006)
    clear = values[values["p_adjusted"] < 0.05]
    assert {1, 2, 3} <= set(clear.loc[clear["source"] == "incremental", "first"])


def test_steps_are_those_of_the_curve_and_single_layers_those_of_scipy(points):
    values = layer_values(points)
    steps = layer_worth(points)
    mine = values[values["source"] == "incremental"]
    assert list(mine["mean"]) == list(steps["mean"])
    assert list(mine["last"]) == list(steps["to_k"])
    rows = points[points["experiment"] == "single_layer"].sort_values("seed")
    whole = rows.loc[rows["condition"] == "all pretrained", "value"].to_numpy()
    without = rows.loc[(rows["condition"] == "") & (rows["x"] == 2), "value"].to_numpy()
    row = values[(values["source"] == "single_layer") & (values["first"] == 2)].iloc[0]
    interval = stats.ttest_rel(whole, without).confidence_interval(0.95)
    assert (row["mean"], row["low"], row["high"]) == pytest.approx(
        ((whole - without).mean(), interval.low, interval.high)
    )


def test_layers_that_were_skipped_are_one_box(tmp_path):
    made = incremental(ks=(0, 4, 6))
    values = layer_values(finished(load_points(write_results(tmp_path, made, lifelike(6)))))
    assert list(zip(values["first"], values["last"], strict=True)) == [(1, 4), (5, 6)]


def test_ends_are_the_scores_between_which_the_layers_lie(points):
    for source in SOURCES:
        row = ends(points, source).iloc[0]
        assert (row["none"], row["all"]) == pytest.approx((0.5, 0.9), abs=0.006)


def test_a_study_that_says_nothing_of_layers_has_none(tmp_path):
    from synthetic_results import permutation

    points = finished(load_points(write_results(tmp_path, permutation(), lifelike(6))))
    assert layer_values(points).empty
