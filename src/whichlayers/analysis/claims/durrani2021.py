"""Claims D1 to D4 of Durrani et al. 2021, "How transfer learning impacts linguistic knowledge in deep NLP models?".

Each function takes finished points and the thresholds, and returns the claim with its verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from whichlayers.analysis.baseline_differences import ALL_PRETRAINED
from whichlayers.analysis.claims.base import (
    ONE_CURVE,
    Claim,
    ClaimTest,
    ClaimThresholds,
    below_zero_test,
    decrease_test,
    evaluate_claim,
    group_label,
    is_task,
    metric_margin,
    no_decrease_test,
    not_tested,
    with_subject,
)
from whichlayers.analysis.intervals import welch_difference
from whichlayers.results.frame_utils import each_group
from whichlayers.text import join_list

D1 = (
    "After finetuning on SST-2, QNLI or MNLI, word probes of the upper layers lose accuracy, more than after STS-B, "
    "RTE or MRPC and more in RoBERTa and XLNet than in BERT, and those of the lower layers do not"
)
D2 = "In RoBERTa and XLNet, but not in BERT, finetuning moves the top neurons toward lower layers"
D3 = (
    "In RoBERTa and XLNet, but not in BERT, finetuning costs the bottom neurons more word-probing accuracy than the "
    "top neurons"
)
D4 = "Dropping the bottom layers hurts more than dropping as many from the top, and RoBERTa and XLNet more than BERT"
FINETUNED = ["model", "task", "finetuned_on", "train_size", "variant"]
# finetuning tasks: all of the paper
FORGETTING, PRESERVING = (("SST-2", "QNLI", "MNLI"), ("STS-B", "RTE", "MRPC"))
REDISTRIBUTING, STABLE = ("roberta", "xlnet"), ("bert",)  # model families: information moves, or stays
FAMILY_NAMES = {"roberta": "RoBERTa", "xlnet": "XLNet"}
# of the depth: the layers above are the upper layers; in BERT accuracy falls after layer 9 of 12
UPPER = 0.75
# of the depth: the layers up to it are the lower layers. Accuracy falls from layer 5 of 12 on in RoBERTa and XLNet,
# and from 5 to 7 on in BERT after MNLI
LOWER, LOWER_IF_EARLY = 0.5, 1 / 3
# RoBERTa and XLNet lose less than this at every lower layer, but never reach the old accuracy
LOWER_MARGIN = 0.02
SHIFT_MARGIN = 0.02  # of the depth: a smaller shift of the mean layer does not matter
# of the depth: the paper drops 6 of 12 layers. What few remaining layers do is another question
MAX_DROPPED = 0.5


@dataclass(frozen=True)
class FamilySample:
    """Values of one model that are compared with those of BERT."""

    family: str
    model: str
    about: str  # what is compared
    setting: tuple[Any, ...]  # equal for the models of a comparison: corpus, task, training size, variant
    values: np.ndarray  # (seeds,)
    unit: str
    margin: float


@dataclass(frozen=True)
class Change:
    """Change by finetuning on one task, for one model and corpus."""

    name: str
    model: str
    family: str
    corpus: str
    task: str  # that the model was finetuned on
    train_size: int
    variant: str
    depth: int
    values: pd.DataFrame  # (seeds, columns) after minus before finetuning
    margin: float  # of the metric


def d1(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Accuracy after minus before finetuning: falls in the upper layers, and not in the lower ones, after tasks that
    forget; falls less in the upper layers after tasks that preserve; falls more in RoBERTa and XLNet than in BERT."""
    rows = points[points["experiment"] == "word_probing"]
    changes = _changes(rows, ["x"], thresholds)
    tests: list[ClaimTest] = []
    for change in changes:
        if is_task(change.task, *FORGETTING):
            tests += _of_change(_forgetting_tests(change, thresholds), change)
        elif is_task(change.task, *PRESERVING):
            tests += _of_change(_preserving_test(change, changes), change)
    upper = "upper quarter of the layers"
    forgetting = [c for c in changes if is_task(c.task, *FORGETTING)]
    tests += _against_bert([_sample(c, _upper_mean(c), upper, "accuracy", c.margin) for c in forgetting])
    if not tests:
        how = (
            'run kind = "word_probing" with pretrained = true and finetuned on SST-2, QNLI or MNLI, 3 trials or '
            "more; the paper makes no claim about other tasks"
        )
        return _about_other_models(not_tested("D1", D1, how), rows)
    remark = "upper layers: the upper quarter; lower layers lose less than the margin, one-sided"
    return _about_other_models(evaluate_claim("D1", D1, tests, thresholds, remark), rows)


