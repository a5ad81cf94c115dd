"""Effects of layers by each source, on simulated scores with known effects."""

from __future__ import annotations

import pytest
from scipy import stats
from synthetic_results import incremental, lifelike, localized, single_layer, write_results

from whichlayers.analysis.incremental_curves import incremental_steps
from whichlayers.analysis.layer_effects import SOURCES, baseline_scores, layer_effects
from whichlayers.results.frames import finished, load_points

LOST = {1: 0.1, 2: 0.2, 3: 0.1}


def score(point):
    """Each re-initialized layer costs LOST, plus a little noise."""
    reinitialized = point.trial.surgery.reinit
    noise = 0.001 * ((point.trial.seed * 7 + len(reinitialized)) % 5)
    return 0.9 - sum(LOST.get(layer, 0.0) for layer in reinitialized) + noise


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    simulated = incremental(sizes=(5000,), trials=5) + single_layer(trials=5) + localized(trials=5)
    return finished(load_points(write_results(tmp_path_factory.mktemp("layers"), simulated, score)))


def test_each_source_finds_the_layers_that_matter(points):
    effects = layer_effects(points)
    assert tuple(dict.fromkeys(effects["source"])) == SOURCES
    assert (effects["first"] == effects["last"]).all()
    by_layer = {source: rows.set_index("first")["mean"] for source, rows in effects.groupby("source")}
    for source in ("incremental", "single_layer"):
        for layer in range(1, 7):
            assert by_layer[source][layer] == pytest.approx(LOST.get(layer, 0.0), abs=0.006)
    # layer 1 is in block 1-3 only; layer 2 in 1-3 and 2-4
    for source in ("block reinitialized", "block preserved"):
        assert by_layer[source][1] == pytest.approx(0.4, abs=0.006)
        assert by_layer[source][2] == pytest.approx((0.4 + 0.3) / 2, abs=0.006)
        assert by_layer[source][6] == pytest.approx(0.0, abs=0.006)
    significant = effects[effects["p_adjusted"] < 0.05]
    assert {1, 2, 3} <= set(significant.loc[significant["source"] == "incremental", "first"])


def test_incremental_effects_are_steps_and_single_layers_agree_with_scipy(points):
    effects = layer_effects(points)
    steps = incremental_steps(points)
    incremental_rows = effects[effects["source"] == "incremental"]
    assert list(incremental_rows["mean"]) == list(steps["mean"])
    assert list(incremental_rows["last"]) == list(steps["to_k"])
    rows = points[points["experiment"] == "single_layer"].sort_values("seed")
    whole = rows.loc[rows["condition"] == "all pretrained", "value"].to_numpy()
    without = rows.loc[(rows["condition"] == "") & (rows["x"] == 2), "value"].to_numpy()
    row = effects[(effects["source"] == "single_layer") & (effects["first"] == 2)].iloc[0]
    interval = stats.ttest_rel(whole, without).confidence_interval(0.95)
    assert (row["mean"], row["low"], row["high"]) == pytest.approx(
        ((whole - without).mean(), interval.low, interval.high)
    )


def test_skipped_k_give_one_row_for_several_layers(tmp_path):
    simulated = incremental(ks=(0, 4, 6))
    effects = layer_effects(finished(load_points(write_results(tmp_path, simulated, lifelike(6)))))
    assert list(zip(effects["first"], effects["last"], strict=True)) == [(1, 4), (5, 6)]


def test_baseline_scores_are_means_with_none_and_all_layers_pretrained(points):
    for source in SOURCES:
        row = baseline_scores(points, source).iloc[0]
        assert (row["none"], row["all"]) == pytest.approx((0.5, 0.9), abs=0.006)


def test_a_study_without_these_experiments_has_no_layer_effects(tmp_path):
    from synthetic_results import permutation

    points = finished(load_points(write_results(tmp_path, permutation(), lifelike(6))))
    assert layer_effects(points).empty
