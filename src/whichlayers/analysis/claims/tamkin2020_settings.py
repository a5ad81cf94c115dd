"""T6 and T7: a higher learning rate for re-initialised layers, or their layer norms kept, does not help."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from whichlayers.analysis.claims.base import Claim, Limits, Test, judge, not_asked, undecidable
from whichlayers.analysis.claims.tamkin2020_data_size import FEW
from whichlayers.analysis.equivalence import below_margin
from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.power import trials_for_mean

T6 = "A higher learning rate for re-initialised layers does not help"
T7 = "Keeping the layer norms of re-initialised layers does not help"
SAME = ["experiment", "model", "task", "train_size", "head", "training", "recipe"]


def t6(points: pd.DataFrame, limits: Limits) -> Claim:
    tests = _tests(points, "reinit_lr_factor", 1.0, "keep_layer_norm", lambda f: f"{f:g}× lr", limits)
    if not tests:
        return not_asked("T6", T6, 'run kind = "incremental" with reinit_lr_factor = [1.0, 5.0]')
    return judge("T6", T6, tests, limits, _margin(limits))


def t7(points: pd.DataFrame, limits: Limits) -> Claim:
    tests = _tests(points, "keep_layer_norm", False, "reinit_lr_factor", lambda _: "layer norms kept", limits)
    if not tests:
        return not_asked("T7", T7, 'run kind = "incremental" with keep_layer_norm = [false, true]')
    return judge("T7", T7, tests, limits, _margin(limits))


def _tests(
    points: pd.DataFrame, column: str, usual: object, fixed: str, name: Callable, limits: Limits
) -> list[Test]:
    """Each seed's difference averaged over the k that both have: the seed is what is drawn at random."""
    rows = points[(points["experiment"] == "incremental") & ~points["untouched"]]
    tests = []
    for _, mine in each_group(rows, [*SAME, fixed]):
        base = mine[mine[column] == usual].set_index(["seed", "x"])["value"]
        for (other,), changed in each_group(mine[mine[column] != usual], [column]):
            pairs = pd.concat(
                [changed.set_index(["seed", "x"])["value"], base], axis=1, join="inner"
            ).dropna()
            if pairs.empty or pd.isna(other):
                continue
            by_x = (pairs.iloc[:, 0] - pairs.iloc[:, 1]).unstack("x").dropna()
            about = f"{_about(mine, rows)}: {name(other)} against usual"
            tests.append(_does_not_help(by_x, about, str(mine["metric"].iloc[0]), limits))
    return tests


def _does_not_help(by_x: pd.DataFrame, about: str, unit: str, limits: Limits) -> Test:
    if len(by_x) < 2:
        return undecidable(about, unit, len(by_x), FEW)
    w = below_margin(by_x.mean(axis=1).to_numpy(), limits.margin, limits.alpha)
    needed = (
        trials_for_mean(limits.margin - w.mean, w.sd, limits.alpha, "larger")
        if w.mean < limits.margin
        else None
    )
    return Test(
        about, unit, w.mean, w.low, w.high, w.p_within, w.p_beyond, w.n, needed, level=1 - 2 * limits.alpha
    )


def _about(mine: pd.DataFrame, among: pd.DataFrame) -> str:
    first = mine.iloc[0]
    parts = [str(first["task"])] + ([str(first["model"])] if among["model"].nunique() > 1 else [])
    if among["train_size"].nunique() > 1:
        parts.append(f"{int(first['train_size']):,} examples")
    return ", ".join(parts + ([str(first["recipe"])] if among["recipe"].nunique() > 1 else []))


def _margin(limits: Limits) -> str:
    return f"does not help: the mean over k gains less than {limits.margin:g} of the metric, one-sided"
