"""Published curves beside ours, where task, metric and size are the same; said in the legend and the caption."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from carryover.analysis.published import PUBLISHED_DEPTH, curves_beside, published_pruning
from carryover.analysis.walk import each_group
from carryover.report.layout import Mark, Panel
from carryover.report.marks import Shown, about
from carryover.report.style import Theme

EXPERIMENTS = ("incremental", "probing")  # the experiments whose published curves we hold
DURRANI, PRUNED = "Durrani et al. 2021", 6  # layers that they dropped


def draw_published(
    panel: Panel, rows: pd.DataFrame, experiment: str, look: dict[str, Any], shown: Shown, visible: bool
) -> set[str]:
    """Draws what was published for these rows of ours in the colour of `look`; gives the names of its sources.

    Where it shall not be visible, it is there for the page alone, whose readers may ask for it.
    """
    if experiment == "prune":
        return _draw_pruning(panel, rows, look, shown, visible)
    first = rows.iloc[0]
    found = curves_beside(
        experiment, panel.task, panel.metric, int(first["train_size"]), _rows(first["train_rows"])
    )
    for curve in found:
        drawn, x = published_look(curve.source, look["color"]), curve.x_for(panel.depth)
        table = pd.DataFrame({"x": x, "mean": curve.values})
        panel.marks.append(Mark("published", drawn, about(rows), table, name=f"published: {curve.source}"))
        if visible:
            panel.axes.plot(x, curve.values, zorder=2.5, **drawn)
            shown[panel.task] += [(value, value, value) for value in curve.values]
    return {curve.source for curve in found} if visible else set()


def _draw_pruning(
    panel: Panel, rows: pd.DataFrame, look: dict[str, Any], shown: Shown, visible: bool
) -> set[str]:
    """A cross where Durrani et al. dropped as many layers of a model of this family (Tables 2 and 6)."""
    first = rows.iloc[0]
    theirs = published_pruning(str(first["family"]), panel.task)
    value = theirs.get(f"prune {first['condition']} {PRUNED}")
    if value is None or panel.depth != PUBLISHED_DEPTH or not (rows["x"] == PRUNED).any():
        return set()
    drawn = published_look(DURRANI, look["color"]) | {"linestyle": ""}
    table = pd.DataFrame({"x": [float(PRUNED)], "mean": [value]})
    panel.marks.append(Mark("published", drawn, about(rows), table, name=f"published: {DURRANI}"))
    if visible:
        panel.axes.plot(table["x"], table["mean"], zorder=5, **drawn)
        shown[panel.task].append((value, value, value))
    return {DURRANI} if visible else set()


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
        handles.append(Line2D([], [], **published_look(source, theme.ink)))
        labels.append(f"published: {source}")


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


def _rows(number: float | None) -> int | None:
    return None if pd.isna(number) else int(number)
