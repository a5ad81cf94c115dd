"""Statistics for decisions: the last step of an ordered series that is good enough, and the best of several.

Two ways to choose a model would overstate how good it is:

- Testing many models and taking the smallest that passes: one of many tests passes by chance. `fixed_sequence` tests
  in an order that is fixed before looking at the results and stops at the first failure. The probability of going
  one step too far is at most alpha, whatever the dependence between the steps (Maurer et al. 1995). That a step failed
  says nothing of those after it: `all_worse` needs each of them to be shown to lose too much. It may take the same
  level for each (intersection-union test, Berger 1982), since one that does not lose too much is enough to prevent it.
- Taking the model with the highest mean: that mean is too high, since noise helped to choose it. `cross_fit` chooses
  on one half of the seeds and estimates on the other half, and the reverse.

All differences are paired by seed. Samples without variance decide nothing (see `intervals`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from whichlayers.analysis.intervals import LEVEL, ROUNDING, Interval, mean_p_above, mean_p_below, t_interval
from whichlayers.analysis.power import mean_power, trials_for

ALPHA = 0.05
MIN_SEEDS = 4  # for cross-fitting: two to choose on, two to estimate on
CHOICE_LEVEL = 0.98  # of intervals by cross-fitting; `cross_fit` says why


@dataclass(frozen=True)
class NonInferiority:
    """Test whether a mean difference is above -tolerance, the lower one of the two one-sided tests (TOST).

    The other one, of a gain below +tolerance, is not used: a smaller model may score higher.
    """

    interval: Interval  # of the difference, at level 1 - 2·alpha, so that `within` is low > -tolerance
    tolerance: float
    alpha: float
    p: float  # one-sided, for a mean above -tolerance; NaN without variance
    p_worse: float  # one-sided, for a mean below -tolerance

    @property
    def within(self) -> bool:
        """Whether the difference is shown to be within the tolerance."""
        return self.p < self.alpha  # False for NaN

    @property
    def worse(self) -> bool:
        """Whether the difference is shown to be larger than the tolerance."""
        return self.p_worse < self.alpha

    @property
    def trials_needed(self) -> int | None:
        """Trials in total with which the test would show `within` with 80% power, if mean and sd are as estimated.

        None if the estimated difference is beyond the tolerance, if more than `power.MAX_TRIALS` are needed, or without
        an estimate of the variance.
        """
        return self._trials_for(self.interval.mean + self.tolerance)

    @property
    def trials_for_worse(self) -> int | None:
        """Trials in total with which the test would show `worse` with 80% power; None as for `trials_needed`."""
        return self._trials_for(-self.tolerance - self.interval.mean)

    def _trials_for(self, effect: float) -> int | None:
        if not effect > 0 or not self.interval.n > 1:
            return None
        needed = trials_for(mean_power(effect, self.interval.sd, two_sided=False), self.alpha)
        return needed if needed is None else max(needed, self.interval.n + 1)


def non_inferiority(differences: np.ndarray, tolerance: float, alpha: float = ALPHA) -> NonInferiority:
    """Test on paired `differences` (n,), model minus baseline, whether their mean is above -tolerance.

    Without differences (n = 0), all numbers of the interval are NaN.
    """
    nothing = Interval(math.nan, math.nan, math.nan, math.nan, 0)
    interval = t_interval(differences, 1 - 2 * alpha) if len(differences) else nothing
    if interval.n < 2:
        return NonInferiority(interval, tolerance, alpha, math.nan, math.nan)
    return NonInferiority(
        interval, tolerance, alpha, mean_p_above(interval, -tolerance), mean_p_below(interval, -tolerance)
    )


@dataclass(frozen=True)
class FixedSequence:
    """The tests of an ordered series, up to and including the first that failed."""

    tests: tuple[NonInferiority, ...]
    rest: tuple[NonInferiority, ...] = ()  # of the steps after it, which count for `all_worse` alone

    @property
    def passed(self) -> int:
        """Number of steps, from the first one on, that are shown to be within the tolerance."""
        return sum(test.within for test in self.tests)

    @property
    def failed(self) -> NonInferiority | None:
        """The test that ended the sequence; None if all steps passed."""
        return self.tests[-1] if self.tests and not self.tests[-1].within else None

    @property
    def not_worse(self) -> tuple[int, ...]:
        """The steps that are not shown to lose more than the tolerance, counted from 0."""
        return tuple(i for i, test in enumerate((*self.tests, *self.rest)) if not test.worse)

    @property
    def all_worse(self) -> bool:
        """Whether every step is shown to lose more than the tolerance; wrong with a probability of at most alpha."""
        return bool(self.tests) and not self.not_worse


def fixed_sequence(steps: Sequence[np.ndarray], tolerance: float, alpha: float = ALPHA) -> FixedSequence:
    """Test the differences of each step in order, at level alpha each, up to the first not shown to be within it."""
    tests = tuple(non_inferiority(differences, tolerance, alpha) for differences in steps)
    end = next((i + 1 for i, test in enumerate(tests) if not test.within), len(tests))
    return FixedSequence(tests[:end], tests[end:])


@dataclass(frozen=True)
class CrossFit:
    """The candidate with the highest mean, and an estimate of its gain that the choice does not inflate."""

    chosen: int  # the candidate with the highest mean over all seeds
    halves: tuple[int, int]  # the candidates chosen on each half of the seeds
    gain: Interval  # what a choice by one half of the seeds gains on the other half, with an interval for `chosen`
    level: float  # of that interval
    naive: float  # mean gain of `chosen` over the seeds it was chosen on, which is too high
    ceiling: float  # the highest upper bound of the 95% intervals of all candidates; infinite if one has no variance

    @property
    def agree(self) -> bool:
        """Whether both halves chose the candidate that all seeds choose."""
        return set(self.halves) == {self.chosen}

    @property
    def shown(self) -> bool:
        """Whether a gain of `chosen` is shown: both halves chose it, and the interval is above zero."""
        return self.agree and self.gain.sd > 0 and self.gain.low > 0

    def excluded(self, margin: float) -> bool:
        """Whether a gain of `margin` or more is excluded for every candidate.

        A candidate that gains as much has an upper bound below `margin` in at most 2.5% of studies, so no adjustment
        for the number of candidates is needed. The interval of `gain` would not do: it is of one candidate.
        """
        return self.ceiling < margin

    def trials_needed(self, margin: float) -> int | None:
        """Trials in total to detect a gain of `margin` with 80% power; None if that cannot be estimated."""
        needed = trials_for(mean_power(margin, self.gain.sd), 1 - self.level)
        return needed if needed is None else max(needed, self.gain.n + 1)


def cross_fit(candidates: np.ndarray, baseline: np.ndarray) -> CrossFit | None:
    """Choose the best candidate and estimate its gain over the baseline on seeds that did not choose it.

    The seeds are split into two halves, alternately. Each half chooses the candidate with its highest mean; the gain
    of that candidate is taken from the seeds of the other half. The lower bound is that of the t interval of these n
    gains. Each gain has nothing to do with its own choice, but where both halves choose the same candidate, it is high
    in both, so the gains of one half are correlated with those of the other. If no candidate is better than the
    baseline, a 95% interval is above zero in up to 7% of studies instead of 2.5%; hence `CHOICE_LEVEL`, with which
    `best_of`, which also looks at the interval of each candidate, finds a gain in about 5% at most (simulated in
    tests/analysis/test_decisions.py; the naive interval of the best of eleven in up to 25%). Half of the seeds choose
    worse than all of them, so these gains are too low for `chosen`: the upper bound is that of the naive interval,
    which errs upward. Each bound is the cautious one of the two intervals.

    Args:
        candidates: (n, m) scores of m candidates with n seeds.
        baseline: (n,) scores of the baseline with the same seeds.

    Returns:
        None with fewer than `MIN_SEEDS` seeds or without candidates.
    """
    n, m = candidates.shape
    if n < MIN_SEEDS or m == 0:
        return None
    picks, scores = cross_fitted(candidates)
    chosen = int(candidates.mean(0).argmax())
    level = CHOICE_LEVEL if m > 1 else LEVEL
    naive, fitted = t_interval(candidates[:, chosen] - baseline, level), t_interval(scores - baseline, level)
    gain = dataclasses.replace(fitted, high=max(fitted.high, naive.high))
    return CrossFit(chosen, picks, gain, level, naive.mean, _highest_bound(candidates - baseline[:, None]))


def _highest_bound(differences: np.ndarray) -> float:
    """The highest upper bound of the t intervals of the columns of `differences` (n, m); infinite without variance."""
    n, sd = len(differences), differences.std(0, ddof=1)
    high = differences.mean(0) + float(special.stdtrit(n - 1, (1 + LEVEL) / 2)) * sd / math.sqrt(n)
    return float(np.where(np.ptp(differences, axis=0) > ROUNDING, high, math.inf).max())


def cross_fitted(candidates: np.ndarray) -> tuple[tuple[int, int], np.ndarray]:
    """The candidates that each half of the seeds chooses, and their scores with the seeds of the other half.

    Args:
        candidates: (n, m) scores of m candidates with n >= 2 seeds.

    Returns:
        The two candidates, and (n,) scores.
    """
    n = len(candidates)
    halves = (np.arange(0, n, 2), np.arange(1, n, 2))
    picks = (int(candidates[halves[0]].mean(0).argmax()), int(candidates[halves[1]].mean(0).argmax()))
    scores = np.empty(n)
    for pick, other in zip(picks, reversed(halves), strict=True):
        scores[other] = candidates[other, pick]
    return picks, scores
