"""Means with t intervals, and differences, paired or not: the statistics that every figure and table here uses.

The interval is mean ± t(0.975, n - 1) · sd / √n with sd over n - 1. (The published code of Tamkin et al. has
2.667 · sd / √n with sd over n, whatever n is: at n = 3 that covers 84% and not 95%; the tests show it.)
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
    """A mean and its interval; low, high and sd are NaN where there is a single value."""

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
    """The mean of a - b over shared seeds; p is two-sided, of the paired t test, NaN where they do not differ."""

    p: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out. Equal differences have none: a metric comes in steps, and two or
        three differences of the same number of examples are no rarity."""
        return self.n > 1 and self.sd > 0 and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Difference(Interval):
    """The mean of a less the mean of b, of samples that share no seeds, by Welch's t; n is how many a has."""

    error: float  # standard error of the difference
    df: float  # Welch's degrees of freedom


def t_interval(values: Sequence[float] | np.ndarray | pd.Series, level: float = LEVEL) -> Interval:
    x = np.asarray(values, dtype=float)
    if x.size == 0:
        raise ValueError("an interval needs at least one value")
    # fsum and ptp: equal values have exactly that mean and exactly no spread, whatever rounding does
    mean = float(x[0]) if np.ptp(x) == 0 else math.fsum(x) / x.size
    if x.size == 1:
        return Interval(mean, math.nan, math.nan, math.nan, 1)
    sd = 0.0 if np.ptp(x) == 0 else float(np.std(x, ddof=1))
    half = float(special.stdtrit(x.size - 1, (1 + level) / 2)) * sd / math.sqrt(x.size)
    return Interval(mean, mean - half, mean + half, sd, int(x.size))


def summarise(points: pd.DataFrame, by: Sequence[str], level: float = LEVEL) -> pd.DataFrame:
    """mean, low, high, sd, n of `value` for every group of `by`; rows without a value are left out."""
    rows = []
    for key, values in points.dropna(subset=["value"]).groupby(list(by), dropna=False)["value"]:
        i = t_interval(values, level)
        rows.append((*key, i.mean, i.low, i.high, i.sd, i.n))
    return pd.DataFrame(rows, columns=[*by, "mean", "low", "high", "sd", "n"])


def paired_difference(a: pd.Series, b: pd.Series, level: float = LEVEL) -> PairedDifference | None:
    """a - b over the seeds both have (a value per seed, indexed by it); None where they share none."""
    for series in (a, b):
        if series.index.has_duplicates:
            raise ValueError(
                f"seed {series.index[series.index.duplicated()][0]} occurs twice: what is to be paired?"
            )
    seeds = a.index.intersection(b.index)  # faster than a join of both, of which a report makes a thousand
    differences = a.to_numpy(dtype=float)[a.index.get_indexer(seeds)]
    differences = differences - b.to_numpy(dtype=float)[b.index.get_indexer(seeds)]
    differences = differences[~np.isnan(differences)]
    if not differences.size:
        return None
    i = t_interval(differences, level)
    if i.n == 1 or i.sd == 0:  # without spread there is no t; equal differences prove nothing
        return PairedDifference(i.mean, i.low, i.high, i.sd, i.n, math.nan)
    p = float(2 * special.stdtr(i.n - 1, -abs(i.mean) / (i.sd / math.sqrt(i.n))))  # of the t distribution
    return PairedDifference(i.mean, i.low, i.high, i.sd, i.n, p)


def difference_of_means(a: np.ndarray, b: np.ndarray, level: float = LEVEL) -> Difference | None:
    """None where one of them has no spread to tell: fewer than two values."""
    if min(len(a), len(b)) < 2:
        return None
    mean, variances = float(a.mean() - b.mean()), (float(a.var(ddof=1)), float(b.var(ddof=1)))
    error, sd = math.sqrt(variances[0] / len(a) + variances[1] / len(b)), math.sqrt(sum(variances) / 2)
    df = float(stats.ttest_ind(a, b, equal_var=False).df) if error else float(len(a) + len(b) - 2)
    half = float(special.stdtrit(df, (1 + level) / 2)) * error
    return Difference(mean, mean - half, mean + half, sd, len(a), error, df)


def false_discovery(p: Sequence[float] | pd.Series) -> np.ndarray:
    """Benjamini-Yekutieli adjusted p values (valid under any dependence); NaN stays and does not count."""
    values = np.asarray(p, dtype=float)
    adjusted = np.full(values.shape, math.nan)
    known = ~np.isnan(values)
    if known.any():
        adjusted[known] = stats.false_discovery_control(values[known], method="by")
    return adjusted


def holm(p: Sequence[float] | pd.Series) -> np.ndarray:
    """Holm's adjusted p values (family-wise, valid under any dependence); NaN stays and does not count."""
    values = np.asarray(p, dtype=float)
    adjusted = np.full(values.shape, math.nan)
    known = ~np.isnan(values)
    if known.sum() == 1:
        return values  # one test is no family
    if known.any():  # statsmodels has it too, with a full garbage collection at every call
        order = np.argsort(values[known])
        steps = np.maximum.accumulate(values[known][order] * np.arange(order.size, 0, -1))
        ranked = np.empty(order.size)
        ranked[order] = np.minimum(steps, 1.0)
        adjusted[known] = ranked
    return adjusted
