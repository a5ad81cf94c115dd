"""A study's results as the page shows them: a section an experiment, with its figure, sentences and tables."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.analysis.claims import NOT_ASKED, Claim
from whichlayers.analysis.correlations import task_correlations
from whichlayers.analysis.frame_utils import each_row
from whichlayers.analysis.published import published_correlations
from whichlayers.plots.captions import caption
from whichlayers.plots.chart_data import Chart, chart_of
from whichlayers.plots.display_names import experiment_name, number, short_names, size_name
from whichlayers.plots.figures import laid_out, paint
from whichlayers.plots.further_figures import Plate
from whichlayers.plots.published_overlay import crosses_caption, overlay_caption
from whichlayers.plots.style import DARK, LIGHT, Theme
from whichlayers.report.claim_table import claim_rows
from whichlayers.report.findings import Finding, findings, gain_table
from whichlayers.report.tables import Grid, grid
from whichlayers.report.word_tables import word_tables


@dataclass(frozen=True)
class Shown:
    """A figure on the page: a chart where it can be one, else a picture for each theme."""

    key: str
    title: str
    caption: str
    figure: Figure  # light, for the files
    chart: Chart | None = None
    light: str = ""
    dark: str = ""
    files: bool = True

    @property
    def has_chart(self) -> bool:
        return self.chart is not None

    @property
    def alt(self) -> str:
        return f"{self.title}. {self.caption}"


@dataclass(frozen=True)
class TextTable:
    label: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...]  # the columns that hold words, not numbers
    note: str = ""
    wide: tuple[int, ...] = ()  # the columns that hold many of them


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    figure: Shown
    grid: Grid
    findings: list[Finding] = field(default_factory=list)
    further: list[Shown] = field(default_factory=list)
    gains: TextTable | None = None
    correlations: TextTable | None = None
    tables: list[TextTable] = field(default_factory=list)
    published: bool = False

    @property
    def figures(self) -> list[Shown]:
        return [self.figure, *self.further]


def section(
    points: pd.DataFrame, experiment: str, further: Sequence[Plate], overlay: bool, files: bool
) -> Section:
    """Of finished points; `files`: whether the figures will lie beside the page."""

    def told(figure: Figure) -> str:
        crosses = crosses_caption(figure, points, experiment)
        beside = overlay_caption(points, experiment) or crosses
        if beside and not overlay:
            beside = f"Published {'numbers' if crosses else 'curves'} can be switched on."
        return f"{caption(points, experiment)} {beside}".strip()

    title, published = experiment_name(experiment), published_correlations()
    main = _shown(
        experiment, title, told, lambda theme: paint(points, experiment, theme, overlay), overlay, files
    )
    permuted = experiment == "permutation"
    return Section(
        key=experiment,
        title=title,
        figure=main,
        grid=grid(points, experiment),
        findings=findings(points, experiment),
        further=[
            _shown(plate.key, plate.title, plate.caption, plate.paint, overlay, files)
            for plate in further
            if plate.experiment == experiment
        ],
        gains=_gains(points) if experiment == "incremental" else None,
        correlations=_correlations(points, published) if permuted else None,
        tables=[
            replace(_table(t.label, t.heads, t.rows, set(t.words)), note=t.note)
            for t in word_tables(points, experiment)
        ],
        published=permuted and bool(published),
    )


def _shown(
    key: str, title: str, caption: str | Callable[[Figure], str], painter: Any, overlay: bool, files: bool
) -> Shown:
    with LIGHT.applied():
        figure = painter(LIGHT)
    told = caption if isinstance(caption, str) else caption(figure)
    chart = chart_of(figure, key, title, told, overlay)
    if chart is not None:
        return Shown(key, title, chart["caption"], figure, chart, files=files)
    with DARK.applied():
        dark = painter(DARK)
    return Shown(key, title, told, figure, None, _picture(figure, LIGHT), _picture(dark, DARK), files)


def _picture(figure: Figure, theme: Theme) -> str:
    buffer = io.BytesIO()
    with theme.applied():
        laid_out(figure).savefig(buffer, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _gains(points: pd.DataFrame) -> TextTable:
    rows = gain_table(points)
    heads = {"task": "task", "model": "model", "variant": "variant", "examples": "examples", "none": "none"}
    heads |= {"all": "all", "gain": "gain", "interval": "95% interval", "n": "pairs", "reaches": "90% at k"}
    heads |= {"steps": "layers that stand out"}
    for name in ("model", "variant"):
        if len({row[name] for row in rows}) == 1:
            del heads[name]
    made = _table("What pretrained layers are worth", heads, rows, {"task", "model", "variant", "steps"})
    return replace(made, wide=(len(heads) - 1,))


def _correlations(points: pd.DataFrame, published: dict) -> TextTable | None:
    """Table 1 of Tamkin et al.: which pairs of tasks the same permutations hurt alike."""
    short, rows = short_names(points["task"]), []
    for pair in each_row(task_correlations(points)):
        row = {"tasks": f"{short[pair.task]}, {short[pair.other]}", "variant": pair.variant}
        row |= {"examples": size_name(pair.train_size), "n": str(pair.n)}
        for kind in ("spearman", "pearson"):
            row[kind] = f"{number(getattr(pair, kind))} ({getattr(pair, f'{kind}_p'):.3f})"
            theirs = published.get((frozenset({pair.task, pair.other}), kind))
            row[f"published_{kind}"] = (
                "" if theirs is None else f"{theirs[0]:.2f} ({theirs[1].split(',')[0]})"
            )
        rows.append(row)
    if not rows:
        return None
    heads = {"tasks": "tasks", "variant": "variant", "examples": "examples", "n": "permutations"}
    heads |= {"spearman": "Spearman (p)", "pearson": "Pearson (p)"}
    heads |= {"published_spearman": "published Spearman", "published_pearson": "published Pearson"}
    for name in ("variant", "published_spearman", "published_pearson"):
        if len({row[name] for row in rows} | {""}) == 1:
            del heads[name]
    return _table("Do the same permutations hurt tasks alike?", heads, rows, {"tasks", "variant"})


def _table(label: str, heads: dict[str, str], rows: list[dict[str, str]], words: set[str]) -> TextTable:
    cells = tuple(tuple(row[name] for name in heads) for row in rows)
    return TextTable(
        label, tuple(heads.values()), cells, tuple(i for i, name in enumerate(heads) if name in words)
    )


def claims_shown(found: Sequence[Claim]) -> dict[str, Any]:
    """Those that the study's results bear on, and the names of the others with what they would need."""
    rows = claim_rows(found)
    asked = [row for row in rows if row.verdict != NOT_ASKED]
    return {"asked": asked, "others": [row for row in rows if row.verdict == NOT_ASKED]}
