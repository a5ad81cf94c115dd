"""Main figures with curves over x: one per training size and variant, or one per condition with the baselines."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from whichlayers.experiments import display_of
from whichlayers.experiments.display import EMBEDDINGS_NOTE
from whichlayers.plots.artists import (
    DrawnValues,
    add_baseline_legend,
    add_guess_legend,
    add_trial_legend,
    category_style,
    draw_baselines,
    draw_guessing,
    draw_line,
    line_style,
    probe_style,
)
from whichlayers.plots.display_names import size_name
from whichlayers.plots.facets import (
    add_legend_below,
    label_x_axis,
    make_panels,
    set_layer_ticks,
    set_y_limits,
)
from whichlayers.plots.published_overlay import add_published_legend, draw_published
from whichlayers.plots.style import Theme
from whichlayers.results.frame_utils import each_group
from whichlayers.text import short_names
from whichlayers.trial import BASELINES

MAX_VARIANTS = 2  # variants in one figure
SIZE_RATIO = 1.1  # training sizes of different tasks that count as about the same
PROBE_LABEL = "linear probe of layer k, frozen model"


def draw_curves(points: pd.DataFrame, experiment: str, theme: Theme, overlay: bool = False) -> Figure:
    """Draw a curve per training size and variant, and the linear probes of the study, if any, as a dashed curve."""
    rows = main_figure_rows(points[points["experiment"] == experiment])
    probing = points[points["experiment"] == "probing"]
    return draw_size_curves(rows, experiment, theme, probing, overlay)


def main_figure_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of an experiment that `draw_curves` shows.

    All variants if there are at most `MAX_VARIANTS`, else the first one; further figures compare the others.
    """
    variants = list(dict.fromkeys(rows["variant"]))
    return rows if len(variants) <= MAX_VARIANTS else rows[rows["variant"] == variants[0]]


def compares_two_variants(rows: pd.DataFrame) -> bool:
    """Whether `draw_curves` already compares two variants, with one color for each."""
    return rows["train_size"].nunique() == 1 and rows["variant"].nunique() == MAX_VARIANTS


def draw_size_curves(
    points: pd.DataFrame,
    experiment: str,
    theme: Theme,
    probing: pd.DataFrame | None = None,
    overlay: bool = False,
    as_percent: bool = False,
) -> Figure:
    """Draw the metric against x, one curve per training size and variant.

    Args:
        points: Rows of the experiment.
        experiment: Name of the experiment, for the x label.
        theme: Colors; sizes go along the color ramp, variants differ by line style and marker.
        probing: Rows of the probing experiment, drawn as a dashed curve for the same model and task; those of the first
            variant, such as the first pooling, if there are several.
        overlay: Whether to draw published curves.
        as_percent: Give training sizes in percent of the training set.
    """
    amount: Any = points["train_size"]
    if as_percent:
        amount = [
            _percent_of_training_set(*sizes)
            for sizes in zip(points["train_size"], points["train_rows"], strict=True)
        ]
    points = points.assign(amount=amount)
    probe_label = PROBE_LABEL
    if probing is not None and probing["variant"].nunique() > 1:
        probing = probing[probing["variant"] == probing["variant"].iloc[0]]
        probe_label += f", {probing['variant'].iloc[0]}"
    figure, panels = make_panels(points, ["model"])
    amounts, variants = sorted(set(points["amount"])), list(dict.fromkeys(points["variant"]))
    colors = dict(zip(amounts, theme.sizes(len(amounts)), strict=True))
    by_variant = len(amounts) == 1 and len(variants) > 1  # colors distinguish the variants
    styles = {
        (size, variant): category_style(theme, i) if by_variant else line_style(theme, colors[size], i)
        for size in amounts
        for i, variant in enumerate(variants)
    }
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    has_trials, sources, has_probes = False, set(), False
    for panel in panels:
        series = list(each_group(panel.points.sort_values("amount", kind="stable"), ["amount", "variant"]))
        for index, ((size, variant), rows) in enumerate(series):
            has_trials |= draw_line(panel, rows, (index, len(series)), styles[size, variant], drawn_values)
            if variant == panel.points["variant"].iloc[0]:
                sources |= draw_published(
                    panel, rows, experiment, styles[size, variant], drawn_values, overlay
                )
        if probing is not None:
            model = panel.points["model"].iloc[0]
            rows_of_task = probing[(probing["task"] == panel.task) & (probing["model"] == model)]
            for _, rows in each_group(rows_of_task, ["train_size", "variant"]):
                draw_line(
                    panel,
                    rows,
                    (0, 1),
                    probe_style(theme),
                    drawn_values,
                    single_trials=False,
                    name=probe_label,
                )
                has_probes = True
        set_layer_ticks(panel.axes, 0, panel.depth)
    has_guess = draw_guessing(panels, theme, drawn_values)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, display_of(experiment).x_label)
    if by_variant:
        handles = [Line2D([], [], **styles[amounts[0], variant]) for variant in variants]
        labels = [variant or "default" for variant in variants]
    else:
        handles = [Line2D([], [], **line_style(theme, colors[size], 0)) for size in amounts]
        labels = [
            f"{size:g}% of the data" if as_percent else f"{size_name(size)} examples" for size in amounts
        ]
        if len(variants) > 1:
            handles += [Line2D([], [], **line_style(theme, theme.ink, i)) for i in range(len(variants))]
            labels += [variant or "default" for variant in variants]
    if has_probes:
        handles.append(Line2D([], [], **probe_style(theme)))
        labels.append(probe_label)
    add_trial_legend(handles, labels, has_trials, theme)
    add_guess_legend(handles, labels, has_guess, theme)
    add_published_legend(handles, labels, sources, theme)
    add_legend_below(figure, handles, labels)
    return figure


