"""Answers to questions of the form "which of these settings is best?", by cross-fitting."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from whichlayers.analysis.decisions import MIN_SEEDS, CrossFit, cross_fit
from whichlayers.analysis.intervals import LEVEL, Interval, paired_difference
from whichlayers.analysis.recommend.base import (
    Answer,
    Candidate,
    Comparison,
    describe_interval,
    minutes_for,
    more_trials_text,
    points_of,
    recommended,
    score_matrix,
    subject,
)
from whichlayers.analysis.verdicts import BETTER, NOT_ENOUGH_TRIALS, NOTHING_TO_GAIN, WORSE, ComparisonResult
from whichlayers.text import counted, format_score, join_list


def best_of(
    question: str,
    rows: pd.DataFrame,
    candidates: Sequence[Candidate],
    baseline: Candidate,
    margin: float,
    *,
    compared: str,
    keep: str,
    verb: str = "Use",
) -> Answer | None:
    """Choose the best candidate and compare it with the baseline.

    A gain is shown for the candidate that both halves of the seeds choose, by `cross_fit`. If they do not agree, or
    show no gain, it is shown for a candidate whose interval, adjusted for the number of candidates, is above zero: of
    several with about the same gain, each half chooses another one.

    Args:
        question: Key of the question.
        rows: Finished points of the curve.
        candidates: The settings to choose from, without the baseline.
        baseline: What they are compared with.
        margin: Smallest gain that matters, in units of the metric.
        compared: The candidates in words: "layers 1, 2 and 3".
        keep: What to do if there is nothing to gain: "keep the pretrained weights of all layers".
        verb: The first word of a recommendation.

    Returns:
        None without candidates.
    """
    if not candidates:
        return None
    about = subject(rows) | {"question": question, "baseline": baseline.name}
    each = _compared(candidates, baseline)
    about |= {"baseline_trial_id": baseline.trial_id, "compared": tuple(each.values())}
    scores, reference = score_matrix(candidates, baseline)
    fit, metric = cross_fit(scores, reference), about["metric"]
    one_only = len(candidates) == 1
    listed = f"Compared: {compared}{'' if one_only else ', each'} with {baseline.name}."
    if fit is None:
        missing = MIN_SEEDS - len(reference)
        minutes = minutes_for(rows, missing)
        what = f"choosing the best of {len(candidates)} and estimating its gain on other seeds"
        text = (
            f"Not enough trials: {'estimating a gain' if one_only else what} takes at least {MIN_SEEDS} trials, there "
            f"{'is' if len(reference) == 1 else 'are'} {len(reference)}. Next: {more_trials_text(missing, minutes)}."
        )
        return Answer(**about, verdict=NOT_ENOUGH_TRIALS, text=text, more_trials=missing, minutes=minutes)
    chosen, g = candidates[fit.chosen], fit.gain
    estimate = describe_interval(g.mean, g.low, g.high, 100 * fit.level, g.n, metric)
    how = _describe_choice(fit, candidates)
    if fit.shown:
        text = f"{verb} {chosen.name}: {estimate}. {how}{listed}"
        return recommended(about, chosen, baseline, g, fit.level, text)
    if better := [i for i, one in each.items() if one.result == BETTER]:
        best = max(better, key=lambda i: each[i].difference)
        one, chosen = each[best], candidates[best]
        own = Interval(one.difference, one.low, one.high, math.nan, one.n)
        estimate = describe_interval(own.mean, own.low, own.high, 100 * one.level, own.n, metric)
        text = (
            f"{verb} {chosen.name}: {estimate}. The interval is adjusted for the choice among {len(candidates)}. "
            f"{_describe_halves(fit, candidates)} {listed}"
        )
        return recommended(about, chosen, baseline, own, one.level, text)
    matters = f"{format_score(margin, metric)} {points_of(metric)}"
    if fit.excluded(margin):
        highest = format_score(fit.ceiling, metric, signed=True)
        bound = f"for each of them: the highest upper bound of their {100 * LEVEL:g}% intervals"
        text = (
            f"Nothing to gain: {keep}. A gain of {matters} is excluded"
            f"{f': the upper bound of its {100 * LEVEL:g}% interval' if one_only else f' {bound}'} is {highest} "
            f"({counted(g.n, 'trial')}). {listed}"
        )
        return Answer(**about, verdict=NOTHING_TO_GAIN, text=text)
    needed = fit.trials_needed(margin) if g.sd > 0 else None
    more = None if needed is None else needed - g.n
    more_minutes = None if more is None else minutes_for(rows, more)
    text = (
        f"Not enough trials to show a gain or to exclude one of {matters}: {estimate}. Until then, {keep}. {how}"
        f"{listed} To detect a gain of {matters}: {more_trials_text(more, more_minutes)}."
    )
    return Answer(**about, verdict=NOT_ENOUGH_TRIALS, text=text, more_trials=more, minutes=more_minutes)


def _describe_choice(fit: CrossFit, candidates: Sequence[Candidate]) -> str:
    """How sure the choice is, with a space at its end; empty if there was no choice."""
    how = "The gain is estimated on other seeds than those that made the choice"
    if len(candidates) == 1:
        return ""
    if fit.agree:
        return f"{how}; both halves of the seeds chose the same. "
    return f"{how}. {_describe_halves(fit, candidates)} "


def _describe_halves(fit: CrossFit, candidates: Sequence[Candidate]) -> str:
    """What each half of the seeds chose."""
    names = list(dict.fromkeys(candidates[i].name for i in fit.halves))
    if len(names) == 1:
        return f"Both halves of the seeds chose {names[0]}."
    return f"The halves of the seeds chose {join_list(names)}, so which one is best is not certain."


def _compared(candidates: Sequence[Candidate], baseline: Candidate) -> dict[int, Comparison]:
    """The difference of each candidate by its index, with intervals that hold for all of them together (Bonferroni)."""
    found, level = {}, 1 - (1 - LEVEL) / len(candidates)
    for i, candidate in enumerate(candidates):
        d = paired_difference(candidate.scores, baseline.scores, level)
        if d is not None:
            mean, clear = float(candidate.scores.mean()), d.significant and d.n >= MIN_SEEDS
            result: ComparisonResult = (
                BETTER if clear and d.mean > 0 else WORSE if clear else NOT_ENOUGH_TRIALS
            )
            numbers = (mean, d.mean, d.low, d.high, level, d.n)
            found[i] = Comparison(candidate.name, *numbers, result, candidate.trial_id)
    return found
