"""Claims T1 to T7 of Tamkin et al. 2020, "Investigating transferability in pretrained language models".

Each function takes finished points and the thresholds, and returns the claim with its verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats

from whichlayers.analysis.baseline_differences import (
    ALL_PRETRAINED,
    BASELINES,
    NONE_PRETRAINED,
    permutation_effect,
    permutation_means,
)
from whichlayers.analysis.claims.base import (
    TOO_FEW_TRIALS,
    Claim,
    ClaimTest,
    ClaimThresholds,
    below_zero_test,
    evaluate_claim,
    group_label,
    not_tested,
    p_below,
    rows_with_default_settings,
    undecided_test,
)
from whichlayers.analysis.correlations import (
    CurveCorrelation,
    bootstrap_p_below,
    curve_correlation,
    expanded_percentile_interval,
    single_trial_sd,
    task_correlations,
)
from whichlayers.analysis.equivalence import EquivalenceResult, equivalence_test, non_superiority_test
from whichlayers.analysis.incremental_curves import early_gain_fractions
from whichlayers.analysis.interaction import interaction_test
from whichlayers.analysis.intervals import holm, paired_difference, welch_difference
from whichlayers.analysis.power import (
    trials_for_equivalence,
    trials_for_interaction,
    trials_for_t_test,
    trials_for_two_sample_test,
)
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.text import format_score

T1 = (
    "The effect of each pretrained layer depends on the amount of data, and with more data small k reach more of the "
    "gain"
)
T2 = "With much data probing does not predict the effects of layers; with less data the two curves agree more"
T3 = "Which block of layers matters differs from task to task"
T4 = (
    "Permuted layers score far lower than the original order and keep little of the gain from pretraining; the "
    "effects of permutations correlate across tasks"
)
T5 = "Re-initializing a single layer, other than the first, hardly matters"
T6 = "A higher learning rate for re-initialized layers does not help"
T7 = "Keeping the layer norms of re-initialized layers does not help"

ONE_CURVE = ["model", "task", "train_size", "variant"]
ALL_SIZES = ["model", "task", "variant"]
SAME_SETTINGS = ["experiment", "model", "task", "train_size", "head", "training", "recipe"]
OF_GAIN = "of the gain"  # unit
PERMUTATIONS = "permutations"  # counted by `needed` in T4


# --- T1: effects of layers and the amount of data ---


def t1(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Incremental curves at several training sizes: interaction of k and size, and the gain reached at small k."""
    rows = rows_with_default_settings(points, "incremental")
    tests = []
    for _, curve in each_group(rows, ALL_SIZES):
        if curve["train_size"].nunique() > 1:
            name = group_label(curve, rows)
            tests += [
                _size_interaction_test(curve, name, thresholds),
                _early_gain_test(curve, name, thresholds),
            ]
    if not tests:
        return not_tested("T1", T1, 'run kind = "incremental" with two train_sizes or more, 3 trials or more')
    return evaluate_claim("T1", T1, tests, thresholds, "small k: up to a third of the depth")


def _size_interaction_test(curve: pd.DataFrame, name: str, thresholds: ClaimThresholds) -> ClaimTest:
    """For: k and training size interact (F test). Against: the interaction is smaller than the margin."""
    about, unit = f"{name}: interaction of k and size", f"rms, {curve['metric'].iloc[0]}"
    found = interaction_test(curve, "train_size")
    if found is None:
        return undecided_test(about, unit, _min_trials(curve), TOO_FEW_TRIALS)
    needed = trials_for_interaction(found.noncentrality, found.df, found.n, found.df_denom, thresholds.alpha)
    p_against = found.p_smaller_than(thresholds.margin)
    return ClaimTest(about, unit, found.effect, found.low, found.high, found.p, p_against, found.n, needed)


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
    p = min(1.0, 2 * p_below(-d.mean, d.standard_error, d.df, 0.0))
    p_against = p_below(d.mean, d.standard_error, d.df, thresholds.gain_margin)
    needed = trials_for_two_sample_test(d.mean, d.sd, thresholds.alpha) if d.mean > 0 else None
    return ClaimTest(about, OF_GAIN, d.mean, d.low, d.high, p, p_against, n, needed)


