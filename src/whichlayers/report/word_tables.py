"""The tables of Durrani et al. 2021 in our numbers, with the published ones beside them: pruning, sets of neurons,
selectivity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from whichlayers.analysis.baseline_differences import ALL
from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.intervals import t_interval
from whichlayers.analysis.published import FAMILIES, published_share, published_words
from whichlayers.plots.display_names import listing, short_names, size_name
from whichlayers.plots.published_overlay import pruned_alike
from whichlayers.plots.word_figures import PRETRAINED, whose

WORDS = {"model", "task", "corpus", "finetuned on", "variant", "neurons"}  # columns that hold words
NOTE = "Mean over trials ± half of the 95% t interval, in per cent."
TIMES = (
    " Compression: how many times shorter than by a uniform code, mean over trials; so for the control task."
)
BESIDE = " Published: Durrani et al. 2021, {}, for {}."


@dataclass(frozen=True)
class WordTable:
    label: str
    heads: dict[str, str]
    rows: list[dict[str, str]]
    words: frozenset[str]  # the columns that hold words, not numbers
    note: str


def word_tables(points: pd.DataFrame, experiment: str) -> list[WordTable]:
    """From finished points; none for other experiments."""
    chosen = points[points["experiment"] == experiment]
    if experiment == "prune":
        return _made("Top or bottom layers dropped", _pruning(chosen), "Tables 2 and 6", chosen)
    if experiment == "neurons":
        models = short_names(chosen["model"])
        return [
            table
            for (corpus, model), mine in each_group(chosen, ["task", "model"])
            for table in _made(
                f"{corpus}, {models[model]}: accuracy with sets of neurons",
                _sets(mine),
                "Tables 1, 4 and 5",
                mine,
            )
        ]
    if experiment == "selectivity":
        lengths = points[points["experiment"] == "description_length"]
        label = "All neurons and the top ones against a control task"
        return _made(label, _selectivity(chosen, lengths), "Table 7", chosen)
    return []


def _made(label: str, rows: Iterator[dict[str, str]], source: str, points: pd.DataFrame) -> list[WordTable]:
    found = list(rows)
    if not found:
        return []
    names = list(dict.fromkeys(name for row in found for name in row))
    heads = {name: name for name in names if any(row.get(name) for row in found)}
    note = NOTE + (TIMES if "compression" in heads else "")
    if any(name.startswith("published") for name in heads):
        families = [FAMILIES[f] for f in dict.fromkeys(points["family"]) if f in FAMILIES]
        note += BESIDE.format(source, listing(families))
    for name in ("model", "variant", "finetuned on"):  # what is the same in all rows goes without saying
        row_head = name == "finetuned on" and next(iter(heads)) == name
        if name in heads and not row_head and len({row.get(name) for row in found}) == 1:
            del heads[name]
    full = [{name: row.get(name, "") for name in heads} for row in found]
    return [WordTable(label, heads, full, frozenset(heads) & WORDS, note)]


def _pruning(rows: pd.DataFrame) -> Iterator[dict[str, str]]:
    models, tasks = short_names(rows["model"]), short_names(rows["task"])
    ends = rows[rows["condition"].isin([ALL, "top", "bottom"])]
    for (model, task, size, variant), mine in each_group(ends, ["model", "task", "train_size", "variant"]):
        row = {"model": models[model], "task": tasks[task], "examples": size_name(size), "variant": variant}
        row["baseline"] = _mean(mine[mine["condition"] == ALL])
        dropped = sorted(set(mine.loc[mine["condition"] != ALL, "x"]))
        for n in dropped:
            for end in ("top", "bottom"):
                row[f"{end} {n:g} dropped"] = _mean(mine[(mine["condition"] == end) & (mine["x"] == n)])
        named = {"none": "baseline", "prune top 6": "top 6", "prune bottom 6": "bottom 6"}
        yield row | _published(named, pruned_alike(mine))


def _sets(rows: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Of one model and corpus: a row a task that the model was finetuned on, a column a set."""
    rows = rows.assign(whose=whose(rows))
    rows = rows.sort_values("finetuned_on", key=lambda names: names != "", kind="stable")
    for (name,), asked in each_group(rows, ["whose"]):
        row = {"finetuned on": str(name), "all neurons": _mean(asked[asked["neurons"] == "all"])}
        first = asked.iloc[0]
        corpus, sets = str(first["task"]), asked[asked["share"].notna()]
        theirs = published_words(str(first["family"]), corpus, str(first["finetuned_on"]))
        for (ranking, share, which), cell in each_group(sets, ["ranking", "share", "neurons"]):
            row[f"{which} {100 * share:.6g}%{'' if ranking == 'lca' else f', {ranking}'}"] = _mean(cell)
            if ranking == "lca" and share == published_share(corpus):
                row |= _published({which: which}, theirs)
        yield row


def _selectivity(rows: pd.DataFrame, lengths: pd.DataFrame) -> Iterator[dict[str, str]]:
    """A row a set: all neurons, and the top ones by their share."""
    models = short_names(rows["model"])
    rows = rows.assign(whose=whose(rows))
    lengths = lengths.assign(whose=whose(lengths)) if len(lengths) else lengths
    for (corpus, model, name), mine in each_group(rows, ["task", "model", "whose"]):
        same = lengths
        if len(lengths):
            same = lengths[
                (lengths["task"] == corpus) & (lengths["model"] == model) & (lengths["whose"] == name)
            ]
        theirs = published_words(str(mine["family"].iloc[0]), str(corpus), "") if name == PRETRAINED else {}
        for share in [float("nan"), *sorted(set(mine["share"].dropna()))]:
            every = pd.isna(share)
            cell, coded = (
                part[part["share"].isna() if every else part["share"] == share] for part in (mine, same)
            )
            row = {"corpus": str(corpus), "model": models[model], "finetuned on": str(name)}
            row["neurons"] = "all" if every else f"top {100 * share:.6g}%"
            row["accuracy"] = _mean(cell.assign(value=cell["value"] + cell["control"]))
            row["selectivity"] = _mean(cell)
            if len(coded):
                row["compression"] = _plain(coded)
                row["compression, control"] = _plain(coded.assign(value=coded["control"]))
            if every or share == published_share(str(corpus)):
                keys = ("accuracy all neurons", "selectivity all")
                keys = keys if every else ("accuracy selected neurons", "selectivity selected")
                row |= _published(dict(zip(keys, ("accuracy", "selectivity"), strict=True)), theirs)
            yield row


def _published(names: Mapping[str, str], theirs: Mapping[str, float]) -> dict[str, str]:
    return {f"published {ours}": f"{100 * theirs[key]:.1f}" for key, ours in names.items() if key in theirs}


def _mean(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    i = t_interval(rows["value"])
    return f"{100 * i.mean:.1f}" + (f" ± {100 * i.half_width:.1f}" if i.n > 1 else "")


def _plain(rows: pd.DataFrame) -> str:
    return "" if rows.empty else f"{rows['value'].mean():.2f}"
