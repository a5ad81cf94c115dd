"""T1 and T2: how the worth of pretrained layers, and what probing says of it, change with the amount of data."""

from __future__ import annotations

import math

import pandas as pd

from whichlayers.analysis.claims.base import (
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
from whichlayers.analysis.correlations import (
    CurveCorrelation,
    curve_correlation,
    resampled_p_below,
    spread_of_one,
    widened_percentiles,
)
from whichlayers.analysis.early_share import early_shares
from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.interaction import interaction
from whichlayers.analysis.intervals import difference_of_means
from whichlayers.analysis.power import trials_each, trials_for_interaction, trials_for_mean

T1 = (
    "What each pretrained layer is worth depends on the amount of data, and with more data more of the gain is "
    "there at small k"
)
T2 = (
    "With much data probing does not predict which layers are worth keeping; with less data the two curves "
    "agree more"
)
CURVES = ["model", "task", "variant"]
EQUAL = "the trials do not differ at all, so there is no spread to hold the effect against"
FEW = "one trial a point has no spread: run at least 3"
PROBING = "probing"  # the experiment: x is the layer that a frozen model is probed at


def t1(points: pd.DataFrame, limits: Limits) -> Claim:
    rows = plain(points, "incremental")
    tests = []
    for _, curve in each_group(rows, CURVES):
        if curve["train_size"].nunique() > 1:
            name = label(curve, rows)
            tests += [_depends_on_size(curve, name, limits), _early_share_grows(curve, name, limits)]
    if not tests:
        return not_asked("T1", T1, 'run kind = "incremental" with two train_sizes or more, 3 trials or more')
    return judge("T1", T1, tests, limits, "small k: up to a third of the depth")


def t2(points: pd.DataFrame, limits: Limits) -> Claim:
    probes, rows = points[points["experiment"] == PROBING], plain(points, "incremental")
    tests = []
    for _, curve in each_group(rows, CURVES):
        first = curve.iloc[0]
        mine = probes[(probes["model"] == first["model"]) & (probes["task"] == first["task"])]
        if curve["train_size"].nunique() > 1 and not mine.empty:
            mine = mine[mine["train_size"] == mine["train_size"].max()]
            tests += _probing_predicts(mine, curve, label(curve, rows), limits)
    if not tests:
        needs = (
            'run kind = "probing" beside kind = "incremental" with two train_sizes or more, on the same task'
        )
        return not_asked("T2", T2, needs)
    return judge("T2", T2, tests, limits, f"predicts: r of {limits.predicts:g} or more over layers")


def _depends_on_size(curve: pd.DataFrame, name: str, limits: Limits) -> Test:
    about, unit = f"{name}: interaction of k and size", f"rms, {curve['metric'].iloc[0]}"
    found = interaction(curve, "train_size")
    if found is None:
        return undecidable(about, unit, _fewest(curve), FEW)
    needed = trials_for_interaction(found.noncentrality, found.df, found.n, found.df_left, limits.alpha)
    smaller = found.p_smaller_than(limits.margin)
    return Test(about, unit, found.effect, found.low, found.high, found.p, smaller, found.n, needed)


def _early_share_grows(curve: pd.DataFrame, name: str, limits: Limits) -> Test:
    sizes = sorted(set(curve["train_size"]))
    about = f"{name}: share of the gain at small k, {sizes[-1]:,} against {sizes[0]:,}"
    few, many = (early_shares(curve[curve["train_size"] == size]) for size in (sizes[0], sizes[-1]))
    if few is None or many is None:
        note = "no clear gain from pretraining at one of the sizes, or too few trials to see it"
        return undecidable(about, "of the gain", _fewest(curve), note)
    n, d = min(len(few), len(many)), difference_of_means(many.to_numpy(), few.to_numpy())
    assert d is not None  # shares of two seeds or more
    if d.sd == 0:
        return undecidable(about, "of the gain", n, EQUAL)
    p = min(1.0, 2 * p_less(-d.mean, d.error, d.df, 0.0))
    against = p_less(d.mean, d.error, d.df, limits.share)
    needed = trials_each(d.mean, d.sd, limits.alpha) if d.mean > 0 else None
    return Test(about, "of the gain", d.mean, d.low, d.high, p, against, n, needed)


def _probing_predicts(probes: pd.DataFrame, curve: pd.DataFrame, name: str, limits: Limits) -> list[Test]:
    sizes = sorted(set(curve["train_size"]))
    found = [curve_correlation(probes, curve[curve["train_size"] == size]) for size in (sizes[0], sizes[-1])]
    few, many = found
    abouts = (
        f"{name}: correlation with probing at {sizes[-1]:,}",
        f"{name}: correlation with probing, {sizes[0]:,} against {sizes[-1]:,}",
    )
    if few is None or many is None or min(few.n, many.n) < 2 or math.isnan(few.r) or math.isnan(many.r):
        note = "the curves need 4 layers in common and 2 trials or more each"
        return [undecidable(about, "r", 1, note) for about in abouts]
    return [_does_not_predict(abouts[0], many, limits), _agrees_more(abouts[1], few, many, limits)]


def _does_not_predict(about: str, many: CurveCorrelation, limits: Limits) -> Test:
    """p for the claim that r lies below the limit, and against it that r lies above."""
    p = resampled_p_below(many.resampled, limits.predicts, many.n, of_r=True)
    against = resampled_p_below(-many.resampled, -limits.predicts, many.n, of_r=True)
    distance = math.atanh(limits.predicts) - math.atanh(min(many.r, 1 - 1e-9))
    spread = spread_of_one(many.resampled, many.n, of_r=True)
    needed = trials_for_mean(abs(distance), spread, limits.alpha, "larger")
    return Test(about, "r", many.r, many.low, many.high, p, against, many.n, needed)


def _agrees_more(about: str, few: CurveCorrelation, many: CurveCorrelation, limits: Limits) -> Test:
    """Both sizes are held against the same resamples of the probing trials."""
    difference, n = few.resampled - many.resampled, min(few.n, many.n)
    low, high = widened_percentiles(difference, n)
    p = min(1.0, 2 * resampled_p_below(-difference, 0.0, n))
    against = resampled_p_below(difference, limits.closer, n)
    spread = spread_of_one(difference, n)
    needed = trials_for_mean(few.r - many.r, spread, limits.alpha) if few.r > many.r else None
    return Test(about, "r", few.r - many.r, low, high, p, against, n, needed)


def _fewest(curve: pd.DataFrame) -> int:
    return int(curve.groupby("train_size")["seed"].nunique().min())