def _forgetting_tests(change: Change, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """The upper layers lose accuracy, and the lower layers do not."""
    early = change.family in REDISTRIBUTING or is_task(change.task, "MNLI")
    lower_margin = change.margin
    if change.family in REDISTRIBUTING and thresholds.margin is None:
        lower_margin = max(LOWER_MARGIN, change.margin)
    layers = change.values.columns.to_numpy(dtype=float)
    upper = _upper_mean(change)
    lower = change.values.loc[:, layers <= (LOWER_IF_EARLY if early else LOWER) * change.depth]
    tests = []
    if upper.size:
        about = f"{change.name}: upper quarter of the layers"
        tests.append(decrease_test(upper.to_numpy(), about, "accuracy", change.margin))
    kept = lower.mean(axis=1, skipna=False).dropna().to_numpy()  # (seeds,) of the same layers
    if kept.size:
        about = f"{change.name}: lower {'third' if early else 'half'} of the layers"
        tests.append(no_decrease_test(kept, about, "accuracy", lower_margin, thresholds.alpha))
    return tests


def _preserving_test(change: Change, changes: list[Change]) -> list[ClaimTest]:
    """The upper layers lose less after this task than, on average, after the tasks that forget; no test without them.
    Paired by seed. With several training sizes, each of these tasks has the one that is nearest to that of the change.
    """
    of_model = [
        other
        for other in changes
        if (other.model, other.corpus, other.variant) == (change.model, change.corpus, change.variant)
    ]
    forgetting = dict.fromkeys(other.task for other in of_model if is_task(other.task, *FORGETTING))
    others = [
        min(
            (other for other in of_model if other.task == task),
            key=lambda other: abs(math.log(other.train_size / change.train_size)),
        )
        for task in forgetting
    ]
    if not others:
        return []
    forgotten = pd.concat([_upper_mean(other) for other in others], axis=1).mean(axis=1, skipna=False)
    difference = (forgotten - _upper_mean(change)).dropna().to_numpy()
    tasks = join_list(other.task for other in others)
    about = f"{change.name} against the mean after {tasks}: upper quarter of the layers"
    return [decrease_test(difference, about, "accuracy", change.margin)] if difference.size else []


def _upper_mean(change: Change) -> pd.Series:
    """Mean change of the upper layers, one value per seed."""
    layers = change.values.columns.to_numpy(dtype=float)
    return change.values.loc[:, layers > UPPER * change.depth].mean(axis=1, skipna=False).dropna()


def d2(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Mean layer of the top neurons after minus before finetuning, for the smallest set of each model and corpus, and
    the shift in RoBERTa and XLNet minus that in BERT."""
    rows = points[(points["experiment"] == "neuron_spread") & (points["ranking"] == "lca")]
    tests: list[ClaimTest] = []
    samples, what = [], "mean layer of the top neurons"
    for change in _of_the_paper(_changes(_smallest_sets(rows), ["x"], thresholds)):
        layers = change.values.columns.to_numpy(dtype=float)
        shift = (change.values * layers).sum(axis=1, min_count=len(layers)).dropna()
        margin = SHIFT_MARGIN * change.depth
        about = f"{change.name}: {what}"
        found = _by_family(change, shift.to_numpy(), about, "layers", margin, thresholds.alpha)
        tests += _of_change(found, change)
        samples.append(_sample(change, shift, what, "layers", margin))
    tests += _against_bert(samples)
    if not tests:
        return _about_other_models(not_tested("D2", D2, _families_only('run kind = "neurons"')), rows)
    return _about_other_models(evaluate_claim("D2", D2, tests, thresholds), rows)


def d3(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Change of the bottom neurons' accuracy minus that of the top neurons, and that of other families minus BERT's."""
    rows = points[(points["experiment"] == "neurons") & points["neurons"].isin(["top", "bottom"])]
    rows = _smallest_sets(rows[rows["ranking"] == "lca"])
    changes = _of_the_paper(_changes(rows, ["neurons"], thresholds))
    tests: list[ClaimTest] = []
    for change in changes:
        if {"top", "bottom"} <= set(change.values.columns):
            difference = (change.values["bottom"] - change.values["top"]).dropna().to_numpy()
            about = f"{change.name}: bottom against top neurons"
            found = _by_family(change, difference, about, "accuracy", change.margin, thresholds.alpha)
            tests += _of_change(found, change)
    bottom = [(c, c.values["bottom"]) for c in changes if "bottom" in c.values]
    tests += _against_bert(
        [_sample(c, values, "bottom neurons", "accuracy", c.margin) for c, values in bottom]
    )
    if not tests:
        how = _families_only('run kind = "neurons" with sets = ["top", "bottom"]')
        return _about_other_models(not_tested("D3", D3, how), rows)
    return _about_other_models(evaluate_claim("D3", D3, tests, thresholds), rows)


def _of_the_paper(changes: Sequence[Change]) -> list[Change]:
    """The changes by finetuning on a task that the paper finetuned on; it makes no claim about others."""
    return [change for change in changes if is_task(change.task, *FORGETTING, *PRESERVING)]


def _of_change(tests: Sequence[ClaimTest], change: Change) -> list[ClaimTest]:
    """The tests with the model and the finetuning task of the change."""
    return [replace(test, model=change.model, task=change.task) for test in tests]


def _about_other_models(claim: Claim, rows: pd.DataFrame) -> Claim:
    """The claim with a note of the models that it is also about, if the study has its experiment but not them."""
    families = set(rows["family"])
    missing = tuple(name for family, name in FAMILY_NAMES.items() if family not in families)
    return replace(claim, not_testable=missing) if families else claim


def _by_family(
    change: Change, values: np.ndarray, about: str, unit: str, margin: float, alpha: float
) -> list[ClaimTest]:
    """A decrease in RoBERTa and XLNet, no decrease in BERT, and no test of other families."""
    if change.family in REDISTRIBUTING:
        return [decrease_test(values, about, unit, margin)]
    if change.family in STABLE:
        return [no_decrease_test(values, about, unit, margin, alpha)]
    return []


def _families_only(run: str) -> str:
    return (
        f"{run}, pretrained = true and finetuned on {join_list([*FORGETTING, *PRESERVING], 'or')}, 3 trials or more, "
        "on RoBERTa, XLNet or BERT; the paper makes no claim about other models and tasks"
    )


def d4(points: pd.DataFrame, thresholds: ClaimThresholds) -> Claim:
    """Score with the bottom n layers dropped minus that with the top n dropped, paired by seed, for the largest n up to
    half of the layers; and the effect of dropping the bottom n in RoBERTa and XLNet minus that in BERT."""
    pruned = points[points["experiment"] == "prune"]
    rows = _most_dropped(pruned)
    tests: list[ClaimTest] = []
    for (*_, dropped), group in each_group(rows, [*ONE_CURVE, "x"]):
        table = group.pivot_table(index="seed", columns="condition", values="value")
        differences = (table["bottom"] - table["top"]).dropna().to_numpy()
        about = f"{group_label(group, rows)}: bottom {dropped:g} against top {dropped:g} dropped"
        unit, margin = str(group["metric"].iloc[0]), metric_margin(group, thresholds)
        tests += with_subject([decrease_test(differences, about, unit, margin)], group)
    tests += _pruning_tests(pd.concat([pruned[pruned["condition"] == ALL_PRETRAINED], rows]), thresholds)
    if not tests:
        how = 'run kind = "prune" with top and bottom of the same numbers, up to half of the layers, 3 trials or more'
        return _about_other_models(not_tested("D4", D4, how), rows)
    return _about_other_models(evaluate_claim("D4", D4, tests, thresholds), rows)


def _most_dropped(pruned: pd.DataFrame) -> pd.DataFrame:
    """The rows of each curve in which the most layers, up to half of them, are dropped from the bottom and the top."""
    rows = pruned[
        pruned["condition"].isin(["top", "bottom"]) & (pruned["x"] <= MAX_DROPPED * pruned["depth"])
    ]
    rows = rows[rows.groupby([*ONE_CURVE, "x"])["condition"].transform("nunique") == 2]
    return rows[rows["x"] == rows.groupby(ONE_CURVE)["x"].transform("max")]


def _smallest_sets(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the smallest fraction of neurons of each model and corpus."""
    return rows[rows["share"] == rows.groupby(["model", "task"])["share"].transform("min")]


def _sample(change: Change, values: pd.Series, what: str, unit: str, margin: float) -> FamilySample:
    about = f"{change.corpus} after {change.task}: {what}"
    setting = (change.corpus, change.task, change.train_size, change.variant)
    return FamilySample(
        *(change.family, change.model, about, setting),
        values=values.dropna().to_numpy(),
        unit=unit,
        margin=margin,
    )


def _changes(rows: pd.DataFrame, columns: list[str], thresholds: ClaimThresholds) -> list[Change]:
    """Change by finetuning, for every model, corpus and finetuning task; `values` have these `columns`."""
    pretrained, finetuned = rows[rows["finetuned_on"] == ""], rows[rows["finetuned_on"] != ""]
    found = []
    for (model, corpus, task, *_), after in each_group(finetuned, FINETUNED):
        before = pretrained[(pretrained["model"] == model) & (pretrained["task"] == corpus)]
        if before.empty:
            continue
        tables = [t.pivot_table(index="seed", columns=columns, values="value") for t in (after, before)]
        values = (tables[0] - tables[1]).dropna(how="all").dropna(axis=1, how="all")
        if not values.empty:
            name, first = f"{group_label(after, finetuned)} after {task}", after.iloc[0]
            trained = (str(task), int(first["train_size"]), str(first["variant"]))
            facts = (str(model), str(first["family"]), str(corpus), *trained, int(first["depth"]))
            found.append(Change(name, *facts, values, metric_margin(after, thresholds)))
    return found


def _against_bert(samples: Sequence[FamilySample]) -> list[ClaimTest]:
    """RoBERTa's and XLNet's values are below those of the first BERT of the study with the same setting."""
    tests = []
    sizes = {sample.setting[:2]: set[Any]() for sample in samples}
    for sample in samples:
        sizes[sample.setting[:2]].add(sample.setting[2])
    for sample in samples:
        bert = [s.values for s in samples if s.family in STABLE and s.setting == sample.setting]
        if sample.family in REDISTRIBUTING and bert:
            several = len(sizes[sample.setting[:2]]) > 1
            about = f"{sample.about}, {sample.setting[2]:,} examples" if several else sample.about
            tests += _below_bert_test(replace(sample, about=about), bert[0])
    return tests


def _below_bert_test(sample: FamilySample, bert: np.ndarray) -> list[ClaimTest]:
    """The mean of the sample is below that of `bert` (seeds,); no test with a single value. Different models are
    independent samples (Welch's t test)."""
    d = welch_difference(sample.values, bert)
    if d is None:
        return []
    about, n = f"{sample.about}, {sample.model} against BERT", min(len(sample.values), len(bert))
    return [replace(below_zero_test(d, about, sample.unit, n, sample.margin), model=sample.model)]


def _pruning_tests(rows: pd.DataFrame, thresholds: ClaimThresholds) -> list[ClaimTest]:
    """Dropping the bottom n layers costs RoBERTa and XLNet more than BERT, averaged over the tasks that both have.

    If a task has several training sizes, there is a test for each size.
    """
    unit = ["model", "variant", "task", "train_size", "seed"]
    full = rows[rows["condition"] == ALL_PRETRAINED].drop_duplicates(unit).set_index(unit)["value"]
    dropped = rows[rows["condition"] == "bottom"]
    if dropped.groupby("task")["train_size"].nunique().gt(1).any():
        of_size = [(f", {size:,} examples", group) for (size,), group in each_group(dropped, ["train_size"])]
    else:
        of_size = [("", dropped)]
    tests: list[ClaimTest] = []
    for size, one in of_size:
        tables: dict[tuple[Any, ...], tuple[pd.DataFrame, float]] = {}  # (seeds, tasks), and the margin
        for key, group in each_group(one, ["family", "model", "variant", "x"]):
            loss = (group.set_index(unit)["value"] - full).dropna()
            if not loss.empty:
                by_task = loss.droplevel(["model", "variant", "train_size"]).unstack("task")
                tables[key] = (pd.DataFrame(by_task), metric_margin(group, thresholds))
        if tables:
            tests += _pruning_against_bert(tables, size, str(one["metric"].iloc[0]))
    return tests


def _pruning_against_bert(
    tables: Mapping[tuple[Any, ...], tuple[pd.DataFrame, float]], size: str, metric: str
) -> list[ClaimTest]:
    """The tests of `_pruning_tests` from tables (seeds, tasks) and margins by family, model, variant and n."""
    tests: list[ClaimTest] = []
    for (family, model, variant, n), (table, margin) in tables.items():
        bert = [t for (f, _, v, m), (t, _) in tables.items() if f in STABLE and (v, m) == (variant, n)]
        shared = [task for task in table.columns if bert and task in bert[0].columns]
        if family in REDISTRIBUTING and shared:
            about = f"{join_list(shared)}{size}: bottom {n:g} dropped against none"
            values, of_bert = (t[shared].dropna().mean(axis=1).to_numpy() for t in (table, bert[0]))
            sample = FamilySample(family, model, about, (), values, metric, margin)
            tests += _below_bert_test(sample, of_bert)
    return tests
