"""Power analysis: how many trials a test needs to detect an effect with 80% power.

    for e in power_estimates(finished(load_points(folder)), difference=0.01):
        print(e.about, e.needed, e.additional, e.minutes_per_trial)

All numbers use the standard deviation observed so far. From three trials that is a rough estimate, from ten a fair
one, and so are the numbers of trials.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from whichlayers.analysis.intervals import paired_difference
from whichlayers.experiments import display_of
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import CURVE
from whichlayers.trial import ALL_PRETRAINED, BASELINES

POWER = 0.8
MAX_TRIALS = 1000  # upper limit of the search
NODES = 400  # of the quadrature; enough for five digits with one degree of freedom


PowerFunction = Callable[[int, float], float]  # (trials, significance level) -> power


def trials_for(power: PowerFunction | None, alpha: float = 0.05, least: int = 2) -> int | None:
    """Smallest number of trials, `least` or more, with 80% power at significance level `alpha`.

    None if `power` is None (there is no effect, or no variance to estimate it from), or if more than `MAX_TRIALS` are
    needed.
    """
    return None if power is None else _smallest_n(lambda n: power(n, alpha), least)


def mean_power(effect: float, sd: float, two_sided: bool = True, margin: float = 0.0) -> PowerFunction | None:
    """Power of a one-sample t test to detect a mean of `effect`.

    Args:
        effect: The mean to detect, in the units of `sd`; its sign is ignored.
        sd: Standard deviation of one trial, or of one paired difference.
        two_sided: Whether the test is two-sided.
        margin: If it is not zero, the power is the probability that the test is significant and the estimate has the
            sign of `effect` and is at least this large.

    Returns:
        None if `effect` or `sd` is zero or not finite, or if `effect` is smaller than the margin.
    """
    if not _is_valid(effect, sd) or abs(effect) < margin:
        return None
    d, least = abs(effect) / sd, margin / sd
    return lambda n, alpha: t_test_power(d * math.sqrt(n), n - 1, alpha, two_sided, least * math.sqrt(n))


def welch_power(
    effect: float, variances: tuple[float, float], two_sided: bool = True, margin: float = 0.0
) -> PowerFunction | None:
    """Power of Welch's t test to detect a difference of `effect`, with equally many trials in both groups.

    `variances` are those within each group. `margin` and None as in `mean_power`.
    """
    total = sum(variances)
    if not _is_valid(effect, math.sqrt(total)) or abs(effect) < margin:
        return None
    df_per_trial = total**2 / sum(v**2 for v in variances)  # Welch-Satterthwaite: 1 to 2
    d, least = abs(effect) / math.sqrt(total), margin / math.sqrt(total)
    return lambda n, alpha: t_test_power(
        d * math.sqrt(n), df_per_trial * (n - 1), alpha, two_sided, least * math.sqrt(n)
    )


def tost_power(mean: float, sd: float, margin: float) -> PowerFunction | None:
    """Power of two one-sided t tests (TOST), both of which must reject, to show that `mean` is within ±margin.

    Args:
        mean: The assumed true mean.
        sd: Standard deviation of one trial, or of one paired difference.
        margin: Equivalence margin, in the units of `sd`.

    Returns:
        None if |mean| >= margin, or if `sd` is zero or not finite.
    """
    if not abs(mean) < margin or not _is_valid(margin, sd):
        return None
    return lambda n, alpha: equivalence_power(mean / sd, margin / sd, n, alpha)


def interaction_power(
    noncentrality: float, df: float, n: int, df_denom: float, margin: float = 0.0
) -> PowerFunction | None:
    """Power of the F test of an interaction.

    Args:
        noncentrality: Estimated noncentrality of F with `n` trials; it grows in proportion to the trials.
        df: Numerator degrees of freedom, which do not change.
        n: Trials per cell so far.
        df_denom: Denominator degrees of freedom with `n` trials; they grow in proportion to trials - 1.
        margin: Noncentrality of an effect as large as the margin, with `n` trials. If it is not zero, the power is the
            probability that F is significant and above its median for such an effect.

    Returns:
        None if there is no effect or a single trial.
    """
    if not noncentrality > 0 or n < 2:
        return None

    def power(trials: int, alpha: float) -> float:
        denom = df_denom * (trials - 1) / (n - 1)
        least = stats.f.isf(alpha, df, denom)
        if margin:
            least = max(least, stats.ncf.median(df, denom, margin * trials / n))
        return float(stats.ncf.sf(least, df, denom, noncentrality * trials / n))

    return power


def joint_power(powers: Sequence[PowerFunction | None]) -> PowerFunction | None:
    """Lower bound of the power of several tests that must all be significant, whatever their dependence.

    1 - Σ (1 - power), at least 0. None if one of `powers` is None, or if there are none.
    """
    known = [power for power in powers if power is not None]
    if not known or len(known) < len(powers):
        return None
    return lambda n, alpha: max(0.0, 1 - sum(1 - power(n, alpha) for power in known))


def yekutieli_level(alpha: float, tests: int) -> float:
    """The level at which one of `tests` is significant after Benjamini-Yekutieli, whatever the others' p values are.

    alpha / (m · (1 + 1/2 + ... + 1/m)) for m tests.
    """
    return alpha / (tests * sum(1 / i for i in range(1, tests + 1)))


def _is_valid(effect: float, sd: float) -> bool:
    return math.isfinite(effect) and math.isfinite(sd) and sd > 0 and effect != 0


def t_test_power(noncentrality: float, df: float, alpha: float, two_sided: bool, least: float = 0.0) -> float:
    """Power of a t test: probability that |T| (or T, if one-sided) exceeds its critical value.

    If `least` is not zero, the estimate must also be at least `least` true standard errors, and significance in the
    other direction does not count.

    T = (Z + noncentrality) / S with Z standard normal and S² ~ chi²(df) / df. The probability given S is averaged
    over S, which is accurate where the noncentral t distributions of scipy and statsmodels return NaN (few degrees of
    freedom with a large noncentrality).
    """
    critical = stats.t.isf(alpha / 2 if two_sided else alpha, df)
    s, weights = _chi_quadrature(df)
    power = special.ndtr(noncentrality - np.maximum(critical * s, least))
    if two_sided and not least:
        power = power + special.ndtr(-noncentrality - critical * s)
    return float(weights @ power)


def equivalence_power(mean: float, margin: float, n: int, alpha: float) -> float:
    """Power of TOST with n trials, `mean` and `margin` in standard deviations: probability that both tests reject."""
    critical = stats.t.isf(alpha, n - 1)
    s, weights = _chi_quadrature(n - 1)
    upper = math.sqrt(n) * (margin - mean) - critical * s
    lower = math.sqrt(n) * (-margin - mean) + critical * s
    return float(weights @ np.maximum(special.ndtr(upper) - special.ndtr(lower), 0.0))


@functools.lru_cache(maxsize=4 * MAX_TRIALS)  # the searches of all comparisons of a study share it
def _chi_quadrature(df: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss-Legendre nodes and weights, each (NODES,), to average over the quantiles of S = sqrt(chi²(df) / df)."""
    x, weights = _legendre()
    return np.sqrt(stats.chi2.ppf((x + 1) / 2, df) / df), weights / 2


