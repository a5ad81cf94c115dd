"""Findings of word-level probing: each sentence names the models with and without significant differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from whichlayers.analysis.intervals import (
    SIGNIFICANT,
    PairedDifference,
    ends_of_one_of,
    holm,
    paired_difference,
    t_interval,
)
from whichlayers.catalog import DIFFERENCE
from whichlayers.plots.display_names import effect_unit, format_effect, metric_name
from whichlayers.plots.word_figures import PRETRAINED, model_labels
from whichlayers.results.frame_utils import each_group
from whichlayers.text import (
    beyond_note,
    counted,
    format_percent,
    format_range,
    format_score,
    join_list,
    short_names,
)

WITH_WORD_FINDINGS = ("word_probing", "neurons")

Differences = Mapping[str, PairedDifference]  # by model label: "pretrained", or the task it was finetuned on


def word_findings(points: pd.DataFrame, experiment: str) -> Iterator[tuple[str, str]]:
    """Yield (corpus and model, sentence) from finished points, for one of the experiments `WITH_WORD_FINDINGS`."""
    chosen = points[points["experiment"] == experiment]
    chosen = chosen.assign(model_label=model_labels(chosen))
    models, corpora = short_names(chosen["model"]), short_names(chosen["task"])
    for (model, corpus), rows in each_group(chosen, ["model", "task"]):
        heading = corpora[corpus] + (f", {models[model]}" if len(models) > 1 else "")
        for sentence in _layer_sentences(rows) if experiment == "word_probing" else _neuron_sentences(rows):
            yield heading, sentence


def word_headlines(rows: pd.DataFrame, experiment: str) -> list[str]:
    """One sentence on all models and corpora of an experiment; empty if there are only single trials."""
    rows = rows.assign(model_label=model_labels(rows))
    differences = _finetuning_effects if experiment == "word_probing" else _top_minus_bottom
    each = [differences(group) for _, group in each_group(rows, ["model", "task"])]
    found = [d for one in each for d in one.values() if d.n > 1]
    if not found:
        return []
    below, above = (sum(clear.mean * sign > 0 for clear in significant(found)) for sign in (-1, 1))
    cases = counted(len(found), "case")
    if experiment == "word_probing":
        text = (
            f"Finetuning significantly lowers the word-level probing score of the last layer in {below} of {cases} and "
            f"raises it in {above} (one case per corpus and finetuned model"
        )
    else:
        text = (
            f"A probe on the top neurons scores significantly higher than one on the bottom neurons in {above} of "
            f"{cases} and lower in {below} (one case per corpus and model"
        )
    return [f"{text}; p values adjusted for the number of cases)."]


def significant(differences: Sequence[PairedDifference]) -> list[PairedDifference]:
    """Those that are significantly different from zero after Holm's adjustment for their number."""
    adjusted = holm([d.p for d in differences])
    return [d for d, p in zip(differences, adjusted, strict=True) if p < SIGNIFICANT]


def _layer_sentences(rows: pd.DataFrame) -> Iterator[str]:
    metric, last = str(rows["metric"].iloc[0]), rows["x"].max()
    before = rows[rows["model_label"] == PRETRAINED]
    if before["x"].nunique() > 1:
        best = before.groupby("x")["value"].mean().idxmax()
        found = t_interval(before.loc[before["x"] == best, "value"])
        layer = "the embeddings have" if best == 0 else f"layer {best:g} has"
        layers = before["x"].nunique()
        low, high = ends_of_one_of(layers, found.mean, found.sd, found.n)
        ends = f"{format_range(low, high, metric)}{beyond_note(low, high, metric)}"
        interval = f" (95% interval {ends}, adjusted for the choice among {layers}, {found.n} trials)"
        mean = f"{metric_name(metric)} {format_score(found.mean, metric)}"
        mean += interval if found.n > 1 else " in a single trial, so there is no interval"
        yield f"In the pretrained model, {layer} the highest mean: {mean}."
    comparison = f"Layer {last:g} after finetuning compared with the same layer of the pretrained model"
    yield from _compare_models(_finetuning_effects(rows), comparison, metric)


def _neuron_sentences(rows: pd.DataFrame) -> Iterator[str]:
    lca = rows[rows["ranking"] == "lca"]
    if lca.empty:
        return
    share = format_percent(lca["share"].min())
    comparison = f"Probe on the top {share} of the neurons compared with the bottom {share}"
    yield from _compare_models(_top_minus_bottom(rows), comparison, str(rows["metric"].iloc[0]))


