"""Further figures that the results of a study allow: single trials, comparisons of settings, epochs, weight change.

Each belongs below the main figure of an experiment, and exists only if the results contain its data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from whichlayers.analysis.claims.singh2020 import movement, scaled_movement
from whichlayers.analysis.intervals import summarize
from whichlayers.experiments import display_of
from whichlayers.plots.artists import (
    DrawnValues,
    add_trial_legend,
    category_style,
    dodge,
    draw_line,
    line_style,
    shared_attributes,
    trial_offsets,
)
from whichlayers.plots.costs import costs, draw_costs
from whichlayers.plots.curves import (
    comparable_tasks,
    compares_two_variants,
    draw_size_curves,
    draw_tasks_together,
)
from whichlayers.plots.display_names import size_name
from whichlayers.plots.facets import (
    Mark,
    Panel,
    PanelFigure,
    add_legend_below,
    fix_layout,
    label_x_axis,
    label_y_axis,
    make_panels,
    panel_columns,
    set_layer_ticks,
    set_y_limits,
)
from whichlayers.plots.permutations import draw_with_two_sd
from whichlayers.plots.style import LIGHT, MARKER_SIZE, MARKERS, MAX_SINGLE_TRIALS, Theme
from whichlayers.plots.weight_change import SCALED, draw_weight_change, scaled_ranges
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import CURVE, setting_label, variant_labels
from whichlayers.text import join_list, short_names
from whichlayers.trial import BASELINES

NORMS = ("frobenius", "spectral")
MIN_EPOCHS = 4  # evaluated epochs needed for a learning curve
DOTTED = (0, (1.2, 1.4))


@dataclass(frozen=True)
class ExtraFigure:
    """A figure of the report in addition to the main figure of an experiment."""

    key: str  # base name of its files
    experiment: str  # section of the report it belongs to
    title: str
    caption: str
    draw_without_layout: Callable[[Theme], Figure]  # draws it without layout, inside `theme.applied()`

    def draw(self, theme: Theme = LIGHT) -> Figure:
        """Draw the figure with its layout computed."""
        with theme.applied():
            return fix_layout(self.draw_without_layout(theme))


COMPARED = {
    "recipe": (
        "recipes",
        "Re-initialization recipes",
        "The same layers re-initialized by each recipe.",
    ),
    "reinit_lr_factor": (
        "higher_lr",
        "Learning rate of re-initialized layers",
        "Re-initialized layers trained with a different learning rate than the others, or with the same.",
    ),
    "keep_layer_norm": (
        "layer_norm",
        "Layer norms of re-initialized layers",
        "Layer norms of re-initialized layers keep their pretrained values, or are reset.",
    ),
}
INTERVALS = "Means with 95% t intervals; trials with the same seed share examples, data order and head."
ONE_TRIAL = "One trial per point, so there are no intervals."


def extra_figures(
    points: pd.DataFrame,
    epochs: pd.DataFrame | None = None,
    weights: pd.DataFrame | None = None,
    overlay: bool = False,
) -> list[ExtraFigure]:
    """All further figures that a study's results allow.

    Args:
        points: Finished points.
        epochs: Learning curves, from `load_epochs`.
        weights: Weight changes, from `load_baseline_weight_change`.
        overlay: Whether to draw published curves.
    """
    found = list(_incremental(points[points["experiment"] == "incremental"], overlay))
    found += _permutations(points[points["experiment"] == "permutation"])
    for experiment in dict.fromkeys(points["experiment"]):
        if display_of(experiment).learning_curves:
            found += _epochs(points[points["experiment"] == experiment], experiment, epochs)
        if display_of(experiment).costs:
            found += _costs(points[points["experiment"] == experiment], experiment)
    if weights is not None and not weights.empty:
        found += _weights(points, weights, overlay)
    return found


def _costs(rows: pd.DataFrame, experiment: str) -> Iterator[ExtraFigure]:
    """The metric against time and memory, where settings have different costs."""
    for column, name in {"seconds": "time", "memory": "memory"}.items():
        known = costs(rows, column)
        if known["x"].nunique() < 2:
            continue
        measured = (
            "The time of a stack divided by its trials, a single measurement for trials that were stacked together"
            if column == "seconds"
            else "The peak memory of the first training steps of a stack, divided by its trials"
        )
        caption = (
            f"The metric against the {name} of each setting; numbers are values of x of the figure above. {measured}: "
            f"it depends on the machine and on the size of stacks. {_intervals(rows)}"
        )
        draw = partial(draw_costs, rows, experiment, column)
        yield ExtraFigure(f"{experiment}_{name}", experiment, f"Score and {name}", caption, draw)


def _incremental(rows: pd.DataFrame, overlay: bool) -> Iterator[ExtraFigure]:
    if rows.empty:
        return
    if not many_trials(rows).empty:
        sizes = sorted(set(many_trials(rows)["train_size"]))
        named = f"{join_list(size_name(size) for size in sizes)} examples"
        caption = (
            f"Training sizes with more than {MAX_SINGLE_TRIALS} trials per point ({named}): one point per trial, "
            "jittered horizontally to reduce overlap; the dotted line is the mean."
        )
        yield ExtraFigure(
            "trials", "incremental", f"All trials, {named}", caption, partial(draw_trials, rows)
        )
    for column, (key, title, caption) in COMPARED.items():
        if rows.loc[~rows["untouched"], column].nunique() > 1 and not compares_two_variants(rows):
            draw = partial(draw_comparison, rows, column)
            yield ExtraFigure(key, "incremental", title, f"{caption} {_intervals(rows)}", draw)
    if _has_fractions(rows):
        caption = "The same curves, with training sizes in percent of each task's training set."
        draw = partial(_draw_fractions, rows, overlay)
        yield ExtraFigure("fractions", "incremental", "By fraction of the training set", caption, draw)

    together = comparable_tasks(rows)
    if not together.empty:
        caption = (
            "Tasks with the same metric and about the same number of training examples in one panel, as in Figure 1c "
            f"of Singh & Giovanardi 2020. {_intervals(together)}"
        )
        draw = partial(draw_tasks_together, together)
        yield ExtraFigure("tasks", "incremental", "Tasks in one panel", caption, draw)


def _permutations(rows: pd.DataFrame) -> Iterator[ExtraFigure]:
    """Figure 4 of Tamkin et al. 2020, if the baselines have several trials."""
    baselines = rows[rows["condition"].isin(BASELINES)]
    if baselines.empty or baselines.groupby([*CURVE, "condition"])["seed"].nunique().max() < 2:
        return
    caption = (
        "The same, with bands of two standard deviations of the baselines' trials on either side of their mean, as in "
        "Figure 4 of Tamkin et al. 2020. They show the spread of single trials, with which a single trial of a "
        "permutation compares; they are not intervals of the mean."
    )
    title, draw = "Permutations and the spread of the baselines", partial(draw_with_two_sd, rows)
    yield ExtraFigure("permutation_two_sd", "permutation", title, caption, draw)


def _epochs(rows: pd.DataFrame, experiment: str, epochs: pd.DataFrame | None) -> Iterator[ExtraFigure]:
    if epochs is None or rows.empty:
        return
    each = epochs.groupby("trial_id")["epoch"].nunique()
    whole = each.index[each >= MIN_EPOCHS]  # trials evaluated only at the end have no curve
    rows = rows[rows["trial_id"].isin(whole)]
    if not rows.empty:
        curves = epoch_curves(rows, epochs)
        caption = (
            "Scores after every epoch: the metric (top) and the evaluation loss (bottom), with none, about half and "
            f"all of the layers pretrained. {_intervals(rows)}"
        )
        # "epochs" is the main figure
        key = "learning_curves" if experiment == "incremental" else "every_epoch"
        yield ExtraFigure(key, experiment, "Learning curves", caption, partial(draw_epochs, curves))


def _weights(points: pd.DataFrame, weights: pd.DataFrame, overlay: bool) -> Iterator[ExtraFigure]:
    """Weight change of each layer, unscaled and scaled to [0, 1] as in Figure 3 of Singh & Giovanardi 2020."""
    moved, by_spectral = (_add_depth_and_rows(movement(points, weights, norm), points) for norm in NORMS)
    if moved.empty:
        return
    measure = (
        "of the change of each weight matrix, averaged over the matrices of a layer (the output matrices of its "
        "feed-forward block if the model has matrices of that name, else all of them)."
    )
    measured = points[points["trial_id"].isin(weights["trial_id"])]["experiment"]
    section = "incremental" if (measured == "incremental").any() else str(measured.iloc[0])
    caption = (
        "How much finetuning changed each layer of the model with all layers pretrained: the Frobenius norm"
    )
    draw = partial(draw_weight_change, moved)
    yield ExtraFigure(
        "weight_change", section, "Weight change", f"{caption} {measure} {_intervals(moved)}", draw
    )
    scaled = scaled_movement(by_spectral)
    if (weights["kind"] == "spectral").any() and not scaled.empty:
        caption = (
            f"Same as above, with the spectral norm {measure} The curve of each trial is scaled from 0 (the layer that "
            "changed least) to 1 (the layer that changed most), as in Singh & Giovanardi 2020."
        )
        draw = partial(draw_weight_change, scaled, metric=SCALED, overlay=overlay)
        caption = f"{caption} {scaled_ranges(by_spectral)} {_intervals(scaled)}"
        yield ExtraFigure("weight_change_scaled", section, "Weight change, scaled", caption, draw)


def _intervals(rows: pd.DataFrame) -> str:
    """A sentence on the intervals of a figure of these rows, or on why it has none."""
    cell = [
        name for name in ("model", "task", "train_size", "variant", "condition", "x", "layer") if name in rows
    ]
    return INTERVALS if rows.groupby(cell)["seed"].nunique().max() > 1 else ONE_TRIAL


def _add_depth_and_rows(moved: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    depths = points.drop_duplicates("model").set_index("model")["depth"]
    rows = points.drop_duplicates("task").set_index("task")["train_rows"]
    return moved.assign(depth=moved["model"].map(depths), train_rows=moved["task"].map(rows))


def _draw_fractions(rows: pd.DataFrame, overlay: bool, theme: Theme) -> Figure:
    return draw_size_curves(rows, "incremental", theme, None, overlay, as_percent=True)


def _has_fractions(rows: pd.DataFrame) -> bool:
    """Whether the study has fractions of training sets of different sizes; with one size, counts are enough."""
    whole = rows[rows["train_size"] == rows["train_rows"]]
    shared = rows[rows["task"].isin(whole["task"])]
    return bool(shared["train_rows"].nunique() > 1 and (shared["train_size"] < shared["train_rows"]).any())


def many_trials(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of points with too many trials for the main figure to show each of them."""
    cell = ["model", "task", "train_size", "variant", "x"]
    return rows[rows.groupby(cell)["seed"].transform("nunique") > MAX_SINGLE_TRIALS]


