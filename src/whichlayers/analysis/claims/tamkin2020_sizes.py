"""Claims T1 and T2 of Tamkin et al. 2020: layers, the amount of data, and probing.

Each claim function takes finished points and the thresholds, and returns the claim with its verdict.
"""

from __future__ import annotations

import math

import pandas as pd

from whichlayers.analysis.claims.base import (
    OF_GAIN,
    ONE_CURVE,
    TOO_FEW_TRIALS,
    Claim,
    ClaimTest,
    ClaimThresholds,
    evaluate_claim,
    group_label,
    is_task,
    metric_margin,
    not_tested,
    rows_with_default_settings,
    undecided_test,
    with_subject,
)
from whichlayers.analysis.correlations import (
    CurveCorrelation,
    bootstrap_p_below,
    curve_correlation,
    expanded_percentile_interval,
    single_trial_sd,
)
from whichlayers.analysis.incremental_curves import early_gain_fractions
from whichlayers.analysis.interaction import interaction_test
from whichlayers.analysis.intervals import p_below, two_sided, welch_difference
from whichlayers.analysis.power import interaction_power, mean_power, welch_power
from whichlayers.results.frame_utils import each_group

T1 = (
    "The effect of each pretrained layer depends on the amount of data, and with more data small k reach more of the "
    "gain"
)
T2 = "With much data probing does not predict the effects of layers; with less data the two curves agree more"
EXCEPTED = ("SST-2", 500)  # task and size that the paper excepts from the second half of T1
ALL_SIZES = [name for name in ONE_CURVE if name != "train_size"]


# --- T1: effects of layers and the amount of data ---