@functools.cache
def _legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(NODES)


def _smallest_n(power: Callable[[int], float], least: int) -> int | None:
    """Smallest n from `least` to MAX_TRIALS with power(n) >= POWER, by doubling and then bisection."""
    most = least
    while most < MAX_TRIALS and not power(most) >= POWER:
        most = min(2 * most, MAX_TRIALS)
    if not power(most) >= POWER:
        return None
    return bisect.bisect_left(range(least, most), True, key=lambda n: power(n) >= POWER) + least


# --- trials needed by the comparisons of a study ---


@dataclass(frozen=True)
class PowerEstimate:
    """How many trials the paired comparison of two points of a curve needs to detect a difference of a certain size."""

    # values of CURVE: experiment, model, its fingerprint, task, train_size, variant
    curve: tuple[object, ...]
    about: str  # the two points, e.g. "k = 2 against 1"
    mean: float  # of the paired differences observed so far
    sd: float  # of the paired differences; NaN with fewer than two pairs
    n: int  # pairs so far
    needed: int | None  # pairs in total; None if more than MAX_TRIALS, or if not estimable
    minutes_per_trial: float  # time for one more pair, on the devices that ran the study

    @property
    def estimable(self) -> bool:
        """Whether the standard deviation can be estimated; equal differences do not allow it."""
        return self.n > 1 and self.sd > 0

    @property
    def additional(self) -> int | None:
        """Pairs still missing; None if `needed` is None."""
        return None if self.needed is None else max(0, self.needed - self.n)


