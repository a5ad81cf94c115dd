"""T4: what is left when the pretrained layers stand in another order, and whether tasks agree on it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

from whichlayers.analysis.baseline_differences import ALL, BASELINES, NONE, permutation_cost, permuted_values
from whichlayers.analysis.claims.base import (
    Claim,
    Limits,
    Test,
    is_lower,
    judge,
    label,
    not_asked,
    p_less,
    plain,
    undecidable,
)
from whichlayers.analysis.correlations import task_correlations
from whichlayers.analysis.frame_utils import each_group, each_row
from whichlayers.analysis.intervals import difference_of_means
from whichlayers.analysis.power import trials_each

T4 = (
    "Permuted layers do far worse than the original order and keep little of the gain of pretraining; the same "
    "permutation hurts tasks alike"
)
ORDERS = "permutations"
FEW = "the baselines need 2 trials or more (baseline_trials), and 2 permutations or more"


def t4(points: pd.DataFrame, limits: Limits) -> Claim:
    rows = plain(points, "permutation")
    tests: list[Test] = []
    for _, curve in each_group(rows, ["model", "task", "train_size", "variant"]):
        tests += _cost(curve, label(curve, rows), limits)
    if not tests:
        return not_asked("T4", T4, 'run kind = "permutation" with baseline_trials = 3, on two tasks or more')
    pairs = _pairs(rows, limits)
    alone = "" if pairs else "whether tasks are hurt alike needs two tasks and 4 permutations"
    return judge("T4", T4, tests + pairs, limits, alone or f"little: less than {limits.kept:.0%} of the gain")


def _cost(curve: pd.DataFrame, name: str, limits: Limits) -> list[Test]:
    permuted = permuted_values(curve)
    ends = pd.concat(
        [curve[curve["condition"] == c].set_index("seed")["value"].rename(c) for c in BASELINES], axis=1
    ).dropna()
    unit, n = str(curve["metric"].iloc[0]), len(permuted)
    if ends.empty:
        return []
    about = f"{name}: permuted minus the original order"
    cost = permutation_cost(curve)
    every, none = ends[ALL].to_numpy(), ends[NONE].to_numpy()
    level = difference_of_means(permuted, none + limits.kept * (every - none))
    if cost is None or level is None:
        return [undecidable(about, unit, n, FEW)]
    worse = is_lower(cost, about, unit, n, limits, needs=ORDERS)
    gain = float(every.mean() - none.mean())
    kept = f"{name}: share of the gain that permuted layers keep"
    if gain <= 0:
        note = f"{name}: no gain from pretraining to keep a share of"
        return [worse, undecidable(kept, "of the gain", n, note)]
    room = trials_each(level.mean, cost.sd, limits.alpha) if level.mean < 0 else None
    share = Test(
        kept,
        "of the gain",
        effect=limits.kept + level.mean / gain,
        low=limits.kept + level.low / gain,
        high=limits.kept + level.high / gain,
        p=p_less(level.mean, level.error, level.df, 0.0),
        p_against=p_less(-level.mean, level.error, level.df, 0.0),
        n=n,
        needed=room,
        needs=ORDERS,
    )
    return [worse, share]


def _pairs(rows: pd.DataFrame, limits: Limits) -> list[Test]:
    tests = []
    for pair in each_row(task_correlations(rows)):
        further = [f"{pair.train_size:,} examples"] if rows["train_size"].nunique() > 1 else []
        further += [pair.variant] if rows["variant"].nunique() > 1 else []
        about = ", ".join([f"{pair.task} and {pair.other}", *further]) + ": Spearman over permutations"
        z = (np.arctanh(np.clip(pair.spearman, -0.999, 0.999)) - np.arctanh(limits.alike)) * math.sqrt(
            pair.n - 3
        )
        p = pair.spearman_p if pair.spearman > 0 else 1.0
        low, high = pair.spearman_low, pair.spearman_high
        needed = _permutations_for(pair.spearman, limits.alpha)
        tests.append(
            Test(
                *(about, "rho", pair.spearman, low, high, p, float(stats.norm.cdf(z)), pair.n, needed),
                needs=ORDERS,
            )
        )
    return tests


def _permutations_for(rho: float, alpha: float) -> int | None:
    """By Fisher's z, to tell this correlation from none four times in five."""
    if not 0 < rho < 1:
        return None
    needed = 3 + ((stats.norm.isf(alpha / 2) + stats.norm.isf(0.2)) / np.arctanh(rho)) ** 2
    return math.ceil(needed) if needed < 1000 else None
