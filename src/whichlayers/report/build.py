"""Writes the report of a study: figures, tables and one page that needs nothing but itself.

Everything is read from results.db (and study.toml, shown as it was run); a study still running gives a report of
what it has so far, which says how far it is. `page` alone gives the page and writes nothing: `whichlayers watch`
shows it while the study runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from whichlayers.analysis.claims import Claim, as_table, claims
from whichlayers.plots.display_names import in_order
from whichlayers.plots.figures import laid_out, save
from whichlayers.plots.further_figures import plates
from whichlayers.plots.layer_diagram import Picture, draw_layers, file_names, picture_data, pictures
from whichlayers.plots.style import LIGHT
from whichlayers.report import metadata
from whichlayers.report.findings import headlines
from whichlayers.report.page import render
from whichlayers.report.sections import Section, Shown, claims_shown, section
from whichlayers.report.tables import summary
from whichlayers.results.frames import (
    finished,
    load_change_of_whole_models,
    load_epochs,
    load_points,
    load_runs,
    load_trials,
    study_facts,
)

WRITTEN = ".written"  # in figures/: the files that the last report wrote


@dataclass(frozen=True)
class Found:
    """What a study's finished points come to. Empty where nothing has finished."""

    points: pd.DataFrame
    sections: list[Section]
    claims: list[Claim]
    layers: list[Picture]


def write_report(folder: Path, overlay: bool = False, words: str = "") -> Path:
    """Writes figures/, summary.csv, claims.csv and report.html into the study's folder; gives the page's path.

    `overlay` draws the papers' curves beside ours, where task and size are the same; on the page they can be
    switched on in any case. `words` say what the study asks, where the caller knows.
    """
    folder = Path(folder)
    points = load_points(folder)
    found = _found(folder, finished(points), overlay, files=True)
    summary(found.points).to_csv(folder / "summary.csv", index=False)
    as_table(found.claims).to_csv(folder / "claims.csv", index=False)
    _write_figures(folder / "figures", found)
    target = folder / "report.html"
    draft = folder / "report.html.part"
    draft.write_text(_page(folder, points, found, words), encoding="utf-8")
    os.replace(draft, target)
    return target


def _write_figures(folder: Path, found: Found) -> None:
    """Figures of an earlier report that this one does not have any more are deleted; other files are left alone."""
    written: list[Path] = []
    for part in found.sections:
        for shown in part.figures:
            with LIGHT.applied():  # whose letters the panels make room for
                laid_out(shown.figure)
            written += save(shown.figure, folder, shown.key)
    for name, picture in file_names(found.layers).items():
        written += save(draw_layers(picture), folder, name)
    listing = folder / WRITTEN
    earlier = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    for name in set(earlier) - {path.name for path in written}:
        (folder / Path(name).name).unlink(missing_ok=True)
    listing.write_text("".join(f"{path.name}\n" for path in written), encoding="utf-8")


def page(folder: Path, live: str | None = None, words: str = "", overlay: bool = False) -> str:
    """The page by itself, also of a study in which nothing has finished yet."""
    points = load_points(folder)
    done = points[(points["status"] == "done") & points["value"].notna()]
    found = Found(done, [], [], []) if done.empty else _found(folder, finished(points), overlay, files=False)
    return _page(folder, points, found, words, live)


def _found(folder: Path, done: pd.DataFrame, overlay: bool, files: bool) -> Found:
    weights = load_change_of_whole_models(folder)
    further = plates(done, load_epochs(folder), weights, overlay)
    every = [section(done, kind, further, overlay, files) for kind in in_order(done["experiment"])]
    return Found(done, every, claims(done, weights), pictures(done))


def _page(folder: Path, points: pd.DataFrame, found: Found, words: str, live: str | None = None) -> str:
    known, runs = study_facts(folder), load_runs(folder)
    shown = [figure for part in found.sections for figure in part.figures]
    charts = {figure.key: figure.chart for figure in shown if figure.chart is not None}
    return render(
        "report.html",
        {"charts": charts, "layers": picture_data(found.layers)},
        live,
        facts=known,
        progress=metadata.progress(known),
        words=metadata.without_folders(words, points),
        description=metadata.description(folder),
        asked=metadata.asked(points, found.points),
        study_file=metadata.study_file(folder),
        headlines=headlines(found.points, found.claims) if found.sections else [],
        pictured=_pictured(found.layers, files=live is None),
        sections=found.sections,
        claims=claims_shown(found.claims),
        runs=metadata.run_facts(runs),
        time=metadata.time_told(runs),
        notes=metadata.notes(folder),
        failures=metadata.failures(load_trials(folder)),
        without_value=metadata.without_value(points),
        files=live is None,
    )


def _pictured(layers: list[Picture], files: bool) -> Shown | None:
    if not layers:
        return None
    title = "What each layer's pretrained weights were worth"
    return Shown("layers", title, layers[0].caption, draw_layers(layers[0]), {}, files=files)
