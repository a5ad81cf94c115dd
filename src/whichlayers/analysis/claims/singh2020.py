"""Claims S1 and S2 of Singh & Giovanardi 2020, on how far finetuning moves the weights of each layer.

Each claim function takes finished points, weight changes and the thresholds, and returns the claim with its verdict.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from whichlayers.analysis.claims.base import (
    TOO_FEW_TRIALS,
    Claim,
    ClaimTest,
    ClaimThresholds,
    evaluate_claim,
    not_tested,
    undecided_test,
)
from whichlayers.analysis.intervals import mean_p_above, mean_p_below, t_interval, two_sided
from whichlayers.analysis.power import mean_power
from whichlayers.results.frame_utils import each_group

S1 = "Finetuning moves the weights of upper layers more than those of lower ones"
S2 = "Finetuning on more data moves the weights more"
HOW_TO_TEST = 'run kind = "incremental" with k = depth among its values, 3 trials or more'
LOG_RATIO_MARGIN = np.log(1.05)  # a ratio below 1.05 does not matter
REMARK = "log of the ratio of the mean distances; less than 5% (0.049) does not matter"


def movement(points: pd.DataFrame, weights: pd.DataFrame, norm: str = "frobenius") -> pd.DataFrame:
    """How far finetuning moved each layer of models that were finetuned as pretrained.

    Args:
        points: Finished points.
        weights: Columns trial_id, name (of the weight matrix), layer, kind (of norm), value.
        norm: The kind to use, if it was measured; the first that was measured otherwise.

    Returns:
        model, task, train_size, seed, layer, value: the mean norm over a layer's matrices. These are the output
        matrices of the feed-forward networks, as in Singh & Giovanardi, if the model has matrices of that name, and
        all matrices otherwise.
    """
    if weights.empty:
        return pd.DataFrame(columns=["model", "task", "train_size", "seed", "layer", "value"])
    kinds = [str(kind) for kind in dict.fromkeys(weights["kind"])]
    kind = next((k for k in kinds if k.startswith(norm)), kinds[0])
    chosen = weights[(weights["kind"] == kind) & (weights["layer"] >= 1)]
    names = chosen["name"]
    is_output = names.str.contains(r"output\.dense\.weight$") & ~names.str.contains("attention")
    chosen = chosen[is_output] if is_output.any() else chosen
    as_pretrained = points[points["untouched"] & (points["order"].map(len) == 0)].drop_duplicates("trial_id")
    columns = ["model", "task", "train_size", "seed"]
    both = as_pretrained[["trial_id", *columns]].merge(chosen, on="trial_id")  # in the order of the study
    return both.groupby([*columns, "layer"], sort=False)["value"].mean().reset_index()


def scaled_movement(moved: pd.DataFrame) -> pd.DataFrame:
    """`movement` with each trial scaled to 0 at the layer that moved least and 1 at the one that moved most.

    As in the figures of Singh & Giovanardi. Trials whose layers all moved equally far are left out.
    """
    by_trial = moved.groupby(["model", "task", "train_size", "seed"])["value"]
    least, most = by_trial.transform("min"), by_trial.transform("max")
    return moved.assign(value=(moved["value"] - least) / (most - least))[most > least]


def s1(points: pd.DataFrame, weights: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Ratio of the mean movement of the upper half of the layers to that of the lower half, per trial."""
    moved = movement(points, weights)
    tests = []
    for (model, task, size), rows in each_group(moved, ["model", "task", "train_size"]):
        table = rows.pivot(index="seed", columns="layer", values="value")
        half = table.shape[1] // 2
        upper, lower = table.iloc[:, -half:].mean(axis=1), table.iloc[:, :half].mean(axis=1)
        about = f"{_label(moved, model, task)}, {int(size):,} examples: upper over lower half"
        tests.append(_ratio_test((upper / lower).to_numpy(), about))
    if not tests:
        return not_tested("S1", S1, HOW_TO_TEST)
    return evaluate_claim("S1", S1, tests, thresholds, REMARK)


def s2(points: pd.DataFrame, weights: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Ratio of the mean movement at the largest training size to that at the smallest, paired by seed."""
    moved = movement(points, weights)
    tests = []
    for (model, task), rows in each_group(moved, ["model", "task"]):
        table = rows.pivot_table(index="seed", columns="train_size", values="value")
        if table.shape[1] < 2:
            continue
        few, many = table.columns.min(), table.columns.max()
        both = table[[few, many]].dropna()
        about = f"{_label(moved, model, task)}: {many:,} over {few:,} examples"
        tests.append(_ratio_test((both[many] / both[few]).to_numpy(), about))
    if not tests:
        return not_tested("S2", S2, HOW_TO_TEST + ", at two train_sizes or more")
    return evaluate_claim("S2", S2, tests, thresholds, REMARK)


def _ratio_test(ratios: np.ndarray, about: str) -> ClaimTest:
    """One-sample t test on log(`ratios`) (n,).

    For: the mean is above 0 (two-sided p). Against: it is below `LOG_RATIO_MARGIN` (one-sided).
    """
    values = np.log(ratios.astype(float))
    if values.size < 2:
        return undecided_test(about, "log ratio", values.size, TOO_FEW_TRIALS)
    i, margin = t_interval(values), float(LOG_RATIO_MARGIN)
    p = two_sided(mean_p_above(i, 0.0))
    power = mean_power(i.mean, i.sd) if i.mean > 0 else None
    return ClaimTest(
        *(about, "log ratio", i.mean, i.low, i.high, p, mean_p_below(i, margin), i.n),
        margin=margin,
        power=power,
    )


def _label(moved: pd.DataFrame, model: str, task: str) -> str:
    return f"{task}, {model}" if moved["model"].nunique() > 1 else str(task)
