"""Correlations, their intervals and p values, against scipy and formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from whichlayers.analysis import correlations
from whichlayers.analysis.correlations import (
    N_RESAMPLES,
    bootstrap_p_below,
    correlate,
    curve_correlation,
    expanded_percentile_interval,
    task_correlations,
)


def table_of(values):
    """Points of (seeds, layers) values."""
    n, layers = values.shape
    return pd.DataFrame(
        {"seed": np.repeat(range(n), layers), "x": np.tile(range(layers), n), "value": values.ravel()}
    ).dropna()


SHAPE = np.array([0.1, 0.3, 0.2, 0.6, 0.5])


def two_curves(n_a=4, n_b=6, sd=0.03, slope=1.0, seed=0):
    rng = np.random.default_rng(seed)

    def curve(shape, n):
        return shape + rng.normal(0, 0.1, (n, 1)) + rng.normal(0, sd, (n, len(SHAPE)))

    return curve(SHAPE, n_a), curve(slope * SHAPE**2, n_b)


# --- permutations ---


def test_a_correlation_has_the_interval_of_fishers_z_and_the_p_of_all_pairings():
    rng = np.random.default_rng(1)
    a, b = pd.Series(rng.normal(size=6)), pd.Series(rng.normal(size=6))
    found = correlate(a, b)
    r = np.corrcoef(a, b)[0, 1]
    half = stats.norm.isf(0.025) / math.sqrt(6 - 3)
    assert (found.r, found.low, found.high) == pytest.approx(
        (r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half))
    )
    assert found.n == 6
    ranks = correlate(a, b, ranks=True)
    rho = stats.spearmanr(a, b).statistic
    half *= math.sqrt(1.06)  # the standard error of ranks
    ends = math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)
    assert (ranks.r, ranks.low, ranks.high) == pytest.approx((rho, *ends))
    exact = stats.permutation_test(
        (a,), lambda x: np.corrcoef(x, b)[0, 1], permutation_type="pairings", n_resamples=np.inf
    )
    assert found.p == pytest.approx(exact.pvalue)


def test_a_correlation_of_many_pairs_uses_random_pairings():
    rng = np.random.default_rng(2)
    a = pd.Series(rng.normal(size=30))
    b = 0.45 * a + rng.normal(size=30)
    assert correlate(a, b).p == pytest.approx(stats.pearsonr(a, b).pvalue, abs=0.005)
    assert correlate(a, b).p == correlate(a, b).p  # always the same pairings
    strong = correlate(a, a + 0.01 * b)
    assert strong.p == pytest.approx(2 / (N_RESAMPLES + 1))
    assert N_RESAMPLES == 9_999


def test_four_pairs_are_enough_unless_one_side_is_constant():
    values = pd.Series([1.0, 2.0, 4.0, 3.0])
    assert correlate(values, values + 1).n == 4
    assert correlate(values, pd.Series([1.0, np.nan, 2.0, 3.0])) is None
    for constant in ((values, values * 0), (values * 0, values)):
        assert correlate(*constant) is None


def test_task_correlations_average_over_seeds_and_leave_out_baselines():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(2, 6, 3))  # (tasks, permutations, seeds)
    rows = [
        ("permutation", "permuted", "m", 500, "", task, x, s, values[t, x, s])
        for t, task in enumerate("ab")
        for x in range(6)
        for s in range(3)
    ]
    rows += [
        ("permutation", c, "m", 500, "", t, 0, 0, 99.0)
        for c in ("all pretrained", "none pretrained")
        for t in "ab"
    ]
    rows += [("localized", "permuted", "m", 500, "", t, x, 0, float(x)) for x in range(9) for t in "ab"]
    rows += [
        ("permutation", "permuted", "m", 5000, "", t, x, 0, float(x)) for x in range(3) for t in "ab"
    ]  # too few
    names = ["experiment", "condition", "model", "train_size", "variant", "task", "x", "seed", "value"]
    (row,) = task_correlations(pd.DataFrame(rows, columns=names)).itertuples(index=False)
    a, b = values.mean(axis=2)
    assert (row.task, row.other, row.n, row.train_size) == ("a", "b", 6, 500)
    assert (row.spearman, row.pearson) == pytest.approx(
        (stats.spearmanr(a, b).statistic, np.corrcoef(a, b)[0, 1])
    )
    by_hand = correlate(pd.Series(a), pd.Series(b), ranks=True)
    assert (row.spearman_p, row.spearman_low, row.spearman_high) == (by_hand.p, by_hand.low, by_hand.high)


# --- curves ---


def test_the_reliability_of_a_curve_is_cronbachs_alpha_with_seeds_as_items():
    a, b = two_curves()

    def alpha(table):
        n = len(table)
        items, total = table.var(axis=1, ddof=1).sum(), table.sum(axis=0).var(ddof=1)
        return n / (n - 1) * (1 - items / total)

    found = curve_correlation(table_of(a), table_of(b))
    assert found.reliability == pytest.approx(math.sqrt(alpha(a) * alpha(b)))
    assert found.r == pytest.approx(np.corrcoef(a.mean(0), b.mean(0))[0, 1])
    assert (found.n, found.layers, len(found.resampled)) == (4, 5, N_RESAMPLES)


@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_the_misfit_is_the_distance_from_the_best_rising_line(slope):
    """By numerical search over slopes, in units of the noise of each mean curve."""
    a, b = two_curves(slope=slope)
    scaled, residuals = [], []
    for table in (a, b):
        centered = table - table.mean(axis=1, keepdims=True)
        mean = centered.mean(axis=0)
        noise = ((centered - mean) ** 2).sum() / ((len(table) - 1) * 4)
        scaled.append(mean / math.sqrt(noise / len(table)))
        residuals.append((centered - mean) / math.sqrt(noise))

    def distance(angle):
        """Sum of squares across the line through the origin at this angle."""
        return ((math.cos(angle) * scaled[1] - math.sin(angle) * scaled[0]) ** 2).sum()

    angles = np.linspace(0, math.pi / 2, 20_001)  # lines that do not fall
    best = min(map(distance, angles))
    found = curve_correlation(table_of(a), table_of(b)).misfit
    assert found.f == pytest.approx(best / 3, rel=1e-4)
    covariance = np.concatenate(residuals).T @ np.concatenate(residuals)
    epsilon = np.trace(covariance) ** 2 / (4 * (covariance**2).sum())
    assert (found.df, found.df_denom) == pytest.approx((3 * epsilon, 4 * 8 * epsilon))
    assert found.p == pytest.approx(stats.f.sf(found.f, found.df, found.df_denom))


def test_curves_need_four_shared_layers_and_complete_seeds():
    a, b = two_curves()
    four = curve_correlation(table_of(a[:, :4]), table_of(b))
    assert four.layers == 4
    assert four.r == pytest.approx(np.corrcoef(a[:, :4].mean(0), b[:, :4].mean(0))[0, 1])
    assert curve_correlation(table_of(a[:, :3]), table_of(b)) is None
    missing = a.copy()
    missing[0, 2] = np.nan
    assert (
        curve_correlation(table_of(missing), table_of(b)).n == 3
    )  # a seed without all layers does not count
    alone = np.full((2, 5), np.nan)
    alone[0, :3] = alone[1, 2:] = 0.5
    assert curve_correlation(table_of(alone), table_of(b)) is None  # no seed is complete
    two = curve_correlation(table_of(a[:2]), table_of(b))
    assert (two.n, len(two.resampled)) == (2, N_RESAMPLES)
    one = curve_correlation(table_of(a[:1]), table_of(b))
    assert (one.n, one.resampled.size, one.misfit) == (1, 0, None)
    assert all(map(math.isnan, (one.low, one.high, one.reliability)))
    constant = curve_correlation(table_of(np.ones((3, 5))), table_of(b))
    assert math.isnan(constant.r)


def test_noise_that_hides_a_curve_or_is_missing_leaves_no_reliability():
    a, b = two_curves()
    flat = np.random.default_rng(5).normal(0, 0.1, a.shape)
    flat -= flat.mean(axis=0) * 0.9  # hardly any shape in the mean
    assert math.isnan(curve_correlation(table_of(flat), table_of(b)).reliability)
    assert math.isnan(curve_correlation(table_of(a), table_of(flat)).reliability)
    exact = np.tile(SHAPE, (3, 1))
    found = curve_correlation(table_of(exact), table_of(b))
    assert math.isnan(found.reliability)
    assert found.misfit is None


def test_seeds_are_resampled_as_a_whole():
    """With two seeds, a mean curve is that of one seed, of the other or of both, with probabilities 1, 1, 2 in 4."""
    a, b = two_curves(2, 2)
    found = curve_correlation(table_of(a), table_of(b)).resampled
    means = lambda t: ((t[0], 0.25), (t[1], 0.25), (t.mean(0), 0.5))  # noqa: E731
    expected = [(np.corrcoef(x, y)[0, 1], p * q) for x, p in means(a) for y, q in means(b)]
    for r, probability in expected:
        assert np.isclose(found, r).mean() == pytest.approx(probability, abs=0.02)


# --- bootstrap intervals and p values ---

DRAWS = np.random.default_rng(6).normal(0.3, 0.1, 9_999) ** 2  # not symmetric


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_percentiles_are_expanded_for_few_trials(level):
    n = 12
    z = stats.t.ppf((1 + level) / 2, n - 1) * math.sqrt(n / (n - 1))
    expected = np.quantile(DRAWS, [stats.norm.cdf(-z), stats.norm.cdf(z)])
    assert expanded_percentile_interval(DRAWS, n, level) == pytest.approx(tuple(expected))
    with_nan = np.append(DRAWS, np.nan)
    assert expanded_percentile_interval(with_nan, n, level) == pytest.approx(tuple(expected))


def test_beyond_the_resamples_the_interval_is_normal():
    z = stats.t.ppf(0.975, 2) * math.sqrt(3 / 2)
    half = z * DRAWS.std()
    assert expanded_percentile_interval(DRAWS, 3) == pytest.approx((DRAWS.mean() - half, DRAWS.mean() + half))
    transformed = np.arctanh(DRAWS)
    ends = np.tanh(transformed.mean() + np.array([-z, z]) * transformed.std())
    assert expanded_percentile_interval(DRAWS, 3, is_correlation=True) == pytest.approx(tuple(ends))


def test_quantiles_are_used_from_50_resamples_in_the_tail_on():
    n = 12
    tail = stats.norm.sf(stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1)))
    size = math.ceil(50 / tail)
    enough, few = DRAWS[:size], DRAWS[: size - 1]
    assert expanded_percentile_interval(enough, n)[0] == pytest.approx(np.quantile(enough, tail))
    assert expanded_percentile_interval(few, n)[0] != pytest.approx(np.quantile(few, tail))
    assert correlations.MIN_TAIL_RESAMPLES == 50


@pytest.mark.parametrize("threshold", [0.03, 0.12, 0.2])
def test_p_inverts_the_interval(threshold):
    """p is alpha if the threshold is the upper end of the interval at level 1 - 2·alpha."""
    n = 12
    p = bootstrap_p_below(DRAWS, threshold, n)
    beyond = (threshold <= DRAWS).mean()
    assert p == pytest.approx(stats.t.cdf(stats.norm.ppf(beyond) * math.sqrt((n - 1) / n), n - 1))
    if p < 0.5:
        level = optimize.brentq(
            lambda c: expanded_percentile_interval(DRAWS, n, c)[1] - threshold, 0.01, 0.99
        )
        assert (1 - level) / 2 == pytest.approx(p, abs=0.002)


def test_p_far_from_all_resamples_is_normal():
    n = 5
    for threshold in (2.0, -2.0):
        z = (DRAWS.mean() - threshold) / DRAWS.std()
        expected = stats.t.cdf(z * math.sqrt((n - 1) / n), n - 1)
        assert bootstrap_p_below(DRAWS, threshold, n) == pytest.approx(expected)
    transformed = np.arctanh(DRAWS)
    z = (transformed.mean() - math.atanh(0.9)) / transformed.std()
    expected = stats.t.cdf(z * math.sqrt((n - 1) / n), n - 1)
    assert bootstrap_p_below(np.append(DRAWS, np.nan), 0.9, n, is_correlation=True) == pytest.approx(expected)


@pytest.mark.parametrize("beyond", [49, 50, 950, 951])
def test_p_counts_resamples_if_50_are_on_each_side(beyond):
    draws, n = np.arange(1000.0) ** 1.5, 4
    threshold = draws[1000 - beyond]
    counted = stats.t.cdf(stats.norm.ppf(beyond / 1000) * math.sqrt(3 / 4), 3)
    assert (bootstrap_p_below(draws, threshold, n) == pytest.approx(counted)) == (50 <= beyond <= 950)


def test_correlations_of_exactly_1_have_a_finite_z():
    found = expanded_percentile_interval(np.array([1.0, -1.0, 0.5]), 3, is_correlation=True)
    assert np.isfinite(found).all()
    assert correlations._fisher_z(np.array([1.0, -1.0])) == pytest.approx(
        math.atanh(1 - 1e-9) * np.array([1, -1])
    )
