"""Claims of the papers as statistical tests, and how the tests of a claim become one verdict.

A claim is a family of tests, one per task (and per model, training size ... if a study has several). Each test has a p
value for the claim (the effect is there) and one against it (the effect is opposite, or smaller than the margin). The
first is two-sided for an effect and one-sided for a bound ("does not help"), the second is one-sided.

The verdict of a single test, with both p values Holm-adjusted within the family:

- It holds if the adjusted p value for the claim is significant and the estimated effect reaches the margin; the
  estimate is below the margin if the p value against the claim is below one half.
- It is below the margin if the effect is significant, but the estimate is smaller than the margin. More trials do not
  turn such an effect into one that holds.
- It fails if the adjusted p value against the claim is significant and the effect is not, even unadjusted.
- It is undecided otherwise.

The verdict of the claim: it does not hold if a single test fails. It holds if all tests hold, which is an
intersection-union test: each test at the level alpha, without adjustment, gives a test of the whole claim at the level
alpha (Berger 1982). It is below the margin if all effects are significant and some are smaller than their margin.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from whichlayers.analysis.intervals import (
    LEVEL,
    WelchDifference,
    holm,
    mean_p_above,
    mean_p_below,
    non_superiority_test,
    p_below,
    t_interval,
    two_sided,
)
from whichlayers.analysis.power import PowerFunction, joint_power, mean_power, trials_for, welch_power
from whichlayers.analysis.verdicts import BELOW_MARGIN, FAILS, HOLDS, NOT_TESTED, UNDECIDED
from whichlayers.analysis.verdicts import ClaimVerdict as Verdict
from whichlayers.errors import WhichlayersError
from whichlayers.results.frame_utils import each_row
from whichlayers.text import short_names

MIN_MARGIN, MAX_MARGIN = 1e-6, 1.0
OF_GAIN = "of the gain"  # unit
ONE_CURVE = ["model", "task", "train_size", "variant"]
METRIC_MARGIN = 0.01  # one point of the metric
NOISE_FRACTION = 0.5  # of the standard deviation between seeds
CELL = ("experiment", "condition", "x", "train_size", "variant", "finetuned_on", "neurons", "share")
TOO_FEW_TRIALS = "a single trial per point has no variance: run at least 3"


@dataclass(frozen=True)
class ClaimThresholds:
    """Significance level, and which effects are too small to matter."""

    alpha: float = 0.05
    margin: float | None = None  # smaller differences of the metric do not matter; None: as `metric_margin`
    gain_margin: float = 0.05  # equivalence margin of fractions of the gain from pretraining
    # permuted layers "keep little" if they keep less than this fraction of the gain
    max_kept_gain: float = 0.5
    # the effects of permutations on two tasks do not correlate if r is below this
    task_correlation: float = 0.3
    # probing predicts a curve if their correlation, corrected for noise, is less than this below 1
    probing_margin: float = 0.1
    correlation_margin: float = 0.05  # equivalence margin of differences between correlations

    def __post_init__(self) -> None:
        if self.margin is not None and not MIN_MARGIN <= self.margin <= MAX_MARGIN:
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
    # trials or permutations in total with which it holds in 80% of studies (after Holm's adjustment, with its margin
    # reached), if the effect is as estimated; None if the estimate is below the margin. Set by `evaluate_claim`
    needed: int | None = None
    note: str = ""
    level: float = LEVEL  # of the interval; 0.9 for equivalence tests at 5%
    needs: str = "trials"  # what `needed` counts: trials or permutations
    p_adjusted: float = math.nan  # `p`, Holm-adjusted within the claim
    verdict: Verdict = UNDECIDED
    # in the units of the effect: the smallest one that matters; for a bound, what the effect must stay below; for the
    # correlation of T2, the distance from 1
    margin: float = math.nan
    model: str = ""  # that the test is about; empty if it compares several
    task: str = ""  # likewise; of word probes the task that the model was finetuned on
    # probability that it is significant and reaches its margin if the effect is as estimated (the misfit of T2: that it
    # is significant); None if the effect is not in favor. Not a column
    power: PowerFunction | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict and the numbers of its decisive test.

    The decisive test is the one with the largest p value if the claim holds or is undecided, and the one with the
    smallest p value against the claim if it does not hold or is below the margin.
    """

    id: str
    text: str
    effect: float
    low: float
    high: float
    p: float  # of the decisive test, for the claim; not adjusted
    verdict: Verdict
    needed: int | None  # trials or permutations with which all its tests hold in 80% of studies, if undecided
    details: str
    unit: str = ""
    level: float = LEVEL
    about: str = ""  # of the decisive test
    needs: str = "trials"
    tests: tuple[ClaimTest, ...] = ()
    # models that the claim is about and the study does not have: "RoBERTa"
    not_testable: tuple[str, ...] = ()


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
        id: T1 to T10, S1 to S4 or D1 to D4.
        text: The claim in one sentence.
        tests: The family of tests, at least one.
        thresholds: Its `alpha` is the significance level.
        remark: Text for the details, e.g. what counts as small.
    """
    alpha = thresholds.alpha
    adjusted = holm([test.p for test in tests])
    against = holm([test.p_against for test in tests])
    level = alpha / max(1, int(np.sum(~np.isnan(adjusted))))  # Holm's at the first step: enough at any other
    decided = tuple(
        dataclasses.replace(
            test,
            p_adjusted=float(p),
            verdict=_test_verdict(test, p, p_against, alpha),
            needed=trials_for(_power_to_hold(test), level),
        )
        for test, p, p_against in zip(tests, adjusted, against, strict=True)
    )
    verdict = combined_verdict(decided, alpha)
    decisive = decisive_test(decided, verdict, alpha)
    return Claim(
        id,
        text,
        *(decisive.effect, decisive.low, decisive.high, decisive.p),
        verdict=verdict,
        needed=_trials_for_all(decided, alpha) if verdict == UNDECIDED else None,
        details=_details(decided, verdict, remark),
        unit=decisive.unit,
        level=decisive.level,
        about=decisive.about,
        needs=decisive.needs,
        tests=decided,
    )


def _test_verdict(test: ClaimTest, p_adjusted: float, against_adjusted: float, alpha: float) -> Verdict:
    """Verdict of a single test, as the module describes; comparisons with NaN are False."""
    if p_adjusted < alpha:
        return BELOW_MARGIN if _is_below_margin(test) else HOLDS
    return FAILS if against_adjusted < alpha and not test.p < alpha else UNDECIDED


def _is_below_margin(test: ClaimTest) -> bool:
    """Whether the estimate is closer to zero than the margin: the p value against the claim is below one half."""
    return test.p_against < 0.5


def _power_to_hold(test: ClaimTest) -> PowerFunction | None:
    """None for an estimate that is below the margin: with more trials, it does not hold either."""
    return None if _is_below_margin(test) else test.power


def combined_verdict(tests: Sequence[ClaimTest], alpha: float) -> Verdict:
    """Verdict of a claim, or of its part about one model and task, from its tests and their own verdicts."""
    if any(test.verdict == FAILS for test in tests):
        return FAILS
    if not all(test.p < alpha for test in tests):
        return UNDECIDED
    return BELOW_MARGIN if any(map(_is_below_margin, tests)) else HOLDS


def decisive_test(tests: Sequence[ClaimTest], verdict: Verdict, alpha: float) -> ClaimTest:
    """The test whose numbers stand for all (see `Claim`)."""
    if verdict == FAILS:
        return min((t for t in tests if t.verdict == FAILS), key=lambda t: t.p_against)
    if verdict == BELOW_MARGIN:
        return min((t for t in tests if _is_below_margin(t)), key=lambda t: t.p_against)
    candidates = [t for t in tests if not t.p < alpha] if verdict == UNDECIDED else tests
    return max(candidates, key=lambda t: (not math.isnan(t.p), t.p))


def _trials_for_all(tests: Sequence[ClaimTest], alpha: float) -> int | None:
    """Trials with which all tests hold in 80% of studies, and more than the undecided ones have."""
    needed = trials_for(joint_power([_power_to_hold(test) for test in tests]), alpha)
    return needed and max(needed, *(test.n + 1 for test in tests if not test.p < alpha))


def _details(tests: Sequence[ClaimTest], verdict: Verdict, remark: str) -> str:
    """How many tests hold, the remark, effects that are significant but too small to matter, and all notes."""
    parts = [remark]
    if len(tests) > 1:
        alone = sum(test.verdict == HOLDS for test in tests)
        counts = f"{alone} of {len(tests)} tests hold"
        if verdict == HOLDS and alone < len(tests):
            counts = f"all {len(tests)} tests hold together, {alone} also alone (Holm-adjusted)"
        parts.insert(0, counts)
    small = [test.about for test in tests if test.verdict == BELOW_MARGIN]
    parts += [f"present, but smaller than the margin: {' and '.join(small)}"] if small else []
    parts += list(dict.fromkeys(test.note for test in tests if test.note))
    return "; ".join(part for part in parts if part)


def below_zero_test(
    d: WelchDifference, about: str, unit: str, n: int, margin: float, needs: str = "trials"
) -> ClaimTest:
    """Test that a difference of means is below zero.

    For the claim: it is below zero (two-sided p). Against it: it is above -margin (one-sided p).
    """
    p = two_sided(p_below(d.mean, d.standard_error, d.df, 0.0))
    p_against = p_below(-d.mean, d.standard_error, d.df, margin)
    power = welch_power(d.mean, d.variances, margin=margin) if d.mean < 0 else None
    return ClaimTest(
        *(about, unit, d.mean, d.low, d.high, p, p_against, n), needs=needs, margin=margin, power=power
    )


def decrease_test(values: np.ndarray, about: str, unit: str, margin: float) -> ClaimTest:
    """Test that the mean of `values` (n,) is negative.

    For: it is below zero (two-sided p of the one-sample t test). Against: it is above -margin (one-sided).
    """
    if values.size < 2:
        return undecided_test(about, unit, values.size, TOO_FEW_TRIALS)
    i = t_interval(values)
    p, p_against = two_sided(mean_p_below(i, 0.0)), mean_p_above(i, -margin)
    power = mean_power(i.mean, i.sd, margin=margin) if i.mean < 0 else None
    return ClaimTest(*(about, unit, i.mean, i.low, i.high, p, p_against, i.n), margin=margin, power=power)


def increase_test(values: np.ndarray, about: str, unit: str, margin: float) -> ClaimTest:
    """Test that the mean of `values` (n,) is positive, as in `decrease_test`."""
    test = decrease_test(-values, about, unit, margin)
    return dataclasses.replace(test, effect=-test.effect, low=-test.high, high=-test.low)


def no_increase_test(values: np.ndarray, about: str, unit: str, margin: float, alpha: float) -> ClaimTest:
    """Test that the mean of `values` (n,) is below the margin; a decrease of any size is in favor.

    For: the mean is below the margin. Against: it is above. Both one-sided.
    """
    if values.size < 2:
        return undecided_test(about, unit, values.size, TOO_FEW_TRIALS)
    w = non_superiority_test(values, margin, alpha)
    power = mean_power(margin - w.mean, w.sd, two_sided=False) if w.mean < margin else None
    numbers = (w.mean, w.low, w.high, w.p_within, w.p_beyond, w.n)
    return ClaimTest(about, unit, *numbers, level=1 - 2 * alpha, margin=margin, power=power)


def no_decrease_test(values: np.ndarray, about: str, unit: str, margin: float, alpha: float) -> ClaimTest:
    """Test that the mean of `values` (n,) is above -margin; an increase of any size is in favor."""
    test = no_increase_test(-values, about, unit, margin, alpha)
    return dataclasses.replace(test, effect=-test.effect, low=-test.high, high=-test.low)


def metric_margin(rows: pd.DataFrame, thresholds: ClaimThresholds) -> float:
    """Difference of the metric that is too small to matter, for a test on `rows`, points of one model and task.

    `thresholds.margin` if it is set. Otherwise one point (0.01), or half of the standard deviation between seeds
    (pooled over the points in `rows`) if that is more: a difference that is small next to what another seed changes.
    Tests on other points of the same model and task may have another margin.
    On CoLA with 500 examples seeds differ by 2.5 to 6 points, and no feasible number of trials would show that a
    difference is within one.
    """
    if thresholds.margin is not None:
        return thresholds.margin
    keys = [name for name in CELL if name in rows]
    cells = rows.groupby(keys, dropna=False)["value"].agg(["var", "count"]).dropna()
    df = (cells["count"] - 1).sum()
    sd = math.sqrt((cells["var"] * (cells["count"] - 1)).sum() / df) if df else 0.0
    return max(METRIC_MARGIN, NOISE_FRACTION * sd)


def is_task(name: object, *tasks: str) -> bool:
    """Whether a task of a study is one of the GLUE `tasks`; "QNLI rebuilt" is QNLI."""
    return str(name).partition(" ")[0] in tasks


def group_label(rows: pd.DataFrame, all_rows: pd.DataFrame) -> str:
    """Label of a group of points: its task, and the model, training size and variant if `all_rows` has several."""
    first = next(each_row(rows.head(1)))
    parts = [str(first.task)] if "task" in rows and rows["task"].nunique() == 1 else []
    models = short_names(all_rows["model"])
    if len(models) > 1:
        parts.append(models[first.model])
    if rows["train_size"].nunique() == 1 and all_rows["train_size"].nunique() > 1:
        parts.append(f"{int(first.train_size):,} examples")
    if all_rows["variant"].nunique() > 1 and first.variant:
        parts.append(str(first.variant))
    return ", ".join(parts)


def with_subject(
    tests: Sequence[ClaimTest], rows: pd.DataFrame, task_column: str = "task"
) -> list[ClaimTest]:
    """The tests with the model and the task of `rows` that they were computed from, where these are single ones."""
    model, task = (
        str(rows[name].iloc[0]) if rows[name].nunique() == 1 else "" for name in ("model", task_column)
    )
    return [dataclasses.replace(test, model=model, task=task) for test in tests]


def rows_with_default_settings(points: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Points of an experiment without raised learning rates or kept layer norms; all points if there are no others."""
    rows = points[points["experiment"] == experiment]
    default = rows[~rows["keep_layer_norm"].astype(bool) & (rows["reinit_lr_factor"] == 1.0)]
    return rows if default.empty else default
