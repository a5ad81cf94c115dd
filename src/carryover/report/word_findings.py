"""What the experiments on words found, in sentences: the layer that knows most, what finetuning changed at the top,
and how far the best neurons are ahead of the worst."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from carryover.analysis.intervals import paired_difference, t_interval
from carryover.analysis.walk import each_group
from carryover.report.labels import metric_name, number, short_names
from carryover.report.linguistic import PRETRAINED, whose

TOLD = ("word_probing", "neurons")


def word_findings(points: pd.DataFrame, experiment: str) -> Iterator[tuple[str, str]]:
    """(what it is about, a sentence), from finished points of one of the experiments that are `TOLD`."""
    chosen = points[points["experiment"] == experiment]
    chosen = chosen.assign(asked=whose(chosen))
    models, corpora = short_names(chosen["model"]), short_names(chosen["task"])
    for (model, corpus), rows in each_group(chosen, ["model", "task"]):
        about = corpora[corpus] + (f", {models[model]}" if len(models) > 1 else "")
        for sentence in _layers(rows) if experiment == "word_probing" else _neurons(rows):
            yield about, sentence


def _layers(rows: pd.DataFrame) -> Iterator[str]:
    metric, top = metric_name(rows["metric"].iloc[0]), rows["x"].max()
    before = rows[rows["asked"] == PRETRAINED]
    if before["x"].nunique() > 1:
        best = before.groupby("x")["value"].mean().idxmax()
        found = t_interval(before.loc[before["x"] == best, "value"])
        layer = "the embeddings score" if best == 0 else f"layer {best:g} scores"
        yield f"As pretrained, {layer} highest: {number(found.mean)} {metric}{_range(found.low, found.high, found.n)}."
    for name, after in rows[rows["asked"] != PRETRAINED].groupby("asked", sort=False):
        change = paired_difference(_by_seed(after[after["x"] == top]), _by_seed(before[before["x"] == top]))
        if change is not None:
            told = _range(change.low, change.high, change.n, signed=True)
            yield (
                f"Finetuned on {name}, layer {top:g} changes by {number(change.mean, signed=True)} {metric}{told}."
            )


def _neurons(rows: pd.DataFrame) -> Iterator[str]:
    metric = metric_name(rows["metric"].iloc[0])
    lca = rows[rows["ranking"] == "lca"]
    for name, mine in lca[lca["share"] == lca["share"].min()].groupby("asked", sort=False):
        top, bottom = (_by_seed(mine[mine["neurons"] == which]) for which in ("top", "bottom"))
        ahead = paired_difference(top, bottom)
        if ahead is not None:
            told = _range(ahead.low, ahead.high, ahead.n, signed=True)
            state = "As pretrained" if name == PRETRAINED else f"Finetuned on {name}"
            yield (
                f"{state}, the top {mine['share'].iloc[0]:.0%} of the neurons alone are ahead of the bottom "
                f"{mine['share'].iloc[0]:.0%} by {number(ahead.mean)} {metric}{told}."
            )


def _by_seed(rows: pd.DataFrame) -> pd.Series:
    return rows.groupby("seed")["value"].mean()


def _range(low: float, high: float, n: int, signed: bool = False) -> str:
    if n < 2:
        return " in a single trial, hence no interval"
    return f" (95% interval {number(low, signed=signed)} to {number(high, signed=signed)}, {n} trials)"
