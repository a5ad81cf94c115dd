"""Answers to questions of the form "how far can I go within the tolerance?", by tests in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from whichlayers.analysis.decisions import (
    ALPHA,
    FixedSequence,
    NonInferiority,
    fixed_sequence,
    non_inferiority,
)
from whichlayers.analysis.recommend.base import (
    Answer,
    Candidate,
    Comparison,
    describe_interval,
    minutes_for,
    more_trials_text,
    points_of,
    recommended,
    subject,
)
from whichlayers.analysis.verdicts import (
    BELOW_TOLERANCE,
    NOT_ENOUGH_TRIALS,
    NOT_TESTED,
    NOTHING_TO_GAIN,
    WITHIN_TOLERANCE,
    ComparisonResult,
)
from whichlayers.text import format_score

MAX_LISTED = 3
Series = Sequence[Candidate]  # variants of a model, each one step further than the one before


def last_within_tolerance(
    question: str,
    rows: pd.DataFrame,
    series: Sequence[Series],
    baseline: Candidate,
    tolerance: float,
    *,
    compared: str,
    keep: str,
    alternative: str,
    verb: str = "Use",
    otherwise: str = "",
) -> Answer | None:
    """The last variant of each series that is shown to be within the tolerance; of these the one with most `steps`.

    Args:
        question: Key of the question.
        rows: Finished points of the curve.
        series: One or several series; the significance level is divided among them.
        baseline: What all variants are compared with.
        tolerance: Largest accepted drop of the score, in units of the metric.
        compared: What the series are, in words, for a sentence that starts with "Compared: "; not used for a single
            variant, whose name says it.
        keep: What to do if there is nothing to gain: "keep all 12 layers".
        alternative: What a variant is: "smaller model".
        verb: The first word of a recommendation.
        otherwise: What else to try where the first variants fail: "another learning rate (`peft_lr`)".

    Returns:
        None without series.
    """
    if not series:
        return None
    alpha = ALPHA / len(series)  # each series may go wrong
    sequences = [fixed_sequence([c.differences(baseline) for c in one], tolerance, alpha) for one in series]
    about = subject(rows) | {"question": question, "baseline": baseline.name}
    about |= {"baseline_trial_id": baseline.trial_id}
    about["compared"] = _compared(series, sequences, baseline, tolerance, alpha)
    metric = about["metric"]
    limit = f"{format_score(tolerance, metric)} {points_of(metric)}"
    divided = f"; the level of 5% is divided by {len(series)}" if len(series) > 1 else ""
    each = ", each" if len(series) > 1 else ""
    order = f"Compared: {compared}{each}, in this order, up to the first that was not within it{divided}."
    if sum(map(len, series)) == 1:
        order = f"Compared: {series[0][0].name}."
    more, minutes = _more_trials(rows, sequences)
    found = [
        (one[seq.passed - 1], seq.tests[seq.passed - 1])
        for one, seq in zip(series, sequences, strict=True)
        if seq.passed
    ]
    if found:
        chosen, test = max(found, key=lambda item: (item[0].steps, item[1].interval.mean))
        i, level = test.interval, 1 - 2 * alpha
        difference = describe_interval(i.mean, i.low, i.high, 100 * level, i.n, metric)
        text = (
            f"{verb} {chosen.name}: {difference} compared with {baseline.name}, within the tolerance of {limit}. "
            f"{order}{_why_stopped(series, sequences, metric)}"
        )
        outlook = "" if more is None else f"To decide on the next one: {more_trials_text(more, minutes)}."
        further = {"more_trials": more, "minutes": minutes, "outlook": outlook}
        return recommended(about, chosen, baseline, i, level, text, **further)
    if all(sequence.all_worse for sequence in sequences):
        if sum(map(len, series)) > 1:
            order = f"Compared: {compared}, all of them{divided}."
        lower = _listed(series, sequences, metric, worse=True)
        text = f"Nothing to gain: {keep}. More than {limit} lower: {lower}. {order}"
        return Answer(**about, verdict=NOTHING_TO_GAIN, text=text)
    if all(s.failed is not None and s.failed.worse for s in sequences):
        more, minutes = _more_for_worse(rows, sequences)
        text = (
            f"Not enough trials to say that nothing can be gained: more than {limit} lower: "
            f"{_ends(series, sequences, metric)}; not shown to be that much lower: "
            f"{_listed(series, sequences, metric, worse=False)}. Until then, {keep}. {order} What comes after the "
            f"first that fails cannot be recommended from these trials. {_to_decide_rest(more, minutes, otherwise)}"
        )
        return Answer(**about, verdict=NOT_ENOUGH_TRIALS, text=text, more_trials=more, minutes=minutes)
    nearest = _joined(
        f"{one[0].name}: {_describe(seq.failed, metric)}"
        for one, seq in zip(series, sequences, strict=True)
        if seq.failed is not None and not seq.failed.worse
    )
    text = (
        f"Not enough trials to show that a {alternative} is within {limit} of {baseline.name} ({nearest}). "
        f"Until then, {keep}. {_to_decide(sequences, more, minutes)}"
    )
    return Answer(**about, verdict=NOT_ENOUGH_TRIALS, text=text, more_trials=more, minutes=minutes)


def _compared(
    series: Sequence[Series],
    sequences: Sequence[FixedSequence],
    baseline: Candidate,
    tolerance: float,
    alpha: float,
) -> tuple[Comparison, ...]:
    """Every candidate with its difference; those after the first failure are not tested.

    If all of them are shown to lose more than the tolerance, this holds for each.
    """
    found, all_worse = [], all(sequence.all_worse for sequence in sequences)
    for one, sequence in zip(series, sequences, strict=True):
        for place, candidate in enumerate(one):
            differences = candidate.differences(baseline)
            if not differences.size:
                continue
            test = non_inferiority(differences, tolerance, alpha)
            result: ComparisonResult = NOT_TESTED if place >= len(sequence.tests) else NOT_ENOUGH_TRIALS
            if (place < len(sequence.tests) or all_worse) and (test.within or test.worse):
                result = WITHIN_TOLERANCE if test.within else BELOW_TOLERANCE
            i, mean = test.interval, float(candidate.scores.mean())
            numbers = (mean, i.mean, i.low, i.high, 1 - 2 * alpha, i.n)
            found.append(Comparison(candidate.name, *numbers, result, candidate.trial_id))
    return tuple(found)


def _why_stopped(series: Sequence[Series], sequences: Sequence[FixedSequence], metric: str) -> str:
    """A sentence about the test that ended each series."""
    if sum(map(len, series)) == 1:
        return ""
    ends = _ends(series, sequences, metric)
    return f" Stopped at {ends}." if ends else " All of them are within it."


def _ends(series: Sequence[Series], sequences: Sequence[FixedSequence], metric: str) -> str:
    """The difference that ended each series; empty if none did."""
    return _joined(
        f"{one[len(seq.tests) - 1].name}: {_describe(seq.failed, metric)}"
        for one, seq in zip(series, sequences, strict=True)
        if seq.failed is not None
    )


def _listed(series: Sequence[Series], sequences: Sequence[FixedSequence], metric: str, *, worse: bool) -> str:
    """The differences of the variants that are, or are not, shown to lose more than the tolerance: the highest ones."""
    found = dict.fromkeys(
        (candidate.name, test)
        for one, seq in zip(series, sequences, strict=True)
        for candidate, test in zip(one, (*seq.tests, *seq.rest), strict=True)
        if test.worse == worse
    )
    highest = sorted(found, key=lambda item: -item[1].interval.mean)[:MAX_LISTED]
    listed = [f"{name}: {_describe(test, metric)}" for name, test in found if (name, test) in highest]
    others = len(found) - len(listed)
    rest = "1 other with a lower mean" if others == 1 else f"{others} others with lower means"
    return "; ".join([*listed, rest] if others else listed)


def _joined(parts: Iterable[str]) -> str:
    """The parts, each once: series may share variants, such as adapters in all layers."""
    return "; ".join(dict.fromkeys(parts))


def _describe(test: NonInferiority, metric: str) -> str:
    i = test.interval
    if i.n == 0:
        return "no trial with a seed of the baseline"
    if i.n < 2:
        return f"{format_score(i.mean, metric, signed=True)}, a single trial"
    if i.sd == 0:
        return f"{format_score(i.mean, metric, signed=True)} in all {i.n} trials, without variance"
    return describe_interval(i.mean, i.low, i.high, 100 * (1 - 2 * test.alpha), i.n, metric)


def _to_decide(sequences: Sequence[FixedSequence], more: int | None, minutes: float | None) -> str:
    """What it takes to decide, as a sentence."""
    failed = [s.failed for s in sequences if s.failed is not None]
    if more is None and all(test.interval.mean <= -test.tolerance for test in failed):
        return "The estimates are below that tolerance, so more trials will probably not show it."
    return f"To decide: {more_trials_text(more, minutes)}."


def _more_trials(rows: pd.DataFrame, sequences: Sequence[FixedSequence]) -> tuple[int | None, float | None]:
    """Further trials for the first failed test that would succeed soonest, and minutes for all points."""
    failed = [s.failed for s in sequences if s.failed is not None and not s.failed.worse]
    if not failed:
        return None, None
    if any(test.interval.n < 2 or not test.interval.sd > 0 for test in failed):
        more = min(max(1, 3 - test.interval.n) for test in failed)
        return more, minutes_for(rows, more)
    needed = [(test.trials_needed, test.interval.n) for test in failed]
    missing = [total - n for total, n in needed if total is not None]
    return (min(missing), minutes_for(rows, min(missing))) if missing else (None, None)


def _to_decide_rest(more: int | None, minutes: float | None, otherwise: str) -> str:
    """What it takes to decide on the variants after the first that failed, as sentences."""
    alone = "test them in a study of their own, with another `seed`"
    try_instead = f"Try {otherwise}, or {alone}." if otherwise else f"{alone[:1].upper()}{alone[1:]}."
    if more is None:
        return f"More trials of this study will not decide on them. {try_instead}"
    return f"To show that they are that much lower, too: {more_trials_text(more, minutes)}. {try_instead}"


def _more_for_worse(
    rows: pd.DataFrame, sequences: Sequence[FixedSequence]
) -> tuple[int | None, float | None]:
    """Further trials that would show that every variant loses more than the tolerance, and minutes for all points.

    None if an estimate is within the tolerance, or if the number cannot be estimated.
    """
    missing = []
    for test in (test for seq in sequences for test in seq.rest if not test.worse):
        i = test.interval
        if i.mean >= -test.tolerance:
            return None, None
        if i.n < 2 or not i.sd > 0:
            missing.append(max(1, 3 - i.n))
        elif (total := test.trials_for_worse) is not None:
            missing.append(total - i.n)
        else:
            return None, None
    return max(missing), minutes_for(rows, max(missing))
