"""Claims of the papers as statistical tests, and how the tests of a claim become one verdict.

A claim is a family of tests, one per task (and per model, training size ... if a study has several). Each test has a p
value for the claim and a p value against it, both Holm-adjusted within the family:

- A test holds if its adjusted p value for the claim is significant. Otherwise it fails if the adjusted p value against
  the claim is significant (the effect is opposite, or too small to matter), and is undecided if neither is.
- A claim holds if all its tests hold, does not hold if at least one fails, and is undecided otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from whichlayers.analysis.intervals import WelchDifference, holm
from whichlayers.analysis.power import trials_for_two_sample_test
from whichlayers.errors import WhichlayersError
from whichlayers.results.frame_utils import each_row

# The verdicts are stored in claims.csv, so their values must not change
Verdict = Literal["holds", "does not hold", "not enough data", "not asked for"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNDECIDED: Verdict = "not enough data"
NOT_TESTED: Verdict = "not asked for"
VERDICT_LABELS: dict[Verdict, str] = {  # for tables and pages
    HOLDS: "holds",
    FAILS: "does not hold",
    UNDECIDED: "not enough trials",
    NOT_TESTED: "not tested",
}
MIN_MARGIN, MAX_MARGIN = 1e-6, 1.0
TOO_FEW_TRIALS = "a single trial per point has no variance: run at least 3"


@dataclass(frozen=True)
class ClaimThresholds:
    """Significance level, and which effects are too small to matter."""

    alpha: float = 0.05
    margin: float = 0.01  # equivalence margin of the metric: smaller differences do not matter
    gain_margin: float = 0.05  # equivalence margin of fractions of the gain from pretraining
    # permuted layers "keep little" if they keep less than this fraction of the gain
    max_kept_gain: float = 0.5
    # the effects of permutations on two tasks do not correlate if r is below this
    task_correlation: float = 0.3
    probing_correlation: float = 0.9  # probing "predicts" from this r on; any two rising curves reach 0.5
    correlation_margin: float = 0.1  # equivalence margin of differences between correlations

    def __post_init__(self) -> None:
        if not MIN_MARGIN <= self.margin <= MAX_MARGIN:
            allowed = f"from {MIN_MARGIN:g} to {MAX_MARGIN:g}"
            raise WhichlayersError(f"margin = {self.margin}: give a number {allowed}, in units of the metric")


@dataclass(frozen=True)
class ClaimTest:
    """One test of a claim. The fields are columns of claims.csv."""

    about: str  # what is compared
    unit: str  # of the effect: a metric, "of the gain", "r" ...
    effect: float
    low: float  # confidence interval of the effect
    high: float
    p: float  # for the claim, unadjusted
    p_against: float  # against the claim, unadjusted
    n: int  # trials or permutations
    needed: int | None = None  # trials or permutations in total that would decide it with 80% power
    note: str = ""
    level: float = 0.95  # of the interval; 0.9 for equivalence tests at 5%
    needs: str = "trials"  # what `needed` counts: trials or permutations
    p_adjusted: float = math.nan  # `p`, Holm-adjusted within the claim
    verdict: Verdict = UNDECIDED


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict and the numbers of its decisive test.

    The decisive test is the one with the largest adjusted p value if the claim holds or is undecided, and the one with
    the smallest p value against the claim if it does not hold.
    """

    id: str
    text: str
    effect: float
    low: float
    high: float
    p: float  # Holm-adjusted within the claim
    verdict: Verdict
    needed: int | None  # trials or permutations that would decide all its tests, if undecided
    details: str
    unit: str = ""
    level: float = 0.95
    about: str = ""  # of the decisive test
    needs: str = "trials"
    tests: tuple[ClaimTest, ...] = ()


def undecided_test(about: str, unit: str, n: int, note: str) -> ClaimTest:
    """A test that cannot be computed, e.g. because a single trial has no variance: all its numbers are NaN."""
    nan = math.nan
    return ClaimTest(about, unit, nan, nan, nan, nan, nan, n, note=note)


def not_tested(id: str, text: str, how_to_test: str) -> Claim:
    """A claim for which the study has no data; `how_to_test` says what to run."""
    nan = math.nan
    return Claim(id, text, nan, nan, nan, nan, NOT_TESTED, None, how_to_test)


