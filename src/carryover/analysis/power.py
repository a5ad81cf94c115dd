"""How many trials an undecided question needs, if its effect is as large as it looks now.

The answer is an estimate from an estimate: it says "about 8, not 3", and no more.
"""

from __future__ import annotations

import math

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
    for more in range(n + 1, MOST + 1):
        left = df_left * (more - 1) / (n - 1)
        threshold = stats.f.isf(alpha, df, left)
        if stats.ncf.sf(threshold, df, left, noncentrality * more / n) >= POWER:
            return more
    return None


def _known(effect: float, sd: float) -> bool:
    return math.isfinite(effect) and math.isfinite(sd) and sd > 0 and effect != 0


def _solved(test: TTestPower | TTestIndPower, size: float, alpha: float, alternative: str) -> int | None:
    size = abs(size)
    asked = {"effect_size": size, "alpha": alpha, "alternative": alternative}
    numbers = range(2, 12) if size > 0.9 else ()  # solve_power searches from above and misses the smallest
    for n in numbers:
        if test.power(size, n, alpha, alternative=alternative) >= POWER:
            return n
    if test.power(size, MOST, alpha, alternative=alternative) < POWER:
        return None
    key = "nobs" if isinstance(test, TTestPower) else "nobs1"
    return math.ceil(float(test.solve_power(**asked, power=POWER, **{key: None})))
