"""Ratio of the spread between trials of two curves that share their seeds: a paired Brown-Forsythe test.

The spread of a curve is the mean absolute deviation of its trials from the median of their k. Each seed has one number
per curve, its deviations averaged over k, so k that are correlated do not count as independent samples. A ratio of the
spreads is tested by the paired t test of deviation in `a` - ratio · deviation in `b` over seeds (Brown and Forsythe
1974). An F test of the variances would assume normal scores: where 5% of the trials fail to train, it finds a larger
variance in one of two equal settings in 21 to 29% of studies with 50 trials, this test in 2% (2.5% is nominal).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from whichlayers.analysis.intervals import LEVEL, mean_p_above, mean_p_below, t_interval
from whichlayers.analysis.power import PowerFunction, mean_power

MIN_SEEDS = 3  # two trials have the same distance from their median, so that the deviations have no variance


@dataclass(frozen=True)
class VarianceRatio:
    """Logarithm of the ratio of two spreads.

    For scores whose distributions differ in location and scale alone, it is that of the standard deviations.
    """

    log_ratio: float
    low: float  # Fieller's interval: the ratios that the paired t test does not reject; may be -inf
    high: float  # may be inf
    n: int  # seeds
    deviations: tuple[np.ndarray, np.ndarray]  # (n,) each: of every seed, averaged over k

    def p_above(self, log_ratio: float = 0.0) -> float:
        """One-sided p value for the true logarithm of the ratio being above `log_ratio`."""
        return mean_p_above(t_interval(self._differences(log_ratio)), 0.0)

    def p_below(self, log_ratio: float) -> float:
        """One-sided p value for the true logarithm of the ratio being below `log_ratio`."""
        return mean_p_below(t_interval(self._differences(log_ratio)), 0.0)

    def power(self, margin: float = 0.0) -> PowerFunction | None:
        """Power of the two-sided test of a ratio above 1 whose estimated logarithm is at least `margin`, as a function
        of the number of seeds; None if the estimate is below the margin."""
        i = t_interval(self._differences(0.0))
        least = math.expm1(margin) * float(self.deviations[1].mean())
        return mean_power(i.mean, i.sd, margin=least) if i.mean > 0 else None

    def _differences(self, log_ratio: float) -> np.ndarray:
        a, b = self.deviations
        return a - math.exp(log_ratio) * b


def variance_ratio(a: np.ndarray, b: np.ndarray, level: float = LEVEL) -> VarianceRatio | None:
    """Spread between seeds of `a` (seeds, k) relative to that of `b` (seeds, k), row by row the same seeds.

    None with fewer than three seeds, or if either has no variance.
    """
    if len(a) < MIN_SEEDS:
        return None
    deviations = tuple(np.abs(table - np.median(table, axis=0)).mean(axis=1) for table in (a, b))
    a_seeds, b_seeds = deviations
    if t_interval(a_seeds).sd == 0 or t_interval(b_seeds).sd == 0:
        return None
    low, high = _fieller(a_seeds, b_seeds, level)
    return VarianceRatio(
        math.log(a_seeds.mean() / b_seeds.mean()), low, high, len(a_seeds), (a_seeds, b_seeds)
    )


def _fieller(a: np.ndarray, b: np.ndarray, level: float) -> tuple[float, float]:
    """Logarithms of the smallest and largest ratio r for which the paired t test of a - r · b (n,) does not reject.

    These are the roots of r² (B² - c var(b)) - 2 r (A B - c cov) + (A² - c var(a)), with the means A and B and
    c = t² / n. There is no upper end if B is not significantly above 0, and no lower end if A is not.
    """
    c = float(stats.t.ppf((1 + level) / 2, len(a) - 1)) ** 2 / len(a)
    (var_a, cov), (_, var_b) = np.cov(a, b)
    mean_a, mean_b = a.mean(), b.mean()
    square, linear, constant = mean_b**2 - c * var_b, mean_a * mean_b - c * cov, mean_a**2 - c * var_a
    root = linear + math.sqrt(max(0.0, linear**2 - square * constant))
    low = math.log(constant / root) if constant > 0 else -math.inf
    return low, math.log(root / square) if square > 0 else math.inf
