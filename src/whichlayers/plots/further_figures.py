"""The further figures that a study's results allow: those of the papers' appendices, and comparisons of settings.

Each `Plate` belongs below an experiment's own figure and is there only where its data are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.analysis.claims.singh2020 import movement, scaled_movement
from whichlayers.plots.captions import CUT_OFF
from whichlayers.plots.display_names import listing, size_name
from whichlayers.plots.figures import draw_incremental, laid_out, side_by_side
from whichlayers.plots.further_plots import (
    draw_comparison,
    draw_epochs,
    draw_trials,
    draw_weight_change,
    epoch_curves,
    many_trials,
)
from whichlayers.plots.style import FEW, LIGHT, Theme

NORMS = ("frobenius", "spectral")
SCALED = "spectral norm, min-max scaled"  # as it is called in the published numbers
LEAST_EPOCHS = 4  # fewer make no curve


@dataclass(frozen=True)
class Plate:
    key: str  # of its files
    experiment: str  # the section it stands in
    title: str
    caption: str
    paint: Callable[[Theme], Figure]

    def draw(self, theme: Theme = LIGHT) -> Figure:
        with theme.applied():
            return laid_out(self.paint(theme))


COMPARED = {
    "recipe": ("recipes", "Ways of re-initialising", "The same layers drawn anew by each recipe."),
    "reinit_lr_factor": (
        "higher_lr",
        "Learning rate of re-initialised layers",
        "The re-initialised layers learn at another rate than the others, or at the same.",
    ),
    "keep_layer_norm": (
        "layer_norm",
        "Layer norms of re-initialised layers",
        "The layer norms of re-initialised layers keep their pretrained values, or are reset.",
    ),
}
INTERVALS = "Means with 95% t intervals; trials of one seed share examples, order and head."


def plates(
    points: pd.DataFrame,
    epochs: pd.DataFrame | None = None,
    weights: pd.DataFrame | None = None,
    overlay: bool = False,
) -> list[Plate]:
    """From finished points, `load_epochs` and `load_weight_change`."""
    found = list(_incremental(points[points["experiment"] == "incremental"], overlay))
    for experiment in ("incremental", "epochs"):
        found += _epochs(points[points["experiment"] == experiment], experiment, epochs)
    if weights is not None and not weights.empty:
        found += _weights(points, weights, overlay)
    return found


def _incremental(rows: pd.DataFrame, overlay: bool) -> Iterator[Plate]:
    if rows.empty:
        return
    if not many_trials(rows).empty:
        sizes = sorted(set(many_trials(rows)["train_size"]))
        named = f"{listing(size_name(size) for size in sizes)} examples"
        told = (
            f"Of the trials with {named}, which are more than {FEW} a point: a point each, moved sideways at random "
            "so that all can be seen; the dotted line is their mean."
        )
        yield Plate("trials", "incremental", f"Every trial, {named}", told, partial(draw_trials, rows))
    for column, (key, title, told) in COMPARED.items():
        if rows.loc[~rows["untouched"], column].nunique() > 1 and not side_by_side(rows):
            paint = partial(draw_comparison, rows, column)
            yield Plate(key, "incremental", title, f"{told} {INTERVALS}", paint)
    if _in_shares(rows):
        told = "The same curves by the share of its training set that a task was given."
        paint = partial(_draw_shares, rows, overlay)
        yield Plate("fractions", "incremental", "By share of the training set", told, paint)


def _epochs(rows: pd.DataFrame, experiment: str, epochs: pd.DataFrame | None) -> Iterator[Plate]:
    if epochs is None or rows.empty:
        return
    each = epochs.groupby("trial_id")["epoch"].nunique()
    whole = each.index[each >= LEAST_EPOCHS]  # a trial that was evaluated at its end alone has no curve
    rows = rows[rows["trial_id"].isin(whole)]
    if not rows.empty:
        curves = epoch_curves(rows, epochs)
        told = (
            "After every epoch: the metric above, the loss on the evaluation set below, with no, half and all of "
            f"the layers pretrained. {INTERVALS}"
        )
        key = "epochs" if experiment == "incremental" else "every_epoch"
        yield Plate(key, experiment, "Epoch by epoch", told, partial(draw_epochs, curves))


def _weights(points: pd.DataFrame, weights: pd.DataFrame, overlay: bool) -> Iterator[Plate]:
    """The change as it is, and with every curve scaled from 0 to 1, as Singh & Giovanardi draw it (Figure 3)."""
    moved, by_spectral = (_with_facts(movement(points, weights, norm), points) for norm in NORMS)
    if moved.empty:
        return
    of = (
        "of the change of a matrix, averaged over the layer's matrices. These are the output matrices of its "
        "feed-forward part where the model has such names, else all of its matrices."
    )
    weighed = points[points["trial_id"].isin(weights["trial_id"])]["experiment"]
    home = "incremental" if (weighed == "incremental").any() else str(weighed.iloc[0])
    told = "How far finetuning moved each layer, all layers being pretrained: the Frobenius norm"
    paint = partial(draw_weight_change, moved)
    yield Plate("weight_change", home, "Weight change", f"{told} {of} {INTERVALS}", paint)
    scaled = scaled_movement(by_spectral)
    if (weights["kind"] == "spectral").any() and not scaled.empty:
        told = (
            f"The same by the spectral norm {of} Each trial's curve is scaled from 0, the layer that moved least, to "
            "1, the one that moved most, as Singh & Giovanardi draw it."
        )
        paint = partial(draw_weight_change, scaled, metric=SCALED, overlay=overlay)
        yield Plate(
            "weight_change_scaled", home, "Weight change, scaled", f"{told} {INTERVALS} {CUT_OFF}", paint
        )


def _with_facts(moved: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    depths = points.drop_duplicates("model").set_index("model")["depth"]
    rows = points.drop_duplicates("task").set_index("task")["train_rows"]
    return moved.assign(depth=moved["model"].map(depths), train_rows=moved["task"].map(rows))


def _draw_shares(rows: pd.DataFrame, overlay: bool, theme: Theme) -> Figure:
    return draw_incremental(rows, "incremental", theme, None, overlay, shares=True)


def _in_shares(rows: pd.DataFrame) -> bool:
    """Whether the study asked for shares of training sets of several sizes: of one, counts say the same."""
    whole = rows[rows["train_size"] == rows["train_rows"]]
    shared = rows[rows["task"].isin(whole["task"])]
    return bool(shared["train_rows"].nunique() > 1 and (shared["train_size"] < shared["train_rows"]).any())
