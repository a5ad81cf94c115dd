"""A study's figures by their names, as its report has them: for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from carryover.analysis.frame import finished, load_change_of_whole_models, load_epochs, load_points
from carryover.report.figures import draw
from carryover.report.labels import in_order
from carryover.report.layers import draw_layers, file_names, pictures
from carryover.report.plates import plates
from carryover.trial import CarryoverError


def draw_named(folder: Path, name: str, overlay: bool = False) -> Figure:
    every = _gallery(folder, overlay)
    if name not in every:
        raise CarryoverError(f"this study has no figure {name!r}; it has: {', '.join(every)}")
    return every[name]()


def figure_names(folder: Path) -> list[str]:
    return list(_gallery(folder, overlay=False))


def _gallery(folder: Path, overlay: bool) -> dict[str, Callable[[], Figure]]:
    points = finished(load_points(folder))
    found: dict[str, Callable[[], Figure]] = {
        kind: partial(draw, points, kind, overlay=overlay) for kind in in_order(points["experiment"])
    }
    for plate in plates(points, load_epochs(folder), load_change_of_whole_models(folder), overlay):
        found[plate.key] = plate.draw
    for name, picture in file_names(pictures(points)).items():
        found[name] = partial(draw_layers, picture)
    return found
