"""Writes the report of a study: figures, summary.csv and one page that needs nothing but itself.

Everything is read from results.db (and study.toml, shown as it was run); a study still running gives a
report of what it has so far, which says how far it is.
"""

from __future__ import annotations

import base64
import io
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from carryover.analysis.claims import NOT_ASKED, Claim, as_table, claims
from carryover.analysis.correlations import task_correlations
from carryover.analysis.frame import (
    StudyFacts,
    finished,
    load_epochs,
    load_points,
    load_runs,
    load_trials,
    load_weight_change,
    study_facts,
)
from carryover.analysis.published import published_correlations
from carryover.analysis.walk import each_row
from carryover.report.captions import caption
from carryover.report.claim_table import ClaimRow, claim_rows
from carryover.report.figures import draw, save
from carryover.report.findings import findings, gain_table
from carryover.report.labels import experiment_name, in_order, metric_name, number, short_names, size_name
from carryover.report.overlay import overlay_caption
from carryover.report.plates import Plate, plates
from carryover.report.style import DARK, LIGHT, Theme
from carryover.report.tables import Cell, grid, summary

TEMPLATE = Path(__file__).with_name("page.html")
MOST_FAILURES = 50


def write_report(folder: Path, overlay: bool = False) -> Path:
    """Writes figures/, summary.csv, claims.csv and report.html into the study's folder; gives the page's path.

    `overlay` draws the papers' curves beside ours, where task and size are the same.
    """
    folder = Path(folder)
    points = load_points(folder)
    done = finished(points)
    summary(done).to_csv(folder / "summary.csv", index=False)
    weights = load_weight_change(folder)
    further = plates(done, load_epochs(folder), weights, overlay)
    sections = [
        _section(done, experiment, folder / "figures", further, overlay)
        for experiment in in_order(done["experiment"])
    ]
    found = claims(done, weights)
    as_table(found).to_csv(folder / "claims.csv", index=False)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters.update(number=number, cell=_cell)
    facts, runs = study_facts(folder), load_runs(folder)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        facts=facts,
        progress=_progress(facts),
        sections=sections,
        claims=_claims(found),
        asked=_asked(done, points),
        study_file=_study_file(folder),
        runs=_runs(runs),
        time=_duration((runs["finished"] - runs["started"]).dt.total_seconds().sum()),
        failures=_failures(load_trials(folder)),
        without_value=_without_value(points),
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
    target = folder / "report.html"
    draft = folder / "report.html.part"
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, target)
    return target


def _section(
    points: pd.DataFrame, experiment: str, folder: Path, further: list[Plate], overlay: bool
) -> dict[str, Any]:
    light, dark = (draw(points, experiment, theme, overlay) for theme in (LIGHT, DARK))
    told = " ".join([caption(points, experiment), overlay_caption(points, experiment) if overlay else ""])
    title = experiment_name(experiment)
    return {
        "key": experiment,
        "title": title,
        "figure": _figure(light, dark, folder, experiment, title, told.strip()),
        "further": [
            _figure(plate.draw(LIGHT), plate.draw(DARK), folder, plate.key, plate.title, plate.caption)
            for plate in further
            if plate.experiment == experiment
        ],
        "findings": findings(points, experiment),
        "gains": gain_table(points) if experiment == "incremental" else [],
        "correlations": _correlations(points, overlay) if experiment == "permutation" else [],
        "grid": grid(points, experiment),
    }


def _figure(light: Figure, dark: Figure, folder: Path, key: str, title: str, caption: str) -> dict[str, Any]:
    files = {path.suffix: path for path in save(light, folder, key)}
    width = round(light.get_figwidth() * 96)
    return {
        "key": key,
        "title": title,
        "light": _data_uri(files[".svg"].read_bytes()),
        "dark": _data_uri(_svg(dark, DARK)),
        "width": width,
        "least_width": 0 if width < 600 else round(0.7 * width),  # narrower it is scrolled, not shrunk
        "caption": caption,
    }


