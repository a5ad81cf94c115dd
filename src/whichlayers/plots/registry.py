"""Look up the figures of a study's report by name, for use in notebooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from whichlayers.errors import WhichlayersError
from whichlayers.experiments import sort_experiments
from whichlayers.plots.extra_figures import extra_figures
from whichlayers.plots.figures import draw
from whichlayers.plots.layer_diagram import diagram_file_names, draw_layers, layer_diagrams
from whichlayers.results.frames import finished, load_baseline_weight_change, load_epochs, load_points


def draw_named(folder: Path, name: str, overlay: bool = False) -> Figure:
    """Draw one figure of a study.

    Args:
        folder: Study folder.
        name: One of `figure_names(folder)`.
        overlay: Whether to draw published curves next to those of the study.
    """
    available = _draw_functions(folder, overlay)
    if name not in available:
        raise WhichlayersError(
            f"this study has no figure {name!r}; available figures: {', '.join(available)}"
        )
    return available[name]()


def figure_names(folder: Path) -> list[str]:
    """Names of all figures that the results of a study allow."""
    return list(_draw_functions(folder, overlay=False))


def _draw_functions(folder: Path, overlay: bool) -> dict[str, Callable[[], Figure]]:
    """Map figure names to functions without arguments that draw them."""
    points = finished(load_points(folder))
    found: dict[str, Callable[[], Figure]] = {
        kind: partial(draw, points, kind, overlay=overlay) for kind in sort_experiments(points["experiment"])
    }
    for further in extra_figures(points, load_epochs(folder), load_baseline_weight_change(folder), overlay):
        found[further.key] = further.draw
    for name, diagram in diagram_file_names(layer_diagrams(points)).items():
        found[name] = partial(draw_layers, diagram)
    return found
