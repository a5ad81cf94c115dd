"""Facts of the sections about all-mpnet-base-v2 of reproduction.md, computed from results/."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from reproduction_numbers import (
    MPNET,
    RECIPES,
    SMALL,
    TAMKIN,
    claims,
    curve_row,
    early_gain,
    finished_and_planned,
    gain,
    interval,
    mean,
    permutation_baselines,
    points,
    pts,
    published,
    run_of,
    same_trials,
    step,
    steps,
    test_of,
    trials,
    values,
    verdict,
    wall_minutes,
)  # fmt: skip

from whichlayers.analysis.incremental_curves import gains
from whichlayers.analysis.intervals import holm, paired_difference, t_interval
from whichlayers.text import join_list

REBUILT = "QNLI rebuilt"
TASKS = ("SST-2", "CoLA", REBUILT)
KS = tuple(range(13))


def sentence_encoder() -> Iterator[str]:
    """all-mpnet-base-v2 at the paper's trials, and the earlier study."""
    (done, total), steps_done = finished_and_planned(TAMKIN), run_of(TAMKIN)[1]
    yield f"{done:,} of {total:,} trials of the preset `tamkin2020/all` without 50,000 examples, {steps_done}, {wall_minutes(TAMKIN):.0f} minutes on one H200"
    few, many = _trials_per_point(TAMKIN)
    yield f"with 500 examples ({few} trials, as in the paper) and with 5,000 ({many} trials)"
    old, small = _trials_per_point(MPNET), _trials_per_point(SMALL)
    yield f"all-mpnet-base-v2: 500 ({few} trials), 5k ({many}), in an earlier study 500 ({old[0]}), 5k ({old[1]}); carryover-bert-small: 500 ({small[0]}), 5k ({small[1]})"
    yield ", ".join(run_of(MPNET))
    same, apart, correlation = same_trials(TAMKIN, MPNET)
    yield f"The studies share {same} trials, run by other versions of the code in stacks of other sizes: their scores differ by {pts(apart)} points on average (correlation {correlation:.4f})."
    for task, name in (("SST-2", "accuracy"), ("CoLA", "Matthews correlation"), (REBUILT, "accuracy")):
        examples = " examples" if task == "SST-2" else ""
        yield curve_row(TAMKIN, f"{task}, 500{examples}, {name}", task, 500, KS)
        yield curve_row(TAMKIN, f"{task}, 5,000", task, 5000, KS)
    yield from _agrees()
    yield from _does_not()


def _trials_per_point(study: str) -> tuple[int, int]:
    """Trials of every point of the incremental curves with 500 and with 5,000 examples."""
    rows = points(study).query("experiment == 'incremental'")
    counts = rows.groupby(["train_size", "task", "x"])["trial_id"].nunique()
    (few,), (many,) = (set(counts.loc[size]) for size in (500, 5000))
    return few, many


