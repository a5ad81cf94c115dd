"""Claims about how to finetune: Zhang et al. 2021 (Z1 to Z3), Lee et al. 2019 (L1), Sajjad et al. 2023 (P1).

Each claim function takes finished points and the thresholds, and returns the claim with its verdict, or None if the
study has no data for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from whichlayers.analysis.claims.base import (
    Claim,
    ClaimTest,
    ClaimThresholds,
    evaluate_claim,
    group_label,
    increase_test,
    metric_margin,
    no_decrease_test,
    with_subject,
)
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import training_settings
from whichlayers.trial import ALL_PRETRAINED

Z1 = "Re-initializing the pooler and the highest layers raises the score (mean over 1 to 6 layers)"
Z2 = "Adam's bias correction raises the score"
Z3 = "Finetuning for more epochs raises the score"
L1 = "Finetuning the last fourth of the layers reaches at least 90% of the score of finetuning all of them"
P1 = "Without the highest layers, up to 40% of them, a model keeps at least 98% of its score"
MAX_REINITIALIZED = 6  # layers, of Z1
KEPT_BY_FOURTH, KEPT_BY_PRUNING, MAX_DROPPED = 0.9, 0.98, 0.4
CURVE = ["model", "task", "train_size"]


def finetuning_claims(points: pd.DataFrame, thresholds: ClaimThresholds) -> list[Claim]:
    """Those of the claims that the study has data for."""
    claims = [claim(points, thresholds) for claim in (z1, z2, z3, l1, p1)]
    return [claim for claim in claims if claim is not None]


def z1(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim | None:
    """Mean over the re-initialized models minus the pretrained model, per trial."""
    rows = points[(points["experiment"] == "incremental") & points["reinit_pooler"].astype(bool)]

    def values(curve: pd.DataFrame) -> pd.Series:
        table = _by_seed(curve, "x")
        depth = int(curve["depth"].iloc[0])
        changed = [k for k in _columns(table) if 0 < depth - k <= MAX_REINITIALIZED]
        return (
            table[changed].mean(axis=1, skipna=False) - table[depth]
            if changed and depth in table
            else _no_values()
        )

    return _claim("Z1", Z1, rows, [*CURVE, "variant"], values, thresholds)


def z2(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim | None:
    """With minus without bias correction, for the pretrained model with otherwise equal settings, per trial."""
    rows = _pretrained_incremental(points)
    if rows.empty:
        return None
    settings = training_settings(rows)
    corrected = settings["bias_correction"].ne(False) if "bias_correction" in settings else True
    others = settings.drop(columns="bias_correction", errors="ignore").map(str).agg(" ".join, axis=1)
    return _two_settings("Z2", Z2, rows.assign(setting=corrected, others=others), thresholds)


def z3(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim | None:
    """Most minus fewest epochs, for the pretrained model with otherwise equal settings, per trial."""
    rows = _pretrained_incremental(points)
    if rows.empty:
        return None
    settings = training_settings(rows)
    others = settings.drop(columns="epochs").map(str).agg(" ".join, axis=1)
    return _two_settings("Z3", Z3, rows.assign(setting=settings["epochs"], others=others), thresholds)


def l1(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim | None:
    """Score with three fourths of the layers frozen minus 90% of the score of the model with none frozen, per trial."""
    rows = points[points["experiment"] == "freeze"]

    def values(curve: pd.DataFrame) -> pd.Series:
        frozen = curve[curve["condition"].isin(["top", ALL_PRETRAINED])]  # x of both is 0 if none is
        table = _by_seed(frozen, "x")
        depth = int(curve["depth"].iloc[0])
        kept = depth - round(depth / 4)
        return table[kept] - KEPT_BY_FOURTH * table[0] if {0, kept} <= set(table) else _no_values()

    return _claim("L1", L1, rows, [*CURVE, "variant"], values, thresholds, is_threshold=True)


def p1(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim | None:
    """Score with the most layers dropped, up to 40%, minus 98% of the score of the whole model, per trial."""
    rows = points[points["experiment"] == "prune"]

    def values(curve: pd.DataFrame) -> pd.Series:
        table = _by_seed(curve[curve["condition"] == "top"], "x")
        whole = curve[curve["condition"] == ALL_PRETRAINED].set_index("seed")["value"]
        dropped = [x for x in _columns(table) if x <= MAX_DROPPED * curve["depth"].iloc[0]]
        return table[max(dropped)] - KEPT_BY_PRUNING * whole if dropped else _no_values()

    return _claim("P1", P1, rows, [*CURVE, "variant"], values, thresholds, is_threshold=True)


def _two_settings(id: str, text: str, rows: pd.DataFrame, thresholds: ClaimThresholds) -> Claim | None:
    """The largest minus the smallest value of the column `setting`, where `others` are equal."""

    def values(curve: pd.DataFrame) -> pd.Series:
        table = _by_seed(curve, "setting")
        found = _columns(table)
        return table[max(found)] - table[min(found)] if len(found) > 1 else _no_values()

    return _claim(id, text, rows, [*CURVE, "others"], values, thresholds)


def _claim(
    id: str,
    text: str,
    rows: pd.DataFrame,
    groups: Sequence[str],
    values: Callable[[pd.DataFrame], pd.Series],
    thresholds: ClaimThresholds,
    is_threshold: bool = False,
) -> Claim | None:
    """The claim that `values`, one number per seed for the rows of each group, are positive; None without values.

    `is_threshold`: the values are distances from a fraction of the score that the paper names. They are tested to be
    above or below zero, one-sided and without a margin, which would be added to the paper's own.
    """
    tests = list[ClaimTest]()
    for _, curve in each_group(rows, list(groups)):
        found = values(curve).dropna().to_numpy(dtype=float)
        if found.size:
            label, unit = group_label(curve, rows), str(curve["metric"].iloc[0])
            if is_threshold:
                test = no_decrease_test(np.asarray(found), label, unit, 0.0, thresholds.alpha)
            else:
                test = increase_test(np.asarray(found), label, unit, metric_margin(curve, thresholds))
            tests += with_subject([test], curve)
    return evaluate_claim(id, text, tests, thresholds) if tests else None


def _pretrained_incremental(points: pd.DataFrame) -> pd.DataFrame:
    """The models of the incremental experiment with all layers pretrained."""
    return points[(points["experiment"] == "incremental") & (points["x"] == points["depth"])]


def _by_seed(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Values with a row per seed and a column for each value of `column`."""
    return rows.pivot_table(index="seed", columns=column, values="value")


def _columns(table: pd.DataFrame) -> list[Any]:
    return list(table.columns)


def _no_values() -> pd.Series:
    return pd.Series(dtype=float)
