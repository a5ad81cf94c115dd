"""Claims T3 to T5 and T8 of Tamkin et al. 2020: blocks of layers, permuted layers, single layers.

Each claim function takes finished points and the thresholds, and returns the claim with its verdict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

import numpy as np
import pandas as pd
from scipy import stats

from whichlayers.analysis.claims.base import (
    OF_GAIN,
    ONE_CURVE,
    TOO_FEW_TRIALS,
    Claim,
    ClaimTest,
    ClaimThresholds,
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
from whichlayers.analysis.correlations import rank_error, task_correlations
from whichlayers.analysis.incremental_curves import fractions_of_gain
from whichlayers.analysis.interaction import interaction_test
from whichlayers.analysis.intervals import (
    EquivalenceResult,
    equivalence_test,
    holm,
    p_below,
    t_interval,
    two_sided,
)
from whichlayers.analysis.permutations import permutation_difference
from whichlayers.analysis.power import PowerFunction, interaction_power, joint_power, tost_power
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.text import counted, join_list, short_names
from whichlayers.trial import ALL_PRETRAINED, BASELINES, NONE_PRETRAINED

T3 = "Which block of layers matters differs from task to task"
T4 = (
    "Permuted layers score far lower than the original order and keep little of the gain from pretraining; the "
    "effects of permutations correlate across tasks"
)
T5 = "Re-initializing a single layer hardly matters, except the first layer on CoLA"
T8 = "Early blocks of layers matter more than late ones, over all tasks"
PERMUTATIONS = "permutations"  # counted by `needed` in T4


# --- T3: blocks of layers and tasks ---


def t3(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Interaction of block and task, with scores scaled to each task's gain: a task on which all blocks have twice the
    effect does not interact."""
    rows = rows_with_default_settings(points, "localized")
    tests: list[ClaimTest] = []
    for _, group in each_group(rows, ["model", "train_size", "variant"]):
        if group["task"].nunique() < 2:
            continue
        for condition in [c for c in dict.fromkeys(group["condition"]) if c not in BASELINES]:
            name = ", ".join(part for part in (group_label(group, rows), condition) if part)
            tests += with_subject([_task_interaction_test(group, str(condition), name, thresholds)], group)
    if not tests:
        return not_tested("T3", T3, 'run kind = "localized" on two tasks or more, 3 trials or more')
    remark = "as a fraction of each task's gain from none to all layers pretrained"
    return evaluate_claim("T3", T3, tests, thresholds, remark)


def _scaled_to_gain(rows: pd.DataFrame, condition: str) -> pd.DataFrame:
    """Scores of one condition as fractions of each task's gain, without the tasks whose gain is not significant.

    Returns:
        task, seed, x, value: 0 for no layer and 1 for all layers pretrained. Values are linearized, so that their
        covariance includes the error of the estimated gain (see `fractions_of_gain`).
    """
    frames = []
    for (task,), of_task in each_group(rows, ["task"]):
        none, every = (
            of_task[of_task["condition"] == c].set_index("seed")["value"]
            for c in (NONE_PRETRAINED, ALL_PRETRAINED)
        )
        blocks = of_task[of_task["condition"] == condition]
        scores = blocks.pivot_table(index="seed", columns="x", values="value")
        scaled = fractions_of_gain(scores, none, every)
        if scaled is not None:
            table = scaled.reset_index(names="seed").melt("seed", var_name="x").dropna()
            frames.append(table.assign(task=task))
    return pd.concat(frames) if frames else pd.DataFrame(columns=["task", "seed", "x", "value"])


def _scaled_with_note(group: pd.DataFrame, condition: str) -> tuple[pd.DataFrame, str]:
    """`_scaled_to_gain`, and a note about the tasks that are left out."""
    rows, n_tasks = _scaled_to_gain(group, condition), group["task"].nunique()
    left_out = n_tasks - rows["task"].nunique()
    return (
        rows,
        f"{left_out} of {n_tasks} tasks left out: no significant gain from pretraining" if left_out else "",
    )


def _task_interaction_test(
    group: pd.DataFrame, condition: str, name: str, thresholds: ClaimThresholds
) -> ClaimTest:
    """For: block and task interact (F test). Against: the interaction is smaller than `gain_margin`."""
    about, unit = f"{name}: interaction of block and task", "rms, of the gain"
    rows, note = _scaled_with_note(group, condition)
    found = interaction_test(rows, "task")
    if found is None:
        n = int(rows.groupby("task")["seed"].nunique().min()) if len(rows) else 0
        return undecided_test(about, unit, n, note or TOO_FEW_TRIALS)
    margin = thresholds.gain_margin
    return ClaimTest(
        *(about, unit, found.effect, found.low, found.high, found.p, found.p_smaller_than(margin), found.n),
        note=note,
        margin=margin,
        power=interaction_power(
            found.noncentrality, found.df, found.n, found.df_denom, margin**2 / found.scale
        ),
    )