def _finetuning_effects(rows: pd.DataFrame) -> Differences:
    """Last layer after finetuning minus the same layer before, paired by seed."""
    last = rows[rows["x"] == rows["x"].max()]
    before = _by_seed(last[last["model_label"] == PRETRAINED])
    found = {
        str(name): paired_difference(_by_seed(after), before)
        for name, after in last[last["model_label"] != PRETRAINED].groupby("model_label", sort=False)
    }
    return {name: effect for name, effect in found.items() if effect is not None}


def _top_minus_bottom(rows: pd.DataFrame) -> Differences:
    """Top neurons minus bottom neurons for the smallest fraction in the study, paired by seed."""
    lca, found = rows[rows["ranking"] == "lca"], {}
    for name, group in lca[lca["share"] == lca["share"].min()].groupby("model_label", sort=False):
        top, bottom = (_by_seed(group[group["neurons"] == which]) for which in ("top", "bottom"))
        found[str(name)] = paired_difference(top, bottom)
    return {name: difference for name, difference in found.items() if difference is not None}


def _compare_models(found: Differences, comparison: str, metric: str) -> Iterator[str]:
    """One sentence on all models: where the difference is below zero, above zero, or not significant after adjustment
    for the number of models."""
    clear = significant(list(found.values()))
    below = {name: d for name, d in found.items() if d in clear and d.mean < 0}
    above = {name: d for name, d in found.items() if d in clear and d.mean > 0}
    single = {name: d for name, d in found.items() if d.n == 1}
    unclear = {name: d for name, d in found.items() if d not in clear and d.n > 1}
    parts = [
        f"significantly {direction} {_models(group)} ({_largest(group, metric, len(found))})"
        for direction, group in (("lower", below), ("higher", above))
        if group
    ]
    if unclear:
        parts.append(f"not significantly different {_models(unclear)} ({_means(unclear, metric)})")
    if single:
        parts.append(f"a single trial, so there is no interval, {_models(single)} ({_means(single, metric)})")
    if parts:
        tested = sum(d.n > 1 for d in found.values())
        parts += [f"p values are adjusted for {tested} comparisons"] if tested > 1 else []
        yield f"{comparison}: {'; '.join(parts)}."


def _models(names: Sequence[str] | Differences) -> str:
    """E.g. "for the pretrained model and when finetuned on SST-2 and RTE"."""
    tuned = [name for name in names if name != PRETRAINED]
    parts = (["for the pretrained model"] if PRETRAINED in names else []) + (
        [f"when finetuned on {join_list(tuned)}"] if tuned else []
    )
    return " and ".join(parts)


def _largest(group: Differences, metric: str, count: int) -> str:
    """The largest difference of a group, with its interval; the group was chosen from `count` differences."""
    name, d = max(group.items(), key=lambda one: abs(one[1].mean))
    if len(group) == 1:
        return _effect_and_interval(d, metric)
    return f"largest difference {_models([name])}: {_effect_and_interval(d, metric, count)}"


def _means(group: Differences, metric: str) -> str:
    """The mean of a single difference with its interval, or the range of the means of several."""
    if len(group) == 1:
        (d,) = group.values()
        return _effect_and_interval(d, metric)
    low, high = (format_score(end(d.mean for d in group.values()), metric, signed=True) for end in (min, max))
    return f"{low if low == high else f'{low} to {high}'} {effect_unit(metric)}"


def _by_seed(rows: pd.DataFrame) -> pd.Series:
    return rows.groupby("seed")["value"].mean()


def _effect_and_interval(d: PairedDifference, metric: str, one_of: int = 1) -> str:
    """A difference with its unit and, if there are several trials, its interval, adjusted for the choice of the largest
    of several, `one_of`."""
    low, high = (d.low, d.high) if one_of == 1 else ends_of_one_of(one_of, d.mean, d.sd, d.n)
    ends = format_range(low, high, metric, signed=True) + beyond_note(low, high, DIFFERENCE + metric)
    adjusted = "" if one_of == 1 else f", adjusted for the choice among {one_of}"
    return format_effect(d.mean, metric) + (
        f", 95% interval {ends}{adjusted}, {d.n} trials" if d.n > 1 else ""
    )
