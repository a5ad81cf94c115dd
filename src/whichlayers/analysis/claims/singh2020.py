"""S1 and S2: upper layers' weights move more than lower ones', and more data moves them more."""

from __future__ import annotations

import numpy as np
import pandas as pd

from whichlayers.analysis.claims.base import Claim, Limits, Test, judge, not_asked, p_less, undecidable
from whichlayers.analysis.claims.tamkin2020_data_size import FEW
from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.intervals import t_interval
from whichlayers.analysis.power import trials_for_mean

S1 = "Finetuning moves the weights of upper layers more than those of lower ones"
S2 = "Finetuning on more data moves the weights more"
RUN = 'run kind = "incremental" with k = depth among its values, 3 trials or more'
SMALLEST = np.log(1.05)  # a ratio of less than 5% hardly counts
REMARK = "log of the ratio of the mean distances; less than 5% (0.049) hardly counts"


def movement(points: pd.DataFrame, weights: pd.DataFrame, norm: str = "frobenius") -> pd.DataFrame:
    """model, task, train_size, seed, layer, value: of whole pretrained models, the mean over a layer's matrices.

    The matrices are the output sublayers', as in Singh & Giovanardi, where the model has such names; the norm is
    the one asked for where it was measured.
    """
    if weights.empty:
        return pd.DataFrame(columns=["model", "task", "train_size", "seed", "layer", "value"])
    kinds = [str(kind) for kind in dict.fromkeys(weights["kind"])]
    kind = next((k for k in kinds if k.startswith(norm)), kinds[0])
    chosen = weights[(weights["kind"] == kind) & (weights["layer"] >= 1)]
    outputs = chosen["name"].str.contains(r"output\.dense\.weight$") & ~chosen["name"].str.contains(
        "attention"
    )
    chosen = chosen[outputs] if outputs.any() else chosen
    whole = points[points["untouched"] & (points["order"].map(len) == 0)].drop_duplicates("trial_id")
    columns = ["model", "task", "train_size", "seed"]
    both = whole[["trial_id", *columns]].merge(chosen, on="trial_id")  # in the order of the study
    return both.groupby([*columns, "layer"], sort=False)["value"].mean().reset_index()


def scaled_movement(moved: pd.DataFrame) -> pd.DataFrame:
    """Each trial's curve from 0 at the layer that moved least to 1 at the one that moved most, as Singh &
    Giovanardi draw it; trials whose layers all moved alike are left out."""
    each = moved.groupby(["model", "task", "train_size", "seed"])["value"]
    least, most = each.transform("min"), each.transform("max")
    return moved.assign(value=(moved["value"] - least) / (most - least))[most > least]


def s1(points: pd.DataFrame, weights: pd.DataFrame, limits: Limits) -> Claim:
    moved = movement(points, weights)
    tests = []
    for (model, task, size), rows in each_group(moved, ["model", "task", "train_size"]):
        table = rows.pivot(index="seed", columns="layer", values="value")
        half = table.shape[1] // 2
        upper, lower = table.iloc[:, -half:].mean(axis=1), table.iloc[:, :half].mean(axis=1)
        name = _name(moved, model, task) + f", {int(size):,} examples"
        tests.append(_ratio((upper / lower).to_numpy(), f"{name}: upper over lower half", limits))
    if not tests:
        return not_asked("S1", S1, RUN)
    return judge("S1", S1, tests, limits, REMARK)


def s2(points: pd.DataFrame, weights: pd.DataFrame, limits: Limits) -> Claim:
    moved = movement(points, weights)
    tests = []
    for (model, task), rows in each_group(moved, ["model", "task"]):
        table = rows.pivot_table(index="seed", columns="train_size", values="value")
        if table.shape[1] < 2:
            continue
        few, many = table.columns.min(), table.columns.max()
        both = table[[few, many]].dropna()
        about = f"{_name(moved, model, task)}: {many:,} over {few:,} examples"
        tests.append(_ratio((both[many] / both[few]).to_numpy(), about, limits))
    if not tests:
        return not_asked("S2", S2, RUN + ", at two train_sizes or more")
    return judge("S2", S2, tests, limits, REMARK)


def _ratio(ratios: np.ndarray, about: str, limits: Limits) -> Test:
    values = np.log(ratios.astype(float))
    if values.size < 2:
        return undecidable(about, "log ratio", values.size, FEW)
    i = t_interval(values)
    error, df = i.sd / np.sqrt(i.n), i.n - 1
    p = min(1.0, 2 * p_less(-i.mean, error, df, 0.0))
    against = p_less(i.mean, error, df, float(SMALLEST))
    needed = trials_for_mean(i.mean, i.sd, limits.alpha) if i.mean > 0 else None
    return Test(about, "log ratio", i.mean, i.low, i.high, p, against, i.n, needed)


def _name(moved: pd.DataFrame, model: str, task: str) -> str:
    return f"{task}, {model}" if moved["model"].nunique() > 1 else str(task)
