"""Labels, limits and effects of the analysis, against values worked out by hand, by scipy or by loops over rows."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_results import incremental, localized, permutation, single_layer, write_results

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.base import (
    below_zero_test,
    decrease_test,
    group_label,
    increase_test,
    no_decrease_test,
    no_increase_test,
)
from whichlayers.analysis.claims.singh2020 import movement, ratio_test, s1, s2
from whichlayers.analysis.claims.tamkin2020_layers import _correlation_power, t5
from whichlayers.analysis.correlations import single_trial_sd
from whichlayers.analysis.interaction import interaction_test
from whichlayers.analysis.intervals import equivalence_test, welch_difference
from whichlayers.analysis.layer_effects import baseline_scores, layer_effects
from whichlayers.analysis.power import (
    interaction_power,
    joint_power,
    trials_for,
    welch_power,
    yekutieli_level,
)
from whichlayers.analysis.published import PUBLISHED_DEPTH, published_curves, same_size
from whichlayers.results.frames import finished, load_points

THRESHOLDS = ClaimThresholds()


# --- labels ---


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, "SST-2"),
        ({"model": ["a", "b"]}, "SST-2, a"),
        ({"train_size": [500, 5000]}, "SST-2, 500 examples"),
        ({"variant": ["one", "two"]}, "SST-2, one"),
        ({"variant": ["", "two"]}, "SST-2"),
        (
            {"model": ["a", "b"], "train_size": [5000, 500], "variant": ["one", "two"]},
            "SST-2, a, 5,000 examples, one",
        ),
        ({"model": ["a", "b"], "train_size": [5000, 500]}, "SST-2, a, 5,000 examples"),
    ],
)
def test_a_label_names_what_the_study_has_several_of(columns, expected):
    settings = {"task": "SST-2", "model": "a", "train_size": 500, "variant": "one"} | columns
    rows = pd.DataFrame(
        {name: value if isinstance(value, list) else [value] * 2 for name, value in settings.items()}
    )
    assert group_label(rows.head(1), rows) == expected


def test_a_label_of_several_tasks_or_sizes_names_neither():
    rows = pd.DataFrame({"task": ["a", "b"], "model": "m", "train_size": [500, 5000], "variant": ""})
    assert group_label(rows, rows) == ""


# --- single tests of claims, against scipy ---

SAMPLE = np.array([-0.03, -0.01, -0.024, -0.008, -0.015])


def test_a_decrease_and_an_increase_are_mirror_images():
    down, up = decrease_test(SAMPLE, "x", "accuracy", 0.01), increase_test(-SAMPLE, "x", "accuracy", 0.01)
    found = stats.ttest_1samp(SAMPLE, 0.0)
    interval = found.confidence_interval(0.95)
    assert (down.effect, down.low, down.high) == pytest.approx((SAMPLE.mean(), interval.low, interval.high))
    assert (up.effect, up.low, up.high) == pytest.approx((-SAMPLE.mean(), -interval.high, -interval.low))
    assert down.p == up.p == pytest.approx(found.pvalue)
    against = stats.ttest_1samp(SAMPLE, -0.01, alternative="greater").pvalue
    assert down.p_against == up.p_against == pytest.approx(against)
    assert decrease_test(-SAMPLE, "x", "accuracy", 0.01).power is None
    assert decrease_test(-SAMPLE, "x", "accuracy", 0.01).p == 1.0


def test_no_increase_and_no_decrease_are_mirror_images():
    up, down = (
        test(sign * SAMPLE, "x", "accuracy", 0.02, 0.05)
        for test, sign in ((no_increase_test, 1), (no_decrease_test, -1))
    )
    interval = stats.ttest_1samp(SAMPLE, 0.0).confidence_interval(0.9)
    assert (up.effect, up.low, up.high) == pytest.approx((SAMPLE.mean(), interval.low, interval.high))
    assert (down.effect, down.low, down.high) == pytest.approx(
        (-SAMPLE.mean(), -interval.high, -interval.low)
    )
    assert up.p == down.p == pytest.approx(stats.ttest_1samp(SAMPLE, 0.02, alternative="less").pvalue)
    assert up.p_against == pytest.approx(1 - up.p)
    assert up.level == down.level == pytest.approx(0.9)
    assert no_increase_test(SAMPLE + 0.05, "x", "accuracy", 0.02, 0.05).power is None


def test_a_difference_below_zero_is_welchs_test():
    a, b = SAMPLE, SAMPLE[:3] + 0.03
    test = below_zero_test(welch_difference(a, b), "x", "accuracy", 3, 0.01)
    found = stats.ttest_ind(a, b, equal_var=False)
    assert welch_difference(a, b).p == pytest.approx(found.pvalue)
    assert test.p == pytest.approx(found.pvalue)
    assert test.p_against == pytest.approx(
        stats.ttest_ind(a + 0.01, b, equal_var=False, alternative="greater").pvalue
    )
    assert below_zero_test(welch_difference(b, a), "x", "accuracy", 3, 0.01).power is None


def test_equivalence_is_two_one_sided_tests_with_a_90_percent_interval():
    found = equivalence_test(SAMPLE, 0.03)
    interval = stats.ttest_1samp(SAMPLE, 0.0).confidence_interval(0.9)
    sides = {
        (limit, side): stats.ttest_1samp(SAMPLE, limit, alternative=side).pvalue
        for limit in (-0.03, 0.03)
        for side in ("less", "greater")
    }
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_within == pytest.approx(max(sides[0.03, "less"], sides[-0.03, "greater"]))
    assert found.p_beyond == pytest.approx(min(1.0, 2 * min(sides[0.03, "greater"], sides[-0.03, "less"])))


def test_t5_shows_the_interval_of_the_decisive_layer_at_90_percent():
    """Layer 2 is the least certain to be within the margin."""
    shift = {1: 0.001, 2: -0.006, 3: 0.002}
    parts = [("all pretrained", 0, np.zeros(5))] + [
        ("", x, SAMPLE - SAMPLE.mean() + d) for x, d in shift.items()
    ]
    rows = [
        {"seed": s, "x": x, "condition": condition, "value": 0.8 + v}
        for condition, x, values in parts
        for s, v in enumerate(values)
    ]
    settings = {
        "experiment": "single_layer",
        "model": "m",
        "task": "SST-2",
        "train_size": 5000,
        "variant": "",
    }
    settings |= {"metric": "accuracy", "depth": 3, "keep_layer_norm": False, "reinit_lr_factor": 1.0}
    (test,) = t5(pd.DataFrame(rows).assign(**settings), ClaimThresholds(margin=0.02)).tests
    interval = stats.ttest_1samp(SAMPLE - SAMPLE.mean() - 0.006, 0.0).confidence_interval(0.9)
    assert test.about == "SST-2: layer 2, of 3 tested"
    assert (test.effect, test.low, test.high) == pytest.approx((-0.006, interval.low, interval.high))
    assert test.level == pytest.approx(0.9)
    limit = stats.ttest_1samp(SAMPLE - SAMPLE.mean() - 0.006, -0.02, alternative="greater").pvalue
    assert test.p == pytest.approx(limit)


@pytest.mark.parametrize("ratios", [[1.1, 1.3], [0.9, 0.95, 0.7]])
def test_ratios_are_tested_on_a_log_scale(ratios):
    test = ratio_test(np.array(ratios), "x")
    logs = np.log(ratios)
    one_sided = stats.ttest_1samp(logs, 0.0, alternative="greater").pvalue
    assert test.p == pytest.approx(min(1.0, 2 * one_sided))
    assert test.p_against == pytest.approx(stats.ttest_1samp(logs, math.log(1.05), alternative="less").pvalue)
    assert test.effect == pytest.approx(logs.mean())
    assert (test.power is None) == (logs.mean() < 0)
    assert math.isnan(ratio_test(np.array([1.1]), "x").p)


# --- S1 and S2: which trials, sizes and models ---


def moved_study(tmp_path, points):
    """Finished points and weight changes: layer n of a trial with seed s and size m moves by n + s + m / 1000."""
    done = finished(load_points(write_results(tmp_path, points, lambda p: 0.5 + 0.01 * p.x)))
    trials = done.drop_duplicates("trial_id")
    rows = [
        (t.trial_id, f"layer.{n}.output.dense.weight", n, "frobenius", n + t.seed + t.train_size / 1000)
        for t in trials.itertuples()
        for n in range(1, 7)
    ]
    return done, pd.DataFrame(rows, columns=["trial_id", "name", "layer", "kind", "value"])


def test_movement_is_that_of_models_without_surgery(tmp_path):
    done, weights = moved_study(
        tmp_path, incremental(("SST-2",), (500,), 3) + permutation(("SST-2",), trials=3, size=500)
    )
    moved = movement(done, weights)
    untouched = done[done["untouched"] & (done["order"].map(len) == 0)]["trial_id"].nunique()
    assert len(moved) == 6 * untouched == 6 * 3
    assert moved[(moved.seed == 2) & (moved.layer == 4)]["value"].item() == pytest.approx(6.5)


def test_s1_and_s2_compare_halves_and_the_extreme_sizes(tmp_path):
    done, weights = moved_study(tmp_path, incremental(("SST-2",), (500, 2000, 5000), 3))
    first = s1(done, weights, THRESHOLDS)
    assert [test.about for test in first.tests] == [
        f"SST-2, {size} examples: upper over lower half" for size in ("500", "2,000", "5,000")
    ]
    logs = [math.log((5 + s + 0.5) / (2 + s + 0.5)) for s in range(3)]
    assert first.tests[0].effect == pytest.approx(np.mean(logs))
    (second,) = s2(done, weights, THRESHOLDS).tests
    assert second.about == "SST-2: 5,000 over 500 examples"
    assert second.effect == pytest.approx(
        np.mean([math.log((3.5 + s + 5) / (3.5 + s + 0.5)) for s in range(3)])
    )
    one_size = done[done["train_size"] == 500]
    assert s2(one_size, weights, THRESHOLDS).verdict == "not tested"
    two_models = pd.concat([done, done.assign(model="other", trial_id="other " + done["trial_id"])])
    of_both = pd.concat([weights, weights.assign(trial_id="other " + weights["trial_id"])])
    assert {test.about.partition(":")[0] for test in s2(two_models, of_both, THRESHOLDS).tests} == {
        f"SST-2, {model}" for model in (done["model"].iloc[0], "other")
    }


# --- effects of layers, by loops ---


@pytest.fixture(scope="module")
def layers_study(tmp_path_factory):
    points = incremental(sizes=(5000,), trials=4) + single_layer(trials=4) + localized(trials=4)

    def score(point):
        again, seed = point.trial.surgery.reinit, point.trial.seed
        return 0.9 - 0.03 * sum(again) ** 0.7 + 0.002 * math.sin(13 * seed + 5 * sum(again) + len(again))

    return finished(load_points(write_results(tmp_path_factory.mktemp("layers"), points, score)))


def paired(a, b):
    """Mean, interval and p of a - b by scipy; a and b are lists of (seed, value)."""
    a, b = dict(a), dict(b)
    seeds = sorted(set(a) & set(b))
    found = stats.ttest_rel([a[s] for s in seeds], [b[s] for s in seeds])
    interval = found.confidence_interval(0.95)
    return np.mean([a[s] - b[s] for s in seeds]), interval.low, interval.high, found.pvalue


def scores(rows):
    return list(zip(rows["seed"], rows["value"], strict=True))


@pytest.mark.parametrize("source", ["incremental", "single_layer", "block reinitialized", "block preserved"])
def test_effects_of_layers_by_loops(layers_study, source):
    study = layers_study
    effects = layer_effects(study).query("source == @source").set_index("last")
    experiment = source if source in ("incremental", "single_layer") else "localized"
    rows = study[study["experiment"] == experiment]
    p_values = []
    for layer in range(1, 7):
        if source == "incremental":
            a, b = (scores(rows[rows["x"] == k]) for k in (layer, layer - 1))
        elif source == "single_layer":
            a = scores(rows[rows["condition"] == "all pretrained"])
            b = scores(rows[(rows["condition"] == "") & (rows["x"] == layer)])
        else:
            kept = source == "block preserved"
            baseline = scores(rows[rows["condition"] == ("none pretrained" if kept else "all pretrained")])
            blocks = [
                rows[(rows["condition"] == source) & (rows["x"] == first)]
                for first in range(1, 5)
                if first <= layer < first + 3
            ]
            mean = [(s, np.mean([b.set_index("seed")["value"][s] for b in blocks])) for s in range(4)]
            a, b = (mean, baseline) if kept else (baseline, mean)
        mean, low, high, p = paired(a, b)
        row = effects.loc[layer]
        assert (row["mean"], row["low"], row["high"], row["p"]) == pytest.approx(
            (mean, low, high, p), rel=1e-6
        )
        assert (row["first"], row["n"], row["depth"]) == (layer, 4, 6)
        p_values.append(p)
    adjusted = stats.false_discovery_control(p_values, method="by")
    assert effects["p_adjusted"].sort_index().to_numpy() == pytest.approx(adjusted)
    ends = baseline_scores(study, source).iloc[0]
    none, every = (
        (rows["x"] == k for k in (0, 6))
        if source == "incremental"
        else (rows["condition"] == c for c in ("none pretrained", "all pretrained"))
    )
    assert (ends["none"], ends["all"]) == pytest.approx(
        (rows[none]["value"].mean(), rows[every]["value"].mean())
    )


def test_an_experiment_without_the_baseline_has_an_empty_table(layers_study):
    only = layers_study[layers_study["experiment"] == "incremental"]
    table = differences_from_baseline(only)
    assert table.empty
    assert {"condition", "x", "mean", "p_adjusted"} <= set(table.columns)
    assert differences_from_baseline(only.head(0)).empty


# --- limits ---


def test_a_group_without_variance_does_not_get_all_the_weight():
    """Both groups have the same shape; one has equal trials. F compares with the noise of the other."""
    rng, x = np.random.default_rng(0), np.arange(5)
    noisy = 0.1 * x + rng.normal(0, 0.02, (6, 5))
    exact = np.tile(0.1 * x, (6, 1))
    frames = [
        pd.DataFrame({"seed": np.repeat(range(6), 5), "x": np.tile(x, 6), "value": v.ravel(), "group": name})
        for name, v in (("a", noisy), ("b", exact))
    ]
    found = interaction_test(pd.concat(frames), "group")
    assert found.p > 0.01
    assert found.effect < 0.01


def test_powers_that_do_not_exist():
    assert interaction_power(5.0, 4.0, 1, 8.0) is None
    assert interaction_power(0.0, 4.0, 5, 8.0) is None
    assert interaction_power(-1.0, 4.0, 5, 8.0) is None
    assert joint_power([]) is None
    assert joint_power([None, lambda n, alpha: 0.9]) is None
    assert welch_power(0.0, (1.0, 1.0)) is None
    assert _correlation_power(0.29, 0.3) is None
    assert _correlation_power(-0.3, 0.3) is None


def test_power_of_an_interaction_is_that_of_the_noncentral_f():
    power = interaction_power(6.0, 4.0, 5, 8.0)
    for trials in (5, 10):
        df_denom, noncentrality = 8.0 * (trials - 1) / 4, 6.0 * trials / 5
        expected = stats.ncf.sf(stats.f.isf(0.05, 4, df_denom), 4, df_denom, noncentrality)
        assert power(trials, 0.05) == pytest.approx(expected)


def test_power_of_welchs_test_by_simulation():
    rng = np.random.default_rng(1)
    power = welch_power(1.0, (1.0, 0.25))
    n = trials_for(power)
    a, b = rng.normal(1.0, 1.0, (4000, n)), rng.normal(0.0, 0.5, (4000, n))
    rejected = stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue < 0.05
    assert rejected.mean() == pytest.approx(power(n, 0.05), abs=0.02)
    assert rejected.mean() > 0.78


def test_power_of_a_correlation_by_fishers_z():
    power = _correlation_power(0.6, 0.3)
    for n in (10, 20):
        expected = stats.norm.sf(stats.norm.isf(0.025) - math.atanh(0.6) / math.sqrt(1.06 / (n - 3)))
        assert power(n, 0.05) == pytest.approx(expected)
    assert power(4, 0.05) == pytest.approx(
        stats.norm.sf(stats.norm.isf(0.025) - math.atanh(0.6) / math.sqrt(1.06))
    )
    assert power(3, 0.05) == pytest.approx(0.025)
    # with many pairs, reaching the margin is harder than being significant
    reaches = stats.norm.sf((math.atanh(0.3) - math.atanh(0.6)) / math.sqrt(1.06 / 97))
    assert power(100, 0.05) == pytest.approx(reaches)


def test_joint_power_and_the_level_of_yekutieli():
    both = joint_power([lambda n, alpha: 0.9, lambda n, alpha: 0.95])
    assert both(3, 0.05) == pytest.approx(0.85)
    assert joint_power([lambda n, alpha: 0.3, lambda n, alpha: 0.4])(3, 0.05) == 0.0
    assert yekutieli_level(0.05, 3) == pytest.approx(0.05 / (3 * (1 + 1 / 2 + 1 / 3)))


def test_published_curves_end_at_the_depth_of_the_published_model():
    assert published_curves()["x"].max() == PUBLISHED_DEPTH


def test_the_sd_of_a_trial_from_bootstrap_values_of_a_mean():
    """Means of n resampled trials have the sd of the trials, divisor n, over √n."""
    rng = np.random.default_rng(2)
    trials = rng.normal(0.3, 0.1, 6)
    means = rng.choice(trials, (40_000, 6)).mean(axis=1)
    assert single_trial_sd(means, 6) == pytest.approx(trials.std(ddof=1), rel=0.02)
    assert single_trial_sd(np.append(means, np.nan), 6) == single_trial_sd(means, 6)
    by_hand = np.arctanh(means).std() * 6 / math.sqrt(5)
    assert single_trial_sd(means, 6, is_correlation=True) == pytest.approx(by_hand)
    assert math.isfinite(single_trial_sd(np.array([-1.0, 0.2, 1.0]), 3, is_correlation=True))


def test_published_sizes():
    assert same_size("500", 500, None)
    assert not same_size("500", 501, None)
    assert not same_size("all", 500, None)
    assert same_size("10%", 6735, 67349)
    assert not same_size("10%", 6735, None)
    assert not same_size("10%", 6735, 0)
    assert not same_size("1%", 6735, 67349)