def _min_trials(curve: pd.DataFrame) -> int:
    return int(curve.groupby("train_size")["seed"].nunique().min())


# --- T2: probing and the effects of layers ---


def t2(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Correlation over layers of the probing curve (largest training size) with incremental curves."""
    probing = points[points["experiment"] == "probing"]
    rows = rows_with_default_settings(points, "incremental")
    tests = []
    for (model, task, _), curve in each_group(rows, ALL_SIZES):
        probes = probing[(probing["model"] == model) & (probing["task"] == task)]
        if curve["train_size"].nunique() > 1 and not probes.empty:
            probes = probes[probes["train_size"] == probes["train_size"].max()]
            tests += _probing_tests(probes, curve, group_label(curve, rows), thresholds)
    if not tests:
        how = 'run kind = "probing" and kind = "incremental" with two train_sizes or more, on the same task'
        return not_tested("T2", T2, how)
    remark = f"predicts: r of {thresholds.probing_correlation:g} or more over layers"
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
    return [
        _low_correlation_test(abouts[0], many, thresholds),
        _correlation_difference_test(abouts[1], few, many, thresholds),
    ]


def _low_correlation_test(about: str, many: CurveCorrelation, thresholds: ClaimThresholds) -> ClaimTest:
    """For: r is below `probing_correlation` (one-sided bootstrap p). Against: r is above it."""
    limit = thresholds.probing_correlation
    p = bootstrap_p_below(many.resampled, limit, many.n, is_correlation=True)
    p_against = bootstrap_p_below(-many.resampled, -limit, many.n, is_correlation=True)
    distance = math.atanh(limit) - math.atanh(min(many.r, 1 - 1e-9))
    sd = single_trial_sd(many.resampled, many.n, is_correlation=True)
    needed = trials_for_t_test(abs(distance), sd, thresholds.alpha, "larger")
    return ClaimTest(about, "r", many.r, many.low, many.high, p, p_against, many.n, needed)


def _correlation_difference_test(
    about: str, few: CurveCorrelation, many: CurveCorrelation, thresholds: ClaimThresholds
) -> ClaimTest:
    """For: r is larger with few examples than with many (two-sided bootstrap p, with the same resamples of the probing
    trials for both). Against: it is larger by less than `correlation_margin`."""
    difference, n = few.resampled - many.resampled, min(few.n, many.n)
    low, high = expanded_percentile_interval(difference, n)
    p = min(1.0, 2 * bootstrap_p_below(-difference, 0.0, n))
    p_against = bootstrap_p_below(difference, thresholds.correlation_margin, n)
    sd = single_trial_sd(difference, n)
    needed = trials_for_t_test(few.r - many.r, sd, thresholds.alpha) if few.r > many.r else None
    return ClaimTest(about, "r", few.r - many.r, low, high, p, p_against, n, needed)


# --- T3: blocks of layers and tasks ---


def t3(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Interaction of block and task, with scores scaled to each task's gain: a task on which all blocks have twice the
    effect does not interact."""
    rows = rows_with_default_settings(points, "localized")
    tests = []
    for _, group in each_group(rows, ["model", "train_size", "variant"]):
        if group["task"].nunique() < 2:
            continue
        scaled = _scaled_to_gain(group)
        for condition in [c for c in dict.fromkeys(group["condition"]) if c not in BASELINES]:
            chosen = scaled[scaled["condition"] == condition]
            name = ", ".join(part for part in (group_label(group, rows), condition) if part)
            tests.append(_task_interaction_test(chosen, name, group["task"].nunique(), thresholds))
    if not tests:
        return not_tested("T3", T3, 'run kind = "localized" on two tasks or more, 3 trials or more')
    remark = "as a fraction of each task's gain from none to all layers pretrained"
    return evaluate_claim("T3", T3, tests, thresholds, remark)


def _scaled_to_gain(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with `value` scaled to 0 for no layer and 1 for all layers pretrained, without the tasks whose gain is not
    significant."""
    frames = []
    for _, of_task in each_group(rows, ["task"]):
        none, every = (
            of_task[of_task["condition"] == c].set_index("seed")["value"]
            for c in (NONE_PRETRAINED, ALL_PRETRAINED)
        )
        gain = paired_difference(every, none)
        if gain is not None and gain.n > 1 and gain.low > 0:
            frames.append(of_task.assign(value=(of_task["value"] - none.mean()) / gain.mean))
    return pd.concat(frames) if frames else rows.iloc[:0]


def _task_interaction_test(
    rows: pd.DataFrame, name: str, n_tasks: int, thresholds: ClaimThresholds
) -> ClaimTest:
    """For: block and task interact (F test). Against: the interaction is smaller than `gain_margin`."""
    about, unit = f"{name}: interaction of block and task", "rms, of the gain"
    left_out = n_tasks - rows["task"].nunique()
    note = f"{left_out} of {n_tasks} tasks left out: no significant gain from pretraining" if left_out else ""
    found = interaction_test(rows, "task")
    if found is None:
        n = int(rows.groupby("task")["seed"].nunique().min()) if len(rows) else 0
        return undecided_test(about, unit, n, note or TOO_FEW_TRIALS)
    needed = trials_for_interaction(found.noncentrality, found.df, found.n, found.df_denom, thresholds.alpha)
    p_against = found.p_smaller_than(thresholds.gain_margin)
    return ClaimTest(
        about, unit, found.effect, found.low, found.high, found.p, p_against, found.n, needed, note
    )


# --- T4: permuted layers ---


def t4(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Permuted layers against the baselines, per task, and rank correlations of tasks over permutations."""
    rows = rows_with_default_settings(points, "permutation")
    tests: list[ClaimTest] = []
    for _, curve in each_group(rows, ONE_CURVE):
        tests += _permutation_tests(curve, group_label(curve, rows), thresholds)
    if not tests:
        return not_tested("T4", T4, 'run kind = "permutation" with baseline_trials = 3, on two tasks or more')
    correlations = _task_correlation_tests(rows, thresholds)
    remark = f"little: less than {thresholds.max_kept_gain:.0%} of the gain"
    if not correlations:
        remark = "the correlation of tasks needs two tasks and 4 permutations"
    return evaluate_claim("T4", T4, tests + correlations, thresholds, remark)


def _permutation_tests(curve: pd.DataFrame, name: str, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """Two tests of one curve: permuted layers score lower than the original order, and they keep less than
    `max_kept_gain` of the gain."""
    means = permutation_means(curve)
    baselines = pd.concat(
        [curve[curve["condition"] == c].set_index("seed")["value"].rename(c) for c in BASELINES], axis=1
    ).dropna()
    unit, n = str(curve["metric"].iloc[0]), len(means)
    if baselines.empty:
        return []
    about = f"{name}: permuted minus the original order"
    effect = permutation_effect(curve)
    every, none = baselines[ALL_PRETRAINED].to_numpy(), baselines[NONE_PRETRAINED].to_numpy()
    distance = welch_difference(means, none + thresholds.max_kept_gain * (every - none))
    if effect is None or distance is None:
        return [undecided_test(about, unit, n, "needs 2 baseline_trials and 2 permutations or more")]
    lower = below_zero_test(effect, about, unit, n, thresholds, needs=PERMUTATIONS)
    gain = float(every.mean() - none.mean())
    about = f"{name}: fraction of the gain that permuted layers keep"
    if gain <= 0:
        return [lower, undecided_test(about, OF_GAIN, n, f"{name}: no gain from pretraining")]
    needed = trials_for_two_sample_test(distance.mean, effect.sd, thresholds.alpha)
    kept = ClaimTest(
        about,
        OF_GAIN,
        effect=thresholds.max_kept_gain + distance.mean / gain,
        low=thresholds.max_kept_gain + distance.low / gain,
        high=thresholds.max_kept_gain + distance.high / gain,
        p=p_below(distance.mean, distance.standard_error, distance.df, 0.0),
        p_against=p_below(-distance.mean, distance.standard_error, distance.df, 0.0),
        n=n,
        needed=needed if distance.mean < 0 else None,
        needs=PERMUTATIONS,
    )
    return [lower, kept]


def _task_correlation_tests(rows: pd.DataFrame, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """One test per pair of tasks. For: Spearman's rho over permutations is positive (two-sided permutation p). Against:
    it is below `task_correlation`, by Fisher's z with standard error 1 / √(n - 3)."""
    tests = []
    for pair in each_row(task_correlations(rows)):
        names = [f"{pair.task} and {pair.other}"]
        names += [f"{pair.train_size:,} examples"] if rows["train_size"].nunique() > 1 else []
        names += [pair.variant] if rows["variant"].nunique() > 1 else []
        about = ", ".join(names) + ": Spearman over permutations"
        rho = pair.spearman
        distance = np.arctanh(np.clip(rho, -0.999, 0.999)) - np.arctanh(thresholds.task_correlation)
        p_against = float(stats.norm.cdf(distance * math.sqrt(pair.n - 3)))
        p = pair.spearman_p if rho > 0 else 1.0
        needed = _permutations_for_correlation(rho, thresholds.alpha)
        numbers = (rho, pair.spearman_low, pair.spearman_high, p, p_against, pair.n, needed)
        tests.append(ClaimTest(about, "rho", *numbers, needs=PERMUTATIONS))
    return tests


def _permutations_for_correlation(rho: float, alpha: float) -> int | None:
    """Permutations for a correlation of `rho` to be significant with 80% power, by Fisher's z; None from 1,000 on."""
    if not 0 < rho < 1:
        return None
    needed = 3 + ((stats.norm.isf(alpha / 2) + stats.norm.isf(0.2)) / np.arctanh(rho)) ** 2
    return math.ceil(needed) if needed < 1000 else None


# --- T5: single layers ---


def t5(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Equivalence (TOST) of re-initializing each single layer and re-initializing none."""
    rows = rows_with_default_settings(points, "single_layer")
    tests = [
        _single_layers_test(curve, group_label(curve, rows), thresholds)
        for _, curve in each_group(rows, ONE_CURVE)
        if (curve["condition"] == ALL_PRETRAINED).any()
    ]
    if not tests:
        return not_tested("T5", T5, 'run kind = "single_layer", 3 trials or more')
    remark = f"hardly: within ±{format_score(thresholds.margin)} points, by TOST, for every layer"
    return evaluate_claim("T5", T5, tests, thresholds, remark)


def _single_layers_test(curve: pd.DataFrame, name: str, thresholds: ClaimThresholds) -> ClaimTest:
    """For: all layers but the first are within the margin, so p is the largest p of their equivalence tests
    (intersection-union test). Against: one of them is beyond the margin (smallest Holm-adjusted p). The effect shown is
    that of the decisive layer."""
    baseline = curve[curve["condition"] == ALL_PRETRAINED].set_index("seed")["value"]
    found: dict[int, EquivalenceResult] = {}
    for (x,), cell in each_group(curve[~curve["condition"].isin(BASELINES)], ["x"]):
        pairs = pd.concat([cell.set_index("seed")["value"], baseline], axis=1, join="inner").to_numpy()
        if len(pairs):
            found[int(x)] = equivalence_test(pairs[:, 0] - pairs[:, 1], thresholds.margin, thresholds.alpha)
    unit = str(curve["metric"].iloc[0])
    tested = {layer: w for layer, w in found.items() if layer > 1 and not math.isnan(w.p_within)}
    if not tested:
        return undecided_test(f"{name}: every layer but the first", unit, len(baseline), TOO_FEW_TRIALS)
    first, note = found.get(1), ""
    if first is not None and first.p_beyond < thresholds.alpha:
        note = f"{name}: the first layer matters ({format_score(first.mean, unit, signed=True)})"
    beyond = dict(zip(tested, holm([w.p_beyond for w in tested.values()]), strict=True))
    decisive = max(tested, key=lambda layer: tested[layer].p_within)
    if min(beyond.values()) < thresholds.alpha:
        decisive = min(beyond, key=lambda layer: beyond[layer])
    w = tested[decisive]
    needed_by_layer = [
        trials_for_equivalence(v.mean, v.sd, thresholds.margin, thresholds.alpha) for v in tested.values()
    ]
    known = [needed for needed in needed_by_layer if needed is not None]
    needed = max(known) if len(known) == len(needed_by_layer) else None
    about = f"{name}: layer {decisive}, of {len(tested)} tested"
    p, p_against = max(v.p_within for v in tested.values()), float(np.min([*beyond.values()]))
    level = 1 - 2 * thresholds.alpha
    return ClaimTest(about, unit, w.mean, w.low, w.high, p, p_against, w.n, needed, note, level)


# --- T6 and T7: settings of re-initialized layers ---


def t6(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Incremental curves with a raised learning rate of re-initialized layers against those without."""
    column, fixed = "reinit_lr_factor", "keep_layer_norm"
    tests = _setting_tests(points, column, 1.0, fixed, lambda factor: f"{factor:g}× lr", thresholds)
    if not tests:
        return not_tested("T6", T6, 'run kind = "incremental" with reinit_lr_factor = [1.0, 5.0]')
    return evaluate_claim("T6", T6, tests, thresholds, _no_help(thresholds))


def t7(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Incremental curves with the layer norms of re-initialized layers kept against those with them reset."""
    column, fixed = "keep_layer_norm", "reinit_lr_factor"
    tests = _setting_tests(points, column, False, fixed, lambda _: "layer norms kept", thresholds)
    if not tests:
        return not_tested("T7", T7, 'run kind = "incremental" with keep_layer_norm = [false, true]')
    return evaluate_claim("T7", T7, tests, thresholds, _no_help(thresholds))


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
        base = group[group[column] == default].set_index(["seed", "x"])["value"]
        for (other,), changed in each_group(group[group[column] != default], [column]):
            values = changed.set_index(["seed", "x"])["value"]
            pairs = pd.concat([values, base], axis=1, join="inner").dropna()
            if pairs.empty or pd.isna(other):
                continue
            differences = (pairs.iloc[:, 0] - pairs.iloc[:, 1]).unstack("x").dropna()  # (seeds, k)
            about = f"{_setting_label(group, rows)}: {describe(other)} against usual"
            tests.append(_no_help_test(differences, about, str(group["metric"].iloc[0]), thresholds))
    return tests


def _no_help_test(differences: pd.DataFrame, about: str, unit: str, thresholds: ClaimThresholds) -> ClaimTest:
    """For: the mean difference is below the margin. Against: it is above. Both one-sided; `differences` (seeds, k)."""
    if len(differences) < 2:
        return undecided_test(about, unit, len(differences), TOO_FEW_TRIALS)
    margin, alpha = thresholds.margin, thresholds.alpha
    w = non_superiority_test(differences.mean(axis=1).to_numpy(), margin, alpha)
    needed = trials_for_t_test(margin - w.mean, w.sd, alpha, "larger") if w.mean < margin else None
    numbers = (w.mean, w.low, w.high, w.p_within, w.p_beyond, w.n, needed)
    return ClaimTest(about, unit, *numbers, level=1 - 2 * alpha)


def _setting_label(rows: pd.DataFrame, all_rows: pd.DataFrame) -> str:
    """As `group_label`, with the recipe in place of the variant."""
    first = rows.iloc[0]
    parts = [str(first["task"])] + ([str(first["model"])] if all_rows["model"].nunique() > 1 else [])
    if all_rows["train_size"].nunique() > 1:
        parts.append(f"{int(first['train_size']):,} examples")
    return ", ".join(parts + ([str(first["recipe"])] if all_rows["recipe"].nunique() > 1 else []))


def _no_help(thresholds: ClaimThresholds) -> str:
    return (
        f"does not help: the mean over k gains less than {format_score(thresholds.margin)} points, one-sided"
    )
