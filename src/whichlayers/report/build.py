"""Write the report of a study: figures, tables and a self-contained HTML page.

Everything is read from results.db and from the copy of study.toml next to it. The report of a running study covers
the trials finished so far and states its progress. `page` returns only the HTML page and writes no files;
`whichlayers watch` serves it while the study runs.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.analysis.claims import NOT_TESTED, Claim, as_table, evaluate_claims
from whichlayers.analysis.neuron_overlap import neuron_overlap
from whichlayers.analysis.variance_components import variance_table
from whichlayers.experiments import display_of, sort_experiments
from whichlayers.files import atomic_write
from whichlayers.plots.captions import beyond_caption, caption, clipped_caption, guess_caption
from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.draw_layers import draw_layers
from whichlayers.plots.extra_figures import ExtraFigure, extra_figures
from whichlayers.plots.facets import fix_layout
from whichlayers.plots.figures import draw_without_layout, save
from whichlayers.plots.layer_diagram import (
    LayerDiagram,
    diagram_data,
    diagram_file_names,
    layer_diagrams,
)
from whichlayers.plots.published_overlay import crosses_caption, overlay_caption
from whichlayers.plots.style import DARK, LIGHT, Theme
from whichlayers.report import metadata
from whichlayers.report.claim_table import ClaimRow, claim_rows
from whichlayers.report.findings import Finding, findings, headlines
from whichlayers.report.neuron_tables import overlap_table
from whichlayers.report.page import ReportFigure, render
from whichlayers.report.recommendation import recommendation_section
from whichlayers.report.study_tables import (
    corpus_table,
    penalty_table,
    run_time_table,
    task_table,
    variance_component_table,
)
from whichlayers.report.tables import (
    SummaryGrid,
    TextTable,
    correlation_table,
    gain_table,
    paper_tables,
    summary,
    summary_grid,
)
from whichlayers.results.frames import (
    finished,
    load_baseline_weight_change,
    load_data_statistics,
    load_epochs,
    load_points,
    load_runs,
    load_study_summary,
    load_top_neurons,
    load_trials,
)
from whichlayers.results.lock import lock_holder
from whichlayers.results.shared_seeds import independent_trials, seed_notes

FIGURE_LIST = ".written"  # in figures/: names of the files that the last report wrote


@dataclass(frozen=True)
class ReportSection:
    """Results of one experiment on the page."""

    key: str
    title: str
    figure: ReportFigure
    grid: SummaryGrid
    findings: list[Finding] = field(default_factory=list)
    further: list[ReportFigure] = field(default_factory=list)
    gains: TextTable | None = None
    correlations: TextTable | None = None
    tables: list[TextTable] = field(default_factory=list)

    @property
    def figures(self) -> list[ReportFigure]:
        return [self.figure, *self.further]


@dataclass(frozen=True)
class ReportContent:
    """Sections, claims and layer diagrams of a report, from the finished points of a study."""

    points: pd.DataFrame  # of independent trials, see `finished`
    every: pd.DataFrame  # with those that share seeds
    sections: list[ReportSection]
    claims: list[Claim]
    diagrams: list[LayerDiagram]
    penalties: TextTable | None = None
    components: pd.DataFrame | None = None  # variance components, if the study has `vary_apart`
    overlaps: pd.DataFrame | None = None  # of top neurons, if the study ranks neurons


def write_report(folder: Path, overlay: bool = False, description: str = "") -> Path:
    """Write figures/, summary.csv, claims.csv and report.html into a study folder.

    And variance_components.csv, if the study varies the seeds of components apart, and neuron_overlap.csv, if it ranks
    neurons.

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
    content = _build_content(folder, points, overlay, files=True)
    tables = {"summary.csv": summary(content.points), "claims.csv": as_table(content.claims)}
    if content.components is not None:
        tables["variance_components.csv"] = content.components
    if content.overlaps is not None:
        tables["neuron_overlap.csv"] = content.overlaps
    for name, table in tables.items():
        with atomic_write(folder / name) as partial:
            table.to_csv(partial, index=False)
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
    with atomic_write(list_file) as partial:
        partial.write_text("".join(f"{path.name}\n" for path in written), encoding="utf-8")


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
        content = ReportContent(done, done, [], [], [])
    else:
        content = _build_content(folder, points, overlay, files=False)
    return _render_page(folder, points, content, description, live)


