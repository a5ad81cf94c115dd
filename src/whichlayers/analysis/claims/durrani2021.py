"""D1 to D4: where linguistic knowledge is after finetuning, and what dropping the layers that hold it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from whichlayers.analysis.claims.base import (
    Claim,
    Limits,
    Test,
    is_lower,
    judge,
    label,
    not_asked,
    p_less,
    undecidable,
)
from whichlayers.analysis.claims.tamkin2020_data_size import FEW
from whichlayers.analysis.equivalence import below_margin
from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.intervals import difference_of_means, t_interval
from whichlayers.analysis.power import trials_for_mean

D1 = "After finetuning, probes of the upper layers know less of words, and those of the lower layers as much as before"
D2 = "Finetuning moves the neurons that know most of words towards lower layers"
D3 = (
    "Finetuning costs the neurons that know least of words more accuracy than those that know most, and in RoBERTa "
    "and XLNet more than in BERT"
)
D4 = "Dropping the bottom layers hurts more than dropping as many from the top"
WHOSE = ["model", "task", "finetuned_on", "train_size", "variant"]
UPPER, LOWER = 0.75, 0.5  # of the depth: layers above, and up to
SMALLEST_SHIFT = 0.02  # of the depth: a mean that moves less hardly moves
LOCALISED = ("roberta", "xlnet")  # families whose bottom neurons the paper saw lose most


def d1(points: pd.DataFrame, limits: Limits) -> Claim:
    rows = points[points["experiment"] == "word_probing"]
    tests = []
    for name, depth, change in _changes(rows, ["x"]):
        layers = change.columns.to_numpy(dtype=float)
        upper = change.loc[:, layers > UPPER * depth].mean(axis=1)
        lower = change.loc[:, layers <= LOWER * depth].mean(axis=1)
        if upper.notna().any():
            tests.append(
                _falls(upper.dropna().to_numpy(), f"{name}: upper quarter of the layers", "accuracy", limits)
            )
        if lower.notna().any():
            tests.append(_stays(lower.dropna().to_numpy(), f"{name}: lower half of the layers", limits))
    if not tests:
        return not_asked(
            "D1", D1, 'run kind = "word_probing" with pretrained = true and a task, 3 trials or more'
        )
    return judge("D1", D1, tests, limits, f"as much: less than {limits.margin:g} lost, one-sided")


def d2(points: pd.DataFrame, limits: Limits) -> Claim:
    rows = points[(points["experiment"] == "neuron_spread") & (points["ranking"] == "lca")]
    rows = rows[rows["share"] == rows.groupby(["model", "task"])["share"].transform("min")]
    tests = []
    for name, depth, change in _changes(rows, ["x"]):
        moved = (
            (change * change.columns.to_numpy(dtype=float))
            .sum(axis=1, min_count=len(change.columns))
            .dropna()
        )
        about = f"{name}: mean layer of the top neurons"
        tests.append(_falls(moved.to_numpy(), about, "layers", limits, SMALLEST_SHIFT * depth))
    if not tests:
        return not_asked("D2", D2, 'run kind = "neurons" with pretrained = true and a task, 3 trials or more')
    return judge("D2", D2, tests, limits, "the paper found it in RoBERTa and XLNet, not in BERT")


def d3(points: pd.DataFrame, limits: Limits) -> Claim:
    rows = points[(points["experiment"] == "neurons") & points["neurons"].isin(["top", "bottom"])]
    rows = rows[rows["ranking"] == "lca"]
    rows = rows[rows["share"] == rows.groupby(["model", "task"])["share"].transform("min")]
    tests: list[Test] = []
    for name, _, change in _changes(rows, ["neurons"]):
        if {"top", "bottom"} <= set(change.columns):
            more = (change["bottom"] - change["top"]).dropna().to_numpy()
            tests.append(_falls(more, f"{name}: bottom against top neurons", "accuracy", limits))
    tests += _against_bert(rows, limits)
    if not tests:
        needs = 'run kind = "neurons" with sets = ["top", "bottom"], pretrained = true and a task, 3 trials or more'
        return not_asked("D3", D3, needs)
    return judge("D3", D3, tests, limits)


def d4(points: pd.DataFrame, limits: Limits) -> Claim:
    rows = points[(points["experiment"] == "prune") & points["condition"].isin(["top", "bottom"])]
    tests = []
    for (*_, dropped), mine in each_group(rows, ["model", "task", "train_size", "variant", "x"]):
        table = mine.pivot_table(index="seed", columns="condition", values="value")
        if table.shape[1] == 2:
            both = (table["bottom"] - table["top"]).dropna().to_numpy()
            about = f"{label(mine, rows)}: bottom {dropped:g} against top {dropped:g} dropped"
            tests.append(_falls(both, about, str(mine["metric"].iloc[0]), limits))
    if not tests:
        return not_asked(
            "D4", D4, 'run kind = "prune" with top and bottom of the same numbers, 3 trials or more'
        )
    return judge("D4", D4, tests, limits)


def _changes(rows: pd.DataFrame, columns: list[str]) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """(name, depth, after less before as a table of seeds by `columns`) of every finetuned model and corpus."""
    before, finetuned = rows[rows["finetuned_on"] == ""], rows[rows["finetuned_on"] != ""]
    for key, after in each_group(finetuned, WHOSE):
        base = before[(before["model"] == key[0]) & (before["task"] == key[1])]
        if base.empty:
            continue
        tables = [t.pivot_table(index="seed", columns=columns, values="value") for t in (after, base)]
        change = (tables[0] - tables[1]).dropna(how="all").dropna(axis=1, how="all")
        if not change.empty:
            yield f"{label(after, finetuned)} after {key[2]}", int(after["depth"].iloc[0]), change


def _falls(values: np.ndarray, about: str, unit: str, limits: Limits, margin: float | None = None) -> Test:
    """For: the mean is below zero, two-sided. Against: it has not fallen by as much as matters."""
    if values.size < 2:
        return undecidable(about, unit, values.size, FEW)
    i = t_interval(values)
    error, df = i.sd / math.sqrt(i.n), i.n - 1
    p = min(1.0, 2 * p_less(i.mean, error, df, 0.0))
    against = p_less(-i.mean, error, df, limits.margin if margin is None else margin)
    needed = trials_for_mean(i.mean, i.sd, limits.alpha) if i.mean < 0 else None
    return Test(about, unit, i.mean, i.low, i.high, p, against, i.n, needed)


def _stays(values: np.ndarray, about: str, limits: Limits) -> Test:
    """That it falls by less than the margin, one-sided: knowing more than before does not count against it."""
    if values.size < 2:
        return undecidable(about, "accuracy", values.size, FEW)
    w = below_margin(-values, limits.margin, limits.alpha)
    room = limits.margin - w.mean
    needed = trials_for_mean(room, w.sd, limits.alpha, "larger") if room > 0 else None
    level = 1 - 2 * limits.alpha
    return Test(about, "accuracy", -w.mean, -w.high, -w.low, w.p_within, w.p_beyond, w.n, needed, level=level)


def _against_bert(rows: pd.DataFrame, limits: Limits) -> list[Test]:
    """Where a study has both: what finetuning costs the bottom neurons of RoBERTa or XLNet, and of BERT."""
    lost: dict[tuple, np.ndarray] = {}
    bottom = rows[rows["neurons"] == "bottom"]
    for _, mine in each_group(bottom, ["model", "task"]):
        for task, after in mine[mine["finetuned_on"] != ""].groupby("finetuned_on"):
            before = mine[mine["finetuned_on"] == ""].groupby("seed")["value"].mean()
            change = (after.groupby("seed")["value"].mean() - before).dropna().to_numpy()
            first = mine.iloc[0]
            if change.size > 1:
                lost[first["family"], first["model"], first["task"], task] = change
    tests = []
    for (family, model, corpus, task), change in lost.items():
        base = next((v for (f, _, c, t), v in lost.items() if (f, c, t) == ("bert", corpus, task)), None)
        if family not in LOCALISED or base is None:
            continue
        about = f"{corpus} after {task}: bottom neurons of {model} against BERT's"
        apart = difference_of_means(change, base)
        assert apart is not None  # each has two values or more
        tests.append(is_lower(apart, about, "accuracy", min(len(change), len(base)), limits))
    return tests