def evaluate_claim(
    id: str, text: str, tests: Sequence[ClaimTest], thresholds: ClaimThresholds, remark: str = ""
) -> Claim:
    """Adjust the p values of a claim's tests, give each its verdict, and combine them as the module describes.

    Args:
        id: T1 to T7, S1, S2 or D1 to D4.
        text: The claim in one sentence.
        tests: The family of tests, at least one.
        thresholds: Its `alpha` is the significance level.
        remark: Text for the details, e.g. what counts as small.
    """
    adjusted = holm([test.p for test in tests])
    against = holm([test.p_against for test in tests])
    decided = tuple(
        dataclasses.replace(test, p_adjusted=float(p), verdict=_verdict(p, p_against, thresholds.alpha))
        for test, p, p_against in zip(tests, adjusted, against, strict=True)
    )
    failing = [(p, index) for index, p in enumerate(against) if decided[index].verdict == FAILS]
    undecided = [test for test in decided if test.verdict == UNDECIDED]
    verdict: Verdict
    if failing:
        verdict, decisive = FAILS, decided[min(failing)[1]]
    elif undecided:
        decisive = max(undecided, key=lambda test: (not math.isnan(test.p), test.p_adjusted))
        verdict = UNDECIDED
    else:
        verdict, decisive = HOLDS, max(decided, key=lambda test: test.p_adjusted)
    needed = [test.needed and max(test.needed, test.n + 1) for test in undecided]
    known = [number for number in needed if number is not None]
    return Claim(
        id,
        text,
        *(decisive.effect, decisive.low, decisive.high, decisive.p_adjusted),
        verdict=verdict,
        needed=max(known) if verdict == UNDECIDED and known and len(known) == len(needed) else None,
        details=_details(decided, against, thresholds.alpha, remark),
        unit=decisive.unit,
        level=decisive.level,
        about=decisive.about,
        needs=decisive.needs,
        tests=decided,
    )


def _details(tests: Sequence[ClaimTest], against: np.ndarray, alpha: float, remark: str) -> str:
    """How many tests hold, the remark, effects that are significant but too small to matter, and all notes."""
    holding = sum(test.verdict == HOLDS for test in tests)
    parts = [f"{holding} of {len(tests)} tests hold" if len(tests) > 1 else "", remark]
    small = [t.about for t, p in zip(tests, against, strict=True) if t.verdict == HOLDS and p < alpha]
    parts += [f"significant, but too small to matter: {' and '.join(small)}"] if small else []
    parts += list(dict.fromkeys(test.note for test in tests if test.note))
    return "; ".join(part for part in parts if part)


def _verdict(p: float, p_against: float, alpha: float) -> Verdict:
    if not np.isnan(p) and p < alpha:
        return HOLDS
    return FAILS if not np.isnan(p_against) and p_against < alpha else UNDECIDED


def p_below(estimate: float, standard_error: float, df: float, threshold: float) -> float:
    """One-sided p value for the true value being below `threshold`, from a t distributed estimate.

    P(T(df) <= (estimate - threshold) / standard_error); NaN if the standard error is zero or not finite, because
    metrics are discrete and equal trials occur by chance.
    """
    if not (math.isfinite(standard_error) and standard_error > 0 and df > 0):
        return math.nan
    return float(stats.t.cdf((estimate - threshold) / standard_error, df))


def below_zero_test(
    d: WelchDifference, about: str, unit: str, n: int, thresholds: ClaimThresholds, needs: str = "trials"
) -> ClaimTest:
    """Test that a difference of means is below zero.

    For the claim: it is below zero (two-sided p). Against it: it is above -margin (one-sided p).
    """
    p = min(1.0, 2 * p_below(d.mean, d.standard_error, d.df, 0.0))
    p_against = p_below(-d.mean, d.standard_error, d.df, thresholds.margin)
    needed = trials_for_two_sample_test(d.mean, d.sd, thresholds.alpha) if d.mean < 0 else None
    return ClaimTest(about, unit, d.mean, d.low, d.high, p, p_against, n, needed, needs=needs)


def group_label(rows: pd.DataFrame, all_rows: pd.DataFrame) -> str:
    """Label of a group of points: its task, and the model, training size and variant if `all_rows` has several."""
    first = next(each_row(rows.head(1)))
    parts = [str(first.task)] if "task" in rows and rows["task"].nunique() == 1 else []
    if all_rows["model"].nunique() > 1:
        parts.append(str(first.model))
    if rows["train_size"].nunique() == 1 and all_rows["train_size"].nunique() > 1:
        parts.append(f"{int(first.train_size):,} examples")
    if all_rows["variant"].nunique() > 1 and first.variant:
        parts.append(str(first.variant))
    return ", ".join(parts)


def rows_with_default_settings(points: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Points of an experiment without raised learning rates or kept layer norms; all points if there are no others."""
    rows = points[points["experiment"] == experiment]
    default = rows[~rows["keep_layer_norm"].astype(bool) & (rows["reinit_lr_factor"] == 1.0)]
    return rows if default.empty else default
