"""A claim of the papers as tests that a study can pass or fail, and how the tests become one verdict.

Every claim is a family of tests, one for each task (and model, size ... where a study has several). Each has a p
value for the claim and one against it, both adjusted by Holm's method within the family: a claim holds where all
its tests do, it does not hold where one shows the opposite, or too little to count, and otherwise there is not
enough data to say.
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

from whichlayers.analysis.frame_utils import each_row
from whichlayers.analysis.intervals import Difference, holm
from whichlayers.analysis.power import trials_each
from whichlayers.errors import WhichlayersError

Verdict = Literal["holds", "does not hold", "not enough data", "not asked for"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "not enough data"
NOT_ASKED: Verdict = "not asked for"
LEAST_MARGIN, MOST_MARGIN = 1e-6, 1.0


@dataclass(frozen=True)
class Limits:
    """What counts as small. Every verdict of "hardly" or "not much" rests on one of these."""

    alpha: float = 0.05
    margin: float = 0.01  # of the metric: one point. Less than this hardly matters
    share: float = 0.05  # of the gain of pretraining: less than this hardly matters
    kept: float = 0.5  # permuted layers that keep less of the gain than this do far worse
    alike: float = 0.3  # tasks whose correlation is below this are not hurt alike
    predicts: float = 0.9  # probing predicts from this r on; any two curves that rise have one of 0.5 or more
    closer: float = 0.1  # a correlation that grows by less than this hardly grows

    def __post_init__(self) -> None:
        if not LEAST_MARGIN <= self.margin <= MOST_MARGIN:
            allowed = f"from {LEAST_MARGIN:g} to {MOST_MARGIN:g}"
            raise WhichlayersError(f"margin = {self.margin}: give a number {allowed}, in units of the metric")


@dataclass(frozen=True)
class Test:
    """One test of a claim: the effect with its interval, p for the claim and against it (both unadjusted)."""

    __test__ = False  # pytest takes it for a test of its own

    about: str
    unit: str
    effect: float
    low: float
    high: float
    p: float
    p_against: float
    n: int  # trials, or permutations, behind it
    needed: int | None = None  # trials (see `needs`) that would decide it, if it is undecided
    note: str = ""
    level: float = 0.95  # of the interval; tests against a margin at 5% go with one of 90%
    needs: str = "trials"  # what is needed more of
    p_adjusted: float = math.nan
    verdict: Verdict = OPEN


@dataclass(frozen=True)
class Claim:
    """The numbers are those of the test that decides: the weakest that holds, the clearest that fails."""

    id: str
    text: str
    effect: float
    low: float
    high: float
    p: float  # adjusted within the claim
    verdict: Verdict
    needed: int | None
    details: str
    unit: str = ""
    level: float = 0.95
    about: str = ""  # which test decided
    needs: str = "trials"  # what `needed` counts
    tests: tuple[Test, ...] = ()


def undecidable(about: str, unit: str, n: int, note: str) -> Test:
    """A test whose trials have no spread to hold its effect against."""
    nan = math.nan
    return Test(about, unit, nan, nan, nan, nan, nan, n, note=note)


def not_asked(id: str, text: str, run: str) -> Claim:
    nan = math.nan
    return Claim(id, text, nan, nan, nan, nan, NOT_ASKED, None, run)


def judge(id: str, text: str, tests: Sequence[Test], limits: Limits, remark: str = "") -> Claim:
    """The family's tests with adjusted p values and verdicts, and the verdict of all."""
    adjusted = holm([test.p for test in tests])
    against = holm([test.p_against for test in tests])
    judged = tuple(
        dataclasses.replace(test, p_adjusted=float(p), verdict=_verdict(p, opposed, limits.alpha))
        for test, p, opposed in zip(tests, adjusted, against, strict=True)
    )
    failing = [(p, place) for place, p in enumerate(against) if judged[place].verdict == FAILS]
    undecided = [test for test in judged if test.verdict == OPEN]
    verdict: Verdict
    if failing:
        verdict, decisive = FAILS, judged[min(failing)[1]]
    elif undecided:
        verdict, decisive = OPEN, max(undecided, key=lambda test: (not math.isnan(test.p), test.p_adjusted))
    else:
        verdict, decisive = HOLDS, max(judged, key=lambda test: test.p_adjusted)
    needed = [test.needed and max(test.needed, test.n + 1) for test in undecided]
    known = [number for number in needed if number is not None]
    holding = sum(test.verdict == HOLDS for test in judged)
    told = [f"{holding} of {len(judged)} tests hold" if len(judged) > 1 else "", remark]
    small = [t.about for t, p in zip(judged, against, strict=True) if t.verdict == HOLDS and p < limits.alpha]
    told += [f"there, but smaller than what counts: {' and '.join(small)}"] if small else []
    told += list(dict.fromkeys(test.note for test in judged if test.note))
    return Claim(
        id,
        text,
        *(decisive.effect, decisive.low, decisive.high, decisive.p_adjusted),
        verdict=verdict,
        needed=max(known) if verdict == OPEN and known and len(known) == len(needed) else None,
        details="; ".join(part for part in told if part),
        unit=decisive.unit,
        level=decisive.level,
        about=decisive.about,
        needs=decisive.needs,
        tests=judged,
    )


def p_less(effect: float, error: float, df: float, threshold: float) -> float:
    """One-sided p of the claim that the truth lies below the threshold, from an estimate and its error."""
    if not (math.isfinite(error) and error > 0 and df > 0):
        return math.nan  # trials that do not differ prove nothing: metrics come in steps
    return float(stats.t.cdf((effect - threshold) / error, df))


def is_lower(d: Difference, about: str, unit: str, n: int, limits: Limits, needs: str = "trials") -> Test:
    """For: the difference of means is below zero, two-sided. Against: it is not below by as much as matters."""
    p = min(1.0, 2 * p_less(d.mean, d.error, d.df, 0.0))
    against = p_less(-d.mean, d.error, d.df, limits.margin)
    needed = trials_each(d.mean, d.sd, limits.alpha) if d.mean < 0 else None
    return Test(about, unit, d.mean, d.low, d.high, p, against, n, needed, needs=needs)


def label(rows: pd.DataFrame, among: pd.DataFrame) -> str:
    """The task of these rows; and the model, the size and the variant where there are several."""
    first = next(each_row(rows.head(1)))
    parts = [str(first.task)] if "task" in rows and rows["task"].nunique() == 1 else []
    if among["model"].nunique() > 1:
        parts.append(str(first.model))
    if rows["train_size"].nunique() == 1 and among["train_size"].nunique() > 1:
        parts.append(f"{int(first.train_size):,} examples")
    if among["variant"].nunique() > 1 and first.variant:
        parts.append(str(first.variant))
    return ", ".join(parts)


def plain(points: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """An experiment's rows without raised learning rates or kept layer norms, unless it has no others."""
    rows = points[points["experiment"] == experiment]
    usual = rows[~rows["keep_layer_norm"].astype(bool) & (rows["reinit_lr_factor"] == 1.0)]
    return rows if usual.empty else usual


def _verdict(p: float, against: float, alpha: float) -> Verdict:
    if not np.isnan(p) and p < alpha:
        return HOLDS
    return FAILS if not np.isnan(against) and against < alpha else OPEN
