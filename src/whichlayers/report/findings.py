"""The statistics in sentences: each says what an interval or an adjusted p value says, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from whichlayers.analysis.baseline_differences import ALL, BASELINES, NONE, against, permutation_cost
from whichlayers.analysis.claims import FAILS, HOLDS, NOT_ASKED, OPEN, Claim
from whichlayers.analysis.frame_utils import each_group, each_row
from whichlayers.analysis.incremental_curves import Curve, curves, layer_worth
from whichlayers.analysis.intervals import Interval
from whichlayers.plots.display_names import (
    condition_name,
    experiment_name,
    in_order,
    listing,
    metric_name,
    number,
    place_name,
    short_names,
    size_name,
)
from whichlayers.report.word_findings import TOLD, word_findings, words_overall
from whichlayers.results.frames import CURVE

SIGNIFICANT = 0.05
MOST_ITEMS = 6  # more tasks, models or variants than this: the overview stands alone, the table has the rest


@dataclass(frozen=True)
class Finding:
    about: str  # task, and model or variant where there are several
    sentences: tuple[str, ...]


def findings(points: pd.DataFrame, experiment: str) -> list[Finding]:
    if experiment == "incremental":
        return incremental_findings(points)
    chosen = points[points["experiment"] == experiment]
    named: dict[str, list[str]] = {}
    if experiment in TOLD:
        for about, sentence in word_findings(points, experiment):
            named.setdefault(about, []).append(sentence)
    else:
        for key, rows in each_group(chosen, CURVE):
            where = dict(zip(CURVE, key, strict=True))
            told = _permutation(rows) if experiment == "permutation" else _conditions(rows, experiment)
            named.setdefault(_about(chosen, where), []).extend(told)
    found = [Finding(about, tuple(sentences)) for about, sentences in named.items() if sentences]
    return found if len(found) <= MOST_ITEMS else []


def incremental_findings(points: pd.DataFrame) -> list[Finding]:
    chosen = points[points["experiment"] == "incremental"]
    every = curves(points)
    known = [curve for curve in every if curve.gain is not None and curve.gain.n > 1]
    found = []
    if len(known) > 1:
        better = sum(curve.gain.low > 0 for curve in known if curve.gain)
        found.append(Finding("Overall", (_overview(better, len(known), len(every)),)))
    named: dict[str, list[str]] = {_about(chosen, vars(curve)): [] for curve in every}
    for curve in sorted(every, key=lambda c: c.train_size):
        named[_about(chosen, vars(curve))].append(_gain(curve))
    if len(named) <= MOST_ITEMS:
        found += [Finding(about, tuple(sentences)) for about, sentences in named.items()]
    return found


def headlines(points: pd.DataFrame, claims: Sequence[Claim]) -> list[str]:
    """What the whole study found, in a few sentences, from finished points."""
    told = []
    found = incremental_findings(points) if (points["experiment"] == "incremental").any() else []
    if found and (found[0].about == "Overall" or len(found) == 1):
        told.append(" ".join(found[0].sentences[:1]))
    steps = layer_worth(points)
    tested = steps[steps["p"].notna()] if len(steps) else steps
    if len(tested):
        told.append(_steps_overall(tested, short_names(points["task"])))
    for experiment in in_order(points["experiment"]):
        told += _experiment_overall(points[points["experiment"] == experiment], experiment)
    asked = [claim for claim in claims if claim.verdict != NOT_ASKED]
    verdicts = {verdict: [c.id for c in asked if c.verdict == verdict] for verdict in (HOLDS, FAILS, OPEN)}
    words = {HOLDS: "hold", FAILS: "do not hold", OPEN: "are left open by these data"}
    named = [f"{listing(ids)} {_number(words[v], len(ids))}" for v, ids in verdicts.items() if ids]
    if named:
        told.append(f"Of the papers' claims that this study bears on, {'; '.join(named)}.")
    return told


def _number(words: str, count: int) -> str:
    """hold -> holds, and so on, of one."""
    return (
        {"hold": "holds", "do not hold": "does not hold"}.get(words, words.replace("are ", "is "))
        if count == 1
        else words
    )


def _steps_overall(tested: pd.DataFrame, tasks: dict[str, str]) -> str:
    clear = tested[tested["p_adjusted"] < SIGNIFICANT]
    start = f"Of {len(tested)} steps from one k to the next, "
    if clear.empty:
        return f"{start}none can be told from zero after correction for several comparisons."
    most = max(each_row(clear), key=lambda step: abs(step.mean))
    where = f"{tasks[most.task]} at {size_name(most.train_size)} examples"
    first, last = most.from_k + 1, most.to_k
    layers = f"layer {first}" if first == last else f"layers {first} to {last}"
    return (
        f"{start}{len(clear)} can be told from zero after correction within their curve; the largest is that of "
        f"{layers} on {where}{f', {most.variant}' if most.variant else ''}: {number(most.mean, signed=True)} "
        f"(95% interval {number(most.low, signed=True)} to {number(most.high, signed=True)}, {most.n} paired trials)."
    )


def _experiment_overall(rows: pd.DataFrame, experiment: str) -> list[str]:
    name = experiment_name(experiment)
    if experiment == "permutation":
        costs = [permutation_cost(curve) for _, curve in each_group(rows, CURVE)]
        known = [cost for cost in costs if cost is not None]
        worse = sum(cost.high < 0 for cost in known)
        what = "curve" if len(known) == 1 else "curves"
        return (
            [
                f"{name}: worse than the original order in {worse} of {len(known)} {what} (95% interval below zero)."
            ]
            if known
            else []
        )
    if experiment in TOLD:
        return words_overall(rows, experiment)
    if experiment == "incremental" or not (rows["condition"] == ALL).any():
        return []
    table = against(rows[~rows["condition"].str.startswith("block preserved")], ALL)
    tested = table[table["p"].notna()] if len(table) else table
    if tested.empty:
        return []
    clear = tested[tested["p_adjusted"] < SIGNIFICANT]
    below = int((clear["mean"] < 0).sum())
    return [
        f"{name}: {below} of {len(tested)} points lie below all layers pretrained, and {len(clear) - below} above, "
        "after correction within their curve."
    ]


def gain_table(points: pd.DataFrame) -> list[dict[str, str]]:
    """One row a curve: both ends, the gain, where 90% of it is reached, which steps stand out."""
    steps = layer_worth(points)
    models, tasks = short_names(points["model"]), short_names(points["task"])
    rows = []
    for c in curves(points):
        mine = steps[
            (steps["model"] == c.model)
            & (steps["task"] == c.task)
            & (steps["train_size"] == c.train_size)
            & (steps["variant"] == c.variant)
        ]
        clear = mine[mine["p_adjusted"] < SIGNIFICANT]
        rows.append(
            {
                "model": models[c.model],
                "task": tasks[c.task],
                "examples": size_name(c.train_size),
                "variant": c.variant,
                "none": number(c.means[0]) if 0 in c.means else "",
                "all": number(c.means[c.depth]) if c.depth in c.means else "",
                "gain": number(c.gain.mean, signed=True) if c.gain else "",
                "interval": f"{number(c.gain.low)} to {number(c.gain.high)}"
                if c.gain and c.gain.n > 1
                else "",
                "n": str(c.gain.n) if c.gain else "0",
                "reaches": "" if c.reaches is None else str(c.reaches),
                "steps": ", ".join(_step(s) for s in each_row(clear)) or "none",
            }
        )
    return rows


def _about(points: pd.DataFrame, where: dict) -> str:
    """The task; with the model and the variant where a study has several."""
    parts = [short_names(points["task"])[where["task"]]]
    if points["model"].nunique() > 1:
        parts.append(short_names(points["model"])[where["model"]])
    return ", ".join(parts + ([where["variant"]] if where["variant"] else []))


def _overview(better: int, total: int, curves: int) -> str:
    every = "both" if total == 2 else f"all {total}"
    which = every if better == total else f"{better} of {total}" if better else f"none of {total}"
    known = "" if total == curves else " that have both their ends"
    return (
        f"In {which} curves{known}, the model with all layers pretrained does better than the one with none: "
        "the 95% interval of the paired difference lies above zero."
    )


def _gain(curve: Curve) -> str:
    start = f"{size_name(curve.train_size)} examples: "
    gain, metric = curve.gain, metric_name(curve.metric)
    if gain is None:
        return f"{start}no pair of finished trials with none and with all {curve.depth} layers kept."
    if gain.n == 1:
        difference = f"{number(gain.mean, signed=True)} {metric}"
        return f"{start}{difference} from none to all layers in a single pair of trials, hence no interval."
    if not gain.clear:
        return f"{start}{_interval(gain, metric)} from none to all layers, which cannot be told from zero."
    text = f"{start}{_interval(gain, metric)} from none to all {curve.depth} layers"
    if curve.reaches == curve.depth:
        text += "; no smaller k has a mean that reaches 90% of it"
    elif curve.reaches is not None:
        text += f"; the mean of k = {curve.reaches} reaches 90% of it"
        if curve.falls_back:
            text += f" (and that of k = {listing(str(k) for k in curve.falls_back)} does not)"
    return f"{text}."


def _conditions(rows: pd.DataFrame, experiment: str) -> list[str]:
    sentences = []
    size, metric = size_name(rows["train_size"].iloc[0]), metric_name(rows["metric"].iloc[0])
    for condition in [c for c in dict.fromkeys(rows["condition"]) if c not in BASELINES]:
        baseline = NONE if condition.startswith("block preserved") else ALL
        every = against(rows, baseline)
        table = every[every["condition"] == condition] if len(every) else every
        tested = table[table["p"].notna()] if len(table) else table
        if tested.empty:
            continue
        clear = tested[tested["p_adjusted"] < SIGNIFICANT]
        most = max(each_row(tested), key=lambda row: abs(row.mean))
        d = Interval(most.mean, most.low, most.high, most.sd, most.n)
        start, where = (
            f"{size} examples, {condition_name(experiment, condition)}",
            place_name(experiment, most.x),
        )
        if len(tested) == 1:
            told = "differs from" if len(clear) else "cannot be told from"
            together = int(every["p"].notna().sum())
            corrected = f" after correction for {together} comparisons" if together > 1 else ""
            sentences.append(f"{start}: at {where}, {_interval(d, metric)}; {told} {baseline}{corrected}.")
            continue
        share = (
            f"{len(clear)} of {len(tested)} differ" if len(clear) else f"none of {len(tested)} can be told"
        )
        sentences.append(
            f"{start}: {share} from {baseline} after correction for several comparisons. "
            f"The largest difference, at {where}: {_interval(d, metric)}."
        )
    return sentences


def _permutation(rows: pd.DataFrame) -> list[str]:
    metric, told = metric_name(rows["metric"].iloc[0]), []
    for baseline in (ALL, NONE):
        cost = permutation_cost(rows, baseline)
        if cost is not None:
            told.append(f"{_interval(cost, metric, 'permutations')} against {baseline}")
    size = size_name(rows["train_size"].iloc[0])
    return [f"{size} examples, layers permuted: {listing(told)}."] if told else []


def _interval(d: Interval, metric: str, what: str = "paired trials") -> str:
    low, high = number(d.low, signed=True), number(d.high, signed=True)
    return f"{number(d.mean, signed=True)} {metric} (95% interval {low} to {high}, {d.n} {what})"


def _step(step: Any) -> str:
    first, last = step.from_k + 1, step.to_k
    layers = first if first == last else f"{first}–{last}"
    return f"{layers}\u00a0({number(step.mean, signed=True)})"
