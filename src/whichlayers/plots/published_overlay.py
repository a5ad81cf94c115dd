"""Published curves beside ours, where task, metric and size are the same; said in the legend and the caption."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.published import FAMILIES, PUBLISHED_DEPTH, curves_beside, published_pruning
from whichlayers.plots.artists import Shown, about, dodge
from whichlayers.plots.display_names import listing
from whichlayers.plots.facets import Mark, Panel, PanelFigure
from whichlayers.plots.style import Theme

EXPERIMENTS = ("incremental", "probing")  # the experiments whose published curves we hold
DURRANI, PRUNED = "Durrani et al. 2021", 6  # layers that they dropped
LIKE = 0.5  # the least share of the training set that counts as like all of it
IN_COLOUR = "in the colour of its curve"


def draw_published(
    panel: Panel,
    rows: pd.DataFrame,
    experiment: str,
    look: dict[str, Any],
    shown: Shown,
    visible: bool,
    place: tuple[int, int] = (0, 1),
) -> set[str]:
    """Draws what was published for these rows of ours in the colour of `look`; gives the names of its sources.

    Where it shall not be visible, it is there for the page alone, whose readers may ask for it. `place`: the line's
    number, and of how many, so that a cross stands at its own line.
    """
    if experiment == "prune":
        return _draw_pruning(panel, rows, look, shown, visible, place)
    first = rows.iloc[0]
    found = curves_beside(
        experiment, panel.task, panel.metric, int(first["train_size"]), _rows(first["train_rows"])
    )
    for curve in found:
        drawn, x = published_look(curve.source, look["color"]), curve.x_for(panel.depth)
        table = pd.DataFrame({"x": x, "mean": curve.values})
        draw_beside(panel, rows, table, curve.source, drawn, shown, visible)
    return {curve.source for curve in found} if visible else set()


def pruned_alike(rows: pd.DataFrame) -> dict[str, float]:
    """What Durrani et al. found for the family and the task of these rows, which are of one curve (Tables 2 and 6).

    Empty where the models have another depth, other numbers of layers were dropped, or ours were finetuned on much
    less: theirs saw the whole training sets.
    """
    first = rows.iloc[0]
    whole = _rows(first["train_rows"])
    alike = whole is not None and first["train_size"] >= LIKE * whole
    if not alike or first["depth"] != PUBLISHED_DEPTH or not (rows["x"] == PRUNED).any():
        return {}
    return published_pruning(str(first["family"]), str(first["task"]))


def _draw_pruning(
    panel: Panel,
    rows: pd.DataFrame,
    look: dict[str, Any],
    shown: Shown,
    visible: bool,
    place: tuple[int, int],
) -> set[str]:
    """A cross where Durrani et al. dropped as many layers of a model of this family."""
    value = pruned_alike(rows).get(f"prune {rows['condition'].iloc[0]} {PRUNED}")
    if value is None:
        return set()
    drawn = published_look(DURRANI, look["color"]) | {"linestyle": ""}
    table = pd.DataFrame({"x": [float(PRUNED)], "mean": [value]})
    draw_beside(panel, rows, table, DURRANI, drawn, shown, visible, place)
    return {DURRANI} if visible else set()


def draw_beside(
    panel: Panel,
    rows: pd.DataFrame,
    table: pd.DataFrame,
    source: str,
    drawn: dict[str, Any],
    shown: Shown,
    visible: bool,
    place: tuple[int, int] | None = None,
) -> None:
    """Published numbers (x, mean) beside these rows of ours; with a `place`, crosses at that line and over it."""
    panel.marks.append(Mark("published", drawn, about(rows), table, name=f"published: {source}"))
    if visible:
        shift, over = (0.0, 2.5) if place is None else (dodge(*place, panel)[0], 5)
        panel.axes.plot(table["x"] + shift, table["mean"], zorder=over, **drawn)
        shown[panel.task] += [(value, value, value) for value in table["mean"]]


def published_look(source: str, colour: str) -> dict[str, Any]:
    marker = "+" if source.startswith("Singh") else "x"
    return {
        "color": colour,
        "linewidth": 1.0,
        "linestyle": (0, (1, 1.6)),
        "marker": marker,
        "markersize": 4.5,
        "markeredgewidth": 1.1,
        "alpha": 0.8,
    }


def with_published(handles: list[Any], labels: list[str], sources: set[str], theme: Theme) -> None:
    for source in sorted(sources):
        drawn = published_look(source, theme.muted) | ({"linestyle": ""} if source == DURRANI else {})
        handles.append(Line2D([], [], **drawn))
        labels.append(f"published: {source}\n({IN_COLOUR})")


def overlay_caption(points: pd.DataFrame, experiment: str) -> str:
    """What a reader must know of the published curves in this figure; empty where there are none."""
    if experiment not in EXPERIMENTS:
        return ""
    notes, depths = [], set()
    for (task, metric, size, rows, depth), _ in each_group(
        points[points["experiment"] == experiment], ["task", "metric", "train_size", "train_rows", "depth"]
    ):
        for curve in curves_beside(experiment, task, metric, int(size), _rows(rows)):
            notes.append(
                f"{curve.source} ({curve.note.split(',')[0].split(';')[0]}, read off the authors' plots)"
            )
            depths.add(int(depth))
    if not notes:
        return ""
    told = f"Dotted with crosses, published for BERT-Base: {', '.join(dict.fromkeys(notes))}."
    if depths - {PUBLISHED_DEPTH}:
        told += f" Its {PUBLISHED_DEPTH} layers are set on this model's by the share of the depth."
    return told


TABLES = {"prune": "Tables 2 and 6", "neurons": "Tables 1, 4 and 5", "selectivity": "Table 7"}


def crosses_caption(figure: Figure, points: pd.DataFrame, experiment: str) -> str:
    """What a reader must know of the numbers of Durrani et al. in this figure; empty where there are none."""
    panels = figure.panels if isinstance(figure, PanelFigure) else ()
    marks = [mark for panel in panels for mark in panel.marks if mark.kind == "published"]
    if experiment not in TABLES or not marks:
        return ""
    families = points.drop_duplicates("model").set_index("model")["family"]
    named = listing(dict.fromkeys(FAMILIES[families[mark.about["model"]]] for mark in marks))
    told = f"Crosses, published for {named}: {DURRANI}, {TABLES[experiment]}"
    if experiment == "prune" or (points["finetuned_on"] != "").any():
        told += ", who finetuned on whole training sets"
    told += "."
    if any(mark.about.get("task") == "UD-EWT:xpos" for mark in marks):
        told += " Their part-of-speech tags are of the Penn Treebank's text, not of UD-EWT."
    return told


def _rows(number: float | None) -> int | None:
    return None if pd.isna(number) else int(number)