def draw_trials(rows: pd.DataFrame, theme: Theme) -> Figure:
    """Draw one point per trial over k, and their mean as a dotted line."""
    rows = many_trials(rows)
    figure, panels = make_panels(rows, ["model", "train_size", "variant"], always=["train_size"])
    figure.show_trials = True
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    color = theme.conditions[0]
    mean: dict[str, Any] = {"color": theme.ink, "linestyle": DOTTED, "linewidth": 1.5}
    for panel in panels:
        offsets = trial_offsets(panel.points["seed"], 0.0, 0.44)
        panel.axes.plot(
            panel.points["x"] + panel.points["seed"].map(offsets),
            panel.points["value"],
            "o",
            color=color,
            alpha=0.35,
            markersize=2.6,
            mew=0,
        )
        table = summarize(panel.points, ["x"])
        panel.axes.plot(table["x"], table["mean"], zorder=4, **mean)
        single = panel.points[["x", "seed", "value"]]
        style = mean | {"single": color}
        panel.marks.append(
            Mark("line", style, shared_attributes(panel.points), table, single, offsets=offsets)
        )
        drawn_values[panel.task] += [(value, value, value) for value in panel.points["value"]]
        set_layer_ticks(panel.axes, 0, panel.depth)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, display_of("incremental").x_label)
    point = Line2D([], [], color=color, marker="o", linestyle="", markersize=4, alpha=0.6, mew=0)
    add_legend_below(figure, [point, Line2D([], [], **mean)], ["one trial", "mean"])
    return figure


