"""Metadata on the report page: setup and progress of the study, its runs, notes on the data, failed trials."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from whichlayers.experiments import DISPLAYS, display_of, sort_experiments
from whichlayers.plots.display_names import metric_name, size_name
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.results.frames import StudySummary, load_notes
from whichlayers.text import count_range, counted, format_classes, format_duration, format_score, short_names

MAX_FAILURES = 50


def progress(study: StudySummary) -> dict[str, Any]:
    """Progress as text and as a fraction of all trials, and whether trials are still missing."""
    done, total = study.counts["done"], study.total
    remaining = study.counts["pending"] + study.counts["running"]
    text = f"{done:,} of {counted(total, 'trial')} finished"
    if study.counts["failed"]:
        text += f", {study.counts['failed']:,} failed"
    if remaining:
        text += f", {remaining:,} remaining. This report covers the trials finished so far"
    return {"text": f"{text}.", "share": done / max(1, total), "partial": remaining > 0}


def study_setup(points: pd.DataFrame, done: pd.DataFrame) -> list[tuple[str, str]]:
    """What the study compares, as (name, text): models, tasks, sizes, experiments ...

    Args:
        points: All points of the study.
        done: Its finished points.
    """
    models = points.drop_duplicates("model_fingerprint")
    word_level = [name for name, display in DISPLAYS.items() if display.word_level]
    is_word_level = points["experiment"].isin(word_level)
    tasks, corpora = (points[chosen].drop_duplicates("task") for chosen in (~is_word_level, is_word_level))
    short, named = short_names(points["task"]), short_names(points["model"])
    cell = ["experiment", "condition", "x", "model", "task", "train_size", "recipe"]
    trials = points.groupby(cell)["seed"].nunique()
    found = [
        (
            "Models",
            ", ".join(f"{named[m.model]} ({counted(int(m.depth), 'layer')})" for m in each_row(models)),
        ),
        ("Tasks", ", ".join(f"{short[t.task]} ({metric_name(t.metric)})" for t in each_row(tasks))),
        ("Corpora", ", ".join(short[c.task] for c in each_row(corpora))),
        ("Finetuned on", ", ".join(name for name in dict.fromkeys(points["finetuned_on"]) if name)),
        ("Training examples", ", ".join(size_name(size) for size in sorted(set(points["train_size"]) - {0}))),
        (
            "Experiments",
            ", ".join(display_of(e).title.lower() for e in sort_experiments(points["experiment"])),
        ),
        (
            "Re-initialization recipe",
            ", ".join(dict.fromkeys(points.loc[~points["untouched"], "recipe"])) or "none",
        ),
        ("Head", _heads(points, named)),
        ("Trials per point", count_range(trials)),
        ("Epochs", _epochs(done[~done["experiment"].isin(word_level)])),
    ]
    variants = [variant for variant in dict.fromkeys(done.get("variant", ())) if variant]
    found += [("Variants compared", "; ".join(variants))] if variants else []
    return [(name, text) for name, text in found if text]


def _epochs(done: pd.DataFrame) -> str:
    """Epochs of finetuning and of linear probes; a study without probes does not name what was finetuned."""
    is_probe = done["kind"] == "probe"
    finetuning, probes = (
        count_range(done.loc[chosen, "epochs"].dropna()) for chosen in (~is_probe, is_probe)
    )
    if not probes:
        return finetuning
    return f"{finetuning} (finetuning), {probes} (probes)" if finetuning else f"{probes} (probes)"


def _heads(points: pd.DataFrame, names: Mapping[str, str]) -> str:
    """The heads of finetuned models; if there are several, with the models that have them."""
    finetuned = points[(points["kind"] != "probe") & (points["train_size"] > 0)]
    models = {
        head: dict.fromkeys(rows["model"].map(names)) for (head,), rows in each_group(finetuned, ["head"])
    }
    if len(models) < 2:
        return ", ".join(models) or "none"
    return ", ".join(f"{head} ({', '.join(found)})" for head, found in models.items())


def classes(study: StudySummary) -> list[tuple[str, str]]:
    """Classes and score of guessing of each task and corpus, as (name, text); empty if they are not known."""
    names = short_names(task.name for task in study.tasks)
    shares = [f"{names[t.name]}: {format_classes(t.class_counts)}" for t in study.tasks if t.class_counts]
    scores = [
        f"{names[t.name]} {format_score(t.guess, t.metric)}" for t in study.tasks if t.guess is not None
    ]
    found = {
        "Classes of the training data": "; ".join(shares),
        "Score of guessing (the most frequent class)": ", ".join(scores),
    }
    return [(name, text) for name, text in found.items() if text]


def study_file(folder: Path) -> str | None:
    """Text of study.toml in the study folder, or None."""
    path = folder / "study.toml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def author_description(folder: Path) -> str:
    """The `description` in study.toml; empty if there is none or the file cannot be parsed."""
    try:
        return str(tomllib.loads(study_file(folder) or "").get("description", "")).strip()
    except (ValueError, RecursionError):  # not TOML, or nested too deeply
        return ""


def shorten_names(text: str, points: pd.DataFrame) -> str:
    """Replace paths of models and names of tasks by the short names that the figures use."""
    names = short_names(points["model"]) | short_names(points["task"])
    for full in sorted(names, key=len, reverse=True):
        text = text.replace(full, names[full])
    return text


def notes(folder: Path) -> list[str]:
    """Notes on the data of the study, e.g. on training sets smaller than the official ones."""
    return [_drop_repeated_task(note) for note in load_notes(folder)]


def _drop_repeated_task(note: str) -> str:
    """Remove a task name at the start of a note if the note repeats it."""
    first, colon, rest = note.partition(": ")
    return rest if colon and rest.startswith(f"{first}: ") else note


def total_run_time(runs: pd.DataFrame) -> str:
    """Number of runs and their total time; a run without an end counts up to its last finished trial."""
    seconds = (runs["finished"] - runs["started"]).dt.total_seconds().sum()
    unfinished = runs[runs["finished"].isna()]
    count = counted(len(runs), "run")
    if unfinished.empty:
        return f"{count}, {format_duration(seconds)} in total (wall-clock time of training)"
    known = (unfinished["last_trial"] - unfinished["started"]).dt.total_seconds().clip(lower=0).fillna(0)
    note = f"{counted(len(unfinished), 'unfinished run')} counted up to the last finished trial"
    return f"{count}, about {format_duration(seconds + known.sum())} in total (wall-clock time of training; {note})"


def run_details(runs: pd.DataFrame, running: bool = False) -> list[dict[str, str]]:
    """Start, duration, outcome, device, versions, commit and command of each run.

    Args:
        runs: Runs of the study, the latest last.
        running: Whether the latest one is still running; others without an outcome were killed.
    """
    runs = runs.assign(current=running & (runs.index == runs.index.max()))
    return [
        {
            "started": f"{run.started:%Y-%m-%d %H:%M} UTC",
            "took": format_duration((run.finished - run.started).total_seconds())
            if pd.notna(run.finished)
            else "",
            "outcome": _text(run.outcome) or ("running" if run.current else "killed"),
            "device": f"{run.device}{_threads(run.threads)}",
            "versions": ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items())),
            "commit": _text(run.git_commit),
            "command": _text(run.command),
        }
        for run in each_row(runs)
    ]


def failures(trials: pd.DataFrame) -> dict[str, Any]:
    """The first failed trials, and how many more there are."""
    failed = trials[trials["status"] == "failed"]
    listed = failed.head(MAX_FAILURES).to_dict("records")
    return {"listed": listed, "omitted": len(failed) - len(listed)}


def count_without_value(points: pd.DataFrame) -> int:
    """Number of finished trials with an undefined metric, e.g. the correlation with a constant."""
    undefined = points[(points["status"] == "done") & points["value"].isna()]
    return int(undefined["trial_id"].nunique())


def single_trials(points: pd.DataFrame) -> bool:
    """Whether every point has a single trial, so that there are no intervals."""
    cell = ["experiment", "condition", "x", "model", "task", "train_size", "variant"]
    return len(points) > 0 and int(points.groupby(cell)["seed"].nunique().max()) == 1


def _text(value: Any) -> str:
    """A value of a text column; empty if it is missing, which pandas stores as None or NaN."""
    return "" if pd.isna(value) else str(value)


def _threads(number: float) -> str:
    return "" if pd.isna(number) else f", {counted(int(number), 'thread')}"
