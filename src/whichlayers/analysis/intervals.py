"""Confidence intervals of means, paired and unpaired differences, and adjusted p values.

A two-sided t interval is `mean ± t(0.975, n - 1) · sd / √n`, where `sd` is the sample standard deviation (divisor
n - 1). The code published with Tamkin et al. (2020) uses `2.667 · sd / √n` with divisor n instead, whatever n is; at
n = 3 that interval covers the mean in 84% of samples, not in 95% (see tests/analysis/test_intervals.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special, stats

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval; `low`, `high` and `sd` are NaN for a single value."""

    mean: float
    low: float
    high: float
    sd: float
    n: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class PairedDifference(Interval):
    """The mean of a - b over shared seeds, with the two-sided p value of the paired t test.

    `p` is NaN if there is a single pair, or if all differences are equal.
    """

    p: float

    @property
    def significant(self) -> bool:
        """Whether the confidence interval excludes zero.

        False if all differences are equal: metrics are discrete, so two or three equal differences occur by chance.
        """
        return self.n > 1 and self.sd > 0 and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class WelchDifference(Interval):
    """The mean of a minus the mean of b for independent samples, by Welch's t test.

    `sd` is the root mean square of the two standard deviations, `n` the size of a.
    """

    standard_error: float
    df: float  # Welch-Satterthwaite degrees of freedom


def t_interval(values: Sequence[float] | np.ndarray | pd.Series, level: float = LEVEL) -> Interval:
    """Mean of `values` (n,) and its two-sided t interval at confidence `level`; ValueError if there is no value."""
    x = np.asarray(values, dtype=float)
    if x.size == 0:
        raise ValueError("an interval needs at least one value")
    # fsum and ptp: equal values get exactly that mean and a standard deviation of exactly 0, without rounding error
    mean = float(x[0]) if np.ptp(x) == 0 else math.fsum(x) / x.size
    if x.size == 1:
        return Interval(mean, math.nan, math.nan, math.nan, 1)
    sd = 0.0 if np.ptp(x) == 0 else float(np.std(x, ddof=1))
    half = float(special.stdtrit(x.size - 1, (1 + level) / 2)) * sd / math.sqrt(x.size)
    return Interval(mean, mean - half, mean + half, sd, int(x.size))


def summarize(points: pd.DataFrame, by: Sequence[str], level: float = LEVEL) -> pd.DataFrame:
    """Mean and t interval of the column `value` in each group of `by`, ignoring missing values.

    Returns:
        One row per group: the columns in `by`, then mean, low, high, sd, n.
    """
    rows = []
    for key, values in points.dropna(subset=["value"]).groupby(list(by), dropna=False)["value"]:
        i = t_interval(values, level)
        rows.append((*key, i.mean, i.low, i.high, i.sd, i.n))
    return pd.DataFrame(rows, columns=[*by, "mean", "low", "high", "sd", "n"])


def paired_difference(a: pd.Series, b: pd.Series, level: float = LEVEL) -> PairedDifference | None:
    """Paired t test of a - b over the seeds that both have.

    Args:
        a: One value per seed, indexed by seed.
        b: The same, for the other side.
        level: Confidence level of the interval.

    Returns:
        The mean difference with its interval and two-sided p value; None if no seed is in both.
    """
    for series in (a, b):
        if series.index.has_duplicates:
            seed = series.index[series.index.duplicated()][0]
            raise ValueError(f"seed {seed} occurs twice; pass one value per seed")
    seeds = a.index.intersection(b.index)  # faster than a join, and a report computes a thousand of these
    differences = a.to_numpy(dtype=float)[a.index.get_indexer(seeds)]
    differences = differences - b.to_numpy(dtype=float)[b.index.get_indexer(seeds)]
    differences = differences[~np.isnan(differences)]
    if not differences.size:
        return None
    i = t_interval(differences, level)
    if i.n == 1 or i.sd == 0:  # the t statistic is undefined
        return PairedDifference(i.mean, i.low, i.high, i.sd, i.n, math.nan)
    p = float(2 * special.stdtr(i.n - 1, -abs(i.mean) / (i.sd / math.sqrt(i.n))))
    return PairedDifference(i.mean, i.low, i.high, i.sd, i.n, p)


def welch_difference(a: np.ndarray, b: np.ndarray, level: float = LEVEL) -> WelchDifference | None:
    """mean(a) - mean(b) of two independent samples (n_a,) and (n_b,), with Welch's t interval.

    The standard error is √(var(a) / n_a + var(b) / n_b). None if either sample has fewer than two values.
    """
    if min(len(a), len(b)) < 2:
        return None
    mean, variances = float(a.mean() - b.mean()), (float(a.var(ddof=1)), float(b.var(ddof=1)))
    error, sd = math.sqrt(variances[0] / len(a) + variances[1] / len(b)), math.sqrt(sum(variances) / 2)
    df = float(stats.ttest_ind(a, b, equal_var=False).df) if error else float(len(a) + len(b) - 2)
    half = float(special.stdtrit(df, (1 + level) / 2)) * error
    return WelchDifference(mean, mean - half, mean + half, sd, len(a), error, df)


def benjamini_yekutieli(p: Sequence[float] | pd.Series) -> np.ndarray:
    """Benjamini-Yekutieli adjusted p values (n,): they control the false discovery rate under any dependence.

    NaN stays NaN and does not count as a test.
    """
    values = np.asarray(p, dtype=float)
    adjusted = np.full(values.shape, math.nan)
    known = ~np.isnan(values)
    if known.any():
        adjusted[known] = stats.false_discovery_control(values[known], method="by")
    return adjusted


def holm(p: Sequence[float] | pd.Series) -> np.ndarray:
    """Holm-adjusted p values (n,): they control the family-wise error rate under any dependence.

    NaN stays NaN and does not count as a test.
    """
    values = np.asarray(p, dtype=float)
    adjusted = np.full(values.shape, math.nan)
    known = ~np.isnan(values)
    if known.sum() == 1:
        return values  # a single test needs no adjustment
    if known.any():  # not statsmodels' multipletests, which runs a full garbage collection at every call
        order = np.argsort(values[known])
        steps = np.maximum.accumulate(values[known][order] * np.arange(order.size, 0, -1))
        ranked = np.empty(order.size)
        ranked[order] = np.minimum(steps, 1.0)
        adjusted[known] = ranked
    return adjusted