def power_estimates(points: pd.DataFrame, difference: float, alpha: float = 0.05) -> list[PowerEstimate]:
    """Trials that each paired comparison of a study needs to detect `difference` (two-sided, 80% power).

    Reports adjust the p values of a curve's comparisons by Benjamini-Yekutieli. The number of trials is enough for a
    comparison to be significant after that, even if no other comparison of the curve is.

    Args:
        points: Finished points, as from `finished(load_points(folder))`.
        difference: The difference to detect, in units of the metric.
        alpha: Significance level of the adjusted p values.

    Returns:
        For incremental curves one estimate per pair of adjacent k, for all other experiments one per point, compared
        with the baseline "all pretrained".
    """
    found = []
    for key, rows in each_group(points, CURVE):
        pairs = list(_adjacent_k(rows) if key[0] == "incremental" else _points_and_baseline(rows))
        level = yekutieli_level(alpha, len(pairs)) if pairs else alpha
        found += [_power_estimate(key, about, a, b, difference, level) for about, a, b in pairs]
    return found


def minutes_per_added_trial(points: pd.DataFrame) -> float:
    """Minutes for one more seed at every point; a trial that belongs to several points counts once."""
    trials = points.drop_duplicates("trial_id")
    seconds = trials.groupby(["experiment", "condition", "x", *CURVE[1:]], dropna=False)["seconds"].mean()
    return float(seconds.sum()) / 60


NamedPair = tuple[str, pd.DataFrame, pd.DataFrame]  # what is compared, rows of one point, rows of the other


def _adjacent_k(rows: pd.DataFrame) -> Iterator[NamedPair]:
    by_k = {int(k): cell for (k,), cell in each_group(rows, ["x"])}
    for low, high in itertools.pairwise(sorted(by_k)):
        yield f"k = {high} against {low}", by_k[high], by_k[low]


def _points_and_baseline(rows: pd.DataFrame) -> Iterator[NamedPair]:
    baseline = rows[rows["condition"] == ALL_PRETRAINED]
    name = display_of(str(rows["experiment"].iloc[0])).baselines.get(ALL_PRETRAINED, ALL_PRETRAINED)
    for (condition, x), cell in each_group(rows[~rows["condition"].isin(BASELINES)], ["condition", "x"]):
        if not baseline.empty:
            yield f"{condition or 'x ='} {x:g} against {name}", cell, baseline


def _power_estimate(
    key: tuple[object, ...], about: str, a: pd.DataFrame, b: pd.DataFrame, difference: float, alpha: float
) -> PowerEstimate:
    d = paired_difference(a.set_index("seed")["value"], b.set_index("seed")["value"])
    minutes = float(a["seconds"].mean() + b["seconds"].mean()) / 60
    if d is None or d.n < 2:
        mean, n = (math.nan, 0) if d is None else (d.mean, d.n)
        return PowerEstimate(key, about, mean, math.nan, n, None, minutes)
    needed = trials_for(mean_power(difference, d.sd), alpha)
    return PowerEstimate(key, about, d.mean, d.sd, d.n, needed, minutes)
