"""Question: what is the smallest model within the allowed loss? Answered by `prune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from whichlayers.analysis.decisions import ALPHA, FixedSequence, fixed_sequence, non_inferiority
from whichlayers.analysis.recommend.base import (
    Answer,
    Candidate,
    Comparison,
    Question,
    baseline_of,
    describe_interval,
    describe_layers,
    minutes_for,
    more_trials_text,
    points_of,
    seconds_saved,
    subject,
)
from whichlayers.results.frame_utils import each_group
from whichlayers.text import format_score, join_list
from whichlayers.trial import ALL_PRETRAINED


def answer(rows: pd.DataFrame, loss: float) -> Answer | None:
    """The fewest layers that are shown to be within `loss` of all layers."""
    baseline, depth = baseline_of(rows), int(rows["depth"].iloc[0])
    candidates = [
        Candidate(_name(tuple(cell["order"].iloc[0]), depth), cell, tuple(cell["order"].iloc[0]))
        for _, cell in each_group(rows[rows["condition"] != ALL_PRETRAINED], ["condition", "x"])
    ]
    candidates = [c for c in candidates if c.layers and len(c.layers) < depth]
    if baseline is None or not candidates:
        return None
    series = nested_series(candidates, depth)
    alpha = ALPHA / len(series)  # each series may go wrong
    sequences = [fixed_sequence([c.differences(baseline) for c in one], loss, alpha) for one in series]
    found = [
        (one[seq.passed - 1], seq.tests[seq.passed - 1])
        for one, seq in zip(series, sequences, strict=True)
        if seq.passed
    ]
    about = subject(rows) | {"question": QUESTION.key, "baseline": baseline.name}
    about |= {"baseline_trial_id": baseline.trial_id}
    about["compared"] = _compared(series, sequences, baseline, loss, alpha)
    metric = about["metric"]
    lost = f"{format_score(loss, metric)} {points_of(metric)}"
    order = _describe_order(series, depth)
    if found:
        chosen, test = min(found, key=lambda item: (len(item[0].layers or ()), -item[1].interval.mean))
        i, level = test.interval, 100 * (1 - 2 * alpha)
        difference = describe_interval(i.mean, i.low, i.high, level, i.n, metric)
        text = (
            f"Use {chosen.name}: {difference} compared with {baseline.name}, within the allowed loss of {lost}. "
            f"{order}{_why_stopped(series, sequences, metric)}"
        )
        more, minutes = _more_trials(rows, sequences)
        if more is not None:
            text += f" To decide on the next one: {more_trials_text(more, minutes)}."
        return Answer(
            **about,
            verdict="recommended",
            text=text,
            choice=chosen.name,
            layers=chosen.layers,
            trial_id=chosen.trial_id,
            score=float(chosen.scores.mean()),
            difference=i.mean,
            low=i.low,
            high=i.high,
            level=level / 100,
            n=i.n,
            more_trials=more,
            minutes=minutes,
            savings=seconds_saved(chosen, baseline),
        )
    if all(s.failed is not None and s.failed.worse for s in sequences):
        text = f"Nothing to gain: keep {baseline.name}. Every smaller model that was tested loses more than {lost}. "
        return Answer(**about, verdict="nothing to gain", text=text + order)
    more, minutes = _more_trials(rows, sequences)
    nearest = "; ".join(
        f"{one[0].name}: {_describe(seq, metric)}"
        for one, seq in zip(series, sequences, strict=True)
        if seq.failed is not None and not seq.failed.worse
    )
    text = (
        f"Not enough trials to show that a smaller model is within {lost} of {baseline.name} ({nearest}). To decide: "
        f"{more_trials_text(more, minutes)}."
    )
    return Answer(**about, verdict="not enough trials", text=text, more_trials=more, minutes=minutes)


def nested_series(candidates: Sequence[Candidate], depth: int) -> list[list[Candidate]]:
    """Candidates as series in which each drops the layers of the one before and more, the deepest first.

    Models without their top layers are one series, those without their bottom layers another. Other sets of dropped
    layers are appended to the first series they fit. The result depends on the layers alone, never on scores.
    """

    def dropped(c: Candidate) -> frozenset[int]:
        return frozenset(range(1, depth + 1)) - frozenset(c.layers or ())

    def place(c: Candidate) -> tuple[int, int, tuple[int, ...]]:
        kept = c.layers or ()
        is_contiguous = kept[-1] - kept[0] == len(kept) - 1
        kind = 2 if not is_contiguous else 0 if kept[0] == 1 else 1 if kept[-1] == depth else 2
        return kind, len(dropped(c)), tuple(sorted(dropped(c)))

    series: list[list[Candidate]] = []
    # the same model may be listed under two conditions
    unique = {dropped(c): c for c in reversed(candidates)}
    for candidate in sorted(unique.values(), key=place):
        for one in series:
            if dropped(one[-1]) < dropped(candidate):
                one.append(candidate)
                break
        else:
            series.append([candidate])
    return series


def _name(layers: tuple[int, ...], depth: int) -> str:
    return f"{describe_layers(layers)} of {depth}" if layers else f"all {depth} layers"


def _compared(
    series: Sequence[Sequence[Candidate]],
    sequences: Sequence[FixedSequence],
    baseline: Candidate,
    loss: float,
    alpha: float,
) -> tuple[Comparison, ...]:
    """Every candidate with its difference; those after the first failure are not tested."""
    found = []
    for one, sequence in zip(series, sequences, strict=True):
        for place, candidate in enumerate(one):
            differences = candidate.differences(baseline)
            if not differences.size:
                continue
            test = non_inferiority(differences, loss, alpha)
            result = "within the loss" if test.within else "more than the loss" if test.worse else "undecided"
            if place >= len(sequence.tests):
                result = "not tested"
            i = test.interval
            found.append(
                Comparison(
                    candidate.name,
                    float(candidate.scores.mean()),
                    i.mean,
                    i.low,
                    i.high,
                    1 - 2 * alpha,
                    i.n,
                    result,
                )
            )
    return tuple(found)


def _describe_order(series: Sequence[Sequence[Candidate]], depth: int) -> str:
    counts = [[depth - len(c.layers or ()) for c in one] for one in series]
    parts = [join_list(numbers) for numbers in counts]
    if len(parts) == 1:
        return f"Compared: models without {parts[0]} layers, in this order, up to the first that was not within it."
    listed = "; ".join(parts)
    return (
        f"Compared: {len(parts)} series of models (layers dropped: {listed}), each in this order up to the first "
        f"that was not within it; the level of 5% is divided by {len(parts)}."
    )


def _why_stopped(
    series: Sequence[Sequence[Candidate]], sequences: Sequence[FixedSequence], metric: str
) -> str:
    """The test that ended each series."""
    ends = [
        f"{one[len(seq.tests) - 1].name}: {_describe(seq, metric)}"
        for one, seq in zip(series, sequences, strict=True)
        if seq.failed is not None
    ]
    return f" Stopped at {'; '.join(ends)}." if ends else " All of them are within it."


def _describe(sequence: FixedSequence, metric: str) -> str:
    test = sequence.failed
    assert test is not None
    i = test.interval
    if i.n < 2:
        return f"{format_score(i.mean, metric, signed=True)}, a single trial"
    if i.sd == 0:
        return f"{format_score(i.mean, metric, signed=True)} in all {i.n} trials, without variance"
    return describe_interval(i.mean, i.low, i.high, 100 * (1 - 2 * test.alpha), i.n, metric)


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


def ask(depth: int) -> Mapping[str, Any]:
    """An experiment that drops 1 to depth - 1 top layers."""
    return {"kind": "prune", "top": list(range(1, depth))}


QUESTION = Question(
    key="smallest",
    title="Smallest model",
    text="What is the smallest model whose loss is within the limit?",
    goals=("size", "speed"),
    experiments=("prune",),
    answer=answer,
    ask=ask,
)
__all__ = ["QUESTION", "nested_series"]
