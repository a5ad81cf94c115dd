"""Draw, save and look up the figures of a study.

    figure = draw(finished(load_points(folder)), "incremental")
    save(figure, folder / "figures", "incremental")

Figures are created directly, not through pyplot: no global state is changed and no display is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.errors import WhichlayersError
from whichlayers.experiments import display_of, sort_experiments
from whichlayers.experiments.display import Plot
from whichlayers.files import atomic_write
from whichlayers.plots.curves import draw_conditions, draw_curves
from whichlayers.plots.draw_layers import draw_layers
from whichlayers.plots.extra_figures import extra_figures
from whichlayers.plots.facets import fix_layout
from whichlayers.plots.layer_diagram import diagram_file_names, layer_diagrams
from whichlayers.plots.permutations import draw_permutations
from whichlayers.plots.style import LIGHT, Theme
from whichlayers.plots.word_figures import draw_by_layer, draw_by_model
from whichlayers.results.frames import finished, load_baseline_weight_change, load_epochs, load_points

FORMATS = ("png", "svg", "pdf")

# Main figures by name (see `Display.plot`): functions of finished points, experiment, theme and overlay.
PLOTS: dict[Plot, Callable[[pd.DataFrame, str, Theme, bool], Figure]] = {
    "curves": draw_curves,
    "conditions": draw_conditions,
    "permutations": draw_permutations,
    "by_layer": draw_by_layer,
    "by_model": draw_by_model,
}


def draw(points: pd.DataFrame, experiment: str, theme: Theme = LIGHT, overlay: bool = False) -> Figure:
    """Draw the main figure of an experiment.

    Args:
        points: Finished points of a study (see `whichlayers.results.frames.finished`).
        experiment: Name of the experiment.
        theme: Colors.
        overlay: Whether to draw published results for the same task and size as well.
    """
    with theme.applied():
        return fix_layout(draw_without_layout(points, experiment, theme, overlay))


def draw_without_layout(
    points: pd.DataFrame, experiment: str, theme: Theme = LIGHT, overlay: bool = False
) -> Figure:
    """Same as `draw`, without computing the layout, which takes longest. Call it inside `theme.applied()`."""
    return PLOTS[display_of(experiment).plot](points, experiment, theme, overlay)


def save(figure: Figure, folder: Path, name: str, theme: Theme = LIGHT) -> list[Path]:
    """Write a figure as PNG, SVG and PDF into a folder; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in FORMATS]
    for path in paths:
        save_as(figure, path, theme)
    return paths


def save_as(figure: Figure, path: Path, theme: Theme = LIGHT) -> None:
    """Write a figure in the format of the file's extension, one of FORMATS."""
    suffix = path.suffix.removeprefix(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix)
    with theme.applied(), atomic_write(path) as file:
        figure.savefig(file, format=suffix, dpi=200, metadata=undated)


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