def t1(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Incremental curves at several training sizes: interaction of k and size, and the gain reached at small k."""
    rows = rows_with_default_settings(points, "incremental")
    tests: list[ClaimTest] = []
    for _, curve in each_group(rows, ALL_SIZES):
        if curve["train_size"].nunique() > 1:
            name = group_label(curve, rows)
            found = [_size_interaction_test(curve, name, thresholds)]
            claimed = _without_exception(curve)
            if claimed["train_size"].nunique() > 1:
                found.append(_early_gain_test(claimed, name, thresholds))
            tests += with_subject(found, curve)
    if not tests:
        return not_tested("T1", T1, 'run kind = "incremental" with two train_sizes or more, 3 trials or more')
    return evaluate_claim("T1", T1, tests, thresholds, "small k: up to a third of the depth")


def _without_exception(curve: pd.DataFrame) -> pd.DataFrame:
    """The points that the second half of T1 is about: "across all but the 500 example trials of SST-2"."""
    task, size = EXCEPTED
    return curve[curve["train_size"] != size] if is_task(curve["task"].iloc[0], task) else curve


def _size_interaction_test(curve: pd.DataFrame, name: str, thresholds: ClaimThresholds) -> ClaimTest:
    """For: k and training size interact (F test). Against: the interaction is smaller than the margin."""
    about, unit = f"{name}: interaction of k and size", f"rms, {curve['metric'].iloc[0]}"
    found = interaction_test(curve, "train_size")
    if found is None:
        return undecided_test(about, unit, _min_trials(curve), TOO_FEW_TRIALS)
    margin = metric_margin(curve, thresholds)
    return ClaimTest(
        *(about, unit, found.effect, found.low, found.high, found.p, found.p_smaller_than(margin), found.n),
        margin=margin,
        power=interaction_power(
            found.noncentrality, found.df, found.n, found.df_denom, margin**2 / found.scale
        ),
    )


def _early_gain_test(curve: pd.DataFrame, name: str, thresholds: ClaimThresholds) -> ClaimTest:
    """For: small k reach a larger fraction of the gain at the largest training size than at the smallest (Welch's t
    test). Against: the fraction grows by less than `gain_margin`."""
    sizes = sorted(set(curve["train_size"]))
    about = f"{name}: fraction of the gain at small k, {sizes[-1]:,} against {sizes[0]:,}"
    few, many = (early_gain_fractions(curve[curve["train_size"] == size]) for size in (sizes[0], sizes[-1]))
    if few is None or many is None:
        note = "no significant gain from pretraining at one of the training sizes, or too few trials"
        return undecided_test(about, OF_GAIN, _min_trials(curve), note)
    n, d = min(len(few), len(many)), welch_difference(many.to_numpy(), few.to_numpy())
    assert d is not None  # `early_gain_fractions` has at least two seeds
    if d.sd == 0:
        return undecided_test(about, OF_GAIN, n, "all trials are equal, so that there is no variance")
    margin = thresholds.gain_margin
    p = two_sided(p_below(-d.mean, d.standard_error, d.df, 0.0))
    p_against = p_below(d.mean, d.standard_error, d.df, margin)
    power = welch_power(d.mean, d.variances, margin=margin) if d.mean > 0 else None
    return ClaimTest(about, OF_GAIN, d.mean, d.low, d.high, p, p_against, n, margin=margin, power=power)


def _min_trials(curve: pd.DataFrame) -> int:
    return int(curve.groupby("train_size")["seed"].nunique().min())


# --- T2: probing and the effects of layers ---


def t2(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Correlation over layers of the probing curve (largest training size) with incremental curves."""
    probing = points[points["experiment"] == "probing"]
    rows = rows_with_default_settings(points, "incremental")
    tests: list[ClaimTest] = []
    for (model, task, _), curve in each_group(rows, ALL_SIZES):
        probes = probing[(probing["model"] == model) & (probing["task"] == task)]
        if curve["train_size"].nunique() > 1 and not probes.empty:
            probes = probes[probes["train_size"] == probes["train_size"].max()]
            for (variant,), one in each_group(probes, ["variant"]):
                name = group_label(curve, rows)
                name = f"{name} ({variant})" if probes["variant"].nunique() > 1 else name
                tests += with_subject(_probing_tests(one, curve, name, thresholds), curve)
    if not tests:
        how = 'run kind = "probing" and kind = "incremental" with two train_sizes or more, on the same task'
        return not_tested("T2", T2, how)
    remark = "r is corrected for noise: divided by the largest r that the noise of both curves allows"
    return evaluate_claim("T2", T2, tests, thresholds, remark)


def _probing_tests(
    probes: pd.DataFrame, curve: pd.DataFrame, name: str, thresholds: ClaimThresholds
) -> list[ClaimTest]:
    """The correlation at the largest training size, and its difference from that at the smallest."""
    sizes = sorted(set(curve["train_size"]))
    few, many = (curve_correlation(probes, curve[curve["train_size"] == n]) for n in (sizes[0], sizes[-1]))
    abouts = (
        f"{name}: correlation with probing at {sizes[-1]:,}",
        f"{name}: correlation with probing, {sizes[0]:,} against {sizes[-1]:,}",
    )
    if few is None or many is None or min(few.n, many.n) < 2 or math.isnan(few.r) or math.isnan(many.r):
        note = "the curves need at least 4 layers in common and 2 trials each"
        return [undecided_test(about, "r", 1, note) for about in abouts]
    if math.isnan(few.reliability) or math.isnan(many.reliability):
        note = "noise is larger than the differences between layers: more trials are needed"
        return [undecided_test(about, "r", min(few.n, many.n), note) for about in abouts]
    return [
        _misfit_test(abouts[0], many, thresholds),
        _correlation_difference_test(abouts[1], few, many, thresholds),
    ]


def _misfit_test(about: str, many: CurveCorrelation, thresholds: ClaimThresholds) -> ClaimTest:
    """For: the curve differs from a rising linear function of the probing curve by more than noise (F test).
    Against: the corrected correlation is above 1 - `probing_margin` (one-sided bootstrap p)."""
    limit, margin, misfit = many.reliability, thresholds.probing_margin, many.misfit
    assert misfit is not None  # there is a reliability
    threshold = (1 - margin) * limit
    p_against = bootstrap_p_below(-many.resampled, -threshold, many.n, is_correlation=True)
    effect, low, high = (max(-1.0, min(1.0, r / limit)) for r in (many.r, many.low, many.high))
    power = interaction_power((misfit.f - 1) * misfit.df, misfit.df, many.n, misfit.df_denom)
    return ClaimTest(
        *(about, "r", effect, low, high, misfit.p, p_against, many.n), margin=margin, power=power
    )


def _correlation_difference_test(
    about: str, few: CurveCorrelation, many: CurveCorrelation, thresholds: ClaimThresholds
) -> ClaimTest:
    """For: the corrected r is larger with few examples than with many (two-sided bootstrap p, with the same resamples
    of the probing trials for both). Against: it is larger by less than `correlation_margin`."""
    difference, n = few.resampled / few.reliability - many.resampled / many.reliability, min(few.n, many.n)
    effect, margin = few.r / few.reliability - many.r / many.reliability, thresholds.correlation_margin
    low, high = expanded_percentile_interval(difference, n)
    p = two_sided(bootstrap_p_below(-difference, 0.0, n))
    p_against = bootstrap_p_below(difference, margin, n)
    power = mean_power(effect, single_trial_sd(difference, n), margin=margin) if effect > 0 else None
    return ClaimTest(about, "r", effect, low, high, p, p_against, n, margin=margin, power=power)