def _build_content(folder: Path, points: pd.DataFrame, overlay: bool, files: bool) -> ReportContent:
    """Build sections, claims and layer diagrams from all points of the study."""
    every = finished(points, shared_seeds=True)
    done = independent_trials(every).reset_index(drop=True)
    weights = load_baseline_weight_change(folder)
    epochs = load_epochs(folder)
    further = extra_figures(done, epochs, weights, overlay)
    experiments = sort_experiments(done["experiment"])
    sections = [_build_section(done, experiment, further, overlay, files) for experiment in experiments]
    neurons = load_top_neurons(folder, shared_seeds=False)
    overlaps = neuron_overlap(neurons)
    if (table := overlap_table(neurons)) is not None:
        for section in sections:
            if section.key == "neurons":
                section.tables.append(table)
    penalties = penalty_table(every, epochs)
    components = variance_table(every)
    return ReportContent(
        done,
        every,
        sections,
        evaluate_claims(done, weights),
        layer_diagrams(done),
        penalties,
        None if components.empty else components,
        None if overlaps.empty else overlaps,
    )


def _build_section(
    points: pd.DataFrame, experiment: str, further: Sequence[ExtraFigure], overlay: bool, files: bool
) -> ReportSection:
    """Build the section of an experiment.

    Args:
        points: Finished points of the whole study.
        experiment: Name of the experiment.
        further: Further figures of the study; those of this experiment are included.
        overlay: Whether published results are initially visible.
        files: Whether the figures are also written next to the page.
    """

    def caption_of(figure: Figure) -> str:
        crosses = crosses_caption(figure, points, experiment)
        published = overlay_caption(points, experiment) or crosses
        if published and not overlay:
            published = f"Published {'values' if crosses else 'curves'} can be switched on."
        texts = (caption(points, experiment), guess_caption(figure), published)
        return " ".join(text for text in texts if text)

    def draw(theme: Theme) -> Figure:
        return draw_without_layout(points, experiment, theme, overlay)

    title = display_of(experiment).title
    return ReportSection(
        key=experiment,
        title=title,
        figure=_report_figure(experiment, title, caption_of, draw, overlay, files),
        grid=summary_grid(points, experiment),
        findings=findings(points, experiment),
        further=[
            _report_figure(one.key, one.title, one.caption, one.draw_without_layout, overlay, files)
            for one in further
            if one.experiment == experiment
        ],
        gains=gain_table(points) if experiment == "incremental" else None,
        correlations=correlation_table(points) if experiment == "permutation" else None,
        tables=paper_tables(points, experiment),
    )


def _report_figure(
    key: str,
    title: str,
    caption: str | Callable[[Figure], str],
    draw: Callable[[Theme], Figure],
    overlay: bool,
    files: bool,
) -> ReportFigure:
    with LIGHT.applied():
        figure = draw(LIGHT)
    sentences = (
        caption if isinstance(caption, str) else caption(figure),
        clipped_caption(figure),
        beyond_caption(figure),
    )
    text = " ".join(filter(None, sentences))
    chart = chart_of(figure, key, title, text, overlay)
    if chart is not None:
        return ReportFigure(key, title, chart["caption"], figure, chart, files=files)
    with DARK.applied():
        dark = draw(DARK)
    return ReportFigure(
        key, title, text, figure, None, _data_url(figure, LIGHT), _data_url(dark, DARK), files
    )


def _data_url(figure: Figure, theme: Theme) -> str:
    """The figure as an SVG image in a data URL."""
    buffer = io.BytesIO()
    with theme.applied():
        fix_layout(figure).savefig(buffer, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


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
        folder=folder,
        progress=metadata.progress(study),
        description=metadata.shorten_names(description, points),
        author_description=metadata.author_description(folder),
        setup=metadata.study_setup(points, content.points) + metadata.classes(study),
        data_tables=[table for table in data_tables if table is not None],
        study_file=metadata.study_file(folder),
        recommendation=recommendation_section(folder, content.points) if content.sections else None,
        headlines=headlines(content.points, content.claims) if content.sections else [],
        layer_figure=_layer_figure(content.diagrams, files=live is None),
        sections=content.sections,
        claims=_claims_for_page(content.claims),
        runs=metadata.run_details(runs, running=lock_holder(folder) is not None),
        run_time=metadata.total_run_time(runs),
        run_times=run_time_table(content.every, runs),
        components=None if content.components is None else variance_component_table(content.components),
        notes=metadata.notes(folder),
        failures=metadata.failures(load_trials(folder)),
        without_value=metadata.count_without_value(points),
        single_trials=metadata.single_trials(content.points),
        seed_notes=seed_notes(points),
        files=live is None,
    )


def _layer_figure(diagrams: list[LayerDiagram], files: bool) -> ReportFigure | None:
    """The figure of the first layer diagram, which the page redraws for the others."""
    if not diagrams:
        return None
    title = "Effect of each layer's pretrained weights"
    return ReportFigure("layers", title, diagrams[0].caption, draw_layers(diagrams[0]), {}, files=files)


def _claims_for_page(claims: Sequence[Claim]) -> dict[str, list[ClaimRow]]:
    """The claims that the study tests, and the others."""
    rows = claim_rows(claims)
    tested = [row for row in rows if row.verdict != NOT_TESTED]
    return {"tested": tested, "others": [row for row in rows if row.verdict == NOT_TESTED]}
