"""Write the report of a study: figures, tables and a self-contained HTML page.

Everything is read from results.db and from the copy of study.toml next to it. The report of a running study covers
the trials finished so far and states its progress. `page` returns only the HTML page and writes no files;
`whichlayers watch` serves it while the study runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from whichlayers.analysis.claims import Claim, as_table, evaluate_claims
from whichlayers.experiments import sort_experiments
from whichlayers.files import atomic_write
from whichlayers.plots.extra_figures import extra_figures
from whichlayers.plots.facets import fix_layout
from whichlayers.plots.figures import save
from whichlayers.plots.layer_diagram import (
    LayerDiagram,
    diagram_data,
    diagram_file_names,
    draw_layers,
    layer_diagrams,
)
from whichlayers.plots.style import LIGHT
from whichlayers.report import metadata
from whichlayers.report.findings import headlines
from whichlayers.report.page import render
from whichlayers.report.sections import ReportFigure, ReportSection, TextTable, build_section, claims_for_page
from whichlayers.report.study_tables import corpus_table, penalty_table, run_time_table, task_table
from whichlayers.report.tables import summary
from whichlayers.results.frames import (
    finished,
    load_baseline_weight_change,
    load_data_statistics,
    load_epochs,
    load_points,
    load_runs,
    load_study_summary,
    load_trials,
)

FIGURE_LIST = ".written"  # in figures/: names of the files that the last report wrote


@dataclass(frozen=True)
class ReportContent:
    """Sections, claims and layer diagrams of a report, from the finished points of a study."""

    points: pd.DataFrame
    sections: list[ReportSection]
    claims: list[Claim]
    diagrams: list[LayerDiagram]
    penalties: TextTable | None = None


def write_report(folder: Path, overlay: bool = False, description: str = "") -> Path:
    """Write figures/, summary.csv, claims.csv and report.html into a study folder.

    Args:
        folder: Study folder.
        overlay: Whether to draw published curves for the same task and training size. On the page they can be
            switched on in any case.
        description: What the study investigates, in a few sentences.

    Returns:
        Path of report.html.
    """
    folder = Path(folder)
    points = load_points(folder)
    content = _build_content(folder, finished(points), overlay, files=True)
    summary(content.points).to_csv(folder / "summary.csv", index=False)
    as_table(content.claims).to_csv(folder / "claims.csv", index=False)
    _write_figures(folder / "figures", content)
    target = folder / "report.html"
    page = _render_page(folder, points, content, description)
    with atomic_write(target) as partial:
        partial.write_text(page, encoding="utf-8")
    return target


def _write_figures(folder: Path, content: ReportContent) -> None:
    """Write all figures, and delete those that only the previous report had; other files are not touched."""
    written: list[Path] = []
    for section in content.sections:
        for figure in section.figures:
            with LIGHT.applied():  # the layout depends on the font
                fix_layout(figure.figure)
            written += save(figure.figure, folder, figure.key)
    for name, diagram in diagram_file_names(content.diagrams).items():
        written += save(draw_layers(diagram), folder, name)
    list_file = folder / FIGURE_LIST
    previous = list_file.read_text(encoding="utf-8").splitlines() if list_file.is_file() else []
    for name in set(previous) - {path.name for path in written}:
        (folder / Path(name).name).unlink(missing_ok=True)
    list_file.write_text("".join(f"{path.name}\n" for path in written), encoding="utf-8")


def page(folder: Path, live: str | None = None, description: str = "", overlay: bool = False) -> str:
    """Return the HTML page of a study without writing files, even if no trial has finished yet.

    Args:
        folder: Study folder.
        live: Version of the page, if a server keeps it up to date.
        description: What the study investigates, in a few sentences.
        overlay: Whether published curves are initially visible.
    """
    points = load_points(folder)
    done = points[(points["status"] == "done") & points["value"].notna()]
    if done.empty:
        content = ReportContent(done, [], [], [])
    else:
        content = _build_content(folder, finished(points), overlay, files=False)
    return _render_page(folder, points, content, description, live)


def _build_content(folder: Path, done: pd.DataFrame, overlay: bool, files: bool) -> ReportContent:
    """Build sections, claims and layer diagrams from the finished points `done`."""
    weights = load_baseline_weight_change(folder)
    epochs = load_epochs(folder)
    further = extra_figures(done, epochs, weights, overlay)
    experiments = sort_experiments(done["experiment"])
    sections = [build_section(done, experiment, further, overlay, files) for experiment in experiments]
    penalties = penalty_table(done, epochs)
    return ReportContent(done, sections, evaluate_claims(done, weights), layer_diagrams(done), penalties)


def _render_page(
    folder: Path, points: pd.DataFrame, content: ReportContent, description: str, live: str | None = None
) -> str:
    """The HTML page; `points` are all points of the study, finished or not."""
    study, runs = load_study_summary(folder), load_runs(folder)
    data = load_data_statistics(folder)
    data_tables = [task_table(data), corpus_table(data), content.penalties]
    figures = [figure for section in content.sections for figure in section.figures]
    charts = {figure.key: figure.chart for figure in figures if figure.chart is not None}
    return render(
        "report.html",
        {"charts": charts, "layers": diagram_data(content.diagrams)},
        live,
        study=study,
        progress=metadata.progress(study),
        description=metadata.shorten_names(description, points),
        author_description=metadata.author_description(folder),
        setup=metadata.study_setup(points, content.points),
        data_tables=[table for table in data_tables if table is not None],
        study_file=metadata.study_file(folder),
        headlines=headlines(content.points, content.claims) if content.sections else [],
        layer_figure=_layer_figure(content.diagrams, files=live is None),
        sections=content.sections,
        claims=claims_for_page(content.claims),
        runs=metadata.run_details(runs),
        run_time=metadata.total_run_time(runs),
        run_times=run_time_table(content.points, runs),
        notes=metadata.notes(folder),
        failures=metadata.failures(load_trials(folder)),
        without_value=metadata.count_without_value(points),
        files=live is None,
    )


def _layer_figure(diagrams: list[LayerDiagram], files: bool) -> ReportFigure | None:
    """The figure of the first layer diagram, which the page redraws for the others."""
    if not diagrams:
        return None
    title = "Effect of each layer's pretrained weights"
    return ReportFigure("layers", title, diagrams[0].caption, draw_layers(diagrams[0]), {}, files=files)
