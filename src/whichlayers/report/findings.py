"""Findings of a study as sentences, each stating the result of a test or an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.claims import BELOW_MARGIN, FAILS, HOLDS, UNDECIDED, Claim
from whichlayers.analysis.guessing import by_result, describe_exclusions, not_shown_better
from whichlayers.analysis.incremental_curves import Curve, curves, incremental_steps
from whichlayers.analysis.intervals import SIGNIFICANT, ends_of_one_of, holm
from whichlayers.analysis.permutations import permutation_effect
from whichlayers.catalog import DIFFERENCE
from whichlayers.experiments import display_of, sort_experiments
from whichlayers.experiments.display import PRETRAINED_BASELINES
from whichlayers.plots.display_names import format_effect, size_name
from whichlayers.report.word_findings import WITH_WORD_FINDINGS, significant, word_findings, word_headlines
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.results.frames import CURVE
from whichlayers.text import beyond_note, counted, format_range, join_list, short_names
from whichlayers.trial import ALL_PRETRAINED, BASELINES, NONE_PRETRAINED

MAX_ITEMS = 6  # with more tasks, models or variants, only the table lists them


@dataclass(frozen=True)
class Finding:
    """Sentences on one task."""

    heading: str  # task, with model and variant if there are several
    sentences: tuple[str, ...]


def findings(points: pd.DataFrame, experiment: str) -> list[Finding]:
    """Findings of one experiment, from finished points; empty if there are more than `MAX_ITEMS`."""
    if experiment == "incremental":
        return incremental_findings(points)
    chosen = points[points["experiment"] == experiment]
    by_heading: dict[str, list[str]] = {}
    if experiment in WITH_WORD_FINDINGS:
        for heading, sentence in word_findings(points, experiment):
            by_heading.setdefault(heading, []).append(sentence)
    else:
        for key, rows in each_group(chosen, CURVE):
            where = dict(zip(CURVE, key, strict=True))
            sentences = _permutation(rows) if experiment == "permutation" else _conditions(rows, experiment)
            by_heading.setdefault(_heading(chosen, where), []).extend([*_guessing(rows), *sentences])
    found = [Finding(heading, tuple(sentences)) for heading, sentences in by_heading.items() if sentences]
    return found if len(found) <= MAX_ITEMS else []


def incremental_findings(points: pd.DataFrame) -> list[Finding]:
    """Gain from pretraining of every curve, with an overall finding first if there are several."""
    chosen = points[points["experiment"] == "incremental"]
    all_curves = curves(points)
    known = [curve for curve in all_curves if curve.gain is not None and curve.gain.n > 1]
    found = []
    if len(known) > 1:
        gains = [curve.gain for curve in known if curve.gain is not None]
        better = sum(gain.mean > 0 for gain in significant(gains))
        found.append(Finding("Overall", (_overview(better, len(known), len(all_curves)),)))
    by_heading: dict[str, list[str]] = {_heading(chosen, vars(curve)): [] for curve in all_curves}
    for curve in sorted(all_curves, key=lambda c: c.train_size):
        rows = chosen
        for column in ("model", "task", "train_size", "variant"):
            rows = rows[rows[column] == getattr(curve, column)]
        by_heading[_heading(chosen, vars(curve))] += [_gain(curve), *_guessing(rows)]
    if len(by_heading) <= MAX_ITEMS:
        found += [Finding(heading, tuple(sentences)) for heading, sentences in by_heading.items()]
    return found


def headlines(points: pd.DataFrame, claims: Sequence[Claim]) -> list[str]:
    """The main findings of a study in a few sentences, from finished points and claims."""
    sentences = []
    found = incremental_findings(points) if (points["experiment"] == "incremental").any() else []
    if found and (found[0].heading == "Overall" or len(found) == 1):
        sentences.append(" ".join(found[0].sentences[:1]))
    for result, excluded in by_result(not_shown_better(points)).items():
        what = f"{result[0].upper()}{result[1:]}".replace(": ", ", ")
        where = describe_exclusions(excluded, points)
        sentences.append(f"{what}: {where}. Claims are not judged on these data.")
    steps = incremental_steps(points)
    tested = steps[steps["p"].notna()] if len(steps) else steps
    if len(tested):
        sentences.append(_steps_overall(tested, points))
    for experiment in sort_experiments(points["experiment"]):
        sentences += _experiment_overall(points[points["experiment"] == experiment], experiment)
    parts = []
    for verdict in (HOLDS, BELOW_MARGIN, FAILS, UNDECIDED):
        if ids := [claim.id for claim in claims if claim.verdict == verdict]:
            parts.append(f"{join_list(ids)}: {verdict}")
    if parts:
        sentences.append(f"Claims from the papers that this study tests: {'; '.join(parts)}.")
    return sentences


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _steps_overall(tested: pd.DataFrame, points: pd.DataFrame) -> str:
    """How many steps of the incremental curves are significant, and the largest of them."""
    total, clear = len(tested), tested[tested["p_adjusted"] < SIGNIFICANT]
    adjusted = "significantly different from zero (p values adjusted within each curve)"
    if clear.empty:
        steps = "The only step tested" if total == 1 else f"None of the {total} steps"
        explained = _explain_steps(tested, points)
        return f"{steps} from one k to the next is {'not ' if total == 1 else ''}{adjusted}.{explained}"
    steps = "The only step tested" if total == 1 else f"{len(clear)} of {total} steps"
    explained = _explain_steps(tested, points)
    largest = max(each_row(clear), key=lambda step: abs(step.mean))
    where = f"{short_names(points['task'])[largest.task]} with {size_name(largest.train_size)} examples"
    if points["model"].nunique() > 1:
        where += f", {short_names(points['model'])[largest.model]}"
    first, last = largest.from_k + 1, largest.to_k
    layers = f"layer {first}" if first == last else f"layers {first} to {last}"
    which = "it" if total == 1 else "the largest"
    return (
        f"{steps} from one k to the next {_are(len(clear))} {adjusted}; {which} is the effect of {layers} on "
        f"{where}{f', {largest.variant}' if largest.variant else ''}: "
        f"{_interval(largest, points.loc[points['task'] == largest.task, 'metric'].iloc[0], one_of=total)}."
        f"{explained}"
    )


def _explain_steps(tested: pd.DataFrame, points: pd.DataFrame) -> str:
    """A sentence on why the number of steps is not the number of layers; empty with one curve of one step per layer."""
    depths = points.drop_duplicates("model").set_index("model")["depth"]
    keys = ["model", "task", "train_size", "variant"]
    curves = tested.drop_duplicates(keys)
    layers = int(curves["model"].map(depths).sum())
    covered = int((tested["to_k"] - tested["from_k"]).sum())
    parts = []
    if len(curves) > 1:
        each = sorted(set(tested.groupby(keys).size()))
        per = f"{each[0]}" if len(each) == 1 else f"{each[0]} to {each[-1]}"
        parts.append(f"the steps are those of {len(curves)} curves, {per} in each")
    if covered > len(tested):
        parts.append("a step covers several layers where not every k was run")
    if covered < layers:
        missing = counted(layers - covered, "layer")
        parts.append(f"{missing} without a tested step: too few paired trials, or k not run")
    text = "; ".join(parts)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _experiment_overall(rows: pd.DataFrame, experiment: str) -> list[str]:
    """One sentence on all curves of an experiment; empty if it has none."""
    name = display_of(experiment).title
    if experiment == "permutation":
        costs = [permutation_effect(curve) for _, curve in each_group(rows, CURVE)]
        known = [cost for cost in costs if cost is not None]
        if not known:
            return []
        adjusted = holm([cost.p for cost in known])
        worse = sum(cost.mean < 0 and p < SIGNIFICANT for cost, p in zip(known, adjusted, strict=True))
        cases = f"in {worse} of {counted(len(known), 'curve')}"
        how = "95% interval below zero" if len(known) == 1 else "p values adjusted for the number of curves"
        return [f"{name}: significantly worse than the original order {cases} ({how})."]
    if experiment in WITH_WORD_FINDINGS:
        return word_headlines(rows, experiment)
    if experiment == "incremental" or not (rows["condition"] == ALL_PRETRAINED).any():
        return []
    table = differences_from_baseline(
        rows[~rows["condition"].str.startswith("block preserved")], ALL_PRETRAINED
    )
    tested = table[table["p"].notna()] if len(table) else table
    if tested.empty:
        return []
    clear = tested[tested["p_adjusted"] < SIGNIFICANT]
    below = int((clear["mean"] < 0).sum())
    baseline = "all layers pretrained"
    if display_of(experiment).baselines is not PRETRAINED_BASELINES:
        baseline = display_of(experiment).baselines[ALL_PRETRAINED]
    return [
        f"{name}: {below} of {counted(len(tested), 'point')} {_are(below)} significantly below the model with "
        f"{baseline}, {len(clear) - below} above it (p values adjusted within each curve)."
    ]


def _heading(points: pd.DataFrame, where: dict) -> str:
    """The task, with the model and the variant if the points of an experiment have several."""
    parts = [short_names(points["task"])[where["task"]]]
    if points["model"].nunique() > 1:
        parts.append(short_names(points["model"])[where["model"]])
    if points["variant"].nunique() > 1 and where["variant"]:
        parts.append(where["variant"])
    return ", ".join(parts)


def _overview(better: int, total: int, curves: int) -> str:
    """How many of the curves with finished trials at both ends have a significant gain from pretraining."""
    every = "both" if total == 2 else f"all {total}"
    which = every if better == total else f"{better} of {total}" if better else f"any of {total}"
    known = "" if total == curves else " with finished trials at both ends"
    return (
        f"The gain from pretraining (all layers pretrained minus none) is {'' if better else 'not '}significantly "
        f"greater than zero in {which} curves{known} (paired differences, p values adjusted for their number)."
    )


def _guessing(rows: pd.DataFrame) -> list[str]:
    """A sentence on each model of a curve that is not shown to be better than guessing."""
    return [
        f"{size_name(one.train_size)} examples: {one.result.replace(': ', ', ')}: {one.text}."
        for one in not_shown_better(rows)
    ]


def _gain(curve: Curve) -> str:
    """One sentence on the gain from pretraining of a curve."""
    start = f"{size_name(curve.train_size)} examples:"
    gain, metric = curve.gain, curve.metric
    if gain is None:
        return f"{start} no pair of finished trials with none and with all {curve.depth} layers pretrained."
    start += " gain from pretraining"
    if gain.n == 1:
        return (
            f"{start} {format_effect(gain.mean, metric)} in a single pair of trials, so there is no interval."
        )
    text = f"{start} {_interval(gain, metric)}"
    if not gain.significant:
        return f"{text}, not significantly different from zero."
    if curve.reaches == curve.depth:
        text += "; no smaller k has a mean that reaches 90% of it"
    elif curve.reaches is not None:
        text += f"; the mean at k = {curve.reaches} reaches 90% of it"
        if curve.falls_back:
            text += f" (but not at k = {join_list(str(k) for k in curve.falls_back)})"
    return f"{text}."


def _conditions(rows: pd.DataFrame, experiment: str) -> list[str]:
    """One sentence per condition of a curve: how many points differ from the baseline, and the largest difference."""
    sentences = []
    size, metric = size_name(rows["train_size"].iloc[0]), str(rows["metric"].iloc[0])
    for condition in [c for c in dict.fromkeys(rows["condition"]) if c not in BASELINES]:
        baseline = NONE_PRETRAINED if condition.startswith("block preserved") else ALL_PRETRAINED
        differences = differences_from_baseline(rows, baseline)
        table = differences[differences["condition"] == condition] if len(differences) else differences
        tested = table[table["p"].notna()] if len(table) else table
        if tested.empty:
            continue
        clear = tested[tested["p_adjusted"] < SIGNIFICANT]
        largest = max(each_row(tested), key=lambda row: abs(row.mean))
        start = f"{size} examples, {display_of(experiment).condition_name(condition)}"
        where = display_of(experiment).position(largest.x)
        baseline_name = display_of(experiment).baselines.get(baseline, baseline)
        different = f"significantly different from the baseline ({baseline_name})"
        if len(tested) == 1:
            comparisons = int(differences["p"].notna().sum())
            corrected = f" after correction for {comparisons} comparisons" if comparisons > 1 else ""
            verdict = different if len(clear) else f"not {different}"
            sentences.append(f"{start}: at {where}, {_interval(largest, metric)}; {verdict}{corrected}.")
            continue
        count = (
            f"{len(clear)} of {len(tested)} points {_are(len(clear))}"
            if len(clear)
            else f"none of {len(tested)} points is"
        )
        sentences.append(
            f"{start}: {count} {different} after correction for multiple comparisons. "
            f"The largest difference is at {where}: {_interval(largest, metric, one_of=len(tested))}."
        )
    return sentences


def _permutation(rows: pd.DataFrame) -> list[str]:
    """One sentence on permuted layers compared with both baselines; empty if there are too few trials."""
    metric, parts = str(rows["metric"].iloc[0]), []
    for baseline in (ALL_PRETRAINED, NONE_PRETRAINED):
        cost = permutation_effect(rows, baseline)
        if cost is not None:
            parts.append(f"{_interval(cost, metric, 'permutation')} compared with {baseline}")
    size = size_name(rows["train_size"].iloc[0])
    return [f"{size} examples, layers permuted: {join_list(parts)}."] if parts else []


def _interval(d: Any, metric: str, unit: str = "paired trial", one_of: int = 1) -> str:
    """A difference with its 95% interval; `d` has mean, low, high and n, and sd if it was chosen as the largest of
    several, `one_of`."""
    low, high = (d.low, d.high) if one_of == 1 else ends_of_one_of(one_of, d.mean, d.sd, d.n)
    ends = format_range(low, high, metric, signed=True) + beyond_note(low, high, DIFFERENCE + metric)
    adjusted = "" if one_of == 1 else f", adjusted for the choice among {one_of}"
    return f"{format_effect(d.mean, metric)} (95% interval {ends}{adjusted}, {counted(d.n, unit)})"
