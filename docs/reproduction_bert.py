"""Facts of the section about carryover-bert-small of reproduction.md, computed from results/."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from reproduction_numbers import (
    SMALL,
    claims,
    curve_row,
    interval,
    mean,
    permutation_baselines,
    points,
    pts,
    published,
    run_of,
    step,
    steps,
    test_of,
    values,
    verdict,
)  # fmt: skip

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.incremental_curves import gains
from whichlayers.analysis.intervals import t_interval


def small_bert() -> Iterator[str]:
    """carryover-bert-small on SST-2, CoLA and QNLI."""
    yield ", ".join(run_of(SMALL))
    ks = (0, 2, 3, 4, 5, 6, 8, 10, 12)
    for task, name in (("SST-2", "accuracy"), ("CoLA", "Matthews correlation"), ("QNLI", "accuracy")):
        examples = " examples" if task == "SST-2" else ""
        yield curve_row(SMALL, f"{task}, 500{examples}, {name}", task, 500, ks)
        yield curve_row(SMALL, f"{task}, 5,000", task, 5000, ks)
    g = {(x.task, x.train_size): x.gain for x in gains(points(SMALL)).itertuples()}
    assert pts(g["SST-2", 500], 0) == pts(g["SST-2", 5000], 0) == "2"
    yield f"{pts(g['QNLI', 500], 0)} to {pts(g['QNLI', 5000], 0)} points on QNLI, two on SST-2, {pts(g['CoLA', 500], 0)} to {pts(g['CoLA', 5000], 0)} on CoLA"
    curve = [published("QNLI", "5000", k) for k in range(13)]
    assert sorted(np.argsort(np.diff(curve))[-2:] + 1) == [2, 3]
    yield f"The published curve at 5k has most of its increase at k = 2 and 3 ({pts(curve[1])} to {pts(curve[3])}), ours at k = 3 to 5"
    found = steps(SMALL).query("task == 'QNLI' and to_k > 5 and p_adjusted < 0.05")
    (only,) = found.itertuples()
    yield f"No layer above 5 has a significant effect, except for a drop of {pts(-only.mean)} points at layer {only.to_k} with {only.train_size} examples"
    early = test_of(SMALL, "T1", "QNLI: fraction")
    assert early.verdict == "holds"
    yield f"first four layers is {pts(early.effect, 0)} percentage points larger at 5,000 examples than at 500 (95% interval {pts(early.low, 0)} to {pts(early.high, 0)})"
    few, many = (mean(SMALL, experiment="incremental", task="QNLI", train_size=5000, x=k) for k in (2, 4))
    yield f"layers 1 to 3 add nothing, and layer 5 adds {pts(step(SMALL, 'QNLI', 500, 5).mean)} points; with 5,000, layers 3 and 4 add {pts(many - few)}"
    assert not any(step(SMALL, "QNLI", 500, k).p_adjusted < 0.05 for k in (1, 2, 3))
    shape = {task: test_of(SMALL, "T1", f"{task}: interaction") for task in ("SST-2", "CoLA", "QNLI")}
    assert [t.verdict for t in shape.values()] == ["not enough trials", "below the margin", "holds"]
    yield f"{pts(shape['QNLI'].effect)} points (root mean square). On CoLA it is present, {pts(shape['CoLA'].effect)} points, but smaller than the margin of {pts(shape['CoLA'].margin)}; on SST-2 ({pts(shape['SST-2'].effect)} points) it is not significant after correction (p = {shape['SST-2'].p:.3f}, adjusted {shape['SST-2'].p_adjusted:.2f})"
    again, kept = (test_of(SMALL, "T3", f"block {c}:") for c in ("reinitialized", "preserved"))
    assert verdict(SMALL, "T3") == "holds"
    yield f"differ by {pts(again.effect, 0)} percentage points (root mean square; {pts(again.low, 0)} to {pts(again.high, 0)}), those of preserved blocks by {pts(kept.effect, 0)} ({pts(kept.low, 0)} to {pts(kept.high, 0)})"
    assert verdict(SMALL, "T8") == "holds"
    again, kept = (test_of(SMALL, "T8", f"block {c}:") for c in ("reinitialized", "preserved"))
    yield f"an early block re-initialized keeps {pts(-again.effect, 0)} percentage points less of the gain than a late one ({pts(-again.high, 0)} to {pts(-again.low, 0)}), an early block preserved {pts(-kept.effect, 0)} more ({pts(-kept.high, 0)} to {pts(-kept.low, 0)})"
    i = t_interval(values(SMALL, experiment="permutation", condition="permuted", task="CoLA"))
    none, every = permutation_baselines(SMALL, "CoLA")
    yield f"ten permutations reach {pts(i.mean)} ({pts(i.low)} to {pts(i.high)}), and with the same seed the original order {every} and no pretrained layer {none}"
    order = test_of(SMALL, "T4", "CoLA: permuted")
    assert order.verdict == "not enough trials"
    assert verdict(SMALL, "T4") == "not enough trials"
    yield f"(p = {order.p:.3f}) is not significant after correction, and T4 is undecided"
    moved = sorted(math.exp(test.effect) for test in claims(SMALL)["S2"].tests)
    assert verdict(SMALL, "S2") == "holds"
    yield f"{moved[0]:.1f} to {moved[-1]:.1f} times as far with ten times the data"
    yield from _blocks_of_qnli()
    yield f"correlate at {interval(test_of(SMALL, 'T2', 'QNLI: correlation with probing at'))}, and less at 500"
    cola, sst = (test_of(SMALL, "T2", f"{t}: correlation with probing at") for t in ("CoLA", "SST-2"))
    yield f"On CoLA the correlation is {interval(cola)}, on SST-2 {sst.effect:.2f}, with nearly flat curves"
    yield from _permutations_of_qnli()
    halves = {
        test.about: math.expm1(abs(test.effect)) * math.copysign(1, test.effect)
        for test in claims(SMALL)["S1"].tests
    }
    lower = sorted(-v for v in halves.values() if v < 0)
    (upper,) = (v for v in halves.values() if v > 0)
    assert test_of(SMALL, "S1", "SST-2, 500").verdict == "below the margin"
    assert (len(lower), len(halves)) == (3, 4)
    assert [about.partition(":")[0] for about in sorted(halves, key=halves.__getitem__)] == [
        "QNLI, 5,000 examples", "QNLI, 500 examples", "SST-2, 5,000 examples", "SST-2, 500 examples",
    ]  # fmt: skip
    yield f"in three cases of four, by {100 * lower[0]:.0f}% (SST-2, 5,000 examples) to {100 * lower[-1]:.0f}% (QNLI, 5,000); on SST-2 with 500 examples the upper half moves {100 * upper:.0f}% more, less than the margin of 5%"
    sst, qnli = claims(SMALL)["S3"].tests
    assert (sst.verdict, qnli.verdict) == ("does not hold", "holds")
    yield f"on QNLI it is {pts(-qnli.effect)} points above one without pretrained layers trained on 5,000, on SST-2 {pts(sst.effect)} points below"
    sst, qnli = claims(SMALL)["S4"].tests
    assert verdict(SMALL, "S4") == "below the margin"
    yield f"probes of layers 11 and 12 are {pts(-sst.effect)} points below that of layer 10 on SST-2 and {pts(-qnli.effect)} on QNLI, less than a point"


def _blocks_of_qnli() -> Iterator[str]:
    def at(condition: str, first: int) -> str:
        return pts(mean(SMALL, experiment="localized", task="QNLI", condition=condition, x=first))

    every, none = at("all pretrained", 0), at("none pretrained", 0)
    kept, again = "block preserved", "block reinitialized"
    yield f"reach {at(kept, 3)}, close to the whole model ({every} in these three trials; no pretrained layer: {none})"
    assert at(kept, 2)[:2] == at(kept, 4)[:2] == "76"
    yield "Layers 2 to 4 or 4 to 6 alone reach 76."
    effects = differences_from_baseline(points(SMALL)).query(
        "experiment == 'localized' and task == 'QNLI' and x > 5"
    )
    alone = effects[effects["condition"] == again]
    assert not (alone["p_adjusted"] < 0.05).any()
    yield "No block above layer 5 has an effect."
    yield f"without layers 1 to 3 the score is {at(again, 1)}, without 4 to 6 {at(again, 4)}, and without both, in blocks 2 to 4 and 3 to 5, {at(again, 2)} and {at(again, 3)}, a drop of all but {float(at(again, 3)) - float(none):.1f} points of the gain"
    yield "as long as layer 3 or layer 4 is kept"


def _permutations_of_qnli() -> Iterator[str]:
    rows = points(SMALL).query("experiment == 'permutation' and task == 'QNLI' and condition == 'permuted'")
    rows = rows.sort_values("value", ascending=False)
    best, middle, worst = (rows["value"].iloc[a:b] for a, b in ((0, 3), (3, 7), (7, 10)))
    assert middle.min() > 0.735
    none, every = permutation_baselines(SMALL, "QNLI")
    yield f"three are at {pts(best.min(), 0)} to {pts(best.max(), 0)} (the original order: {every}), four at {pts(middle.min(), 0)} to {pts(middle.max(), 0)}, three at {pts(worst.min(), 0)} to {pts(worst.max(), 0)} (no pretrained layer: {none})"
    in_order = [order.index(3) < order.index(4) < order.index(5) for order in rows["order"]]
    assert sum(in_order) == sum(in_order[:7]) == 4
    yield "All four that keep layers 3, 4 and 5 in this order"
