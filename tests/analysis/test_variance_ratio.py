"""Ratios of spreads, against scipy's t test and by simulation with noise correlated over k and trials that fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from whichlayers.analysis.power import trials_for
from whichlayers.analysis.variance_ratio import variance_ratio

K = 12
CORRELATION = 0.8 ** np.abs(np.subtract.outer(np.arange(K), np.arange(K)))
MARGIN = math.log(1.1)


def curves(rng, n, sd, shared=0.0, failing=0.0, whole_seeds=False):
    """(n, K) trials with noise correlated over k; `shared` (n, K) is common to two curves; failures lose 30 points."""
    failed = rng.random((n, 1) if whole_seeds else (n, K)) < failing
    return sd * (rng.normal(size=(n, K)) @ np.linalg.cholesky(CORRELATION).T + shared) - 0.3 * failed


def deviations(table):
    return np.abs(table - np.median(table, axis=0)).mean(axis=1)


@pytest.mark.parametrize("k", [1, K])
def test_it_is_the_paired_t_test_of_the_deviations(k):
    rng = np.random.default_rng(0)
    a, b = curves(rng, 7, 0.02)[:, :k], curves(rng, 7, 0.01)[:, :k]
    found = variance_ratio(a, b)
    of_a, of_b = deviations(a), deviations(b)
    assert found.n == 7
    assert found.log_ratio == pytest.approx(math.log(of_a.mean() / of_b.mean()))
    assert found.p_above() == pytest.approx(stats.ttest_rel(of_a, of_b, alternative="greater").pvalue)
    assert found.p_below(MARGIN) == pytest.approx(
        stats.ttest_rel(of_a, 1.1 * of_b, alternative="less").pvalue
    )


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_the_interval_has_the_ratios_that_the_test_does_not_reject(level):
    rng = np.random.default_rng(1)
    found = variance_ratio(curves(rng, 9, 0.02), curves(rng, 9, 0.01), level)
    tail = (1 - level) / 2
    assert found.low < found.log_ratio < found.high
    assert found.p_above(found.low) == pytest.approx(tail)
    assert found.p_below(found.high) == pytest.approx(tail)


def test_an_interval_without_an_end():
    """With one k and three seeds the smallest deviation is 0, and the mean is not significantly above 0."""
    found = variance_ratio(np.array([[0.1], [0.4], [0.2]]), np.array([[0.2], [0.3], [0.26]]))
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_none_without_variance_or_with_fewer_than_three_seeds():
    some, equal = np.array([[0.1, 0.2], [0.3, 0.1], [0.3, 0.4]]), np.ones((3, 2))
    assert variance_ratio(some, some[::-1]) is not None
    assert variance_ratio(some, equal) is None
    assert variance_ratio(equal, some) is None
    assert variance_ratio(some[:2], some[:2]) is None
    assert variance_ratio(some[:1], some[:1]) is None


@pytest.mark.parametrize(("n", "common"), [(3, 0.0), (3, 1.0), (10, 0.0), (10, 1.0)])
def test_equal_variances_are_rarely_rejected(n, common):
    rng, rejected, covered = np.random.default_rng(1), [], []
    for _ in range(600):
        shared = common * rng.normal(size=(n, K))
        found = variance_ratio(curves(rng, n, 0.02, shared), curves(rng, n, 0.02, shared))
        rejected.append(2 * found.p_above() < 0.05)
        covered.append(found.low <= 0 <= found.high)
    assert np.mean(rejected) < 0.041  # 2.5% in this direction plus 2.5 standard errors
    assert np.mean(covered) > 0.93


@pytest.mark.parametrize("whole_seeds", [False, True])
@pytest.mark.parametrize("n", [3, 20, 50])
def test_trials_that_fail_in_both_settings_are_rarely_taken_for_a_larger_variance(n, whole_seeds):
    """An F test of the variances rejects 11 to 29%."""
    rng, rejected, covered = np.random.default_rng(77), [], []
    for _ in range(600):
        a, b = (curves(rng, n, 0.01, failing=0.05, whole_seeds=whole_seeds) for _ in range(2))
        found = variance_ratio(a, b)
        rejected.append(2 * found.p_above() < 0.05)
        covered.append(found.low <= 0 <= found.high)
    assert np.mean(rejected) < 0.041  # 2.5% plus 2.5 standard errors
    assert np.mean(covered) > 0.93


def test_a_larger_variance_is_found_although_trials_fail():
    rng = np.random.default_rng(3)
    found = [
        2 * variance_ratio(curves(rng, 50, 0.03, failing=0.05), curves(rng, 50, 0.01, failing=0.05)).p_above()
        for _ in range(100)
    ]
    assert np.mean(np.array(found) < 0.05) > 0.85


@pytest.mark.parametrize("ratio", [2.0, 1.4])
def test_power_at_the_number_of_trials_needed(ratio):
    """Of being significant and 10% or more, with deviations that are as large as estimated from 60 trials."""
    rng = np.random.default_rng(4)
    found = variance_ratio(curves(rng, 60, 0.01 * ratio), curves(rng, 60, 0.01))
    true = math.exp(found.log_ratio)
    assert true == pytest.approx(ratio, rel=0.15)
    n = trials_for(found.power(MARGIN), 0.05)
    held = []
    for _ in range(400):
        one = variance_ratio(curves(rng, n, 0.01 * true), curves(rng, n, 0.01))
        held.append(2 * one.p_above() < 0.05 and one.log_ratio >= MARGIN)
    assert 0.7 < np.mean(held) < 0.92
    assert trials_for(found.power(MARGIN), 0.005) > n


def test_no_power_for_an_estimate_below_the_margin():
    rng = np.random.default_rng(5)
    larger, smaller = curves(rng, 20, 0.02), curves(rng, 20, 0.01)
    assert variance_ratio(smaller, larger).power(MARGIN) is None
    by_5_percent = variance_ratio(1.05 * smaller + 0.0001 * larger, smaller)
    assert 0 < by_5_percent.log_ratio < MARGIN
    assert by_5_percent.power(MARGIN) is None
    assert by_5_percent.power() is not None
