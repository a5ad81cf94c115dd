"""T4: what is left when the pretrained layers stand in another order, and whether tasks agree on it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

from carryover.analysis.claims.claim import (
    Claim,
    Limits,
    Test,
    judge,
    label,
    not_asked,
    p_less,
    plain,
    undecidable,
)
from carryover.analysis.contrasts import ALL, BASELINES, NONE
from carryover.analysis.correlations import task_correlations
from carryover.analysis.power import trials_each
from carryover.analysis.walk import each_group, each_row

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
    """A permutation is what is drawn at random, and counts once; Welch's test against the baselines' trials."""
    permuted = curve[~curve["condition"].isin(BASELINES)].groupby("x")["value"].mean().to_numpy()
    ends = pd.concat(
        [curve[curve["condition"] == c].set_index("seed")["value"].rename(c) for c in BASELINES], axis=1
    ).dropna()
    unit, n = str(curve["metric"].iloc[0]), len(permuted)
    if ends.empty:
        return []
    about = f"{name}: permuted minus the original order"
    every, none = ends[ALL].to_numpy(), ends[NONE].to_numpy()
    worse = _difference(permuted, every)
    if worse is None:
        return [undecidable(about, unit, n, FEW)]
    cost, error, df, half = worse
    p = 2 * p_less(cost, error, df, 0.0)
    against = p_less(-cost, error, df, limits.margin)
    spread = math.sqrt((permuted.var(ddof=1) + every.var(ddof=1)) / 2)
    needed = trials_each(cost, spread, limits.alpha) if cost < 0 else None
    tests = [Test(about, unit, cost, cost - half, cost + half, min(1.0, p), against, n, needed, needs=ORDERS)]
    gain = float(every.mean() - none.mean())
    level = _difference(permuted, none + limits.kept * (every - none))
    kept = f"{name}: share of the gain that permuted layers keep"
    if gain <= 0:
        tests.append(
            undecidable(kept, "of the gain", n, f"{name}: no gain from pretraining to keep a share of")
        )
    elif level is not None:
        beyond, error, df, half = level
        share = limits.kept + beyond / gain
        room = trials_each(beyond, spread, limits.alpha) if beyond < 0 else None
        tests.append(
            Test(
                kept,
                "of the gain",
                *(share, share - half / gain, share + half / gain),
                p=p_less(beyond, error, df, 0.0),
                p_against=p_less(-beyond, error, df, 0.0),
                n=n,
                needed=room,
                needs=ORDERS,
            )
        )
    return tests


def _difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float, float] | None:
    """Mean of a minus mean of b, its error, Welch's degrees of freedom, half its 95% interval."""
    if min(len(a), len(b)) < 2:
        return None
    mean, error = float(a.mean() - b.mean()), math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    if error == 0:
        return mean, 0.0, float(len(a) + len(b) - 2), 0.0
    df = float(stats.ttest_ind(a, b, equal_var=False).df)
    return mean, error, df, float(stats.t.ppf(0.975, df)) * error


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
