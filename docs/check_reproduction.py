"""Check reproduction.md against results/: every number and verdict of our results is recomputed.

    python docs/check_reproduction.py

`facts` are fragments of reproduction.md with numbers computed from results/*/results.csv.gz (and, for the weight changes
S1 and S2, from claims.csv). Each must occur on the page. A number of the page that is in no fact must be in `STATED`:
settings, run times and published numbers, which the results do not have.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from reproduction_numbers import (  # noqa: E402
    MPNET,
    RECIPES,
    SMALL,
    claims,
    curve_row,
    gain,
    interval,
    mean,
    points,
    pts,
    published,
    run_of,
    step,
    test_of,
    trials,
    values,
    verdict,
)  # fmt: skip
from reproduction_words import word_probing  # noqa: E402

from whichlayers.analysis.baseline_differences import differences_from_baseline  # noqa: E402
from whichlayers.analysis.incremental_curves import gains, incremental_steps  # noqa: E402
from whichlayers.analysis.intervals import holm, paired_difference, t_interval  # noqa: E402

STATED = (  # settings, run times, single trials outside results/, and what the papers print
    "Tamkin et al. 2020", "Singh and Giovanardi 2020", "Durrani et al. 2021", "H200", "all-mpnet-base-v2", "SST-2",
    "CoNLL-2000", "(../results/", "12 x 768", "12 x 512", "215 million tokens", "float32", "float16", "bfloat16",
    "values 38 times smaller", "2.667 standard errors", "batches of 64, at most 40 epochs",
    "12,096 of its 104,743 training examples", "500 (50 trials), 5k (3), 50k (3)", "500 (20 trials), 5k (5)",
    "learning rate 2e-5 with linear decay to 0", "batch size 8, gradients clipped at 1; five epochs at 500 examples, three at 5,000",
    "stacks of up to 52 trials", "95% interval", "50,000 examples", "50k", "with 500 examples only", "5k", "Figure 3",
    "1,890 trial-steps/s (SST-2, 5,000 examples)", "(6,656 neurons)", "(9,984)", "(204,577 training words)",
    "CoNLL-2000 (211,727)", "PMB 4.0.0 English gold (50,408)", "SST-2 (10,000 examples)", "QNLI (12,096)", "L1", "L2",
    "L1 = 0.01, which costs 14 points of accuracy", "L1 = L2 = 1e-4", "grid search with 192 probes",
    "17 and 20 minutes", "all 459 word probes", "2 minutes 38 seconds", "3 to 12 hours",
    "(Figures 1 and 4)", "(Tables 1, 4, 5 and 7, Figures 2 and 3)", "(Tables 2 and 6)", "(Table 7)", "(Figure 4)",
    "(10 to 12)", "2,500 examples of SST-2), layers 10 to 12 lose 21 points without and 14 points with standardized",
    "L2 = 0.01", "QNLI with 5,000 examples, and with", "T1", "T2", "T3", "T4", "S1", "S2", "S3", "S4", "T8", "D1", "D2",
    "D3", "D4", "k = 0", "| k, pretrained layers kept | 0 | 2 | 4 | 6 | 8 | 10 | 12 |",
    "| k, pretrained layers kept | 0 | 2 | 3 | 4 | 5 | 6 | 8 | 10 | 12 |", "Layers 3 to 5 on QNLI", "top 6 | bottom 6",
    "ten permutations", "at 500 examples", "at 5,000 examples", "with 500 examples", "With 500 examples",
    "with 5,000", "With 5,000 examples of QNLI", "500, where the paper", "CoLA with 5 trials",
    "on QNLI also layers 4 and 5", "layers 3 to 5 alone, with the other nine re-initialized", "finetuned on 500 examples",
)  # fmt: skip


def sentence_encoder() -> Iterator[str]:
    """all-mpnet-base-v2 on SST-2, CoLA and QNLI."""
    yield ", ".join(run_of(MPNET))
    yield f"the {trials(MPNET, task='QNLI')} trials of QNLI"
    ks = (0, 2, 4, 6, 8, 10, 12)
    yield curve_row(MPNET, "SST-2, 500 examples, accuracy", "SST-2", 500, ks)
    yield curve_row(MPNET, "SST-2, 5,000", "SST-2", 5000, ks)
    yield curve_row(MPNET, "CoLA, 500, Matthews correlation", "CoLA", 500, ks)
    yield curve_row(MPNET, "CoLA, 5,000", "CoLA", 5000, ks)
    yield curve_row(MPNET, "QNLI, 500, accuracy", "QNLI", 500, ks)
    reached = {(g.task, g.train_size): int(g.reaches_90) for g in gains(points(MPNET)).itertuples()}
    sst, cola = ([reached[task, size] for size in (500, 5000)] for task in ("SST-2", "CoLA"))
    yield f"90% of the gain from pretraining is reached at k = {sst[0]} on SST-2" + (
        f" and at {cola[0]} (500 examples) and {cola[1]} (5,000) on CoLA; on QNLI at k = {reached['QNLI', 500]}"
    )
    assert sst[0] == sst[1]
    steps = incremental_steps(points(MPNET))
    largest = steps[steps["task"] == "QNLI"].set_index("to_k")["mean"].idxmax()
    yield f"where layer {largest} contributes most"
    ends = {task: published(task, "5000", 12) for task in ("SST-2", "CoLA")}
    apart = [
        abs(mean(MPNET, experiment="incremental", task=t, train_size=5000, x=12) - v) for t, v in ends.items()
    ]
    yield f"end within {math.ceil(max(apart) * 1000) / 10:.1f} points of ours (SST-2 at {pts(ends['SST-2'])}, CoLA at {pts(ends['CoLA'])})"
    at = {k: published("SST-2", "5000", k) for k in (0, 5, 9, 12)}
    assert (at[9] - at[5]) / (at[12] - at[0]) > 0.5
    yield "half of the published increase lies between k = 5 and k = 9"
    yield f"of which only k = 5 and above could be read off the published figure, it goes from {pts(published('CoLA', '5000', 5))} at k = 5 to {pts(published('CoLA', '5000', 9))} at k = 9"
    sst, cola = (test_of(MPNET, "T1", f"{task}: interaction") for task in ("SST-2", "CoLA"))
    assert (sst.verdict, cola.verdict) == ("below the margin", "holds")
    yield f"small on SST-2 ({pts(sst.effect)} points, root mean square, below the margin of {pts(sst.margin)}), larger on CoLA ({pts(cola.effect)})"
    yield f"T4 is undecided as a whole ({verdict(MPNET, 'T4')})"
    for task, decimals in (("SST-2", 1), ("CoLA", 0)):
        i = t_interval(values(MPNET, experiment="permutation", condition="permuted", task=task))
        none, every = (
            pts(mean(MPNET, experiment="permutation", condition=c, task=task))
            for c in ("none pretrained", "all pretrained")
        )
        reach = f"{pts(i.mean, decimals)} ± {pts(i.half_width, decimals)}"
        if task == "SST-2":
            yield f"Ten permutations reach {reach} on SST-2, where no pretrained layer reaches {none} and the original order {every}"
        else:
            yield f"on CoLA {reach} against {none} and {every}"
    moved = [math.exp(test.effect) for test in claims(MPNET)["S2"].tests]
    assert verdict(MPNET, "S2") == "holds"
    yield f"{moved[0]:.1f} times as far with ten times the data on SST-2, {moved[1]:.1f} times on CoLA"
    test = claims(MPNET)["S3"].tests[0]
    assert verdict(MPNET, "S3") == "holds"
    yield f"{pts(-test.effect)} points above one without pretrained layers trained on 5,000"
    test = claims(MPNET)["S4"].tests[0]
    assert verdict(MPNET, "S4") == "holds"
    yield f"probes of layers 11 and 12 are {pts(-test.effect)} points below that of layer 10"
    sst, cola = (test_of(MPNET, "T1", f"{task}: fraction") for task in ("SST-2", "CoLA"))
    assert (sst.verdict, cola.verdict) == ("does not hold", "holds")
    yield f"first four layers is {pts(-sst.effect, 0)} percentage points smaller at 5,000 examples than at 500 (95% interval {pts(-sst.high, 0)} to {pts(-sst.low, 0)})"
    yield f"On CoLA it is {pts(cola.effect, 0)} points larger ({pts(cola.low, 0)} to {pts(cola.high, 0)})"
    yield f"correlate at {interval(test_of(MPNET, 'T2', 'SST-2: correlation with probing at'))}"
    yield f"the correlation is {interval(test_of(MPNET, 'T2', 'CoLA: correlation with probing at'))}"
    assert all(
        test_of(MPNET, "T2", f"{t}: correlation with probing, 500").verdict == "does not hold"
        for t in ("SST-2", "CoLA")
    )
    sst, cola = ([gain(MPNET, task, size).gain for size in (500, 5000)] for task in ("SST-2", "CoLA"))
    yield f"On SST-2 the gain is {pts(sst[0])} points at 500 examples and {pts(sst[1])} at 5,000; on CoLA it is {pts(cola[0])} and {pts(cola[1])} points"
    falls = [step(MPNET, "CoLA", 500, k) for k in (9, 11)]
    assert all(s.p_adjusted < 0.05 for s in falls)
    yield f"the steps from k = 8 to 9 and from 10 to 11 are negative ({pts(-falls[0].mean)} and {pts(-falls[1].mean)} points"
    best = [values(MPNET, experiment="incremental", task="CoLA", train_size=500, x=k) for k in range(13)]
    assert int(np.argmax([v.mean() for v in best])) == 8
    d = paired_difference(best[8], best[12])
    yield f"k = 8, the best, is {pts(d.mean)} points ({pts(d.low)} to {pts(d.high)}, not corrected for selection) above k = 12"
    zero = mean(MPNET, experiment="incremental", task="SST-2", train_size=500, x=0)
    yield f"SST-2 reaches {pts(zero)}, published: {pts(published('SST-2', '500', 0))}"
    tests = claims(MPNET)["S1"].tests
    assert [t.verdict for t in tests].count("does not hold") == 1
    assert verdict(MPNET, "S1") == "does not hold"
    low = test_of(MPNET, "S1", "CoLA, 5,000")
    words = {4: "four", 5: "five", 6: "six"}
    yield f"S1 fails in one case of {words[len(tests)]}."
    yield f"on CoLA with 5,000 the lower half moves more (by {100 * math.expm1(-low.effect):.0f}%)"
    yield f"Spearman {interval(test_of(MPNET, 'T4', 'Spearman'))}"


def recipes() -> Iterator[str]:
    """As described and as released."""
    rows = points(RECIPES)
    released = rows[(rows["recipe"] == "as_released") & ~rows["untouched"]]["trial_id"].nunique()
    yield f"{trials(RECIPES)} trials with 500 examples, {released} of them with the recipe of the released code"
    found = [
        paired_difference(*(values(RECIPES, x=k, recipe=r) for r in ("as_described", "as_released")))
        for k in range(12)
    ]
    significant = [k for k, p in enumerate(holm([d.p for d in found])) if p < 0.05]
    assert significant == [0, 1, 2]
    texts = [f"{pts(d.mean)} ({pts(d.low)} to {pts(d.high)})" for d in found]
    yield f"by {pts(found[0].mean)} points of Matthews correlation ({pts(found[0].low)} to {pts(found[0].high)}) at k = 0, {texts[1]} at k = 1, {texts[2]} at k = 2"
    yield "over the twelve k. From k = 3 on no difference is significant"
    at = [pts(mean(RECIPES, x=k, recipe="as_released")) for k in (0, 4)]
    yield f"CoLA reaches {at[0]} with no pretrained layer, and still {at[1]} with four"


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
    steps = incremental_steps(points(SMALL)).query("task == 'QNLI' and to_k > 5 and p_adjusted < 0.05")
    (only,) = steps.itertuples()
    yield f"No layer above 5 has a significant effect, except for a loss of {pts(-only.mean)} points at layer {only.to_k} with {only.train_size} examples"
    early = test_of(SMALL, "T1", "QNLI: fraction")
    assert early.verdict == "holds"
    yield f"first four layers is {pts(early.effect, 0)} percentage points larger at 5,000 examples than at 500 (95% interval {pts(early.low, 0)} to {pts(early.high, 0)})"
    few, many = (mean(SMALL, experiment="incremental", task="QNLI", train_size=5000, x=k) for k in (2, 4))
    yield f"layers 1 to 3 add nothing, and layer 5 adds {pts(step(SMALL, 'QNLI', 500, 5).mean)} points; with 5,000, layers 3 and 4 add {pts(many - few)}"
    assert not any(step(SMALL, "QNLI", 500, k).p_adjusted < 0.05 for k in (1, 2, 3))
    shape = {task: test_of(SMALL, "T1", f"{task}: interaction") for task in ("SST-2", "CoLA", "QNLI")}
    assert [t.verdict for t in shape.values()] == ["not enough data", "below the margin", "holds"]
    yield f"{pts(shape['QNLI'].effect)} points (root mean square). On CoLA it is present, {pts(shape['CoLA'].effect)} points, but smaller than the margin of {pts(shape['CoLA'].margin)}; on SST-2 ({pts(shape['SST-2'].effect)} points) it is not significant after correction (p = {shape['SST-2'].p:.3f}, adjusted {shape['SST-2'].p_adjusted:.2f})"
    again, kept = (test_of(SMALL, "T3", f"block {c}:") for c in ("reinitialized", "preserved"))
    assert verdict(SMALL, "T3") == "holds"
    yield f"differ by {pts(again.effect, 0)} percentage points (root mean square; {pts(again.low, 0)} to {pts(again.high, 0)}), those of preserved blocks by {pts(kept.effect, 0)} ({pts(kept.low, 0)} to {pts(kept.high, 0)})"
    assert verdict(SMALL, "T8") == "holds"
    again, kept = (test_of(SMALL, "T8", f"block {c}:") for c in ("reinitialized", "preserved"))
    yield f"an early block re-initialized keeps {pts(-again.effect, 0)} percentage points less of the gain than a late one ({pts(-again.high, 0)} to {pts(-again.low, 0)}), an early block preserved {pts(-kept.effect, 0)} more ({pts(-kept.high, 0)} to {pts(-kept.low, 0)})"
    i = t_interval(values(SMALL, experiment="permutation", condition="permuted", task="CoLA"))
    none, every = (
        pts(mean(SMALL, experiment="permutation", condition=c, task="CoLA"))
        for c in ("none pretrained", "all pretrained")
    )
    yield f"ten permutations reach {pts(i.mean)} ({pts(i.low)} to {pts(i.high)}), the original order {every}, no pretrained layer {none}"
    order = test_of(SMALL, "T4", "CoLA: permuted")
    assert order.verdict == "not enough data"
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
    assert (len(lower), len(halves)) == (5, 6)
    yield f"in five cases of six, by {100 * lower[0]:.0f}% (CoLA, 500 examples) to {100 * lower[-1]:.0f}% (QNLI, 5,000); on SST-2 with 500 examples the upper half moves {100 * upper:.0f}% more, less than the margin of 5%"
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
    yield f"without layers 1 to 3 the score is {at(again, 1)}, without 4 to 6 {at(again, 4)}, and without both, in blocks 2 to 4 and 3 to 5, {at(again, 2)} and {at(again, 3)}, a loss of all but {float(at(again, 3)) - float(none):.1f} points of the gain"
    yield "as long as layer 3 or layer 4 is kept"


def _permutations_of_qnli() -> Iterator[str]:
    rows = points(SMALL).query("experiment == 'permutation' and task == 'QNLI' and condition == 'permuted'")
    rows = rows.sort_values("value", ascending=False)
    best, middle, worst = (rows["value"].iloc[a:b] for a, b in ((0, 3), (3, 7), (7, 10)))
    assert middle.min() > 0.735
    every, none = (
        pts(mean(SMALL, experiment="permutation", condition=c, task="QNLI"))
        for c in ("all pretrained", "none pretrained")
    )
    yield f"three are at {pts(best.min(), 0)} to {pts(best.max(), 0)} (the original order: {every}), four at {pts(middle.min(), 0)} to {pts(middle.max(), 0)}, three at {pts(worst.min(), 0)} to {pts(worst.max(), 0)} (no pretrained layer: {none})"
    in_order = [order.index(3) < order.index(4) < order.index(5) for order in rows["order"]]
    assert sum(in_order) == sum(in_order[:7]) == 4
    yield "All four that keep layers 3, 4 and 5 in this order"


@cache
def facts() -> tuple[str, ...]:
    """All fragments that the page must have."""
    return (*sentence_encoder(), *recipes(), *small_bert(), *word_probing())


def problems(page: str) -> list[str]:
    """Facts that are not on the page, and numbers of the page that are no facts."""
    page = re.sub(r"```.*?```|!\[.*?\]\(.*?\)", "", page, flags=re.DOTALL)
    found, covered = [], np.zeros(len(page), dtype=bool)
    for fact in facts():
        places = [m.start() for m in re.finditer(re.escape(fact), page)]
        if not places:
            found.append(f"not on the page: {fact}")
        for place in places:
            covered[place : place + len(fact)] = True
    for text in STATED:
        for match in re.finditer(re.escape(text), page):
            covered[match.start() : match.end()] = True
    for match in re.finditer(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?", page):
        if not covered[match.start() : match.end()].all():
            around = page[max(0, match.start() - 40) : match.end() + 30].replace("\n", " ")
            found.append(f"not computed: {match[0]} in ...{around}...")
    return found


def main() -> int:
    found = problems((DOCS / "reproduction.md").read_text(encoding="utf-8"))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
