"""Claims T6 and T7 of Tamkin et al. 2020: how re-initialized layers are trained.

Each claim function takes finished points and the thresholds, and returns the claim with its verdict.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from whichlayers.analysis.claims.base import (
    Claim,
    ClaimTest,
    ClaimThresholds,
    evaluate_claim,
    metric_margin,
    no_increase_test,
    not_tested,
)
from whichlayers.results.frame_utils import each_group

T6 = "A higher learning rate for re-initialized layers does not help"
T7 = "Keeping the layer norms of re-initialized layers does not help"
SAME_SETTINGS = ["experiment", "model", "task", "train_size", "head", "training", "recipe"]
NO_HELP = "does not help: the mean over k gains less than the margin, one-sided"


def t6(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Incremental curves with a raised learning rate of re-initialized layers against those without."""
    column, fixed = "reinit_lr_factor", "keep_layer_norm"
    tests = _setting_tests(points, column, 1.0, fixed, lambda factor: f"{factor:g}× lr", thresholds)
    if not tests:
        return not_tested("T6", T6, 'run kind = "incremental" with reinit_lr_factor = [1.0, 5.0]')
    return evaluate_claim("T6", T6, tests, thresholds, NO_HELP)


def t7(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Incremental curves with the layer norms of re-initialized layers kept against those with them reset."""
    column, fixed = "keep_layer_norm", "reinit_lr_factor"
    tests = _setting_tests(points, column, False, fixed, lambda _: "layer norms kept", thresholds)
    if not tests:
        return not_tested("T7", T7, 'run kind = "incremental" with keep_layer_norm = [false, true]')
    return evaluate_claim("T7", T7, tests, thresholds, NO_HELP)


def _setting_tests(
    points: pd.DataFrame,
    column: str,
    default: object,
    fixed: str,
    describe: Callable[[object], str],
    thresholds: ClaimThresholds,
) -> list[ClaimTest]:
    """One test per curve and value of `column` other than `default`, with the setting `fixed` equal on both sides.

    The sample are each seed's paired differences, averaged over the k that all seeds have on both sides.
    """
    rows = points[(points["experiment"] == "incremental") & ~points["untouched"]]
    tests = []
    for _, group in each_group(rows, [*SAME_SETTINGS, fixed]):
        default_rows = group[group[column] == default]
        base = default_rows.set_index(["seed", "x"])["value"]
        for (other,), changed in each_group(group[group[column] != default], [column]):
            values = changed.set_index(["seed", "x"])["value"]
            pairs = pd.concat([values, base], axis=1, join="inner").dropna()
            if pairs.empty or pd.isna(other):
                continue
            differences = (pairs.iloc[:, 0] - pairs.iloc[:, 1]).unstack("x").dropna()  # (seeds, k)
            about = f"{_setting_label(group, rows)}: {describe(other)} against usual"
            unit, margin = str(group["metric"].iloc[0]), metric_margin(default_rows, thresholds)
            gains = differences.mean(axis=1).to_numpy()
            tests.append(no_increase_test(gains, about, unit, margin, thresholds.alpha))
    return tests


def _setting_label(rows: pd.DataFrame, all_rows: pd.DataFrame) -> str:
    """As `group_label`, with the recipe in place of the variant."""
    first = rows.iloc[0]
    parts = [str(first["task"])] + ([str(first["model"])] if all_rows["model"].nunique() > 1 else [])
    if all_rows["train_size"].nunique() > 1:
        parts.append(f"{int(first['train_size']):,} examples")
    return ", ".join(parts + ([str(first["recipe"])] if all_rows["recipe"].nunique() > 1 else []))
