"""Confidence intervals and t tests of means, paired and unpaired differences; equivalence tests; adjusted p values.

A two-sided t interval is `mean ± t(0.975, n - 1) · sd / √n`, where `sd` is the sample standard deviation (divisor
n - 1). The code published with Tamkin et al. (2020) uses `2.667 · sd / √n` with divisor n instead, whatever n is; at
n = 3 that interval covers the mean in 84% of samples, not in 95% (see tests/analysis/test_intervals.py).

One rule for samples without variance, in all tests: metrics are discrete, so two or three equal values occur by
chance. Values that differ by rounding error alone (`ROUNDING`) count as equal; then `sd` is exactly 0, p values are
NaN, and nothing is significant.

A difference that is not significantly different from zero may still be large if there are few trials. Two one-sided
tests (TOST, Schuirmann 1987) show that a difference is small: at significance level alpha, TOST is significant exactly
if the 1 - 2·alpha confidence interval (90% at 5%) is within ±margin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special, stats

LEVEL = 0.95  # of confidence intervals
SIGNIFICANT = 0.05  # a smaller p value is significant
ROUNDING = 1e-12  # metrics are of order 1


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

    @property
    def significant(self) -> bool:
        """Whether the confidence interval excludes zero; False without variance."""
        return self.n > 1 and self.sd > 0 and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class PairedDifference(Interval):
    """The mean of a - b over shared seeds, with the two-sided p value of the paired t test.

    `p` is NaN if there is a single pair, or if all differences are equal.
    """

    p: float


@dataclass(frozen=True)
class WelchDifference(Interval):
    """The mean of a minus the mean of b for independent samples, by Welch's t test.

    `sd` is the root mean square of the two standard deviations, `n` the size of a.
    """

    standard_error: float
    df: float  # Welch-Satterthwaite degrees of freedom
    p: float  # two-sided; NaN if neither sample has variance
    variances: tuple[float, float]  # of a and of b


def t_interval(values: Sequence[float] | np.ndarray | pd.Series, level: float = LEVEL) -> Interval:
    """Mean of `values` (n,) and its two-sided t interval at confidence `level`; ValueError if there is no value."""
    x = np.asarray(values, dtype=float)
    if x.size == 0:
        raise ValueError("an interval needs at least one value")
    mean = float(x[0]) if np.ptp(x) == 0 else math.fsum(x) / x.size  # equal values have exactly that mean
    if x.size == 1:
        return Interval(mean, math.nan, math.nan, math.nan, 1)
    sd = math.sqrt(_variance(x))
    half = float(special.stdtrit(x.size - 1, (1 + level) / 2)) * sd / math.sqrt(x.size)
    return Interval(mean, mean - half, mean + half, sd, int(x.size))


def ends_of_one_of(count: int, mean: float, sd: float, n: int) -> tuple[float, float]:
    """The ends of a t interval that covers the mean of one of `count` samples, whichever is chosen by its values.

    A 95% interval of the largest of 12 differences covers the true one in 73 to 87% of simulated studies. This one has
    the level 1 - 5% / `count` (Bonferroni), so that all of them together are covered in 95% or more.

    Args:
        count: Number of samples to choose from.
        mean, sd, n: Mean, standard deviation and size of the chosen sample.
    """
    if n < 2:
        return math.nan, math.nan
    half = float(special.stdtrit(n - 1, 1 - (1 - LEVEL) / (2 * count))) * sd / math.sqrt(n)
    return mean - half, mean + half


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
    variances = (_variance(a), _variance(b))
    mean, parts = float(a.mean() - b.mean()), (variances[0] / len(a), variances[1] / len(b))
    error, sd = math.sqrt(sum(parts)), math.sqrt(sum(variances) / 2)
    if error == 0:
        return WelchDifference(
            mean, mean, mean, 0.0, len(a), 0.0, float(len(a) + len(b) - 2), math.nan, variances
        )
    df = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    half = float(special.stdtrit(df, (1 + level) / 2)) * error
    p = float(2 * special.stdtr(df, -abs(mean) / error))
    return WelchDifference(mean, mean - half, mean + half, sd, len(a), error, df, p, variances)


def _variance(x: np.ndarray) -> float:
    """Sample variance of x (n,), n >= 2; exactly 0 if the values differ by rounding error alone."""
    return 0.0 if np.ptp(x) <= ROUNDING else float(np.var(x, ddof=1))


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
    i = t_interval(differences, 1 - 2 * alpha)
    p_within = max(mean_p_below(i, margin), mean_p_above(i, -margin))  # both NaN without variance
    p_beyond = two_sided(min(mean_p_above(i, margin), mean_p_below(i, -margin)))
    return EquivalenceResult(i.mean, i.low, i.high, i.sd, i.n, p_within, p_beyond)


def non_superiority_test(differences: np.ndarray, margin: float, alpha: float = 0.05) -> EquivalenceResult:
    """One-sided t tests of mean < margin, and of the opposite mean > margin, on `differences` (n,).

    Used for "does not help", which a negative difference of any size satisfies.
    """
    i = t_interval(differences, 1 - 2 * alpha)
    return EquivalenceResult(
        i.mean, i.low, i.high, i.sd, i.n, mean_p_below(i, margin), mean_p_above(i, margin)
    )


def mean_p_below(i: Interval, threshold: float) -> float:
    """One-sided p value of the one-sample t test for the true mean being below `threshold`."""
    return p_below(i.mean, i.sd / math.sqrt(i.n), i.n - 1, threshold)


def mean_p_above(i: Interval, threshold: float) -> float:
    """One-sided p value of the one-sample t test for the true mean being above `threshold`."""
    return p_below(-i.mean, i.sd / math.sqrt(i.n), i.n - 1, -threshold)


def two_sided(p: float) -> float:
    """Two-sided p value from a one-sided one; NaN stays NaN."""
    return p if math.isnan(p) else min(1.0, 2 * p)


def p_below(estimate: float, standard_error: float, df: float, threshold: float) -> float:
    """One-sided p value for the true value being below `threshold`, from a t distributed estimate.

    P(T(df) <= (estimate - threshold) / standard_error); NaN if the standard error is zero or not finite.
    """
    if not (math.isfinite(standard_error) and standard_error > 0 and df > 0):
        return math.nan
    return float(special.stdtr(df, (estimate - threshold) / standard_error))


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
