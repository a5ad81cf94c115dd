"""Ratios of standard deviations, against scipy's F distribution and by simulation with noise correlated over k."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from whichlayers.analysis.power import trials_for
from whichlayers.analysis.variance_ratio import variance_ratio

K = 12
CORRELATION = 0.8 ** np.abs(np.subtract.outer(np.arange(K), np.arange(K)))


def curves(rng, n, sd, shared):
    """(n, K) trials with noise correlated over k; `shared` (n, K) is common to two curves."""
    return sd * (rng.normal(size=(n, K)) @ np.linalg.cholesky(CORRELATION).T + shared)


def test_a_single_k_is_the_usual_f_test():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 2, (7, 1)), rng.normal(0, 1, (5, 1))
    found = variance_ratio(a, b)
    f = np.var(a, ddof=1) / np.var(b, ddof=1)
    assert found.dfs == pytest.approx((6, 4))
    assert found.n == 5
    assert found.log_ratio == pytest.approx(math.log(math.sqrt(f)))
    assert found.p_above() == pytest.approx(stats.f.sf(f, 6, 4))
    assert found.p_below(math.log(1.1)) == pytest.approx(stats.f.cdf(f / 1.21, 6, 4))
    assert found.low == pytest.approx(0.5 * math.log(f / stats.f.ppf(0.975, 6, 4)))
    assert found.high == pytest.approx(0.5 * math.log(f / stats.f.ppf(0.025, 6, 4)))


def test_the_variance_is_the_mean_over_k_and_independent_k_add_degrees_of_freedom():
    a = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0], [0.0, -3.0]])  # variances 2/3 and 6, no covariance
    found = variance_ratio(a, np.array([[1.0], [-1.0]]))
    assert found.log_ratio == pytest.approx(0.5 * math.log((2 / 3 + 6) / 2 / 2))
    assert found.dfs == pytest.approx((3 * (2 / 3 + 6) ** 2 / ((2 / 3) ** 2 + 36), 1))


def test_none_without_variance_or_with_a_single_seed():
    some = np.array([[0.1, 0.2], [0.3, 0.1]])
    assert variance_ratio(some, np.ones((2, 2))) is None
    assert variance_ratio(np.ones((2, 2)), some) is None
    assert variance_ratio(some[:1], some) is None
    assert variance_ratio(some, some[:1]) is None


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


def test_power_is_that_of_the_two_sided_f_test():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0, 2, (6, 1)), rng.normal(0, 1, (6, 1))
    found = variance_ratio(a, b)
    ratio = np.var(a, ddof=1) / np.var(b, ddof=1)
    for n in (6, 11):
        critical = stats.f.ppf(0.975, n - 1, n - 1)
        assert found.power()(n, 0.05) == pytest.approx(stats.f.sf(critical / ratio, n - 1, n - 1))


def test_power_at_the_number_of_trials_needed():
    """Conservative: at least 80%, as the degrees of freedom are underestimated."""
    rng = np.random.default_rng(2)
    shared = np.zeros((40, K))
    found = variance_ratio(curves(rng, 40, 0.02, shared), curves(rng, 40, 0.01, shared))
    assert found.log_ratio == pytest.approx(math.log(2), abs=0.2)
    n = trials_for(found.power(), 0.05)
    assert n == pytest.approx(10, abs=4)
    shared = np.zeros((n, K))
    significant = [
        2 * variance_ratio(curves(rng, n, 0.02, shared), curves(rng, n, 0.01, shared)).p_above() < 0.05
        for _ in range(300)
    ]
    assert 0.6 < np.mean(significant) < 0.95
    large = variance_ratio(curves(rng, 40, 0.03, np.zeros((40, K))), curves(rng, 40, 0.01, np.zeros((40, K))))
    assert trials_for(large.power(), 0.05) < n < trials_for(found.power(), 0.005)
