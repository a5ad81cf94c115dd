"""T3 and T5: which block of layers a task needs, and how little a single one matters."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from whichlayers.analysis.baseline_differences import ALL, BASELINES, NONE
from whichlayers.analysis.claims.base import Claim, Limits, Test, judge, label, not_asked, plain, undecidable
from whichlayers.analysis.claims.tamkin2020_data_size import FEW
from whichlayers.analysis.equivalence import Within, within_margin
from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.interaction import interaction
from whichlayers.analysis.intervals import holm, paired_difference
from whichlayers.analysis.power import trials_for_interaction, trials_for_margin

T3 = "Which block of layers matters differs from task to task"
T5 = "Re-initialising a single layer, other than the first, hardly matters"


def t3(points: pd.DataFrame, limits: Limits) -> Claim:
    """On the scale of each task's own gain: a task that is hurt twice as much everywhere is no interaction."""
    rows = plain(points, "localized")
    tests = []
    for _, mine in each_group(rows, ["model", "train_size", "variant"]):
        if mine["task"].nunique() < 2:
            continue
        scaled = _shares_of_gain(mine)
        for condition in [c for c in dict.fromkeys(mine["condition"]) if c not in BASELINES]:
            chosen = scaled[scaled["condition"] == condition]
            about = ", ".join(part for part in (label(mine, rows), condition) if part)
            tests.append(_differs_by_task(chosen, about, mine["task"].nunique(), limits))
    if not tests:
        needs = 'run kind = "localized" on two tasks or more, 3 trials or more'
        return not_asked("T3", T3, needs)
    return judge("T3", T3, tests, limits, "as a share of each task's gain from none to all layers pretrained")


def t5(points: pd.DataFrame, limits: Limits) -> Claim:
    rows = plain(points, "single_layer")
    tests = [_hardly_matters(curve, label(curve, rows), limits) for _, curve in _with_baseline(rows)]
    if not tests:
        return not_asked("T5", T5, 'run kind = "single_layer", 3 trials or more')
    remark = f"hardly: within ±{limits.margin:g} of the metric, by TOST, for every layer"
    return judge("T5", T5, tests, limits, remark)


def _shares_of_gain(rows: pd.DataFrame) -> pd.DataFrame:
    """value as a share of the way from none to all pretrained; tasks without a clear gain are left out."""
    frames = []
    for _, of_task in each_group(rows, ["task"]):
        ends = [of_task[of_task["condition"] == c].set_index("seed")["value"] for c in (NONE, ALL)]
        gain = paired_difference(ends[1], ends[0])
        if gain is not None and gain.n > 1 and gain.low > 0:
            frames.append(of_task.assign(value=(of_task["value"] - ends[0].mean()) / gain.mean))
    return pd.concat(frames) if frames else rows.iloc[:0]


def _differs_by_task(rows: pd.DataFrame, about: str, tasks: int, limits: Limits) -> Test:
    unit = "rms, of the gain"
    left_out = tasks - rows["task"].nunique()
    note = f"{left_out} of {tasks} tasks left out: no clear gain from pretraining" if left_out else ""
    found = interaction(rows, "task")
    if found is None:
        n = int(rows.groupby("task")["seed"].nunique().min()) if len(rows) else 0
        return undecidable(f"{about}: interaction of block and task", unit, n, note or FEW)
    needed = trials_for_interaction(found.noncentrality, found.df, found.n, found.df_left, limits.alpha)
    smaller = found.p_smaller_than(limits.share)
    about = f"{about}: interaction of block and task"
    return Test(about, unit, found.effect, found.low, found.high, found.p, smaller, found.n, needed, note)


def _with_baseline(rows: pd.DataFrame) -> list[tuple[tuple, pd.DataFrame]]:
    every = each_group(rows, ["model", "task", "train_size", "variant"])
    return [(key, curve) for key, curve in every if (curve["condition"] == ALL).any()]


def _hardly_matters(curve: pd.DataFrame, name: str, limits: Limits) -> Test:
    """All layers at once: the largest p of their TOSTs, since all must be small; shown is that layer."""
    baseline = curve[curve["condition"] == ALL].set_index("seed")["value"]
    cells = curve[~curve["condition"].isin(BASELINES)]
    found: dict[int, Within] = {}
    for (x,), cell in each_group(cells, ["x"]):
        both = pd.concat([cell.set_index("seed")["value"], baseline], axis=1, join="inner").to_numpy()
        if len(both):
            found[int(x)] = within_margin(both[:, 0] - both[:, 1], limits.margin, limits.alpha)
    unit = str(curve["metric"].iloc[0])
    tested = {layer: w for layer, w in found.items() if layer > 1 and not math.isnan(w.p_within)}
    if not tested:
        return undecidable(f"{name}: every layer but the first", unit, len(baseline), FEW)
    first = found.get(1)
    note = ""
    if first is not None and first.p_beyond < limits.alpha:
        note = f"{name}: the first layer matters ({first.mean:+.3f})"
    beyond = dict(zip(tested, holm([w.p_beyond for w in tested.values()]), strict=True))
    worst = max(tested, key=lambda layer: tested[layer].p_within)
    if min(beyond.values()) < limits.alpha:
        worst = min(beyond, key=lambda layer: beyond[layer])
    w = tested[worst]
    needs = [trials_for_margin(v.mean, v.sd, limits.margin, limits.alpha) for v in tested.values()]
    needed = None if any(number is None for number in needs) else max(n for n in needs if n is not None)
    largest_p = max(v.p_within for v in tested.values())
    about = f"{name}: layer {worst}, of {len(tested)} tested"
    against, level = float(np.min([*beyond.values()])), 1 - 2 * limits.alpha
    return Test(about, unit, w.mean, w.low, w.high, largest_p, against, w.n, needed, note, level)
