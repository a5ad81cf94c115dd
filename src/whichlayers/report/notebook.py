"""HTML of results in a notebook: progress, main findings and the table of means of each experiment."""

from __future__ import annotations

from html import escape
from pathlib import Path

from whichlayers.analysis.claims import evaluate_claims
from whichlayers.experiments import display_of, sort_experiments
from whichlayers.report import metadata
from whichlayers.report.findings import headlines
from whichlayers.report.tables import SummaryGrid, summary_grid
from whichlayers.results.frames import (
    finished,
    load_baseline_weight_change,
    load_points,
    load_study_summary,
)
from whichlayers.results.shared_seeds import seed_notes


def results_html(folder: Path) -> str:
    """Progress, main findings and, folded, the means of each experiment, as HTML with all text escaped."""
    study, points = load_study_summary(folder), load_points(folder)
    parts = [f"<p><b>{escape(study.name)}</b>: {escape(str(metadata.progress(study)['text']))}</p>"]
    if not ((points["status"] == "done") & points["value"].notna()).any():
        return parts[0]
    done = finished(points)
    claims = evaluate_claims(done, load_baseline_weight_change(folder))
    parts += [f"<p>{escape(note)}</p>" for note in seed_notes(points)]
    parts.append("<ul>" + "".join(f"<li>{escape(text)}</li>" for text in headlines(done, claims)) + "</ul>")
    for experiment in sort_experiments(done["experiment"]):
        grid = summary_grid(done, experiment)
        title = escape(f"{display_of(experiment).title}: mean ± half of the 95% interval, by {grid.x_label}")
        parts.append(f"<details><summary>{title}</summary>{_table(grid)}</details>")
    return "".join(parts)


def _table(grid: SummaryGrid) -> str:
    """A grid as an HTML table."""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in (*grid.label_columns, *grid.columns))
    body = []
    for row in grid.rows:
        cells = [escape(str(label)) for label in row.labels]
        cells += [escape(f"{cell.text} {cell.half_text}".strip()) if cell else "" for cell in row.cells]
        body.append("<tr>" + "".join(f"<td>{text}</td>" for text in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
