"""Claims D1 to D4 of Durrani et al. 2021, "How transfer learning impacts linguistic knowledge in deep NLP models?".

Each function takes finished points and the thresholds, and returns the claim with its verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

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
    undecided_test,
)
from whichlayers.analysis.equivalence import non_superiority_test
from whichlayers.analysis.intervals import t_interval, welch_difference
from whichlayers.analysis.power import trials_for_t_test
from whichlayers.results.frame_utils import each_group
from whichlayers.text import format_score

D1 = "After finetuning, word probes of the upper layers lose accuracy, and those of the lower layers do not"
D2 = "Finetuning moves the top neurons toward lower layers"
D3 = (
    "Finetuning costs the bottom neurons more word-probing accuracy than the top neurons, and in RoBERTa and XLNet "
    "more than in BERT"
)
D4 = "Dropping the bottom layers hurts more than dropping as many from the top"
FINETUNED = ["model", "task", "finetuned_on", "train_size", "variant"]
UPPER, LOWER = 0.75, 0.5  # fractions of the depth: upper layers are above 0.75, lower layers up to 0.5
SHIFT_MARGIN = 0.02  # of the depth: a smaller shift of the mean layer does not matter
OTHER_FAMILIES = ("roberta", "xlnet")  # whose bottom neurons lost more than BERT's in the paper


def d1(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Accuracy after minus before finetuning: falls in the upper quarter of the layers, not in the lower half."""
    rows = points[points["experiment"] == "word_probing"]
    tests = []
    for name, depth, change in _changes(rows, ["x"]):
        layers = change.columns.to_numpy(dtype=float)
        upper = change.loc[:, layers > UPPER * depth].mean(axis=1)
        lower = change.loc[:, layers <= LOWER * depth].mean(axis=1)
        if upper.notna().any():
            about = f"{name}: upper quarter of the layers"
            tests.append(_decrease_test(upper.dropna().to_numpy(), about, "accuracy", thresholds))
        if lower.notna().any():
            about = f"{name}: lower half of the layers"
            tests.append(_no_decrease_test(lower.dropna().to_numpy(), about, thresholds))
    if not tests:
        how = 'run kind = "word_probing" with pretrained = true and a task, 3 trials or more'
        return not_tested("D1", D1, how)
    remark = f"lower layers: lose less than {format_score(thresholds.margin)} points, one-sided"
    return evaluate_claim("D1", D1, tests, thresholds, remark)


