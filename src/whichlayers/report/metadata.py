"""What the page says about the study itself: what it asked, how far it is, what made it, what failed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pandas as pd

from whichlayers.analysis.frame_utils import each_row
from whichlayers.plots.display_names import (
    LINGUISTIC,
    experiment_name,
    in_order,
    metric_name,
    short_names,
    size_name,
)
from whichlayers.results.frames import StudyFacts, load_notes

MOST_FAILURES = 50


def progress(facts: StudyFacts) -> dict[str, Any]:
    done, total = facts.counts["done"], facts.total
    open_ones = facts.counts["pending"] + facts.counts["running"]
    text = f"{done:,} of {total:,} trials finished"
    if facts.counts["failed"]:
        text += f", {facts.counts['failed']:,} failed"
    if open_ones:
        text += f", {open_ones:,} still to come. This is a report of what there is so far"
    return {"text": f"{text}.", "share": done / max(1, total), "partial": open_ones > 0}


def asked(points: pd.DataFrame, done: pd.DataFrame) -> list[tuple[str, str]]:
    """What the study compares, as its points tell, finished or not: names and what was asked of them."""
    models = points.drop_duplicates("model_fingerprint")
    about_words = points["experiment"].isin(LINGUISTIC)
    tasks, corpora = (points[chosen].drop_duplicates("task") for chosen in (~about_words, about_words))
    short, named = short_names(points["task"]), short_names(points["model"])
    cell = ["experiment", "condition", "x", "model", "task", "train_size", "recipe"]
    trials = points.groupby(cell)["seed"].nunique()
    found = [
        ("Models", ", ".join(f"{named[m.model]} ({m.depth:.0f} layers)" for m in each_row(models))),
        ("Tasks", ", ".join(f"{short[t.task]} ({metric_name(t.metric)})" for t in each_row(tasks))),
        ("Corpora", ", ".join(short[c.task] for c in each_row(corpora))),
        ("Finetuned on", ", ".join(name for name in dict.fromkeys(points["finetuned_on"]) if name)),
        ("Training examples", ", ".join(size_name(size) for size in sorted(set(points["train_size"]) - {0}))),
        ("Experiments", ", ".join(experiment_name(e).lower() for e in in_order(points["experiment"]))),
        ("Re-initialisation", ", ".join(dict.fromkeys(points.loc[~points["untouched"], "recipe"])) or "none"),
        ("Head", ", ".join(dict.fromkeys(points["head"]))),
        ("Trials per point", _span(trials)),
        ("Epochs", _span(done.loc[~done["experiment"].isin(LINGUISTIC), "epochs"].dropna())),
    ]
    variants = [variant for variant in dict.fromkeys(done.get("variant", ())) if variant]
    found += [("Compared besides", "; ".join(variants))] if variants else []
    return [(name, text) for name, text in found if text]


def study_file(folder: Path) -> str | None:
    path = folder / "study.toml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def description(folder: Path) -> str:
    """The study's own words about itself; empty where it has none, or its file cannot be read."""
    try:
        return str(tomllib.loads(study_file(folder) or "").get("description", "")).strip()
    except tomllib.TOMLDecodeError:
        return ""


def without_folders(words: str, points: pd.DataFrame) -> str:
    """Models that go by a path, by its last part, and tasks as the figures call them: the study file has the rest."""
    names = short_names(points["model"]) | short_names(points["task"])
    for full in sorted(names, key=len, reverse=True):
        words = words.replace(full, names[full])
    return words


def notes(folder: Path) -> list[str]:
    return [_once(note) for note in load_notes(folder)]


def _once(note: str) -> str:
    """A task's name before the note of a reader that says it, too."""
    first, colon, rest = note.partition(": ")
    return rest if colon and rest.startswith(f"{first}: ") else note


def time_told(runs: pd.DataFrame) -> str:
    """How long the runs took. Of one that was killed nothing tells but its trials: it counts until the last ended."""
    seconds = (runs["finished"] - runs["started"]).dt.total_seconds()
    cut = runs[runs["finished"].isna()]
    count = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
    if cut.empty:
        return f"{count}, {duration(seconds.sum())} in all"
    known = (cut["last_trial"] - cut["started"]).dt.total_seconds().clip(lower=0).fillna(0)
    one = "one that did not end counts" if len(cut) == 1 else f"{len(cut)} that did not end count"
    return f"{count}, {duration(seconds.sum() + known.sum())} as far as is known: {one} until its last finished trial"


def run_facts(runs: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {
            "started": f"{run.started:%Y-%m-%d %H:%M} UTC",
            "took": duration((run.finished - run.started).total_seconds()) if pd.notna(run.finished) else "",
            "outcome": run.outcome or "running",
            "device": f"{run.device}{_threads(run.threads)}",
            "versions": ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items())),
            "commit": run.git_commit or "",
            "command": run.command or "",
        }
        for run in each_row(runs)
    ]


def failures(trials: pd.DataFrame) -> dict[str, Any]:
    failed = trials[trials["status"] == "failed"]
    shown = failed.head(MOST_FAILURES).to_dict("records")
    return {"shown": shown, "left_out": len(failed) - len(shown)}


def without_value(points: pd.DataFrame) -> int:
    """Trials that ended well but whose metric is no number: a correlation with a constant, say."""
    silent = points[(points["status"] == "done") & points["value"].isna()]
    return int(silent["trial_id"].nunique())


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _span(values: pd.Series) -> str:
    if values.empty:
        return ""
    least, most = int(values.min()), int(values.max())
    return str(most) if least == most else f"{least} to {most}"


def _threads(number: float) -> str:
    return "" if pd.isna(number) else ", 1 thread" if number == 1 else f", {number:.0f} threads"