def comparable_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """Curves of several tasks that can share a panel: same metric, and about the same training size.

    Returns:
        Rows of the first variant of each such task, with a column `group`, the largest of the sizes; sizes belong to
        one group if each is at most `SIZE_RATIO` times the one below. Empty if no two tasks can share a panel.
    """
    first = rows[rows["variant"] == rows["variant"].iloc[0]]
    sizes = sorted(set(first["train_size"]))
    groups, top = {}, 0
    for size in reversed(sizes):
        larger = sizes[sizes.index(size) + 1] if size != sizes[-1] else None
        top = top if larger is not None and larger <= SIZE_RATIO * size else size
        groups[size] = top
    first = first.assign(group=first["train_size"].map(groups))
    together = first.groupby(["model", "metric", "group"])["task"].transform("nunique") > 1
    return first[together]


def draw_tasks_together(rows: pd.DataFrame, theme: Theme) -> Figure:
    """Draw the curves of all tasks with the same metric and about the same training size in one panel.

    Args:
        rows: Rows from `comparable_tasks`.
        theme: Colors, one per task.
    """
    tasks, names = list(dict.fromkeys(rows["task"])), short_names(rows["task"])
    titles = rows["group"].map(lambda size: f"{size_name(size)} examples")
    figure, panels = make_panels(
        rows.assign(own_task=rows["task"], task=titles).sort_values("group", kind="stable"),
        ["model", "metric"],
    )
    styles = {task: category_style(theme, i) for i, task in enumerate(tasks)}
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    has_trials = False
    for panel in panels:
        present = list(each_group(panel.points, ["own_task"]))
        for index, ((task,), curve) in enumerate(present):
            place = (index, len(present))
            has_trials |= draw_line(panel, curve, place, styles[task], drawn_values)
            panel.marks[-1].attributes["task"] = task  # the controls of the page show and hide tasks
        set_layer_ticks(panel.axes, 0, panel.depth)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, display_of("incremental").x_label)
    handles, labels = [Line2D([], [], **styles[task]) for task in tasks], [names[t] for t in tasks]
    add_trial_legend(handles, labels, has_trials, theme)
    add_legend_below(figure, handles, labels)
    return figure


def draw_conditions(points: pd.DataFrame, experiment: str, theme: Theme, overlay: bool = False) -> Figure:
    """Draw one curve per condition over x, with the baselines of the same model, task and size as dashed lines."""
    points = points[points["experiment"] == experiment]
    figure, panels = make_panels(points, ["model", "train_size", "variant"])
    conditions = [c for c in dict.fromkeys(points["condition"]) if c not in BASELINES]
    styles = {condition: category_style(theme, i) for i, condition in enumerate(conditions)}
    cells = points[~points["condition"].isin(BASELINES)]
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    has_trials, sources = False, set()
    for panel in panels:
        draw_baselines(panel, theme, drawn_values)
        present = [c for c in conditions if (panel.points["condition"] == c).any()]
        for condition in present:
            rows, style = panel.points[panel.points["condition"] == condition], styles[condition]
            place = (present.index(condition), len(present))
            has_trials |= draw_line(panel, rows, place, style, drawn_values)
            sources |= draw_published(panel, rows, experiment, style, drawn_values, overlay, place)
        if not cells.empty and display_of(experiment).layer_axis:
            set_layer_ticks(panel.axes, int(cells["x"].min()), int(cells["x"].max()))
    has_guess = draw_guessing(panels, theme, drawn_values)
    set_y_limits(panels, drawn_values)
    label = display_of(experiment).x_label
    has_embeddings = (cells["x"] == 0).any()
    label_x_axis(panels, label if has_embeddings else label.removesuffix(f" {EMBEDDINGS_NOTE}"))
    handles = [Line2D([], [], **styles[condition]) for condition in conditions]
    labels = [display_of(experiment).condition_name(condition) for condition in conditions]
    add_trial_legend(handles, labels, has_trials, theme)
    add_baseline_legend(handles, labels, points, theme)
    add_guess_legend(handles, labels, has_guess, theme)
    add_published_legend(handles, labels, sources, theme)
    add_legend_below(figure, handles, labels)
    return figure


def _percent_of_training_set(size: float, whole: float) -> float:
    """`size` in percent of `whole`, with as few digits as give this size within one example."""
    for digits in (1, 2, 3):
        percent = float(f"{100 * size / whole:.{digits}g}")
        if abs(percent / 100 * whole - size) <= 1:
            return percent
    return percent