def d2(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Mean layer of the top neurons after minus before finetuning, for the smallest set of each model and corpus."""
    rows = points[(points["experiment"] == "neuron_spread") & (points["ranking"] == "lca")]
    rows = _smallest_sets(rows)
    tests = []
    for name, depth, change in _changes(rows, ["x"]):
        layers = change.columns.to_numpy(dtype=float)
        shift = (change * layers).sum(axis=1, min_count=len(change.columns)).dropna()
        about, margin = f"{name}: mean layer of the top neurons", SHIFT_MARGIN * depth
        tests.append(_decrease_test(shift.to_numpy(), about, "layers", thresholds, margin))
    if not tests:
        return not_tested(
            "D2", D2, 'run kind = "neurons" with pretrained = true and a task, 3 trials or more'
        )
    remark = "the paper found it in RoBERTa and XLNet, not in BERT"
    return evaluate_claim("D2", D2, tests, thresholds, remark)


def d3(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Change of the bottom neurons' accuracy minus that of the top neurons, and that of other families minus BERT's."""
    rows = points[(points["experiment"] == "neurons") & points["neurons"].isin(["top", "bottom"])]
    rows = _smallest_sets(rows[rows["ranking"] == "lca"])
    tests: list[ClaimTest] = []
    for name, _, change in _changes(rows, ["neurons"]):
        if {"top", "bottom"} <= set(change.columns):
            difference = (change["bottom"] - change["top"]).dropna().to_numpy()
            about = f"{name}: bottom against top neurons"
            tests.append(_decrease_test(difference, about, "accuracy", thresholds))
    tests += _family_tests(rows, thresholds)
    if not tests:
        how = 'run kind = "neurons" with sets = ["top", "bottom"], pretrained = true and a task, 3 trials or more'
        return not_tested("D3", D3, how)
    return evaluate_claim("D3", D3, tests, thresholds)


def d4(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Score with the bottom n layers dropped minus that with the top n dropped, paired by seed, for each n."""
    rows = points[(points["experiment"] == "prune") & points["condition"].isin(["top", "bottom"])]
    tests = []
    for (*_, dropped), group in each_group(rows, ["model", "task", "train_size", "variant", "x"]):
        table = group.pivot_table(index="seed", columns="condition", values="value")
        if table.shape[1] == 2:
            differences = (table["bottom"] - table["top"]).dropna().to_numpy()
            about = f"{group_label(group, rows)}: bottom {dropped:g} against top {dropped:g} dropped"
            tests.append(_decrease_test(differences, about, str(group["metric"].iloc[0]), thresholds))
    if not tests:
        how = 'run kind = "prune" with top and bottom of the same numbers, 3 trials or more'
        return not_tested("D4", D4, how)
    return evaluate_claim("D4", D4, tests, thresholds)


def _smallest_sets(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the smallest fraction of neurons of each model and corpus."""
    return rows[rows["share"] == rows.groupby(["model", "task"])["share"].transform("min")]


def _changes(rows: pd.DataFrame, columns: list[str]) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Change by finetuning, for every model, corpus and finetuning task.

    Yields:
        A label, the depth of the model, and values after minus before finetuning, a frame of seeds by `columns`.
    """
    pretrained, finetuned = rows[rows["finetuned_on"] == ""], rows[rows["finetuned_on"] != ""]
    for (model, corpus, task, *_), after in each_group(finetuned, FINETUNED):
        before = pretrained[(pretrained["model"] == model) & (pretrained["task"] == corpus)]
        if before.empty:
            continue
        tables = [t.pivot_table(index="seed", columns=columns, values="value") for t in (after, before)]
        change = (tables[0] - tables[1]).dropna(how="all").dropna(axis=1, how="all")
        if not change.empty:
            yield f"{group_label(after, finetuned)} after {task}", int(after["depth"].iloc[0]), change


def _decrease_test(
    values: np.ndarray, about: str, unit: str, thresholds: ClaimThresholds, margin: float | None = None
) -> ClaimTest:
    """Test that the mean of `values` (n,) is negative.

    For: it is below zero (two-sided p of the one-sample t test). Against: it is above -margin (one-sided); `margin` is
    that of the metric by default.
    """
    if values.size < 2:
        return undecided_test(about, unit, values.size, TOO_FEW_TRIALS)
    i = t_interval(values)
    standard_error, df = i.sd / math.sqrt(i.n), i.n - 1
    p = min(1.0, 2 * p_below(i.mean, standard_error, df, 0.0))
    p_against = p_below(-i.mean, standard_error, df, thresholds.margin if margin is None else margin)
    needed = trials_for_t_test(i.mean, i.sd, thresholds.alpha) if i.mean < 0 else None
    return ClaimTest(about, unit, i.mean, i.low, i.high, p, p_against, i.n, needed)


def _no_decrease_test(values: np.ndarray, about: str, thresholds: ClaimThresholds) -> ClaimTest:
    """Test that the mean of `values` (n,) is above -margin, one-sided; an increase of any size is in favor."""
    if values.size < 2:
        return undecided_test(about, "accuracy", values.size, TOO_FEW_TRIALS)
    w = non_superiority_test(-values, thresholds.margin, thresholds.alpha)
    distance = thresholds.margin - w.mean
    needed = trials_for_t_test(distance, w.sd, thresholds.alpha, "larger") if distance > 0 else None
    numbers = (-w.mean, -w.high, -w.low, w.p_within, w.p_beyond, w.n, needed)
    return ClaimTest(about, "accuracy", *numbers, level=1 - 2 * thresholds.alpha)


def _family_tests(rows: pd.DataFrame, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """Change of the bottom neurons' accuracy in RoBERTa or XLNet minus that in BERT, if a study has both."""
    changes: dict[tuple[str, str, str, str], np.ndarray] = {}  # family, model, corpus, task -> (seeds,)
    bottom = rows[rows["neurons"] == "bottom"]
    for (model, corpus), group in each_group(bottom, ["model", "task"]):
        for task, after in group[group["finetuned_on"] != ""].groupby("finetuned_on"):
            before = group[group["finetuned_on"] == ""].groupby("seed")["value"].mean()
            change = (after.groupby("seed")["value"].mean() - before).dropna().to_numpy()
            if change.size > 1:
                changes[group.iloc[0]["family"], model, corpus, str(task)] = change
    tests = []
    for (family, model, corpus, task), change in changes.items():
        bert_changes = (v for (f, _, c, t), v in changes.items() if (f, c, t) == ("bert", corpus, task))
        base = next(bert_changes, None)
        if family not in OTHER_FAMILIES or base is None:
            continue
        about = f"{corpus} after {task}: bottom neurons of {model} against BERT's"
        d = welch_difference(change, base)
        assert d is not None  # each has at least two values
        tests.append(below_zero_test(d, about, "accuracy", min(len(change), len(base)), thresholds))
    return tests
