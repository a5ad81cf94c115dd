"""The tables of Durrani et al. 2021 in our numbers, with the published ones beside them: pruning, sets of neurons,
selectivity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from carryover.analysis.contrasts import ALL
from carryover.analysis.intervals import t_interval
from carryover.analysis.published import published_pruning, published_share, published_words
from carryover.analysis.walk import each_group
from carryover.report.labels import short_names, size_name
from carryover.report.linguistic import PRETRAINED, whose

PUBLISHED_DEPTH, PUBLISHED_DROP = 12, 6
NOTE = "Mean over trials ± half of the 95% t interval, in per cent."
BESIDE = " Published: Durrani et al. 2021, {}, for BERT, RoBERTa and XLNet base."


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
        return _made("Top or bottom layers dropped", _pruning(chosen), "Tables 2 and 6")
    if experiment == "neurons":
        models = short_names(chosen["model"])
        return [
            table
            for (corpus, model), mine in each_group(chosen, ["task", "model"])
            for table in _made(
                f"{corpus}, {models[model]}: accuracy with sets of neurons", _sets(mine), "Tables 1, 4 and 5"
            )
        ]
    if experiment == "selectivity":
        lengths = points[points["experiment"] == "description_length"]
        return _made(
            "All neurons and the top ones against a control task", _selectivity(chosen, lengths), "Table 7"
        )
    return []


def _made(label: str, rows: Iterator[dict[str, str]], source: str) -> list[WordTable]:
    found = list(rows)
    if not found:
        return []
    names = list(dict.fromkeys(name for row in found for name in row))
    heads = {name: name for name in names if any(row.get(name) for row in found)}
    note = NOTE + (BESIDE.format(source) if any(name.startswith("published") for name in heads) else "")
    for name in (
        "model",
        "variant",
        "finetuned on",
        "selected",
    ):  # what is the same in all rows goes without saying
        if len({row.get(name) for row in found}) == 1 and len(heads) > 2:
            heads.pop(name, None)
    full = [{name: row.get(name, "") for name in heads} for row in found]
    return [
        WordTable(
            label,
            heads,
            full,
            frozenset(heads) & {"model", "task", "corpus", "finetuned on", "variant"},
            note,
        )
    ]


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
        first = mine.iloc[0]
        if PUBLISHED_DROP in dropped and first["depth"] == PUBLISHED_DEPTH:
            theirs = published_pruning(str(first["family"]), str(task))
            row |= _published(
                {"none": "baseline", "prune top 6": "top 6", "prune bottom 6": "bottom 6"}, theirs
            )
        yield row


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
    models = short_names(rows["model"])
    rows = rows.assign(whose=whose(rows))
    lengths = lengths.assign(whose=whose(lengths)) if len(lengths) else lengths
    for (corpus, model, name), mine in each_group(rows, ["task", "model", "whose"]):
        same = pd.DataFrame()
        if len(lengths):
            same = lengths[
                (lengths["task"] == corpus) & (lengths["model"] == model) & (lengths["whose"] == name)
            ]
        for share in sorted(set(mine["share"].dropna())):
            row = {"corpus": str(corpus), "model": models[model], "finetuned on": str(name)}
            parts = {"all": mine[mine["neurons"] == "all"], "top": mine[mine["share"] == share]}
            row["selected"] = f"{100 * share:.6g}%"
            for which, cell in parts.items():
                row[f"accuracy, {which}"] = _mean(cell.assign(value=cell["value"] + cell["control"]))
            for which, cell in parts.items():
                row[f"selectivity, {which}"] = _mean(cell)
            if len(same):
                row["compression, all"] = _plain(same[same["neurons"] == "all"])
                row["control, all"] = _plain(
                    same[same["neurons"] == "all"].assign(value=lambda f: f["control"])
                )
                row["compression, top"] = _plain(same[same["share"] == share])
            if share == published_share(str(corpus)) and name == PRETRAINED:
                theirs = published_words(str(mine["family"].iloc[0]), str(corpus), "")
                named = {
                    "accuracy all neurons": "accuracy, all",
                    "accuracy selected neurons": "accuracy, top",
                }
                named |= {"selectivity all": "selectivity, all", "selectivity selected": "selectivity, top"}
                row |= _published(named, theirs)
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
