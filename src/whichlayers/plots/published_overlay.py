"""Overlay of published results on figures, for the same task, metric and training size."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from whichlayers.analysis.published import (
    PUBLISHED_DEPTH,
    PUBLISHED_FAMILIES,
    matching_published_curves,
    published_pruning,
)
from whichlayers.plots.artists import DrawnValues, dodge, shared_attributes
from whichlayers.plots.facets import Mark, Panel, PanelFigure
from whichlayers.plots.style import Theme
from whichlayers.results.frame_utils import each_group
from whichlayers.text import join_list

WITH_PUBLISHED_CURVES = ("incremental", "probing")  # experiments with published curves
DURRANI, PUBLISHED_DROPPED = "Durrani et al. 2021", 6  # number of layers dropped in their Tables 2 and 6
MIN_TRAIN_FRACTION = 0.5  # training subsets of at least this fraction are comparable to the whole set
COLOR_NOTE = "same color as its curve"
# experiments with published values -> where Durrani et al. have them
PUBLISHED_TABLES = {"prune": "Tables 2 and 6", "neurons": "Tables 1, 4 and 5", "selectivity": "Table 7"}


def draw_published(
    panel: Panel,
    rows: pd.DataFrame,
    experiment: str,
    style: dict[str, Any],
    drawn_values: DrawnValues,
    visible: bool,
    place: tuple[int, int] = (0, 1),
) -> set[str]:
    """Draw the published results that are comparable to `rows`, in the color of `style`.

    Args:
        panel: Panel to draw on.
        rows: Rows of one curve of the study.
        experiment: "incremental", "probing", "prune" or "weight-change".
        style: Style of that curve.
        drawn_values: Gets what was drawn, to set the y limits later.
        visible: If False, the results are only recorded as marks, for the page, where they can be switched on.
        place: Index of the curve and number of curves in the panel, to place markers at the same x.

    Returns:
        Names of the sources that were drawn.
    """
    if experiment == "prune":
        return _draw_pruning(panel, rows, style, drawn_values, visible, place)
    first = rows.iloc[0]
    found = matching_published_curves(
        experiment, panel.task, panel.metric, int(first["train_size"]), _row_count(first["train_rows"])
    )
    for curve in found:
        published, x = published_style(curve.source, style["color"]), curve.x_for(panel.depth)
        table = pd.DataFrame({"x": x, "mean": curve.values})
        draw_published_points(panel, rows, table, curve.source, published, drawn_values, visible)
    return {curve.source for curve in found} if visible else set()


def comparable_pruning(rows: pd.DataFrame) -> dict[str, float]:
    """Scores of Durrani et al. (Tables 2 and 6) for the model family and task of `rows`, which are of one curve.

    Empty if the model has a different depth, other numbers of layers were dropped, or the model was finetuned on
    much less data: they used the whole training sets.
    """
    first = rows.iloc[0]
    whole = _row_count(first["train_rows"])
    comparable = whole is not None and first["train_size"] >= MIN_TRAIN_FRACTION * whole
    if not comparable or first["depth"] != PUBLISHED_DEPTH or not (rows["x"] == PUBLISHED_DROPPED).any():
        return {}
    return published_pruning(str(first["family"]), str(first["task"]))


def _draw_pruning(
    panel: Panel,
    rows: pd.DataFrame,
    style: dict[str, Any],
    drawn_values: DrawnValues,
    visible: bool,
    place: tuple[int, int],
) -> set[str]:
    """Draw a cross where Durrani et al. dropped the same number of layers of a model of the same family."""
    value = comparable_pruning(rows).get(f"prune {rows['condition'].iloc[0]} {PUBLISHED_DROPPED}")
    if value is None:
        return set()
    published = published_style(DURRANI, style["color"]) | {"linestyle": ""}
    table = pd.DataFrame({"x": [float(PUBLISHED_DROPPED)], "mean": [value]})
    draw_published_points(panel, rows, table, DURRANI, published, drawn_values, visible, place)
    return {DURRANI} if visible else set()


def draw_published_points(
    panel: Panel,
    rows: pd.DataFrame,
    table: pd.DataFrame,
    source: str,
    style: dict[str, Any],
    drawn_values: DrawnValues,
    visible: bool,
    place: tuple[int, int] | None = None,
) -> None:
    """Record published values `table` (x, mean) that belong to `rows` and, if `visible`, draw them.

    With `place` (index of the curve and number of curves) they are shifted sideways like their curve.
    """
    shift, zorder = (0.0, 2.5) if place is None else (dodge(*place, panel)[0], 5)
    name = f"published: {source}"
    panel.marks.append(Mark("published", style, shared_attributes(rows), table, name=name, shift=shift))
    if visible:
        panel.axes.plot(table["x"] + shift, table["mean"], zorder=zorder, **style)
        drawn_values[panel.task] += [(value, value, value) for value in table["mean"]]


def published_style(source: str, color: str) -> dict[str, Any]:
    """Style of published curves: dotted, with a marker for each source."""
    marker = "+" if source.startswith("Singh") else "x"
    return {
        "color": color,
        "linewidth": 1.0,
        "linestyle": (0, (1, 1.6)),
        "marker": marker,
        "markersize": 4.5,
        "markeredgewidth": 1.1,
        "alpha": 0.8,
    }


def add_published_legend(handles: list[Any], labels: list[str], sources: set[str], theme: Theme) -> None:
    """Append one legend entry per source."""
    for source in sorted(sources):
        style = published_style(source, theme.muted) | ({"linestyle": ""} if source == DURRANI else {})
        handles.append(Line2D([], [], **style))
        labels.append(f"published: {source}\n({COLOR_NOTE})")


def overlay_caption(points: pd.DataFrame, experiment: str) -> str:
    """Caption of the published curves in the figure of an experiment; empty if there are none."""
    if experiment not in WITH_PUBLISHED_CURVES:
        return ""
    notes, depths = [], set()
    for (task, metric, size, rows, depth), _ in each_group(
        points[points["experiment"] == experiment], ["task", "metric", "train_size", "train_rows", "depth"]
    ):
        for curve in matching_published_curves(experiment, task, metric, int(size), _row_count(rows)):
            notes.append(
                f"{curve.source} ({curve.note.split(',')[0].split(';')[0]}, read off the authors' plots)"
            )
            depths.add(int(depth))
    if not notes:
        return ""
    text = f"Dotted lines with crosses, published for BERT-Base: {', '.join(dict.fromkeys(notes))}."
    if depths - {PUBLISHED_DEPTH}:
        text += f" Their x axis ({PUBLISHED_DEPTH} layers) is rescaled to the depth of this model."
    return text


def crosses_caption(figure: Figure, points: pd.DataFrame, experiment: str) -> str:
    """Caption of the published values of Durrani et al. in a figure; empty if there are none."""
    panels = figure.panels if isinstance(figure, PanelFigure) else ()
    marks = [mark for panel in panels for mark in panel.marks if mark.kind == "published"]
    if experiment not in PUBLISHED_TABLES or not marks:
        return ""
    families = points.drop_duplicates("model").set_index("model")["family"]
    named = join_list(dict.fromkeys(PUBLISHED_FAMILIES[families[mark.attributes["model"]]] for mark in marks))
    text = f"Crosses, published for {named}: {DURRANI}, {PUBLISHED_TABLES[experiment]}"
    if experiment == "prune" or (points["finetuned_on"] != "").any():
        text += ", finetuned on the whole training sets"
    text += "."
    if any(mark.attributes.get("task") == "UD-EWT:xpos" for mark in marks):
        text += " Their part-of-speech results are for the Penn Treebank, not for UD-EWT."
    return text


def _row_count(number: float | None) -> int | None:
    return None if pd.isna(number) else int(number)
