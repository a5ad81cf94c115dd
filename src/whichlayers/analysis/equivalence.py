"""Equivalence tests: whether a mean difference is smaller than an equivalence margin.

A difference that is not significantly different from zero may still be large if there are few trials. Two one-sided
tests (TOST, Schuirmann 1987) show that a difference is small: at significance level alpha, TOST is significant exactly
if the 1 - 2·alpha confidence interval (90% at 5%) is within ±margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from whichlayers.analysis.intervals import t_interval


@dataclass(frozen=True)
class EquivalenceResult:
    """A mean difference tested against an equivalence margin; p values are NaN without variance."""

    mean: float
    low: float  # confidence interval at level 1 - 2·alpha: 90% for tests at 5%
    high: float
    sd: float
    n: int
    p_within: float  # small if the difference is within the margin
    p_beyond: float  # small if it is beyond the margin


def equivalence_test(differences: np.ndarray, margin: float, alpha: float = 0.05) -> EquivalenceResult:
    """TOST of |mean| < margin on `differences` (n,), and the opposite test of |mean| > margin (two-sided)."""
    d = np.asarray(differences, dtype=float)
    if (result := _result_without_variance(d, alpha)) is not None:
        return result
    described = DescrStatsW(d)
    p_within = float(described.ttost_mean(-margin, margin)[0])
    above = float(described.ttest_mean(margin, "larger")[1])
    below = float(described.ttest_mean(-margin, "smaller")[1])
    return _result(d, alpha, p_within, min(1.0, 2 * min(above, below)))


def non_superiority_test(differences: np.ndarray, margin: float, alpha: float = 0.05) -> EquivalenceResult:
    """One-sided t tests of mean < margin, and of the opposite mean > margin, on `differences` (n,).

    Used for "does not help", which a negative difference of any size satisfies.
    """
    d = np.asarray(differences, dtype=float)
    if (result := _result_without_variance(d, alpha)) is not None:
        return result
    p_within = float(stats.ttest_1samp(d, margin, alternative="less").pvalue)
    return _result(d, alpha, p_within, float(stats.ttest_1samp(d, margin, alternative="greater").pvalue))


def _result_without_variance(d: np.ndarray, alpha: float) -> EquivalenceResult | None:
    """The result for a single value or equal values, whose t statistic is undefined; None for all other samples."""
    if d.size > 1 and np.ptp(d) > 0:
        return None
    return _result(d, alpha, math.nan, math.nan)


def _result(d: np.ndarray, alpha: float, p_within: float, p_beyond: float) -> EquivalenceResult:
    i = t_interval(d, 1 - 2 * alpha)
    return EquivalenceResult(i.mean, i.low, i.high, i.sd, i.n, p_within, p_beyond)