# --- T8: early and late blocks ---


def t8(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Mean score of blocks in the lower half of the layers against the upper half, as fractions of each task's gain
    and averaged over tasks: the paper says "generally", and excepts single tasks."""
    rows = rows_with_default_settings(points, "localized")
    tests: list[ClaimTest] = []
    for _, group in each_group(rows, ["model", "train_size", "variant"]):
        for condition in [c for c in dict.fromkeys(group["condition"]) if c not in BASELINES]:
            name = ", ".join(part for part in (group_label(group, rows), str(condition)) if part)
            tests += with_subject(_early_blocks_test(group, str(condition), name, thresholds), group)
    if not tests:
        return not_tested("T8", T8, 'run kind = "localized", 3 trials or more')
    remark = "early and late: within the lower and the upper half; as fractions of each task's gain, mean over tasks"
    return evaluate_claim("T8", T8, tests, thresholds, remark)


def _early_blocks_test(
    group: pd.DataFrame, condition: str, name: str, thresholds: ClaimThresholds
) -> list[ClaimTest]:
    """For: early minus late is below zero if blocks are re-initialized, late minus early if they are preserved; one
    value per seed. No test if either half contains no block."""
    of_condition = group[group["condition"] == condition]
    depth, sizes = int(group["depth"].iloc[0]), of_condition["reinit"].map(len)
    preserved = condition.startswith("block preserved")
    length = int((depth - sizes if preserved else sizes).iloc[0])
    starts = sorted(set(of_condition["x"]))
    early = [x for x in starts if x + length - 1 <= depth / 2]
    late = [x for x in starts if x > depth / 2]
    if not early or not late:
        return []
    scaled, note = _scaled_with_note(group, condition)
    tables = {
        task: rows.pivot_table(index="seed", columns="x", values="value").reindex(columns=starts)
        for (task,), rows in each_group(scaled, ["task"])
    }
    about = f"{name}: {'late minus early' if preserved else 'early minus late'} blocks"
    if not tables:
        return [undecided_test(about, OF_GAIN, 0, note)]
    lower, upper = (late, early) if preserved else (early, late)
    differences = pd.concat(
        [
            table[lower].mean(axis=1, skipna=False) - table[upper].mean(axis=1, skipna=False)
            for table in tables.values()
        ],
        axis=1,
    )
    values = differences.dropna().mean(axis=1).to_numpy()
    test = decrease_test(values, about, OF_GAIN, thresholds.gain_margin)
    return [dataclasses.replace(test, note=note or test.note)]


# --- T4: permuted layers ---


def t4(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Permuted layers against the baselines, per task, and rank correlations of tasks over permutations."""
    rows = rows_with_default_settings(points, "permutation")
    tests: list[ClaimTest] = []
    for _, curve in each_group(rows, ONE_CURVE):
        tests += with_subject(_permutation_tests(curve, group_label(curve, rows), thresholds), curve)
    if not tests:
        return not_tested("T4", T4, 'run kind = "permutation" with trials = 3, on two tasks or more')
    correlations = _task_correlation_tests(rows, thresholds)
    remark = f"little: less than {thresholds.max_kept_gain:.0%} of the gain"
    if not correlations:
        remark = "the correlation of tasks needs two tasks and 4 permutations"
    return evaluate_claim("T4", T4, tests + correlations, thresholds, remark)


def _permutation_tests(curve: pd.DataFrame, name: str, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """Two tests of one curve: permuted layers score lower than the original order, and they keep less than
    `max_kept_gain` of the gain."""
    baselines = pd.concat(
        [curve[curve["condition"] == c].set_index("seed")["value"].rename(c) for c in BASELINES], axis=1
    ).dropna()
    unit, n = str(curve["metric"].iloc[0]), curve.loc[~curve["condition"].isin(BASELINES), "x"].nunique()
    if baselines.empty:
        return []
    every, none = baselines[ALL_PRETRAINED], baselines[NONE_PRETRAINED]
    about = f"{name}: permuted minus the original order"
    lost = permutation_difference(curve, every)
    if lost is None:
        return [undecided_test(about, unit, n, "needs 2 permutations or more, and 2 seeds of the baseline")]
    margin = metric_margin(curve, thresholds)
    lower = ClaimTest(
        *(about, unit, lost.mean, lost.low, lost.high),
        p=two_sided(p_below(lost.mean, lost.standard_error, lost.df, 0.0)),
        p_against=p_below(-lost.mean, lost.standard_error, lost.df, margin),
        n=lost.n,
        needs=PERMUTATIONS,
        margin=margin,
        power=lost.power(margin=margin) if lost.mean < 0 else None,
    )
    return [lower, _kept_gain_test(curve, every, none, name, thresholds)]


def _kept_gain_test(
    curve: pd.DataFrame, every: pd.Series, none: pd.Series, name: str, thresholds: ClaimThresholds
) -> ClaimTest:
    """For: permuted - (none + `max_kept_gain` · gain) is below zero. Against: it is above. Both one-sided.

    The fraction is of the gain in the seeds of the permuted trials, as are the differences that are tested. Its
    interval includes the error of the estimated gain, by the delta method: it is that of
    permuted - (none + fraction · gain), divided by the gain. Undecided unless the gain is significant over all seeds
    of the baselines.
    """
    about, limit = f"{name}: fraction of the gain that permuted layers keep", thresholds.max_kept_gain
    distance = permutation_difference(curve, none + limit * (every - none))
    kept = permutation_difference(curve, none)
    assert distance is not None  # the difference from `every` exists
    assert kept is not None
    permuted_seeds = curve.loc[~curve["condition"].isin(BASELINES), "seed"]
    gain, of_all = float((every - none)[every.index.isin(permuted_seeds)].mean()), t_interval(every - none)
    if gain <= 0 or not (of_all.significant and of_all.mean > 0):
        return undecided_test(about, OF_GAIN, kept.n, f"{name}: no significant gain from pretraining")
    fraction = kept.mean / gain
    error = permutation_difference(curve, none + fraction * (every - none))
    assert error is not None
    return ClaimTest(
        *(about, OF_GAIN, fraction),
        low=fraction - error.half_width / gain,
        high=fraction + error.half_width / gain,
        p=p_below(distance.mean, distance.standard_error, distance.df, 0.0),
        p_against=p_below(-distance.mean, distance.standard_error, distance.df, 0.0),
        n=distance.n,
        needs=PERMUTATIONS,
        margin=limit,
        power=distance.power(two_sided=False) if distance.mean < 0 else None,
    )


def _task_correlation_tests(rows: pd.DataFrame, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """One test per pair of tasks. For: Spearman's rho over permutations is positive (two-sided permutation p). Against:
    it is below `task_correlation`, by Fisher's z with standard error √(1.06 / (n - 3))."""
    tests, models = [], short_names(rows["model"])
    for pair in each_row(task_correlations(rows)):
        names = [f"{pair.task} and {pair.other}"]
        names += [models[pair.model]] if len(models) > 1 else []
        names += [f"{pair.train_size:,} examples"] if rows["train_size"].nunique() > 1 else []
        names += [pair.variant] if rows["variant"].nunique() > 1 and pair.variant else []
        about = ", ".join(names) + ": Spearman over permutations"
        rho = pair.spearman
        distance = np.arctanh(np.clip(rho, -0.999, 0.999)) - np.arctanh(thresholds.task_correlation)
        p_against = float(stats.norm.cdf(distance / rank_error(pair.n)))
        p = pair.spearman_p if rho > 0 else 1.0
        test = ClaimTest(
            *(about, "rho", rho, pair.spearman_low, pair.spearman_high, p, p_against, pair.n),
            needs=PERMUTATIONS,
            margin=thresholds.task_correlation,
            model=str(pair.model),
            power=_correlation_power(rho, thresholds.task_correlation),
        )
        tests.append(test)
    return tests


def _correlation_power(rho: float, margin: float) -> PowerFunction | None:
    """Probability that a correlation is significant (two-sided) and at least `margin`, as a function of the pairs, by
    Fisher's z; None if rho is below the margin."""
    if not margin <= rho < 1:
        return None

    def power(n: int, alpha: float) -> float:
        distance, least = (np.arctanh(r) / rank_error(n) if n > 3 else 0.0 for r in (rho, margin))
        return float(stats.norm.sf(max(stats.norm.isf(alpha / 2), least) - distance))

    return power


# --- T5: single layers ---


def t5(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Equivalence (TOST) of re-initializing each single layer and re-initializing none; on CoLA, the first layer is
    expected to matter."""
    rows = rows_with_default_settings(points, "single_layer")
    tests: list[ClaimTest] = []
    for _, curve in each_group(rows, ONE_CURVE):
        if (curve["condition"] == ALL_PRETRAINED).any():
            tests += with_subject(_single_layer_tests(curve, group_label(curve, rows), thresholds), curve)
    if not tests:
        return not_tested("T5", T5, 'run kind = "single_layer", 3 trials or more')
    remark = "hardly: within the margin, by TOST, for every layer"
    return evaluate_claim("T5", T5, tests, thresholds, remark)


def _single_layer_tests(curve: pd.DataFrame, name: str, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """All layers that should not matter, and the first layer on CoLA, which should; undecided if it was not run."""
    baseline = curve[curve["condition"] == ALL_PRETRAINED].set_index("seed")["value"]
    differences: dict[int, np.ndarray] = {}
    for (x,), cell in each_group(curve[~curve["condition"].isin(BASELINES)], ["x"]):
        pairs = pd.concat([cell.set_index("seed")["value"], baseline], axis=1, join="inner").to_numpy()
        if len(pairs):
            differences[int(x)] = pairs[:, 0] - pairs[:, 1]
    unit, margin = str(curve["metric"].iloc[0]), metric_margin(curve, thresholds)
    is_cola, depth = is_task(curve["task"].iloc[0], "CoLA"), int(curve["depth"].iloc[0])
    first = differences.pop(1, None) if is_cola else None
    layers = depth - 1 if is_cola else depth
    tests = [_equivalent_layers_test(differences, layers, name, unit, margin, thresholds.alpha)]
    if is_cola:
        about = f"{name}: layer 1"
        not_run = undecided_test(about, unit, 0, f"{about} was not re-initialized")
        tests.append(not_run if first is None else decrease_test(first, about, unit, margin))
    return tests


def _equivalent_layers_test(
    differences: dict[int, np.ndarray], layers: int, name: str, unit: str, margin: float, alpha: float
) -> ClaimTest:
    """For: all layers are within the margin, so p is the largest p of their equivalence tests (intersection-union
    test). Against: one of them is beyond the margin (smallest Holm-adjusted p). The effect shown is that of the
    decisive layer. If some of the `layers` were not tested, the claim can fail, but not hold.
    `differences`: layer -> (seeds,)."""
    found: dict[int, EquivalenceResult] = {}
    for layer, values in differences.items():
        result = equivalence_test(values, margin, alpha)
        if not math.isnan(result.p_within):
            found[layer] = result
    if not found:
        n = min((len(values) for values in differences.values()), default=0)
        return undecided_test(
            f"{name}: every layer", unit, n, _untested_layers(differences, found, layers, name)
        )
    beyond = dict(zip(found, holm([w.p_beyond for w in found.values()]), strict=True))
    decisive = max(found, key=lambda layer: found[layer].p_within)
    if min(beyond.values()) < alpha:
        decisive = min(beyond, key=lambda layer: beyond[layer])
    w = found[decisive]
    about = f"{name}: layer {decisive}, of {len(found)} tested"
    p, p_against = max(v.p_within for v in found.values()), float(min(beyond.values()))
    power = joint_power([tost_power(v.mean, v.sd, margin) for v in found.values()])
    note = ""
    if len(found) < layers:
        p, power, note = math.nan, None, _untested_layers(differences, found, layers, name)
    return ClaimTest(
        *(about, unit, w.mean, w.low, w.high, p, p_against, w.n),
        note=note,
        level=1 - 2 * alpha,
        margin=margin,
        power=power,
    )


def _untested_layers(
    differences: dict[int, np.ndarray], tested: Collection[int], layers: int, name: str
) -> str:
    """Why not all of the `layers` could be tested: too few trials, or differences without variance."""
    constant = [layer for layer, values in differences.items() if layer not in tested and len(values) > 1]
    if not tested and not constant:
        return TOO_FEW_TRIALS
    enough, reasons = len(tested) + len(constant), []
    if enough < layers:
        reasons.append(f"{name}: only {enough} of {counted(layers, 'layer')} have enough trials")
    if constant:
        which = f"{'layer' if len(constant) == 1 else 'layers'} {join_list(constant)}"
        reasons.append(f"{name}: all trials of {which} differ equally, so that there is no variance")
    return "; ".join(reasons)
