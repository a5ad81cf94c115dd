"""A study's figures by their names, as its report has them: for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from whichlayers.errors import WhichlayersError
from whichlayers.plots.display_names import in_order
from whichlayers.plots.figures import draw
from whichlayers.plots.further_figures import plates
from whichlayers.plots.layer_diagram import draw_layers, file_names, pictures
from whichlayers.results.frames import finished, load_change_of_whole_models, load_epochs, load_points


def draw_named(folder: Path, name: str, overlay: bool = False) -> Figure:
    every = _gallery(folder, overlay)
    if name not in every:
        raise WhichlayersError(f"this study has no figure {name!r}; it has: {', '.join(every)}")
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
