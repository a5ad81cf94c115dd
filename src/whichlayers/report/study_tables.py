"""Tables about a study as a whole: data statistics, penalties of probes and run times beside the published values, and
variance components."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from whichlayers.analysis.published_settings import (
    PublishedTime,
    published_data,
    published_penalty,
    published_times,
)
from whichlayers.experiments import display_of
from whichlayers.plots.display_names import metric_name, size_name
from whichlayers.report.tables import TextTable
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.text import format_duration, format_score, join_list, short_names

SPLITS = ("train", "dev", "test")


def task_table(data: pd.DataFrame) -> TextTable | None:
    """Examples and classes of every task (Tamkin et al. 2020, Table 2), from `load_data_statistics`."""
    rows = []
    tasks = data[data["kind"] != "tagging"]
    short = short_names(tasks["name"])
    for task in each_row(tasks):
        row = {"task": short[task.name], "metric": metric_name(task.metric)}
        row |= {"classes": _count(task.classes) if task.kind == "classification" else "regression"}
        row |= {split: _count(getattr(task, split)) for split in ("train", "dev")}
        published = published_data(task.name)
        row |= {f"published {s}": f"{published[s]:,}" if s in published else "" for s in ("train", "dev")}
        rows.append(row)
    note = "Numbers of examples. Models are trained on random subsets of train and evaluated on dev."
    if any(row["published train"] for row in rows):
        note += (
            " Published: Tamkin et al. 2020, Table 2, rounded as there (the 872 of SST-2 is printed as 872k)."
        )
    return _table("Tasks", rows, {"task", "metric"}, note)


def corpus_table(data: pd.DataFrame) -> TextTable | None:
    """Words, sentences and tags of every corpus (Durrani et al. 2021, Table 3), from `load_data_statistics`."""
    rows = []
    for corpus in each_row(data[data["kind"] == "tagging"]):
        row = {"corpus": corpus.name, "tags": _count(corpus.classes)}
        for split in SPLITS:
            row[f"{split}: words"] = _count(getattr(corpus, split))
            row[f"{split}: sentences"] = _count(getattr(corpus, f"{split}_sentences"))
        published = published_data(corpus.name)
        row["published tags"] = _count(published.get("classes"))
        for split in SPLITS:
            row[f"published {split}"] = _count(published.get(split))
        rows.append(row)
    note = "Without dev sentences, the last tenth of the training sentences is used to select penalties and neurons."
    if any(row["published tags"] for row in rows):
        note += " Published: Durrani et al. 2021, Table 3, in sentences; its POS tags are those of the Penn Treebank."
    return _table("Corpora", rows, {"corpus"}, note)


def penalty_table(points: pd.DataFrame, epochs: pd.DataFrame) -> TextTable | None:
    """L1 and L2 of the probes on all neurons, given or found by the search (Durrani et al. 2021, Table 8).

    Args:
        points: Finished points of the study.
        epochs: Metrics of trials in long form; word probes with a penalty record it as l1 and l2.
    """
    penalties = epochs[epochs["metric"].isin(["l1", "l2"])]
    wide = penalties.pivot_table(index="trial_id", columns="metric", values="value", aggfunc="last")
    if not {"l1", "l2"} <= set(wide.columns):
        return None
    found = points.merge(wide, left_on="trial_id", right_index=True)
    rows, models = [], short_names(found["model"])
    keys = ["task", "model", "family", "l1", "l2"]
    for (corpus, model, family, l1, l2), group in each_group(found, keys):
        row = {"corpus": str(corpus), "model": models[model], "L1": f"{l1:g}", "L2": f"{l2:g}"}
        row["experiments"] = join_list(list(dict.fromkeys(group["experiment"])))
        published = published_penalty(str(family), str(corpus))
        row["published L1"], row["published L2"] = (f"{v:g}" for v in published) if published else ("", "")
        rows.append(row)
    note = "Weights of the two penalties, given in the study file or found by the grid search on the pretrained model."
    if any(row["published L1"] for row in rows):
        note += " Published: Durrani et al. 2021, Table 8."
    return _table("Elastic net penalties", rows, {"corpus", "model", "experiments"}, note)


def run_time_table(points: pd.DataFrame, runs: pd.DataFrame) -> TextTable | None:
    """Device time of every experiment and training size, beside the published run times.

    Args:
        points: Finished points of the study; `seconds` is a trial's part of the time of its stack.
        runs: Runs of the study, for the names of the devices.
    """
    rows = list(_run_times(points[points["seconds"].notna()]))
    devices = join_list(list(dict.fromkeys(runs["device"])))
    note = (
        f"On {devices}. Time per trial: the time of a stack divided by its trials. The sum of trials can exceed the "
        "wall-clock time of the runs if workers train in parallel. Trials that several experiments share are counted "
        "in each."
    )
    sources = dict.fromkeys(source for row in rows for source in row.pop("sources").split("; ") if source)
    if sources:
        note += f" Published: {'; '.join(sources)}."
    return _table("Run time", rows, {"experiment", "model", "task"}, note)


def variance_component_table(components: pd.DataFrame) -> TextTable | None:
    """What each random component contributes to the variance between trials, one row per point.

    Args:
        components: As from `analysis.variance_components.variance_table`; empty unless the study has `vary_apart`.
    """
    rows, short, models = [], short_names(components["task"]), short_names(components["model"])
    keys = ["experiment", "model", "task", "train_size", "variant", "condition", "x"]
    for (experiment, model, task, size, variant, condition, x), group in each_group(components, keys):
        display = display_of(str(experiment))
        named = condition or condition in display.conditions
        parts = [display.condition_name(str(condition)) if named else "", display.position(x)]
        row = {"experiment": display.title, "model": models[model] if len(models) > 1 else ""}
        row |= {"task": short[task], "examples": size_name(size)}
        row |= {"point": ", ".join(part for part in parts if part), "variant": str(variant)}
        row["trials"] = f"{int(group['trials'].iloc[0])}"
        for part in each_row(group):
            sd, low, high = (math.sqrt(v) for v in (part.variance, part.low, part.high))
            share = "" if pd.isna(part.share) else f"{part.share:.0%}: "
            upper = format_score(high, part.metric) if math.isfinite(high) else "∞"
            row[part.component] = (
                f"{share}{format_score(sd, part.metric)} ({format_score(low, part.metric)} to {upper})"
            )
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    rows = [{name: row.get(name, "") for name in names} for row in rows]
    note = (
        "Share of the variance between trials, and the standard deviation with its 95% interval (parametric "
        "bootstrap). The residual holds all interactions. All numbers are in variance_components.csv."
    )
    return _table("Variance components", rows, {"experiment", "model", "task", "point", "variant"}, note)


def _run_times(points: pd.DataFrame) -> Iterator[dict[str, str]]:
    short, models = short_names(points["task"]), short_names(points["model"])
    keys = ["experiment", "model", "task", "train_size"]
    for (experiment, model, task, size), group in each_group(points, keys):
        trials = group.drop_duplicates("trial_id")
        total, count = float(trials["seconds"].sum()), len(trials)
        row = {
            "experiment": display_of(str(experiment)).title,
            "model": models[model] if len(models) > 1 else "",
        }
        row |= {"task": short[task], "examples": size_name(size) if size else "", "trials": f"{count:,}"}
        row |= {
            "per trial": format_duration(total / count, fine=True),
            "sum of trials": format_duration(total, fine=True),
        }
        train_rows = group["train_rows"].iloc[0]
        times = published_times(
            str(experiment), str(task), int(size), 0 if pd.isna(train_rows) else int(train_rows)
        )
        per_model = str(experiment) == "neurons"  # published for the whole search of one model and corpus
        row["published per trial"] = "" if per_model else _published(times)
        row["published per model"] = _published(times) if per_model and not size else ""
        row["sources"] = "; ".join(f"{t.source} ({t.note})" for t in times if not (per_model and size))
        yield row


def _published(times: list[PublishedTime]) -> str:
    return ", ".join(format_duration(60 * time.minutes) for time in times)


def _count(number: float | None) -> str:
    return "" if number is None or pd.isna(number) else f"{int(number):,}"


def _table(label: str, rows: list[dict[str, str]], text: set[str], note: str) -> TextTable | None:
    """A table of the columns that have a value in any row; None without rows."""
    if not rows:
        return None
    headers = {name: name for name in rows[0] if any(row[name] for row in rows)}
    return TextTable(label, headers, rows, frozenset(text), note, wide_columns=frozenset({"experiments"}))