def _agrees() -> Iterator[str]:
    yield from _layers_that_contribute()
    ends = {task: published(task, "5000", 12) for task in ("SST-2", "CoLA")} | {
        REBUILT: published("QNLI", "5000", 12)
    }
    apart = [
        abs(mean(TAMKIN, experiment="incremental", task=t, train_size=5000, x=12) - v)
        for t, v in ends.items()
    ]
    yield f"end within {math.ceil(max(apart) * 1000) / 10:.1f} points of ours (SST-2 at {pts(ends['SST-2'])}, CoLA at {pts(ends['CoLA'])}, QNLI at {pts(ends[REBUILT])})"
    at = {k: published("SST-2", "5000", k) for k in (0, 5, 9, 12)}
    assert (at[9] - at[5]) / (at[12] - at[0]) > 0.5
    yield "half of the published increase lies between k = 5 and k = 9"
    yield f"of which only k = 5 and above could be read off the published figure, it goes from {pts(published('CoLA', '5000', 5))} at k = 5 to {pts(published('CoLA', '5000', 9))} at k = 9"
    shape = [test_of(TAMKIN, "T1", f"{task}: interaction") for task in TASKS]
    assert [test.verdict for test in shape] == ["below the margin", "holds", "holds"]
    yield f"{pts(shape[1].effect)} points (root mean square) on CoLA and {pts(shape[2].effect)} on QNLI rebuilt; on SST-2 it is significant, but small ({pts(shape[0].effect)}, below the margin of {pts(shape[0].margin)})"
    cola, qnli = (test_of(TAMKIN, "T1", f"{task}: fraction") for task in TASKS[1:])
    assert cola.verdict == qnli.verdict == "holds"
    yield f"{pts(cola.effect, 0)} percentage points larger at 5,000 examples than at 500 on CoLA (95% interval {_ends(cola)}) and {pts(qnli.effect, 0)} on QNLI rebuilt ({_ends(qnli)})"
    yield from _permutations()
    moved = [math.exp(test.effect) for test in claims(TAMKIN)["S2"].tests]
    assert verdict(TAMKIN, "S2") == verdict(MPNET, "S2") == "holds"
    yield f"the output matrices move {moved[0]:.1f} times as far with ten times the data on SST-2, {moved[1]:.1f} times on CoLA and {moved[2]:.1f} times on QNLI rebuilt"
    sst, qnli = claims(TAMKIN)["S3"].tests
    assert verdict(TAMKIN, "S3") == verdict(MPNET, "S3") == "holds"
    yield f"finetuned on 500 examples is {pts(-sst.effect)} points above one without pretrained layers trained on 5,000 on SST-2, and {pts(-qnli.effect)} on QNLI rebuilt"
    test = claims(MPNET)["S4"].tests[0]
    assert verdict(MPNET, "S4") == "holds"
    yield f"probes of layers 11 and 12 are {pts(-test.effect)} points below that of layer 10"


def _ends(test: object) -> str:
    return f"{pts(test.low, 0)} to {pts(test.high, 0)}"


def _layers_that_contribute() -> Iterator[str]:
    reached = {(g.task, g.train_size): int(g.reaches_90) for g in gains(points(TAMKIN)).itertuples()}
    yield f"90% of the gain from pretraining is reached at k = {reached['SST-2', 500]} on SST-2, {reached['CoLA', 500]} on CoLA and {reached[REBUILT, 500]} on QNLI rebuilt with 500 examples (at {reached['SST-2', 5000]}, {reached['CoLA', 5000]} and {reached[REBUILT, 5000]} with 5,000)"
    found = steps(TAMKIN).query("train_size == 500 and p_adjusted < 0.05")
    adding = {task: sorted(rows.loc[rows["mean"] > 0, "to_k"]) for task, rows in found.groupby("task")}
    assert adding["SST-2"][:8] == adding["CoLA"] == list(range(1, 9))
    assert adding[REBUILT][:7] == list(range(1, 8))
    assert (adding["SST-2"][8:], adding[REBUILT][7:]) == ([10], [12])
    yield "With 50 trials, every layer up to 8 contributes significantly on SST-2 and CoLA, every layer up to 7 on QNLI rebuilt; above these only layer 10 on SST-2"
    further = [step(TAMKIN, "SST-2", 500, 10), step(TAMKIN, REBUILT, 500, 12)]
    yield f"(by {pts(further[0].mean)} points) and layer 12 on QNLI rebuilt (by {pts(further[1].mean)})"


def _permutations() -> Iterator[str]:
    for study in (TAMKIN, MPNET):
        assert test_of(study, "T4", "CoLA: permuted").verdict == "holds"
    by_order = points(TAMKIN).query("experiment == 'permutation' and condition == 'permuted'")
    assert set(by_order["task"]) == {"CoLA"}
    lost = test_of(TAMKIN, "T4", "CoLA: permuted")
    none, every = permutation_baselines(TAMKIN, "CoLA")
    permuted = by_order["value"].mean()
    at_zero = int((by_order["value"] == 0).sum())
    assert by_order.loc[by_order["value"] == 0, "accuracy"].nunique() == 1  # that of the majority class
    yield f"Ten permutations with three trials each reach {pts(permuted)} on CoLA, where no pretrained layer reaches {none} and the original order {every}: a drop of {pts(-lost.effect)} points ({pts(-lost.high)} to {pts(-lost.low)}). In {at_zero} of {len(by_order)} trials the model predicts a single class"
    i = t_interval(values(MPNET, experiment="permutation", condition="permuted", task="SST-2"))
    none, every = permutation_baselines(MPNET, "SST-2")
    yield f"On SST-2, in the earlier study, permutations reach {pts(i.mean)} ± {pts(i.half_width)}, against {none} and {every}"
    assert verdict(MPNET, "T4") == verdict(TAMKIN, "T4") == "not enough trials"
    rho = test_of(MPNET, "T4", "Spearman")
    yield f"Spearman {interval(rho)} over ten permutations"