def draw_comparison(rows: pd.DataFrame, column: str, theme: Theme) -> Figure:
    """Draw one curve per value of a setting.

    Args:
        rows: Rows of the incremental experiment.
        column: Column that holds the setting; curves that differ otherwise get separate panels.
        theme: Colors.
    """
    settings = [value for value in dict.fromkeys(rows.loc[~rows["untouched"], column]) if not pd.isna(value)]
    compared = rows[rows[column].isin(settings)].assign(**{column: settings[0]})
    compared["setting"] = rows.loc[compared.index, column]
    compared["variant"] = variant_labels(compared)
    pairs = compared.groupby(["model", "task", "train_size", "variant"])["setting"].transform("nunique") > 1
    compared = compared[pairs] if pairs.any() else compared
    figure, panels = make_panels(compared, ["model", "train_size", "variant"])
    drawn_values: DrawnValues = {panel.task: [] for panel in panels}
    has_trials = False
    styles = {value: category_style(theme, i) for i, value in enumerate(settings)}
    for panel in panels:
        present = [value for value in settings if (panel.points["setting"] == value).any()]
        for index, value in enumerate(present):
            curve = panel.points[panel.points["setting"] == value]
            has_trials |= draw_line(panel, curve, (index, len(present)), styles[value], drawn_values)
        set_layer_ticks(panel.axes, 0, panel.depth)
    set_y_limits(panels, drawn_values)
    label_x_axis(panels, display_of("incremental").x_label)
    handles = [Line2D([], [], **styles[value]) for value in settings]
    labels = [setting_label(column, value) for value in settings]
    add_trial_legend(handles, labels, has_trials, theme)
    add_legend_below(figure, handles, labels)
    return figure


