"""Claims of Singh & Giovanardi 2020: how far finetuning moves weights (S1, S2), little data (S3), probing (S4).

Each claim function takes finished points, weight changes (S1 and S2) and the thresholds, and returns the claim with
its verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd

from whichlayers.analysis.claims.base import (
    ONE_CURVE,
    TOO_FEW_TRIALS,
    Claim,
    ClaimTest,
    ClaimThresholds,
    below_zero_test,
    decrease_test,
    evaluate_claim,
    group_label,
    is_task,
    metric_margin,
    not_tested,
    rows_with_default_settings,
    undecided_test,
    with_subject,
)
from whichlayers.analysis.guessing import PARTLY_TRAINED
from whichlayers.analysis.intervals import mean_p_above, mean_p_below, t_interval, two_sided, welch_difference
from whichlayers.analysis.power import mean_power
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.results.frames import setting_label, training_settings
from whichlayers.text import short_names
from whichlayers.trial import ALL_PRETRAINED

S1 = "Finetuning moves the weights of upper layers more than those of lower ones"
S2 = "Finetuning on more data moves the weights more"
S3 = (
    "On SST-2 and QNLI, a pretrained model finetuned on few examples scores higher than one without pretrained layers "
    "trained on 10 to 100 times as many"
)
S4 = "On SST-2 and QNLI, probes of the two highest layers score lower than those of the layer below them"
TASKS = ("SST-2", "QNLI")  # of S3 and S4
MORE_DATA = (10, 100)  # times as many examples, from ... to
# models that were finetuned in the same way, on as many examples of the same data
SETTING = ["model", "task", "train_size", "head", "training"]
HOW_TO_TEST = 'run kind = "incremental" with k = depth among its values, 3 trials or more'
LOG_RATIO_MARGIN = np.log(1.05)  # a ratio below 1.05 does not matter
REMARK = "log of the ratio of the mean distances; less than 5% (0.049) does not matter"


def movement(points: pd.DataFrame, weights: pd.DataFrame, norm: str = "frobenius") -> pd.DataFrame:
    """How far finetuning moved each layer of pretrained models of which all parameters were trained at one rate.

    Frozen layers do not move and adapters leave the layers as they are, so such trials are left out.

    Args:
        points: Finished points.
        weights: Columns trial_id, name (of the weight matrix), layer, kind (of norm), value.
        norm: The kind to use, if it was measured; the first that was measured otherwise.

    Returns:
        The columns in `SETTING`, variant (the settings that differ between trials of one model, task and size, empty
        if none do), seed, layer, value: the mean norm over a layer's matrices. These are the output matrices of the
        feed-forward networks, as in Singh & Giovanardi, if the model has matrices of that name, and all matrices
        otherwise.
    """
    columns = [*SETTING, "variant", "seed"]
    if weights.empty:
        return pd.DataFrame(columns=[*columns, "layer", "value"])
    kinds = [str(kind) for kind in dict.fromkeys(weights["kind"])]
    kind = next((k for k in kinds if k.startswith(norm)), kinds[0])
    chosen = weights[(weights["kind"] == kind) & (weights["layer"] >= 1)]
    names = chosen["name"]
    is_output = names.str.contains(r"output\.dense\.weight$") & ~names.str.contains("attention")
    chosen = chosen[is_output] if is_output.any() else chosen
    partly = points["experiment"].isin(PARTLY_TRAINED) & (points["condition"] != ALL_PRETRAINED)
    in_full = points["untouched"] & (points["order"].map(len) == 0) & ~partly
    trials = points[in_full & points["trial_id"].isin(chosen["trial_id"])].drop_duplicates("trial_id")
    trials = trials.assign(variant=_settings_that_differ(trials))
    both = trials[["trial_id", *columns]].merge(chosen, on="trial_id")  # in the order of the study
    return both.groupby([*columns, "layer"], sort=False)["value"].mean().reset_index()


def _settings_that_differ(trials: pd.DataFrame) -> list[str]:
    """Of each trial, the head and training settings that differ between trials of one model, task and size."""
    settings = pd.concat([trials[["head"]], training_settings(trials)], axis=1)
    groups = [trials[name] for name in ("model", "task", "train_size")]
    varying = [str(c) for c in settings if (settings[c].groupby(groups).nunique(dropna=False) > 1).any()]
    return [
        ", ".join(setting_label(name, value) for name, value in zip(varying, row, strict=True))
        for row in each_row(settings[varying])
    ]


def scaled_movement(moved: pd.DataFrame) -> pd.DataFrame:
    """`movement` with each trial scaled to 0 at the layer that moved least and 1 at the one that moved most.

    As in the figures of Singh & Giovanardi. Trials whose layers all moved equally far are left out.
    """
    by_trial = moved.groupby([name for name in (*SETTING, "seed") if name in moved])["value"]
    least, most = by_trial.transform("min"), by_trial.transform("max")
    return moved.assign(value=(moved["value"] - least) / (most - least))[most > least]


def s1(points: pd.DataFrame, weights: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Ratio of the mean movement of the upper half of the layers to that of the lower half, per trial."""
    moved = movement(points, weights)
    tests: list[ClaimTest] = []
    for (model, task, size, *_), rows in each_group(moved, SETTING):
        if not is_s1_task(task):
            continue
        table = rows.pivot(index="seed", columns="layer", values="value")
        half = table.shape[1] // 2
        upper, lower = table.iloc[:, -half:].mean(axis=1), table.iloc[:, :half].mean(axis=1)
        variant = f", {rows['variant'].iloc[0]}" if rows["variant"].iloc[0] else ""
        about = f"{_label(moved, model, task)}, {int(size):,} examples{variant}: upper over lower half"
        tests += with_subject([ratio_test((upper / lower).to_numpy(), about)], rows)
    if not tests:
        return not_tested("S1", S1, HOW_TO_TEST + ", on a task other than CoLA")
    return evaluate_claim("S1", S1, tests, thresholds, REMARK)


