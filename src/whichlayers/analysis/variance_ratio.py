"""Ratio of the variances between trials of two curves, with trials that are correlated over k.

The variance of a curve is the mean over k of the variance over seeds. Scores of one seed at neighboring k are
correlated, so the k do not count as independent samples: the variance has (n - 1) · (tr S)² / tr S² degrees of freedom
for n seeds (Box 1954), where S is the covariance over k. Estimated from few seeds, that number is too small, which
makes the test conservative, and so do examples, order and head that both curves share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from whichlayers.analysis.intervals import LEVEL, ROUNDING
from whichlayers.analysis.power import PowerFunction


@dataclass(frozen=True)
class VarianceRatio:
    """Logarithm of the ratio of two standard deviations, by an F test."""

    log_ratio: float  # of the standard deviations
    low: float
    high: float
    dfs: tuple[float, float]
    n: int  # seeds of the curve that has fewer

    def p_above(self, log_ratio: float = 0.0) -> float:
        """One-sided p value for the true logarithm of the ratio being above `log_ratio`."""
        return float(stats.f.sf(math.exp(2 * (self.log_ratio - log_ratio)), *self.dfs))

    def p_below(self, log_ratio: float) -> float:
        """One-sided p value for the true logarithm of the ratio being below `log_ratio`."""
        return float(stats.f.cdf(math.exp(2 * (self.log_ratio - log_ratio)), *self.dfs))

    def power(self) -> PowerFunction:
        """Power of the two-sided test of a ratio above 1, as a function of the number of seeds."""

        def power(seeds: int, alpha: float) -> float:
            dfs = [df * (seeds - 1) / (self.n - 1) for df in self.dfs]
            return float(stats.f.sf(stats.f.isf(alpha / 2, *dfs) / math.exp(2 * self.log_ratio), *dfs))

        return power


def variance_ratio(a: np.ndarray, b: np.ndarray, level: float = LEVEL) -> VarianceRatio | None:
    """Standard deviation between seeds of `a` (seeds, k) relative to that of `b` (seeds, k).

    None if either has fewer than two seeds or no variance.
    """
    if min(len(a), len(b)) < 2:
        return None
    variances, dfs = [], []
    for table in (a, b):
        centered = table - table.mean(axis=0)
        covariance = centered.T @ centered / (len(table) - 1)  # (k, k)
        trace = float(np.trace(covariance))
        if not trace > ROUNDING:
            return None
        variances.append(trace / len(covariance))
        dfs.append((len(table) - 1) * trace**2 / float((covariance**2).sum()))
    ratio = variances[0] / variances[1]
    low, high = (ratio / stats.f.isf(q, *dfs) for q in ((1 - level) / 2, (1 + level) / 2))
    log_ratio, log_low, log_high = (math.log(r) / 2 for r in (ratio, low, high))
    return VarianceRatio(log_ratio, log_low, log_high, (dfs[0], dfs[1]), min(len(a), len(b)))
