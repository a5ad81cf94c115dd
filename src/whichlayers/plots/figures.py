"""The figures: mean with 95% t interval for every cell, trials as faint points where they are few.

    figure = draw(finished(load_points(folder)), "incremental")
    save(figure, folder / "figures", "incremental")

A `Figure` is made directly and never through pyplot, so nothing here touches global state or needs a display.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from whichlayers.analysis.baseline_differences import BASELINES
from whichlayers.analysis.frame_utils import each_group
from whichlayers.plots.artists import Shown, baselines, line, look, probe_look, with_baselines, with_trials
from whichlayers.plots.display_names import LINGUISTIC, condition_name, size_name, x_axis
from whichlayers.plots.facets import layer_ticks, legend_below, limit_y, make_panels, name_x
from whichlayers.plots.permutations import draw_permutations
from whichlayers.plots.published_overlay import draw_published, with_published
from whichlayers.plots.style import LIGHT, MARKERS, Theme
from whichlayers.plots.word_figures import draw_words

FORMATS = ("png", "svg", "pdf")
MOST_VARIANTS = 2  # of the curves of incremental re-initialisation, in one figure
PROBED = "probe of layer k, frozen model"


def draw(points: pd.DataFrame, experiment: str, theme: Theme = LIGHT, overlay: bool = False) -> Figure:
    """The figure of one experiment, from finished points; `overlay` sets published curves beside ours."""
    with theme.applied():
        return laid_out(paint(points, experiment, theme, overlay))


def paint(points: pd.DataFrame, experiment: str, theme: Theme = LIGHT, overlay: bool = False) -> Figure:
    """The same before its panels are placed, which takes longest; inside `theme.applied()`."""
    chosen = points[points["experiment"] == experiment]
    if experiment == "incremental":
        probing = points[points["experiment"] == "probing"]
        return draw_incremental(in_one_figure(chosen), experiment, theme, probing, overlay)
    if experiment == "permutation":
        return draw_permutations(chosen, experiment, theme)
    if experiment in LINGUISTIC:
        return draw_words(chosen, experiment, theme, overlay)
    return draw_conditions(chosen, experiment, theme, overlay)


def in_one_figure(incremental: pd.DataFrame) -> pd.DataFrame:
    """All curves where they are of one or two ways of doing it; of more, those of the first: figures of their own
    compare the others with it."""
    variants = list(dict.fromkeys(incremental["variant"]))
    return (
        incremental if len(variants) <= MOST_VARIANTS else incremental[incremental["variant"] == variants[0]]
    )


def side_by_side(incremental: pd.DataFrame) -> bool:
    """Whether that figure is itself a comparison of two ways of doing it, a colour each."""
    return incremental["train_size"].nunique() == 1 and incremental["variant"].nunique() == MOST_VARIANTS


def laid_out(figure: Figure) -> Figure:
    """Places the panels, once for all formats."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def save(figure: Figure, folder: Path, name: str, theme: Theme = LIGHT) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for ending in FORMATS:
        path = folder / f"{name}.{ending}"
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
        with theme.applied():
            figure.savefig(path, dpi=200, metadata=undated)
        paths.append(path)
    return paths


