"""The statistics in sentences: each says what an interval or an adjusted p value says, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from carryover.analysis.contrasts import ALL, BASELINES, NONE, against, permutation_cost
from carryover.analysis.frame import CURVE
from carryover.analysis.incremental import Curve, curves, layer_worth
from carryover.analysis.intervals import PairedDifference
from carryover.analysis.walk import each_group, each_row
from carryover.report.labels import (
    condition_name,
    listing,
    metric_name,
    number,
    place_name,
    short_names,
    size_name,
)

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
        found.append(Finding("Overall", (_overview(better, len(known)),)))
    named: dict[str, list[str]] = {_about(chosen, vars(curve)): [] for curve in every}
    for curve in sorted(every, key=lambda c: c.train_size):
        named[_about(chosen, vars(curve))].append(_gain(curve))
    if len(named) <= MOST_ITEMS:
        found += [Finding(about, tuple(sentences)) for about, sentences in named.items()]
    return found


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


def _overview(better: int, total: int) -> str:
    which = f"all {total}" if better == total else f"{better} of {total}" if better else f"none of {total}"
    return (
        f"In {which} curves that have both their ends, the model with all layers pretrained does better than "
        "the one with none: the 95% interval of the paired difference lies above zero."
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
        table = against(rows, baseline)
        table = table[table["condition"] == condition] if len(table) else table
        tested = table[table["p"].notna()] if len(table) else table
        if tested.empty:
            continue
        clear = tested[tested["p_adjusted"] < SIGNIFICANT]
        most = max(each_row(tested), key=lambda row: abs(row.mean))
        d = PairedDifference(most.mean, most.low, most.high, most.sd, most.n, most.p)
        share = (
            f"{len(clear)} of {len(tested)} differ" if len(clear) else f"none of {len(tested)} can be told"
        )
        where = place_name(experiment, most.x)
        sentences.append(
            f"{size} examples, {condition_name(experiment, condition)}: {share} from {baseline} after "
            f"correction for several comparisons. The largest difference, at {where}: {_interval(d, metric)}."
        )
    return sentences


def _permutation(rows: pd.DataFrame) -> list[str]:
    metric, told = metric_name(rows["metric"].iloc[0]), []
    for baseline in (ALL, NONE):
        cost = permutation_cost(rows, baseline)
        if cost is not None and cost.n > 1:
            told.append(f"{_interval(cost, metric, 'permutations')} against {baseline}")
    size = size_name(rows["train_size"].iloc[0])
    return [f"{size} examples, layers permuted: {listing(told)}."] if told else []


def _interval(d: PairedDifference, metric: str, what: str = "paired trials") -> str:
    low, high = number(d.low, signed=True), number(d.high, signed=True)
    return f"{number(d.mean, signed=True)} {metric} (95% interval {low} to {high}, {d.n} {what})"


def _step(step: Any) -> str:
    first, last = step.from_k + 1, step.to_k
    return f"{first if first == last else f'{first}–{last}'} ({number(step.mean, signed=True)})"