def _does_not() -> Iterator[str]:
    new, old = (early_gain(study, "SST-2") for study in (TAMKIN, MPNET))
    assert max(new.high, old.high) < 0
    yield f"{pts(-new.mean, 0)} percentage points smaller at 5,000 examples than at 500 (95% interval {pts(-new.high, 0)} to {pts(-new.low, 0)}; with the five trials of the earlier study {pts(-old.mean, 0)}, {pts(-old.high, 0)} to {pts(-old.low, 0)})"
    sst = test_of(MPNET, "T2", "SST-2: correlation with probing at")
    assert test_of(MPNET, "T2", "SST-2: correlation with probing, 500").verdict == "does not hold"
    yield f"correlate at {interval(sst)}, corrected for noise"
    cola = test_of(TAMKIN, "T2", "CoLA: correlation with probing at")
    assert cola.verdict == "holds"
    yield f"the correlation is {interval(cola)}"
    more = test_of(TAMKIN, "T2", "CoLA: correlation with probing, 500")
    assert more.verdict == "not enough trials"
    assert test_of(MPNET, "T2", "CoLA: correlation with probing, 500").verdict == "does not hold"
    yield f"by {interval(more)}), so that T2 is undecided on CoLA; in the earlier study"
    found = {(t, n): gain(TAMKIN, t, n).gain for t in TASKS for n in (500, 5000)}
    yield f"On SST-2 the gain is {pts(found['SST-2', 500])} points at 500 examples and {pts(found['SST-2', 5000])} at 5,000; on CoLA it is {pts(found['CoLA', 500])} and {pts(found['CoLA', 5000])}, on QNLI rebuilt {pts(found[REBUILT, 500])} and {pts(found[REBUILT, 5000])}"
    falls = {(t, k): step(TAMKIN, t, 500, k) for t, k in falling()}
    assert list(falls) == [("SST-2", 12), ("CoLA", 9), ("CoLA", 11), (REBUILT, 8), (REBUILT, 11)]
    texts = [f"layer {k} on {t} by {pts(-s.mean)}" for (t, k), s in falls.items()]
    yield f"With 50 trials of 500 examples five steps are significantly negative: {join_list(texts)} points"
    scores = [values(TAMKIN, experiment="incremental", task="CoLA", train_size=500, x=k) for k in KS]
    assert int(np.argmax([v.mean() for v in scores])) == 8
    d = paired_difference(scores[8], scores[12])
    yield f"k = 8, the best on CoLA, is {pts(d.mean)} points ({pts(d.low)} to {pts(d.high)}, not corrected for selection) above k = 12"
    zero = mean(TAMKIN, experiment="incremental", task="SST-2", train_size=500, x=0)
    yield f"SST-2 reaches {pts(zero)}, published: {pts(published('SST-2', '500', 0))}"
    tests = claims(TAMKIN)["S1"].tests
    assert (verdict(TAMKIN, "S1"), verdict(MPNET, "S1")) == ("does not hold", "holds")
    failing = [t for t in tests if t.verdict == "does not hold"]
    assert [t.about.partition(":")[0] for t in failing] == [f"{REBUILT}, 5,000 examples"]
    assert all(t.verdict == "holds" for t in tests if t not in failing)
    yield f"in {len(failing)} of the {len(tests)} combinations of task and size"
    yield f"with 5,000 examples the lower half moves more on QNLI rebuilt (by {100 * math.expm1(-failing[0].effect):.0f}%)"


def falling() -> list[tuple[str, int]]:
    """Tasks and layers with a significantly negative step at 500 examples."""
    found = steps(TAMKIN).query("train_size == 500 and p_adjusted < 0.05 and mean < 0")
    return [(row.task, int(row.to_k)) for row in found.itertuples()]


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
