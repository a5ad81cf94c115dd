"""Incremental curves, permutations and variance components against numpy, scipy and simulated distributions."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from claim_points import claim_points
from scipy import stats

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.correlations import task_correlations
from whichlayers.analysis.incremental_curves import (
    curves,
    early_gain_fractions,
    fractions_of_gain,
    gains,
    incremental_steps,
    small_ks,
)
from whichlayers.analysis.layer_effects import layer_effects
from whichlayers.analysis.permutations import permutation_difference
from whichlayers.analysis.power import t_test_power
from whichlayers.analysis.variance_components import RESIDUAL, variance_components, variance_table
from whichlayers.trial import COMPONENTS

NOISE = np.random.default_rng(0).normal(0, 0.01, (4, 5))


def curve_points(levels, noise=NOISE, **columns):
    table = np.asarray(levels) + noise[:, : len(levels)]
    depth = len(levels) - 1
    return table, claim_points(
        table, range(depth + 1), "incremental", **{"depth": depth, "model_fingerprint": "f"} | columns
    )


# --- incremental curves ---


def test_gains_and_steps_are_those_of_scipy():
    table, points = curve_points([0.5, 0.6, 0.85, 0.7, 0.8])
    (curve,) = curves(pd.concat([points, points.assign(experiment="probing")]))
    found = stats.ttest_rel(table[:, 4], table[:, 0])
    interval = found.confidence_interval()
    assert (curve.gain.low, curve.gain.high, curve.gain.p) == pytest.approx((*interval, found.pvalue))
    assert curve.means == pytest.approx(dict(enumerate(table.mean(axis=0))))
    assert (curve.reaches, curve.falls_back, curve.depth, curve.train_size) == (2, (3,), 4, 500)
    (row,) = gains(points).itertuples(index=False)
    assert (row.none, row.all, row.gain) == pytest.approx((*table.mean(axis=0)[[0, 4]], curve.gain.mean))
    assert (row.low, row.high, row.n, row.p, row.reaches_90) == (
        curve.gain.low,
        curve.gain.high,
        4,
        curve.gain.p,
        2,
    )
    steps = incremental_steps(pd.concat([points, points.assign(experiment="probing")]))
    p = [stats.ttest_rel(table[:, k], table[:, k - 1]).pvalue for k in range(1, 5)]
    assert steps["p"].tolist() == pytest.approx(p)
    assert steps["p_adjusted"].tolist() == pytest.approx(stats.false_discovery_control(p, method="by"))
    assert steps["mean"].tolist() == pytest.approx(np.diff(table.mean(axis=0)))
    for step, k in zip(steps.itertuples(), range(1, 5), strict=True):
        interval = stats.ttest_rel(table[:, k], table[:, k - 1]).confidence_interval()
        assert (step.low, step.high, step.n, step.from_k, step.to_k) == pytest.approx(
            (*interval, 4, k - 1, k)
        )
        assert step.sd == pytest.approx(np.diff(table[:, k - 1 : k + 1]).std(ddof=1))
    assert "experiment" not in steps
    assert incremental_steps(points.head(0)).empty


def test_a_curve_of_one_point_and_curves_without_shared_seeds():
    _, points = curve_points([0.5, 0.6, 0.7, 0.8, 0.9])
    (curve,) = curves(points.head(1))
    assert (curve.gain, curve.reaches, curve.falls_back) == (None, None, ())
    (row,) = gains(points.head(1)).itertuples(index=False)
    assert (row.n, row.none) == (0, pytest.approx(points["value"].iloc[0]))
    ends = points[((points["x"] == 0) & (points["seed"] < 2)) | ((points["x"] == 4) & (points["seed"] > 1))]
    assert curves(ends)[0].gain is None
    assert incremental_steps(ends).empty
    two = curves(points[points["x"].isin([0, 4])])[0]
    assert (two.gain.n, two.reaches) == (4, 4)


def test_ninety_percent_of_the_gain_are_enough():
    """Without noise at k = 1 and 2: 90% and 89.9% of a gain of 0.5, all binary fractions."""
    noise = np.zeros((4, 4))
    noise[:, 3] = [0.125, -0.125, 0.0625, -0.0625]
    _, points = curve_points([0.25, 0.25 + 0.45 + 1e-9, 0.25 + 0.4495, 0.75], noise)
    (curve,) = curves(points)
    assert (curve.reaches, curve.falls_back) == (1, (2,))
    falling = curves(points.assign(value=-points["value"]))[0]
    assert (falling.gain.significant, falling.reaches) == (True, None)


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(2, [1]), (3, [1]), (4, [1]), (6, [1, 2]), (12, [1, 2, 3, 4]), (24, list(range(1, 9)))],
)
def test_small_k_are_up_to_a_third_of_the_depth(depth, expected):
    assert small_ks(depth) == expected


def test_fractions_of_the_gain_by_hand():
    rng = np.random.default_rng(1)
    none, every = pd.Series(0.5 + rng.normal(0, 0.02, 4)), pd.Series(0.8 + rng.normal(0, 0.02, 4))
    scores = pd.DataFrame(0.6 + rng.normal(0, 0.02, (4, 2)), columns=["a", "b"])
    gain, above = every - none, scores.sub(none, axis=0)
    ratio = above.mean() / gain.mean()
    expected = ratio + (above - np.outer(gain, ratio)) / gain.mean()
    found = fractions_of_gain(scores, none, every)
    assert found.to_numpy() == pytest.approx(expected.to_numpy())
    assert found.mean().to_numpy() == pytest.approx(ratio.to_numpy())
    two = fractions_of_gain(scores[:2], none, every)
    assert two is None or len(two) == 2
    clear = fractions_of_gain(scores[:2], none[:2] * 0 + [0.1, 0.1001], every)
    assert len(clear) == 2
    assert fractions_of_gain(scores[:1], none, every) is None
    assert fractions_of_gain(scores, every, none) is None  # a loss
    assert (
        fractions_of_gain(scores, none, none + np.array([0.1, -0.1, 0.1, -0.05])) is None
    )  # not significant
    assert len(fractions_of_gain(scores, none[1:], every)) == 3


def test_early_gains_use_complete_seeds_and_the_small_k_there_are():
    table, points = curve_points([0.5, 0.6, 0.7, 0.75, 0.9])
    early, gain = table[:, 1] - table[:, 0], table[:, 4] - table[:, 0]
    ratio = early.mean() / gain.mean()
    found = early_gain_fractions(points)
    assert found.to_numpy() == pytest.approx(ratio + (early - ratio * gain) / gain.mean())
    assert found.index.tolist() == [0, 1, 2, 3]
    missing = points[~((points["x"] == 1) & (points["seed"] == 0))]
    assert early_gain_fractions(missing).index.tolist() == [1, 2, 3]
    unrelated = points[~((points["x"] == 3) & (points["seed"] == 0))]
    assert len(early_gain_fractions(unrelated)) == 4
    for k in (0, 1, 4):
        assert early_gain_fractions(points[points["x"] != k]) is None
    assert len(early_gain_fractions(points[points["x"].isin([0, 1, 4])])) == 4


def test_differences_from_a_baseline_are_adjusted_within_each_curve():
    rng = np.random.default_rng(2)
    base, a, b = (0.8 + rng.normal(0, 0.02, (4, 1)) for _ in range(3))
    names = {"model_fingerprint": "f"}
    parts = [claim_points(base, [0], "prune", condition="all pretrained", **names)]
    parts += [claim_points(v, [x], "prune", condition="top", **names) for v, x in ((a, 1), (b, 2))]
    unrelated = [claim_points(a, [1], "prune", condition="top", task="CoLA", **names)]  # without its baseline
    table = differences_from_baseline(pd.concat([*unrelated, *parts]))
    assert table["x"].tolist() == [1, 2]
    p = [stats.ttest_rel(v[:, 0], base[:, 0]).pvalue for v in (a, b)]
    assert table["p_adjusted"].tolist() == pytest.approx(stats.false_discovery_control(p, method="by"))
    assert table["mean"].tolist() == pytest.approx([(v - base).mean() for v in (a, b)])
    assert table.index.tolist() == [0, 1]
    both = differences_from_baseline(pd.concat([*parts, *(part.assign(task="CoLA") for part in parts)]))
    assert both.index.tolist() == [0, 1, 2, 3]
    assert both["p_adjusted"].tolist() == pytest.approx([*table["p_adjusted"]] * 2)


def test_layer_effects_of_skipped_k_and_of_nothing():
    table, points = curve_points([0.5, 0.6, 0.7, 0.75, 0.9])
    rows = layer_effects(points[points["x"].isin([0, 1, 4])])
    assert rows[["first", "last"]].to_numpy().tolist() == [[1, 1], [2, 4]]
    assert rows["mean"].tolist() == pytest.approx(
        [(table[:, 1] - table[:, 0]).mean(), (table[:, 4] - table[:, 1]).mean()]
    )
    assert layer_effects(points.head(0)).empty


def test_tasks_with_too_few_shared_permutations_are_not_correlated():
    names = ["x", "value"]
    rows = [
        pd.DataFrame({"x": range(6), "value": [0.1, 0.2, 0.3, 0.4, 0.5, v]}).assign(task=t)
        for t, v in (("a", 0.3), ("b", 0.9))
    ]
    rows.append(
        pd.DataFrame([(0, 0.3), (1, 0.3), (2, 0.3), (3, 0.3), (4, 0.3)], columns=names).assign(task="c")
    )  # constant
    table = task_correlations(
        pd.concat(rows).assign(
            experiment="permutation", condition="permuted", model="m", train_size=5, variant=""
        )
    )
    assert table[["task", "other"]].to_numpy().tolist() == [["a", "b"]]


# --- permutations ---


def permuted(table, baselines):
    """Points of (permutations, seeds) scores, and the baselines by seed."""
    rows = [("permuted", x, s, v) for x, row in enumerate(table) for s, v in enumerate(row)]
    rows += [("all pretrained", 0, s, v) for s, v in enumerate(baselines)]
    return pd.DataFrame(rows, columns=["condition", "x", "seed", "value"])


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_permutations_of_several_seeds_by_hand(level):
    rng = np.random.default_rng(3)
    table, baselines = 0.6 + rng.normal(0, 0.03, (5, 3)), 0.65 + rng.normal(0, 0.02, 3)
    d = permutation_difference(permuted(table, baselines), pd.Series(baselines), level)
    differences = table - baselines
    parts = differences.mean(axis=1).var(ddof=1) / 5, differences.mean(axis=0).var(ddof=1) / 3
    error, df = math.sqrt(sum(parts)), sum(parts) ** 2 / (parts[0] ** 2 / 4 + parts[1] ** 2 / 2)
    half = stats.t.ppf((1 + level) / 2, df) * error
    assert (d.mean, d.low, d.high) == pytest.approx(
        (differences.mean(), differences.mean() - half, differences.mean() + half)
    )
    assert (d.standard_error, d.df, d.n, d.seed_df) == pytest.approx((error, df, 5, 2))
    assert d.p == pytest.approx(2 * stats.t.sf(abs(d.mean) / error, df))
    assert (d.permutation_variance, d.seed_variance) == pytest.approx((5 * parts[0], parts[1]))
    total = parts[0] * 5 / 9 + parts[1]
    df_9 = total**2 / ((parts[0] * 5 / 9) ** 2 / 8 + parts[1] ** 2 / 2)
    for sided in (True, False):
        assert d.power(sided)(9, 0.05) == pytest.approx(
            t_test_power(abs(d.mean) / math.sqrt(total), df_9, 0.05, sided)
        )
    assert d.power()(9, 0.05) == d.power(True)(9, 0.05)


def test_permutations_of_one_seed_take_the_variance_of_the_baseline():
    rng = np.random.default_rng(4)
    table, baselines = 0.6 + rng.normal(0, 0.03, (4, 1)), 0.65 + rng.normal(0, 0.02, 3)
    d = permutation_difference(permuted(table, baselines), pd.Series(baselines))
    parts = table.var(ddof=1) / 4, baselines.var(ddof=1)
    assert d.mean == pytest.approx(table.mean() - baselines[0])
    assert (d.standard_error, d.seed_df) == pytest.approx((math.sqrt(sum(parts)), 2))
    assert d.df == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2))


def test_permutations_that_are_too_few():
    table, baselines = np.array([[0.5, 0.6], [0.55, 0.58], [0.52, 0.61]]), np.array([0.7, 0.8])
    assert permutation_difference(permuted(table[:2], baselines), pd.Series(baselines)).n == 2
    two = permutation_difference(permuted(table, baselines), pd.Series(baselines))
    of_seeds = (table - baselines).mean(axis=0)
    assert (two.seed_variance, two.seed_df) == pytest.approx((of_seeds.var(ddof=1) / 2, 1))
    assert permutation_difference(permuted(table[:1], baselines), pd.Series(baselines)) is None
    assert permutation_difference(permuted(table[:, :1], baselines), pd.Series(baselines[:1])) is None
    assert permutation_difference(permuted(table[:, :1], baselines), pd.Series(baselines)).seed_df == 1
    assert permutation_difference(permuted(table, baselines), pd.Series([0.7, 0.8], index=[8, 9])) is None
    equal = permutation_difference(permuted(np.full((3, 2), 0.5), [0.75, 0.75]), pd.Series([0.75, 0.75]))
    assert (equal.mean, equal.low, equal.standard_error, equal.df) == (-0.25, -0.25, 0.0, 3.0)
    assert math.isnan(equal.p)
    assert math.isnan(equal.power()(5, 0.05))


# --- variance components ---


def one_way(seeds=8, each=4, effect=1.0, residual=0.7):
    rng = np.random.default_rng(5)
    levels = np.repeat(range(seeds), each)
    return levels, rng.normal(0, effect, seeds)[levels] + rng.normal(0, residual, seeds * each)


def test_intervals_of_a_one_way_design_against_its_distribution():
    """Mean squares between and within seeds have scaled chi² distributions."""
    levels, values = one_way()
    component, residual = variance_components(values, {"subset": levels})
    groups = values.reshape(8, 4)
    within, between = groups.var(axis=1, ddof=1).mean(), 4 * groups.mean(axis=1).var(ddof=1)
    assert (component.variance, residual.variance) == pytest.approx(((between - within) / 4, within))
    assert (component.seeds, residual.seeds, residual.component) == (8, 32, RESIDUAL)
    exact = [24 * within / stats.chi2.ppf(q, 24) for q in (0.975, 0.025)]
    assert (residual.low, residual.high) == pytest.approx(exact, rel=0.05)
    rng = np.random.default_rng(6)

    def statistic(between, within, s):
        """(estimate - s) / its standard error."""
        estimate = (between - within) / 4
        a, r = np.maximum(estimate, 0), within
        error = np.sqrt((2 * (4 * a + r) ** 2 / 7 + 2 * r**2 / 24) / 16)
        return (estimate - s) / error

    for limit, probability in ((component.low, 0.975), (component.high, 0.025)):
        simulated = statistic(
            (4 * limit + within) * rng.chisquare(7, 40_000) / 7,
            within * rng.chisquare(24, 40_000) / 24,
            limit,
        )
        assert (simulated <= statistic(between, within, limit)).mean() == pytest.approx(
            probability, abs=0.012
        )
    assert 0 < component.low < component.variance < component.high < 20


def test_a_component_without_effect_starts_at_zero():
    levels, values = one_way(effect=0.0)
    component, residual = variance_components(values, {"subset": levels}, 500)
    assert component.low == 0.0
    assert component.share + residual.share == pytest.approx(1.0)


def test_three_trials_are_the_fewest():
    levels, values = np.array([0, 0, 1]), np.array([0.1, 0.3, 0.2])
    assert variance_components(values, {"subset": levels}, 50) is not None
    assert variance_components(values[:2], {"subset": levels[:2]}, 50) is None


@pytest.mark.parametrize(("trials", "rows"), [(9, 0), (10, 2)])
def test_a_table_needs_ten_trials_of_a_point(trials, rows):
    values = np.random.default_rng(7).normal(0.5, 0.1, (trials, 1))
    points = claim_points(values, [0], "incremental", model_fingerprint="f")
    seeds = {f"seed_{name}": points["seed"] for name in COMPONENTS} | {"seed_subset": points["seed"] // 2}
    table = variance_table(points.assign(**seeds))
    assert len(table) == rows
    assert set(table["metric"]) <= {"accuracy"}