def draw_incremental(
    points: pd.DataFrame,
    experiment: str,
    theme: Theme,
    probing: pd.DataFrame | None = None,
    overlay: bool = False,
    shares: bool = False,
) -> Figure:
    """Layers kept against the metric: a line a size, from light to dark; variants by line and marker.

    Probes of the frozen model, where there are any, are a broken line. `shares` names sizes as shares of the
    training set.
    """
    amount: Any = points["train_size"]
    if shares:
        amount = [_share(*sizes) for sizes in zip(points["train_size"], points["train_rows"], strict=True)]
    points = points.assign(amount=amount)
    figure, panels = make_panels(points, ["model"])
    amounts, variants = sorted(set(points["amount"])), list(dict.fromkeys(points["variant"]))
    colours = dict(zip(amounts, theme.sizes(len(amounts)), strict=True))
    by_variant = len(amounts) == 1 and len(variants) > 1  # then colours are free for the variants
    looks = {
        (size, variant): look(
            theme, theme.conditions[i % len(theme.conditions)], 0, MARKERS[i % len(MARKERS)]
        )
        if by_variant
        else look(theme, colours[size], i)
        for size in amounts
        for i, variant in enumerate(variants)
    }
    shown: Shown = {panel.task: [] for panel in panels}
    few, sources, probed = False, set(), False
    for panel in panels:
        series = list(each_group(panel.points.sort_values("amount", kind="stable"), ["amount", "variant"]))
        for place, ((size, variant), rows) in enumerate(series):
            few |= line(panel, rows, (place, len(series)), looks[size, variant], shown)
            if variant == panel.points["variant"].iloc[0]:
                sources |= draw_published(panel, rows, "incremental", looks[size, variant], shown, overlay)
        if probing is not None:
            model = panel.points["model"].iloc[0]
            mine = probing[(probing["task"] == panel.task) & (probing["model"] == model)]
            for _, rows in each_group(mine, ["train_size", "variant"]):
                line(panel, rows, (0, 1), probe_look(theme), shown, single_trials=False, name=PROBED)
                probed = True
        layer_ticks(panel.axes, 0, panel.depth)
    limit_y(panels, shown)
    name_x(panels, x_axis(experiment))
    if by_variant:
        handles = [Line2D([], [], **looks[amounts[0], variant]) for variant in variants]
        labels = [variant or "as usual" for variant in variants]
    else:
        handles = [Line2D([], [], **look(theme, colours[size], 0)) for size in amounts]
        labels = [f"{size:g}% of the data" if shares else f"{size_name(size)} examples" for size in amounts]
        if len(variants) > 1:
            handles += [Line2D([], [], **look(theme, theme.ink, i)) for i in range(len(variants))]
            labels += [variant or "as usual" for variant in variants]
    if probed:
        handles.append(Line2D([], [], **probe_look(theme)))
        labels.append(PROBED)
    with_trials(handles, labels, few, theme)
    with_published(handles, labels, sources, theme)
    legend_below(figure, handles, labels)
    return figure


def draw_conditions(points: pd.DataFrame, experiment: str, theme: Theme, overlay: bool = False) -> Figure:
    """A line a condition over x, between the dashed baselines of the same model, task and size."""
    figure, panels = make_panels(points, ["model", "train_size", "variant"])
    conditions = [c for c in dict.fromkeys(points["condition"]) if c not in BASELINES]
    cells = points[~points["condition"].isin(BASELINES)]
    shown: Shown = {panel.task: [] for panel in panels}
    few, sources = False, set()
    for panel in panels:
        baselines(panel, theme, shown)
        present = [c for c in conditions if (panel.points["condition"] == c).any()]
        for condition in present:
            i = conditions.index(condition)
            colour = theme.conditions[i % len(theme.conditions)]
            rows = panel.points[panel.points["condition"] == condition]
            drawn = look(theme, colour, 0, MARKERS[i % len(MARKERS)])
            place = (present.index(condition), len(present))
            few |= line(panel, rows, place, drawn, shown)
            sources |= draw_published(panel, rows, experiment, drawn, shown, overlay, place)
        if not cells.empty:
            layer_ticks(panel.axes, int(cells["x"].min()), int(cells["x"].max()))
    limit_y(panels, shown)
    name_x(panels, x_axis(experiment))
    handles, labels = [], []
    for i, condition in enumerate(conditions):
        colour, marker = theme.conditions[i % len(theme.conditions)], MARKERS[i % len(MARKERS)]
        handles.append(Line2D([], [], **look(theme, colour, 0, marker)))
        labels.append(condition_name(experiment, condition))
    with_trials(handles, labels, few, theme)
    with_baselines(handles, labels, points, theme)
    with_published(handles, labels, sources, theme)
    legend_below(figure, handles, labels)
    return figure


def _share(size: float, whole: float) -> float:
    """In per cent: the roundest share of the training set that comes to this size, give or take one example."""
    for digits in (1, 2, 3):
        percent = float(f"{100 * size / whole:.{digits}g}")
        if abs(percent / 100 * whole - size) <= 1:
            return percent
    return percent