def _correlations(points: pd.DataFrame, overlay: bool) -> list[dict[str, str]]:
    """Table 1 of Tamkin et al.: which pairs of tasks the same permutations hurt alike."""
    short, published = short_names(points["task"]), published_correlations() if overlay else {}
    rows = []
    for pair in each_row(task_correlations(points)):
        row = {"tasks": f"{short[pair.task]}, {short[pair.other]}", "examples": size_name(pair.train_size)}
        row |= {"n": str(pair.n), "variant": pair.variant}
        for kind in ("spearman", "pearson"):
            row[kind] = f"{number(getattr(pair, kind))} ({getattr(pair, f'{kind}_p'):.3f})"
            theirs = published.get((frozenset({pair.task, pair.other}), kind))
            row[f"published_{kind}"] = (
                "" if theirs is None else f"{theirs[0]:.2f} ({theirs[1].split(',')[0]})"
            )
        rows.append(row)
    return rows


def _claims(found: list[Claim]) -> dict[str, Any]:
    """Those that the study's results bear on, and the names of the others with what they would need."""
    rows: list[ClaimRow] = claim_rows(found)
    asked = [row for row in rows if row.verdict != NOT_ASKED]
    return {"asked": asked, "others": [row for row in rows if row.verdict == NOT_ASKED]}


def _svg(figure: Figure, theme: Theme) -> bytes:
    buffer = io.BytesIO()
    with theme.applied():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


def _progress(facts: StudyFacts) -> dict[str, Any]:
    done, total = facts.counts["done"], facts.total
    open_ones = facts.counts["pending"] + facts.counts["running"]
    text = f"{done:,} of {total:,} trials finished"
    if facts.counts["failed"]:
        text += f", {facts.counts['failed']:,} failed"
    if open_ones:
        text += f", {open_ones:,} still to come"
    return {"text": text, "share": done / total, "partial": open_ones > 0}


def _asked(done: pd.DataFrame, points: pd.DataFrame) -> list[tuple[str, str]]:
    """What the study compares, as its points tell: names and what was asked of them."""
    models = points.drop_duplicates("model_fingerprint")
    tasks = points.drop_duplicates("task")
    short = short_names(points["task"])
    trials = points.groupby(["experiment", "condition", "x", "model", "task", "train_size", "recipe"])[
        "seed"
    ].nunique()
    asked = [
        ("Models", ", ".join(f"{m.model} ({m.depth:.0f} layers)" for m in each_row(models))),
        ("Tasks", ", ".join(f"{short[t.task]} ({metric_name(t.metric)})" for t in each_row(tasks))),
        ("Training examples", ", ".join(size_name(size) for size in sorted(set(points["train_size"])))),
        ("Experiments", ", ".join(experiment_name(e).lower() for e in in_order(points["experiment"]))),
        ("Re-initialisation", ", ".join(dict.fromkeys(points.loc[~points["untouched"], "recipe"])) or "none"),
        ("Head", ", ".join(dict.fromkeys(points["head"]))),
        ("Trials a point", _span(trials)),
        ("Epochs", _span(done["epochs"])),
    ]
    variants = [variant for variant in dict.fromkeys(done["variant"]) if variant]
    return asked + ([("Compared besides", "; ".join(variants))] if variants else [])


def _span(values: pd.Series) -> str:
    least, most = int(values.min()), int(values.max())
    return str(most) if least == most else f"{least} to {most}"


def _study_file(folder: Path) -> str | None:
    path = folder / "study.toml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _runs(runs: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {
            "started": f"{run.started:%Y-%m-%d %H:%M} UTC",
            "took": _duration((run.finished - run.started).total_seconds()) if pd.notna(run.finished) else "",
            "outcome": run.outcome or "running",
            "device": f"{run.device}{_threads(run.threads)}",
            "versions": ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items())),
            "commit": run.git_commit or "",
            "command": run.command or "",
        }
        for run in each_row(runs)
    ]


def _threads(number: float) -> str:
    return "" if pd.isna(number) else ", 1 thread" if number == 1 else f", {number:.0f} threads"


def _failures(trials: pd.DataFrame) -> dict[str, Any]:
    failed = trials[trials["status"] == "failed"]
    shown = failed.head(MOST_FAILURES).to_dict("records")
    return {"shown": shown, "left_out": len(failed) - len(shown)}


def _without_value(points: pd.DataFrame) -> int:
    """Trials that ended well but whose metric is no number: a correlation with a constant, say."""
    silent = points[(points["status"] == "done") & points["value"].isna()]
    return int(silent["trial_id"].nunique())


def _cell(cell: Cell | None) -> str:
    return "" if cell is None else number(cell.mean)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
