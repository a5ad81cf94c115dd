"""Further figures that the results of a study allow: single trials, comparisons of settings, epochs, weight change.

Each belongs below the main figure of an experiment, and exists only if the results contain its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.analysis.claims.singh2020 import movement, scaled_movement
from whichlayers.plots.captions import CLIPPED_NOTE
from whichlayers.plots.display_names import size_name
from whichlayers.plots.extra_plots import (
    draw_comparison,
    draw_epochs,
    draw_trials,
    draw_weight_change,
    epoch_curves,
    many_trials,
)
from whichlayers.plots.figures import compares_two_variants, draw_incremental, fix_layout
from whichlayers.plots.style import LIGHT, MAX_SINGLE_TRIALS, Theme
from whichlayers.text import join_list

NORMS = ("frobenius", "spectral")
SCALED = "spectral norm, min-max scaled"  # metric name in the published data
MIN_EPOCHS = 4  # evaluated epochs needed for a learning curve


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
        weights: Weight changes, from `load_weight_change`.
        overlay: Whether to draw published curves.
    """
    found = list(_incremental(points[points["experiment"] == "incremental"], overlay))
    for experiment in ("incremental", "epochs"):
        found += _epochs(points[points["experiment"] == experiment], experiment, epochs)
    if weights is not None and not weights.empty:
        found += _weights(points, weights, overlay)
    return found


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
            yield ExtraFigure(key, "incremental", title, f"{caption} {INTERVALS}", draw)
    if _has_fractions(rows):
        caption = "The same curves, with training sizes in percent of each task's training set."
        draw = partial(_draw_fractions, rows, overlay)
        yield ExtraFigure("fractions", "incremental", "By fraction of the training set", caption, draw)


def _epochs(rows: pd.DataFrame, experiment: str, epochs: pd.DataFrame | None) -> Iterator[ExtraFigure]:
    if epochs is None or rows.empty:
        return
    each = epochs.groupby("trial_id")["epoch"].nunique()
    whole = each.index[each >= MIN_EPOCHS]  # trials evaluated only at the end have no curve
    rows = rows[rows["trial_id"].isin(whole)]
    if not rows.empty:
        curves = epoch_curves(rows, epochs)
        caption = (
            "Scores after every epoch: the metric (top) and the evaluation loss (bottom), with none, half and all of "
            f"the layers pretrained. {INTERVALS}"
        )
        key = "epochs" if experiment == "incremental" else "every_epoch"
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
    yield ExtraFigure("weight_change", section, "Weight change", f"{caption} {measure} {INTERVALS}", draw)
    scaled = scaled_movement(by_spectral)
    if (weights["kind"] == "spectral").any() and not scaled.empty:
        caption = (
            f"Same as above, with the spectral norm {measure} The curve of each trial is scaled from 0 (the layer that "
            "changed least) to 1 (the layer that changed most), as in Singh & Giovanardi 2020."
        )
        draw = partial(draw_weight_change, scaled, metric=SCALED, overlay=overlay)
        caption = f"{caption} {INTERVALS} {CLIPPED_NOTE}"
        yield ExtraFigure("weight_change_scaled", section, "Weight change, scaled", caption, draw)


def _add_depth_and_rows(moved: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    depths = points.drop_duplicates("model").set_index("model")["depth"]
    rows = points.drop_duplicates("task").set_index("task")["train_rows"]
    return moved.assign(depth=moved["model"].map(depths), train_rows=moved["task"].map(rows))


def _draw_fractions(rows: pd.DataFrame, overlay: bool, theme: Theme) -> Figure:
    return draw_incremental(rows, "incremental", theme, None, overlay, as_percent=True)


def _has_fractions(rows: pd.DataFrame) -> bool:
    """Whether the study has fractions of training sets of different sizes; with one size, counts are enough."""
    whole = rows[rows["train_size"] == rows["train_rows"]]
    shared = rows[rows["task"].isin(whole["task"])]
    return bool(shared["train_rows"].nunique() > 1 and (shared["train_size"] < shared["train_rows"]).any())
