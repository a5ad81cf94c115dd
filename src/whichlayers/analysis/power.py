"""How many trials an undecided question needs, if its effect is as large as it looks now.

The answer is an estimate from an estimate: it says "about 8, not 3", and no more.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

from scipy import stats
from statsmodels.stats.power import TTestIndPower, TTestPower

POWER = 0.8
MOST = 1000  # more trials than this nobody will run


def trials_for_mean(
    effect: float, sd: float, alpha: float = 0.05, alternative: str = "two-sided"
) -> int | None:
    """Of one sample or of pairs: so many tell a mean of `effect` from zero four times in five."""
    if not _known(effect, sd):
        return None
    return _solved(TTestPower(), effect / sd, alpha, alternative)


def trials_each(effect: float, sd: float, alpha: float = 0.05) -> int | None:
    """Of two samples of one size: so many in each."""
    if not _known(effect, sd):
        return None
    return _solved(TTestIndPower(), effect / sd, alpha, "two-sided")


def trials_for_margin(mean: float, sd: float, margin: float, alpha: float = 0.05) -> int | None:
    """For a mean to be shown to lie within a margin; None where it does not lie there."""
    room = margin - abs(mean)
    return trials_for_mean(room, sd, alpha, "larger") if room > 0 else None


def trials_for_interaction(
    noncentrality: float, df: float, n: int, df_left: float, alpha: float = 0.05
) -> int | None:
    """Trials a cell for an F test: noncentrality and degrees of freedom both grow with the trials."""
    if not noncentrality > 0 or n < 2:
        return None

    def power(more: int) -> float:
        left = df_left * (more - 1) / (n - 1)
        return float(stats.ncf.sf(stats.f.isf(alpha, df, left), df, left, noncentrality * more / n))

    return _fewest(power, n + 1)


def _known(effect: float, sd: float) -> bool:
    return math.isfinite(effect) and math.isfinite(sd) and sd > 0 and effect != 0


def _solved(test: TTestPower | TTestIndPower, size: float, alpha: float, alternative: str) -> int | None:
    """In whole trials from 2 on; `solve_power` finds fractions, and none below 2."""
    return _fewest(lambda n: float(test.power(abs(size), n, alpha, alternative=alternative)), 2)


def _fewest(power: Callable[[int], float], least: int) -> int | None:
    """The smallest number of trials with the power wanted; doubled till it is enough, then searched between."""
    most = least
    while most < MOST and not power(most) >= POWER:
        most = min(2 * most, MOST)
    if not power(most) >= POWER:
        return None
    return bisect.bisect_left(range(least, most), True, key=lambda n: power(n) >= POWER) + least