def epoch_curves(rows: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Learning curves at the smallest, middle and largest k of each curve, for its first variant.

    Returns:
        A frame with model, task, train_size, metric, x (k), seed, depth, epoch, quantity (the metric or dev_loss)
        and value.
    """
    chosen = []
    for _, curve in each_group(rows, ["model", "task", "train_size"]):
        first = curve[curve["variant"] == curve["variant"].iloc[0]]
        depth, ks = int(first["depth"].iloc[0]), sorted(set(first["x"]))
        middle = min(ks, key=lambda k: abs(k - depth / 2))
        chosen.append(first[first["x"].isin({ks[0], middle, ks[-1]})])
    columns = ["trial_id", "model", "task", "train_size", "metric", "x", "seed", "depth"]
    trials = pd.concat(chosen)[columns].drop_duplicates(["trial_id", "x"])
    long = trials.merge(epochs.rename(columns={"metric": "quantity"}), on="trial_id")
    return long[(long["quantity"] == long["metric"]) | (long["quantity"] == "dev_loss")]


def draw_epochs(curves: pd.DataFrame, theme: Theme) -> Figure:
    """Draw learning curves: for each task and size a panel of the metric above one of the loss, one color per k."""
    tasks = list(dict.fromkeys(curves["task"]))
    columns = panel_columns(len(tasks))
    rows_each = math.ceil(len(tasks) / columns)
    blocks = list(each_group(curves.sort_values("train_size", kind="stable"), ["model", "train_size"]))
    width = 5.2 if columns == 1 else 3.7 if columns == 2 else 3.0
    pairs = rows_each * max(sum((chosen["task"] == task).any() for _, chosen in blocks) for task in tasks)
    placed = dict.fromkeys(tasks, 0)  # pairs of panels of each task so far
    figure = PanelFigure(figsize=(width * columns, 3.7 * pairs + 0.4), layout="constrained")
    panels, drawn_values = [], DrawnValues()
    grid = figure.add_gridspec(2 * pairs, columns)
    ks = sorted(set(curves["x"]))
    styles = {
        k: line_style(theme, color, 0, MARKERS[i % len(MARKERS)]) | {"markersize": MARKER_SIZE - 0.5}
        for i, (k, color) in enumerate(zip(ks, theme.sizes(len(ks)), strict=True))
    }
    short, models = short_names(tasks), short_names(curves["model"])
    for (model, size), chosen in blocks:
        for position, task in enumerate(tasks):
            rows_of_task = chosen[chosen["task"] == task]
            if rows_of_task.empty:
                continue
            named = [
                short[task],
                f"{size_name(size)} examples",
                *([models[model]] if len(models) > 1 else []),
            ]
            top = 2 * (placed[task] * rows_each + position // columns)
            placed[task] += 1
            for row, quantity in enumerate((rows_of_task["metric"].iloc[0], "dev_loss")):
                axes = figure.add_subplot(grid[top + row, position % columns])
                points = rows_of_task[rows_of_task["quantity"] == quantity]
                points = points.rename(columns={"x": "k", "epoch": "x"})
                depth, subtitle = int(rows_of_task["depth"].iloc[0]), " · ".join(named[1:])
                panel = Panel(axes, f"{task}: {quantity}", quantity, depth, points, subtitle)
                panels.append(panel)
                label_y_axis(axes, quantity)
                _draw_epoch_lines(panel, styles, drawn_values)
                if row:
                    axes.set_xlabel("epoch")
                else:
                    axes.set_title(" · ".join(named))
    figure.panels = panels
    set_y_limits(panels, drawn_values)
    add_legend_below(figure, [Line2D([], [], **styles[k]) for k in ks], [_layers_kept(k) for k in ks])
    return figure


def _draw_epoch_lines(panel: Panel, styles: dict[float, dict[str, Any]], drawn_values: DrawnValues) -> None:
    """Draw one line per k with its interval as a band; on the page, with dodged error bars."""
    axes = panel.axes
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ks = sorted(set(panel.points["k"]))
    for index, k in enumerate(ks):
        curve = panel.points[panel.points["k"] == k].assign(curve=_layers_kept(k))
        table, color = summarize(curve, ["x"]), styles[k]["color"]
        axes.plot(table["x"], table["mean"], **styles[k])
        axes.fill_between(table["x"], table["low"], table["high"], color=color, alpha=0.16, lw=0)
        drawn_values.setdefault(panel.task, []).extend(
            zip(table["mean"], table["low"], table["high"], strict=True)
        )
        shift, room = dodge(index, len(ks), panel)
        mark = Mark("line", styles[k], shared_attributes(curve), table, curve[["x", "seed", "value"]])
        offsets = trial_offsets(curve["seed"], shift + 0.6 * room, 0.7 * room)
        panel.marks.append(replace(mark, shift=shift, offsets=offsets, band=True))


def _layers_kept(k: float) -> str:
    """Name of the curve of k in the legend of learning curves."""
    return f"{k:g} layer kept" if k == 1 else f"{k:g} layers kept"
