"""What the experiments on words found, in sentences: the layer that knows most, what finetuning changed at the top,
and how far the best neurons are ahead of the worst.

A sentence a question and corpus: what can be told from zero is named, the rest is said to be undecided. The tables
have the numbers of each model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.intervals import PairedDifference, paired_difference, t_interval
from whichlayers.plots.display_names import listing, metric_name, number, short_names
from whichlayers.plots.word_figures import PRETRAINED, whose

TOLD = ("word_probing", "neurons")

Differences = Mapping[str, PairedDifference]  # by whose they are: pretrained, or what it was finetuned on


def word_findings(points: pd.DataFrame, experiment: str) -> Iterator[tuple[str, str]]:
    """(what it is about, a sentence), from finished points of one of the experiments that are `TOLD`."""
    chosen = points[points["experiment"] == experiment]
    chosen = chosen.assign(asked=whose(chosen))
    models, corpora = short_names(chosen["model"]), short_names(chosen["task"])
    for (model, corpus), rows in each_group(chosen, ["model", "task"]):
        about = corpora[corpus] + (f", {models[model]}" if len(models) > 1 else "")
        for sentence in _layers(rows) if experiment == "word_probing" else _neurons(rows):
            yield about, sentence


def words_overall(rows: pd.DataFrame, experiment: str) -> list[str]:
    """One sentence on all models and corpora, from finished points of one of the experiments that are `TOLD`."""
    rows = rows.assign(asked=whose(rows))
    differences = _changes if experiment == "word_probing" else _leads
    each = [differences(mine) for _, mine in each_group(rows, ["model", "task"])]
    found = [d for one in each for d in one.values() if d.n > 1]
    if not found:
        return []
    below, above = (sum(d.clear and d.mean * sign > 0 for d in found) for sign in (-1, 1))
    cases = f"of {len(found)} cases"
    if experiment == "word_probing":
        told = (
            f"After finetuning, the highest layer knows less of words in {below} {cases}, and more in {above}"
        )
    else:
        told = (
            f"The top neurons know more of words than the bottom ones in {above} {cases}, and less in {below}"
        )
    return [f"{told} (a case: a corpus and a model; 95% interval beyond zero)."]


def _layers(rows: pd.DataFrame) -> Iterator[str]:
    metric, top = metric_name(rows["metric"].iloc[0]), rows["x"].max()
    before = rows[rows["asked"] == PRETRAINED]
    if before["x"].nunique() > 1:
        best = before.groupby("x")["value"].mean().idxmax()
        found = t_interval(before.loc[before["x"] == best, "value"])
        layer = "the embeddings have" if best == 0 else f"layer {best:g} has"
        told = _range(found.low, found.high, found.n)
        yield f"As pretrained, {layer} the highest mean: {number(found.mean)} {metric}{told}."
    yield from _sentence(
        _changes(rows),
        f"Layer {top:g} after finetuning, less the same layer as pretrained",
        ("lower", "higher"),
        metric,
    )


def _neurons(rows: pd.DataFrame) -> Iterator[str]:
    lca = rows[rows["ranking"] == "lca"]
    if lca.empty:
        return
    share = f"{100 * lca['share'].min():.6g}%"
    yield from _sentence(
        _leads(rows),
        f"The top {share} of the neurons alone, less the bottom {share}",
        ("behind", "ahead"),
        metric_name(rows["metric"].iloc[0]),
    )


def _changes(rows: pd.DataFrame) -> Differences:
    """The last layer after finetuning, less the same layer before."""
    last = rows[rows["x"] == rows["x"].max()]
    before = _by_seed(last[last["asked"] == PRETRAINED])
    found = {
        str(name): paired_difference(_by_seed(after), before)
        for name, after in last[last["asked"] != PRETRAINED].groupby("asked", sort=False)
    }
    return {name: change for name, change in found.items() if change is not None}


def _leads(rows: pd.DataFrame) -> Differences:
    """The top neurons less the bottom ones, of the smallest share that was asked for."""
    lca, found = rows[rows["ranking"] == "lca"], {}
    for name, mine in lca[lca["share"] == lca["share"].min()].groupby("asked", sort=False):
        top, bottom = (_by_seed(mine[mine["neurons"] == which]) for which in ("top", "bottom"))
        found[str(name)] = paired_difference(top, bottom)
    return {name: lead for name, lead in found.items() if lead is not None}


def _sentence(found: Differences, what: str, ways: tuple[str, str], metric: str) -> Iterator[str]:
    """One sentence on all of them: which lie below zero, which above, and which cannot be told from it."""
    below = {name: d for name, d in found.items() if d.clear and d.mean < 0}
    above = {name: d for name, d in found.items() if d.clear and d.mean > 0}
    single = {name: d for name, d in found.items() if d.n == 1}
    unclear = {name: d for name, d in found.items() if not d.clear and d.n > 1}
    parts = [
        f"{way} {_who(group)} ({_most(group, metric)})"
        for way, group in zip(ways, (below, above), strict=True)
        if group
    ]
    if unclear:
        parts.append(f"cannot be told from zero {_who(unclear)} ({_means(unclear, metric)})")
    if single:
        parts.append(f"a single trial, hence no interval, {_who(single)} ({_means(single, metric)})")
    if parts:
        yield f"{what}: {'; '.join(parts)}."


def _who(names: Sequence[str] | Differences) -> str:
    """as pretrained, and when finetuned on SST-2 and RTE"""
    tuned = [name for name in names if name != PRETRAINED]
    parts = (["as pretrained"] if PRETRAINED in names else []) + (
        [f"when finetuned on {listing(tuned)}"] if tuned else []
    )
    return ", and ".join(parts)


def _most(group: Differences, metric: str) -> str:
    name, d = max(group.items(), key=lambda one: abs(one[1].mean))
    start = "" if len(group) == 1 else f"the most {_who([name])}: "
    return (
        f"{start}{number(d.mean, signed=True)} {metric}{_range(d.low, d.high, d.n, signed=True, nested=True)}"
    )


def _means(group: Differences, metric: str) -> str:
    if len(group) == 1:
        (d,) = group.values()
        told = _range(d.low, d.high, d.n, signed=True, nested=True) if d.n > 1 else ""
        return f"{number(d.mean, signed=True)} {metric}{told}"
    low, high = (number(end(d.mean for d in group.values()), signed=True) for end in (min, max))
    return f"{low} {metric}" if low == high else f"{low} to {high} {metric}"


def _by_seed(rows: pd.DataFrame) -> pd.Series:
    return rows.groupby("seed")["value"].mean()


def _range(low: float, high: float, n: int, signed: bool = False, nested: bool = False) -> str:
    if n < 2:
        return " in a single trial, hence no interval"
    text = f"95% interval {number(low, signed=signed)} to {number(high, signed=signed)}, {n} trials"
    return f", {text}" if nested else f" ({text})"
