"""Tests that a difference is small: two one-sided tests (TOST) against a margin that has a name and a size.

That a difference cannot be told from zero says that there were few trials, not that there is no difference.
"It hardly matters" is shown by an interval that lies within the margin; TOST at 5% is the 90% interval within it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from whichlayers.analysis.intervals import t_interval


@dataclass(frozen=True)
class Within:
    """A mean difference held against (-margin, +margin), or against +margin alone."""

    mean: float
    low: float  # of the interval at 1 - 2 · alpha: 90% for tests at 5%
    high: float
    sd: float
    n: int
    p_within: float  # of the claim that the difference is inside the margin
    p_beyond: float  # of the claim that it is outside


def within_margin(differences: np.ndarray, margin: float, alpha: float = 0.05) -> Within:
    """TOST: is |mean| < margin? And the opposite: is |mean| > margin?"""
    d = np.asarray(differences, dtype=float)
    if (exact := _without_spread(d, alpha)) is not None:
        return exact
    described = DescrStatsW(d)
    p_within = float(described.ttost_mean(-margin, margin)[0])
    above = float(described.ttest_mean(margin, "larger")[1])
    below = float(described.ttest_mean(-margin, "smaller")[1])
    return _with_p(d, alpha, p_within, min(1.0, 2 * min(above, below)))


def below_margin(differences: np.ndarray, margin: float, alpha: float = 0.05) -> Within:
    """One-sided: is mean < margin? That a thing does not help says nothing of how much it harms."""
    d = np.asarray(differences, dtype=float)
    if (exact := _without_spread(d, alpha)) is not None:
        return exact
    p_within = float(stats.ttest_1samp(d, margin, alternative="less").pvalue)
    return _with_p(d, alpha, p_within, float(stats.ttest_1samp(d, margin, alternative="greater").pvalue))


def _without_spread(d: np.ndarray, alpha: float) -> Within | None:
    """One value, or equal ones: there is no t to be had, and p is NaN."""
    if d.size > 1 and np.ptp(d) > 0:
        return None
    return _with_p(d, alpha, math.nan, math.nan)


def _with_p(d: np.ndarray, alpha: float, p_within: float, p_beyond: float) -> Within:
    i = t_interval(d, 1 - 2 * alpha)
    return Within(i.mean, i.low, i.high, i.sd, i.n, p_within, p_beyond)