def is_s1_task(task: object) -> bool:
    """Whether S1 is about this task: the paper excepts CoLA, where it finds a noisy pattern (appendix B)."""
    return not is_task(task, "CoLA")


def s2(points: pd.DataFrame, weights: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Ratio of the mean movement at the largest training size to that at the smallest, paired by seed.

    Head and training settings are the same at both sizes, except for the epochs if no number of epochs was run at both.
    """
    moved = movement(points, weights)
    tests: list[ClaimTest] = []
    for (model, task), of_task in each_group(moved, ["model", "task"]):
        for variant, few, many in _pairs_of_sizes(of_task):
            sizes = f"{int(many['train_size'].iloc[0]):,} over {int(few['train_size'].iloc[0]):,} examples"
            label = f"{_label(moved, model, task)}{f', {variant}' if variant else ''}"
            both = pd.concat([rows.groupby("seed")["value"].mean() for rows in (many, few)], axis=1).dropna()
            ratios = (both.iloc[:, 0] / both.iloc[:, 1]).to_numpy()
            tests += with_subject([ratio_test(ratios, f"{label}: {sizes}")], of_task)
    if not tests:
        return not_tested("S2", S2, HOW_TO_TEST + ", at two train_sizes or more")
    return evaluate_claim("S2", S2, tests, thresholds, REMARK)


def _pairs_of_sizes(moved: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Label, rows of the smallest and rows of the largest training size, for each way that models were finetuned in."""
    settings = [json.loads(text) for text in moved["training"]]
    rows = moved.assign(
        epochs=[one.get("epochs") for one in settings],
        others=[json.dumps({**one, "epochs": None}, sort_keys=True) for one in settings],
    )
    several = rows.groupby(["head", "others"]).ngroups > 1
    for _, group in each_group(rows, ["head", "others"]):
        few, many = (
            group[group["train_size"] == size]
            for size in (min(group["train_size"]), max(group["train_size"]))
        )
        if few["train_size"].iloc[0] == many["train_size"].iloc[0]:
            continue
        shared = sorted(set(few["epochs"]) & set(many["epochs"]))
        for epochs in shared or [None]:
            pair = [
                one[one["epochs"] == (one["epochs"].min() if epochs is None else epochs)]
                for one in (few, many)
            ]
            label = pair[0]["variant"].iloc[0] if several else f"epochs {epochs}" if len(shared) > 1 else ""
            yield label, pair[0], pair[1]


def ratio_test(ratios: np.ndarray, about: str) -> ClaimTest:
    """One-sample t test on log(`ratios`) (n,).

    For: the mean is above 0 (two-sided p). Against: it is below `LOG_RATIO_MARGIN` (one-sided).
    """
    values = np.log(ratios.astype(float))
    if values.size < 2:
        return undecided_test(about, "log ratio", values.size, TOO_FEW_TRIALS)
    i, margin = t_interval(values), float(LOG_RATIO_MARGIN)
    p = two_sided(mean_p_above(i, 0.0))
    power = mean_power(i.mean, i.sd, margin=margin) if i.mean > 0 else None
    return ClaimTest(
        *(about, "log ratio", i.mean, i.low, i.high, p, mean_p_below(i, margin), i.n),
        margin=margin,
        power=power,
    )


def _label(moved: pd.DataFrame, model: str, task: str) -> str:
    models = short_names(moved["model"])
    return f"{task}, {models[model]}" if len(models) > 1 else str(task)


def s3(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Score at k = 0 with 10 to 100 times the data minus the score of the pretrained model at the smallest size."""
    rows = rows_with_default_settings(points, "incremental")
    rows = rows[rows["task"].map(lambda task: is_task(task, *TASKS)).astype(bool)]
    tests: list[ClaimTest] = []
    for _, curve in each_group(rows, [name for name in ONE_CURVE if name != "train_size"]):
        few, depth = curve["train_size"].min(), curve["depth"].iloc[0]
        pretrained = curve[(curve["x"] == depth) & (curve["train_size"] == few)]
        margin = metric_margin(curve, thresholds)
        for (size,), scratch in each_group(curve[curve["x"] == 0], ["train_size"]):
            # 1% of the examples is a rounded number
            if MORE_DATA[0] * few <= size < MORE_DATA[1] * (few + 1) and not pretrained.empty:
                compared = f"{size:,} examples without pretrained layers against {few:,} with all"
                about = f"{group_label(curve, rows)}: {compared}"
                tests += with_subject([_scratch_test(scratch, pretrained, about, margin)], curve)
    if not tests:
        how = 'run kind = "incremental" with k = 0 and k = depth on SST-2 or QNLI, one size 10 to 100 times the other'
        return not_tested("S3", S3, how)
    return evaluate_claim("S3", S3, tests, thresholds)


def _scratch_test(scratch: pd.DataFrame, pretrained: pd.DataFrame, about: str, margin: float) -> ClaimTest:
    """For: the model without pretrained layers scores lower (Welch's t test: the training sets differ)."""
    unit, n = str(scratch["metric"].iloc[0]), min(len(scratch), len(pretrained))
    d = welch_difference(scratch["value"].to_numpy(), pretrained["value"].to_numpy())
    return (
        undecided_test(about, unit, n, TOO_FEW_TRIALS)
        if d is None
        else below_zero_test(d, about, unit, n, margin)
    )


def s4(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Mean score of probes of the two highest layers minus that of the layer below them, paired by seed."""
    rows = points[points["experiment"] == "probing"]
    rows = rows[rows["task"].map(lambda task: is_task(task, *TASKS)).astype(bool)]
    tests: list[ClaimTest] = []
    for _, curve in each_group(rows, ONE_CURVE):
        table, depth = (
            curve.pivot_table(index="seed", columns="x", values="value"),
            int(curve["depth"].iloc[0]),
        )
        if depth >= 3 and {depth - 2, depth - 1, depth} <= set(table.columns):
            differences = (table[[depth - 1, depth]].mean(axis=1, skipna=False) - table[depth - 2]).dropna()
            about = f"{group_label(curve, rows)}: layers {depth - 1} and {depth} against {depth - 2}"
            unit, margin = str(curve["metric"].iloc[0]), metric_margin(curve, thresholds)
            tests += with_subject([decrease_test(differences.to_numpy(), about, unit, margin)], curve)
    if not tests:
        return not_tested(
            "S4", S4, 'run kind = "probing" with layers = "all" on SST-2 or QNLI, 3 trials or more'
        )
    return evaluate_claim("S4", S4, tests, thresholds)
