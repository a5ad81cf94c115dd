"""Tables in the format of Durrani et al. 2021, with the published values: pruning, sets of neurons, selectivity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from whichlayers.analysis.baseline_differences import ALL_PRETRAINED
from whichlayers.analysis.intervals import t_interval
from whichlayers.analysis.published import FAMILIES, published_neuron_fraction, published_word_probing
from whichlayers.plots.display_names import short_names, size_name
from whichlayers.plots.published_overlay import PUBLISHED_TABLES, comparable_pruning
from whichlayers.plots.word_figures import PRETRAINED, model_labels
from whichlayers.results.frame_utils import each_group
from whichlayers.text import format_half_width, format_percent, format_score, join_list

TEXT_COLUMNS = {"model", "task", "corpus", "finetuned on", "variant", "neurons"}
NOTE = "Mean over trials ± half of the 95% t interval, in points (metric × 100)."
COMPRESSION_NOTE = (
    " Compression: how many times shorter the online code of the tags is than a uniform code, mean over trials, for "
    "the corpus and for the control task."
)
PUBLISHED_NOTE = " Published: Durrani et al. 2021, {}, for {}."


@dataclass(frozen=True)
class PaperTable:
    """A table of formatted cells by column name."""

    label: str
    headers: dict[str, str]  # column name -> displayed header
    rows: list[dict[str, str]]
    text_columns: frozenset[str]  # columns that hold text rather than numbers
    note: str


def paper_tables(points: pd.DataFrame, experiment: str) -> list[PaperTable]:
    """Tables of an experiment from finished points; empty for experiments that the paper does not have."""
    chosen, source = points[points["experiment"] == experiment], PUBLISHED_TABLES.get(experiment, "")
    if experiment == "prune":
        return _build_table("Top or bottom layers dropped", _pruning(chosen), source, chosen)
    if experiment == "neurons":
        models = short_names(chosen["model"])
        return [
            table
            for (corpus, model), group in each_group(chosen, ["task", "model"])
            for table in _build_table(
                f"{corpus}, {models[model]}: accuracy with sets of neurons",
                _sets(group),
                source,
                group,
            )
        ]
    if experiment == "selectivity":
        lengths = points[points["experiment"] == "description_length"]
        label = "Accuracy and selectivity of all neurons and of the top neurons"
        return _build_table(label, _selectivity(chosen, lengths), source, chosen)
    return []


def _build_table(
    label: str, rows: Iterator[dict[str, str]], source: str, points: pd.DataFrame
) -> list[PaperTable]:
    """A list with one table, or an empty list if there are no rows; `source` names the published tables."""
    found = list(rows)
    if not found:
        return []
    names = list(dict.fromkeys(name for row in found for name in row))
    headers = {name: name for name in names if any(row.get(name) for row in found)}
    note = NOTE + (COMPRESSION_NOTE if "compression" in headers else "")
    if any(name.startswith("published") for name in headers):
        families = [FAMILIES[f] for f in dict.fromkeys(points["family"]) if f in FAMILIES]
        note += PUBLISHED_NOTE.format(source, join_list(families))
    for name in ("model", "variant", "finetuned on"):  # columns with the same value in all rows are omitted
        is_row_label = name == "finetuned on" and next(iter(headers)) == name
        if name in headers and not is_row_label and len({row.get(name) for row in found}) == 1:
            del headers[name]
    full = [{name: row.get(name, "") for name in headers} for row in found]
    return [PaperTable(label, headers, full, frozenset(headers) & TEXT_COLUMNS, note)]


def _pruning(rows: pd.DataFrame) -> Iterator[dict[str, str]]:
    """One row per model, task, size and variant: scores with the top or bottom layers dropped."""
    models, tasks = short_names(rows["model"]), short_names(rows["task"])
    ends = rows[rows["condition"].isin([ALL_PRETRAINED, "top", "bottom"])]
    for (model, task, size, variant), curve in each_group(ends, ["model", "task", "train_size", "variant"]):
        row = {"model": models[model], "task": tasks[task], "examples": size_name(size), "variant": variant}
        row["baseline"] = _mean(curve[curve["condition"] == ALL_PRETRAINED])
        dropped = sorted(set(curve.loc[curve["condition"] != ALL_PRETRAINED, "x"]))
        for n in dropped:
            for end in ("top", "bottom"):
                row[f"{end} {n:g} dropped"] = _mean(curve[(curve["condition"] == end) & (curve["x"] == n)])
        named = {"none": "baseline", "prune top 6": "top 6", "prune bottom 6": "bottom 6"}
        yield row | _published(named, comparable_pruning(curve))


def _sets(rows: pd.DataFrame) -> Iterator[dict[str, str]]:
    """For one model and corpus: one row per task that the model was finetuned on, one column per set of neurons."""
    rows = rows.assign(model_label=model_labels(rows))
    rows = rows.sort_values("finetuned_on", key=lambda names: names != "", kind="stable")
    for (name,), group in each_group(rows, ["model_label"]):
        row = {"finetuned on": str(name), "all neurons": _mean(group[group["neurons"] == "all"])}
        first = group.iloc[0]
        corpus, sets = str(first["task"]), group[group["share"].notna()]
        published = published_word_probing(str(first["family"]), corpus, str(first["finetuned_on"]))
        for (ranking, share, which), cell in each_group(sets, ["ranking", "share", "neurons"]):
            row[f"{which} {format_percent(share)}{'' if ranking == 'lca' else f', {ranking}'}"] = _mean(cell)
            if ranking == "lca" and share == published_neuron_fraction(corpus):
                row |= _published({which: which}, published)
        yield row


def _selectivity(rows: pd.DataFrame, lengths: pd.DataFrame) -> Iterator[dict[str, str]]:
    """One row per corpus, model and set of neurons: all of them, and the top ones of each fraction."""
    models = short_names(rows["model"])
    rows = rows.assign(model_label=model_labels(rows))
    lengths = lengths.assign(model_label=model_labels(lengths)) if len(lengths) else lengths
    for (corpus, model, name), group in each_group(rows, ["task", "model", "model_label"]):
        same = lengths
        if len(lengths):
            same = lengths[
                (lengths["task"] == corpus) & (lengths["model"] == model) & (lengths["model_label"] == name)
            ]
        published = (
            published_word_probing(str(group["family"].iloc[0]), str(corpus), "")
            if name == PRETRAINED
            else {}
        )
        for share in [float("nan"), *sorted(set(group["share"].dropna()))]:
            all_neurons = pd.isna(share)
            cell, code_lengths = (
                part[part["share"].isna() if all_neurons else part["share"] == share]
                for part in (group, same)
            )
            row = {"corpus": str(corpus), "model": models[model], "finetuned on": str(name)}
            row["neurons"] = "all" if all_neurons else f"top {format_percent(share)}"
            row["accuracy"] = _mean(cell.assign(value=cell["value"] + cell["control"]))
            row["selectivity"] = _mean(cell)
            if len(code_lengths):
                row["compression"] = _mean_only(code_lengths)
                row["compression, control"] = _mean_only(code_lengths.assign(value=code_lengths["control"]))
            if all_neurons or share == published_neuron_fraction(str(corpus)):
                keys = ("accuracy all neurons", "selectivity all")
                keys = keys if all_neurons else ("accuracy selected neurons", "selectivity selected")
                row |= _published(dict(zip(keys, ("accuracy", "selectivity"), strict=True)), published)
            yield row


def _published(names: Mapping[str, str], published: Mapping[str, float]) -> dict[str, str]:
    """Cells of the published values; `names` maps their keys to the columns they correspond to."""
    return {
        f"published {name}": format_score(published[key]) for key, name in names.items() if key in published
    }


def _mean(rows: pd.DataFrame) -> str:
    """Mean ± half of the 95% interval in points."""
    if rows.empty:
        return ""
    i = t_interval(rows["value"])
    return f"{format_score(i.mean)} {format_half_width(i.half_width)}".rstrip()


def _mean_only(rows: pd.DataFrame) -> str:
    return "" if rows.empty else format_score(rows["value"].mean(), "compression")
