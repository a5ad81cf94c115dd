"""Sections of the report page: one per experiment, with its figures, findings and tables."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.analysis.claims import NOT_TESTED, Claim
from whichlayers.analysis.correlations import task_correlations
from whichlayers.analysis.published import published_correlations
from whichlayers.experiments import display_of
from whichlayers.plots.captions import caption
from whichlayers.plots.chart_data import Chart, chart_of
from whichlayers.plots.display_names import short_names, size_name
from whichlayers.plots.extra_figures import ExtraFigure
from whichlayers.plots.facets import fix_layout
from whichlayers.plots.figures import draw_without_layout
from whichlayers.plots.published_overlay import crosses_caption, overlay_caption
from whichlayers.plots.style import DARK, LIGHT, Theme
from whichlayers.report.claim_table import ClaimRow, claim_rows
from whichlayers.report.findings import Finding, findings, gain_table
from whichlayers.report.tables import SummaryGrid, summary_grid
from whichlayers.report.word_tables import paper_tables
from whichlayers.results.frame_utils import each_row
from whichlayers.text import format_p, format_score


@dataclass(frozen=True)
class ReportFigure:
    """A figure on the page: a chart if it has panels, else an image for each theme."""

    key: str
    title: str
    caption: str
    figure: Figure  # in the light theme, for the files
    chart: Chart | None = None
    light: str = ""  # image as a data URL, if there is no chart
    dark: str = ""
    files: bool = True  # whether the figure is also written to figures/

    @property
    def has_chart(self) -> bool:
        return self.chart is not None

    @property
    def alt(self) -> str:
        return f"{self.title}. {self.caption}"


@dataclass(frozen=True)
class TextTable:
    """A table of formatted cells."""

    label: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: tuple[int, ...]  # columns that hold text rather than numbers
    note: str = ""
    wide_columns: tuple[int, ...] = ()  # columns that hold long text


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
    published: bool = False  # whether `correlations` has published values

    @property
    def figures(self) -> list[ReportFigure]:
        return [self.figure, *self.further]


def build_section(
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
        return f"{caption(points, experiment)} {published}".strip()

    def draw(theme: Theme) -> Figure:
        return draw_without_layout(points, experiment, theme, overlay)

    title, published = display_of(experiment).title, published_correlations()
    permuted = experiment == "permutation"
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
        gains=_gains(points) if experiment == "incremental" else None,
        correlations=_correlations(points, published) if permuted else None,
        tables=[
            replace(_table(t.label, t.headers, t.rows, set(t.text_columns)), note=t.note)
            for t in paper_tables(points, experiment)
        ],
        published=permuted and bool(published),
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
    text = caption if isinstance(caption, str) else caption(figure)
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


def _gains(points: pd.DataFrame) -> TextTable:
    rows = gain_table(points)
    headers = {"task": "task", "model": "model", "variant": "variant", "examples": "examples", "none": "none"}
    headers |= {"all": "all", "gain": "gain", "interval": "95% interval", "n": "pairs", "reaches": "90% at k"}
    headers |= {"steps": "significant layers"}
    for name in ("model", "variant"):
        if len({row[name] for row in rows}) == 1:
            del headers[name]
    table = _table("Gain from pretraining", headers, rows, {"task", "model", "variant", "steps"})
    return replace(table, wide_columns=(len(headers) - 1,))


def _correlations(points: pd.DataFrame, published: dict) -> TextTable | None:
    """Correlations between the scores of two tasks over permutations, as in Table 1 of Tamkin et al. 2020."""
    short, rows = short_names(points["task"]), []
    for pair in each_row(task_correlations(points)):
        row = {"tasks": f"{short[pair.task]}, {short[pair.other]}", "variant": pair.variant}
        row |= {"examples": size_name(pair.train_size), "n": str(pair.n)}
        for kind in ("spearman", "pearson"):
            row[kind] = f"{format_score(getattr(pair, kind), 'r')} ({format_p(getattr(pair, f'{kind}_p'))})"
            value = published.get((frozenset({pair.task, pair.other}), kind))
            row[f"published_{kind}"] = "" if value is None else f"{value[0]:.2f} ({value[1].split(',')[0]})"
        rows.append(row)
    if not rows:
        return None
    headers = {"tasks": "tasks", "variant": "variant", "examples": "examples", "n": "permutations"}
    headers |= {"spearman": "Spearman (p)", "pearson": "Pearson (p)"}
    headers |= {"published_spearman": "published Spearman", "published_pearson": "published Pearson"}
    for name in ("variant", "published_spearman", "published_pearson"):
        if len({row[name] for row in rows} | {""}) == 1:
            del headers[name]
    return _table("Correlation between tasks over permutations", headers, rows, {"tasks", "variant"})


def _table(
    label: str, headers: dict[str, str], rows: list[dict[str, str]], text_columns: set[str]
) -> TextTable:
    """Table from rows by column name; `headers` maps the names of the columns to include to their displayed headers."""
    cells = tuple(tuple(row[name] for name in headers) for row in rows)
    return TextTable(
        label,
        tuple(headers.values()),
        cells,
        tuple(i for i, name in enumerate(headers) if name in text_columns),
    )


def claims_for_page(claims: Sequence[Claim]) -> dict[str, list[ClaimRow]]:
    """The claims that the study tests, and the others."""
    rows = claim_rows(claims)
    tested = [row for row in rows if row.verdict != NOT_TESTED]
    return {"tested": tested, "others": [row for row in rows if row.verdict == NOT_TESTED]}
