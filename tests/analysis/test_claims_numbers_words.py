"""Effects, intervals and p values of claims S1 to S4, D1 to D4, Z1 to Z3, L1 and P1, worked out by numpy and scipy."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from claim_points import claim_points, numbers
from claim_points import noisy as curves_around
from scipy import stats

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.durrani2021 import d1, d2, d3, d4
from whichlayers.analysis.claims.finetuning import finetuning_claims, l1, p1, z1, z2, z3
from whichlayers.analysis.claims.singh2020 import movement, s1, s3, s4, scaled_movement

THRESHOLDS = ClaimThresholds(margin=0.01)
LAYERS = np.arange(9)  # of eight layers and the embeddings
NOT_TESTED = "not tested"


def noisy(rng, shape, n=5, sd=0.005):
    return curves_around(rng, shape, n, sd)


def decrease(values, margin=0.01):
    """Numbers of the test that values are below zero."""
    found = stats.ttest_1samp(values, 0)
    p = min(1.0, 2 * stats.ttest_1samp(values, 0, alternative="less").pvalue)
    against = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    return pytest.approx((values.mean(), *found.confidence_interval(), p, against, len(values)))


def increase(values, margin=0.01):
    found = stats.ttest_1samp(values, 0)
    p = min(1.0, 2 * stats.ttest_1samp(values, 0, alternative="greater").pvalue)
    against = stats.ttest_1samp(values, margin, alternative="less").pvalue
    return pytest.approx((values.mean(), *found.confidence_interval(), p, against, len(values)))


def no_decrease(values, margin=0.01):
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    p = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    return pytest.approx((values.mean(), *interval, p, 1 - p, len(values)))


def below(a, b, margin=0.01):
    """Numbers of Welch's test that a is below b."""
    found = stats.ttest_ind(a, b, equal_var=False)
    p = min(1.0, 2 * stats.ttest_ind(a, b, equal_var=False, alternative="less").pvalue)
    against = stats.ttest_ind(a + margin, b, equal_var=False, alternative="greater").pvalue
    interval = found.confidence_interval()
    return pytest.approx((a.mean() - b.mean(), *interval, p, against, min(len(a), len(b))))


# --- Singh & Giovanardi ---


def weight_change(rows):
    return pd.DataFrame(rows, columns=["trial_id", "name", "layer", "kind", "value"])


def untouched(n=3, **columns):
    """Trials of the pretrained model."""
    return claim_points(np.full((n, 1), 0.8), [6], "incremental", untouched=True, **columns).assign(
        order=[()] * n, trial_id=[f"t{s}" for s in range(n)]
    )


def test_movement_uses_output_matrices_of_the_chosen_norm():
    points = untouched(1)
    rows = [
        ("t0", "layer.0.output.dense.weight", 1, "spectral", 9.0),
        ("t0", "layer.0.output.dense.weight", 1, "frobenius", 1.0),
        ("t0", "layer.0.extra.output.dense.weight", 1, "frobenius", 3.0),
        ("t0", "layer.0.attention.output.dense.weight", 1, "frobenius", 50.0),
        ("t0", "layer.0.intermediate.dense.weight", 1, "frobenius", 60.0),
        ("t0", "embeddings.output.dense.weight", 0, "frobenius", 70.0),
        ("other", "layer.0.output.dense.weight", 1, "frobenius", 80.0),
    ]
    moved = movement(points, weight_change(rows))
    assert moved[["layer", "value"]].to_numpy().tolist() == [[1, 2.0]]
    assert movement(points, weight_change(rows), "spectral")["value"].tolist() == [9.0]
    assert movement(points, weight_change(rows[:1]))["value"].tolist() == [9.0]  # what was measured
    others = [
        ("t0", "layers.0.mlp.weight", 1, "frobenius", 2.0),
        ("t0", "layers.0.q.weight", 1, "frobenius", 6.0),
    ]
    assert movement(points, weight_change(others))["value"].tolist() == [
        4.0
    ]  # all matrices without that name
    assert movement(points, weight_change([])).empty
    assert movement(points.assign(untouched=False), weight_change(rows)).empty
    assert movement(points.assign(order=[(2, 1)]), weight_change(rows)).empty


def test_s1_halves_of_an_odd_number_of_layers():
    rng = np.random.default_rng(0)
    table = np.exp(rng.normal(0, 0.2, (3, 5)))
    rows = [
        (f"t{s}", "output.dense.weight", n + 1, "frobenius", table[s, n]) for s in range(3) for n in range(5)
    ]
    (test,) = s1(untouched(), weight_change(rows), THRESHOLDS).tests
    values = np.log(table[:, -2:].mean(axis=1) / table[:, :2].mean(axis=1))
    assert numbers(test) == increase(values, math.log(1.05))
    assert test.margin == pytest.approx(math.log(1.05))
    moved = movement(untouched(), weight_change(rows))
    scaled = scaled_movement(moved).pivot(index="seed", columns="layer", values="value").to_numpy()
    least, most = table.min(axis=1, keepdims=True), table.max(axis=1, keepdims=True)
    assert scaled == pytest.approx((table - least) / (most - least))


def test_s3_at_exactly_ten_times_the_data():
    rng = np.random.default_rng(1)
    tables = {n: noisy(rng, (0.5, 0.7, 0.8), k) for n, k in ((500, 4), (4999, 3), (5000, 5), (50_000, 6))}
    points = pd.concat([claim_points(t, [0, 3, 6], "incremental", train_size=n) for n, t in tables.items()])
    tests = s3(points, THRESHOLDS).tests
    assert [test.about for test in tests] == [
        f"SST-2: {size} examples without pretrained layers against 500 with all"
        for size in ("5,000", "50,000")
    ]
    for test, size in zip(tests, (5000, 50_000), strict=True):
        assert numbers(test) == below(tables[size][:, 0], tables[500][:, 2])
    assert s3(points[(points["x"] == 0) | (points["train_size"] > 500)], THRESHOLDS).verdict == NOT_TESTED
    beyond = points.assign(train_size=points["train_size"].replace({5000: 50_100, 50_000: 60_000}))
    assert s3(beyond, THRESHOLDS).verdict == NOT_TESTED  # the claim is about 10 to 100 times as many


def test_s4_by_seed():
    rng = np.random.default_rng(2)
    table = noisy(rng, (0.5, 0.6, 0.7, 0.65, 0.6))
    (test,) = s4(claim_points(table, [0, 3, 4, 5, 6], "probing"), THRESHOLDS).tests
    assert numbers(test) == decrease(table[:, 3:].mean(axis=1) - table[:, 2])
    assert test.about == "SST-2: layers 5 and 6 against 4"


# --- Durrani et al. ---


def word_study(rng, family, task, drop, n=5, corpus="UD-EWT:xpos", **columns):
    """Accuracy of word probes before and after finetuning, (seeds, layers) each, and the points."""
    before = noisy(rng, 0.8 + 0 * LAYERS, n)
    after = before - np.asarray(drop) + rng.normal(0, 0.003, before.shape)
    settings = {"family": family, "model": family, "task": corpus, "depth": 8} | columns
    parts = [claim_points(before, LAYERS, "word_probing", **settings)]
    parts.append(claim_points(after, LAYERS, "word_probing", finetuned_on=task, **settings))
    return after - before, pd.concat(parts)


RISING = 0.1 * (LAYERS / 8) ** 3


@pytest.mark.parametrize(
    ("family", "task", "lower", "name"),
    [
        ("bert", "SST-2", 5, "half"),  # layers 0 to 4 of 8
        ("bert", "MNLI", 3, "third"),  # layers 0 to 2
        ("roberta", "QNLI", 3, "third"),
        ("other", "QNLI", 5, "half"),
    ],
)
def test_d1_upper_quarter_and_lower_layers(family, task, lower, name):
    change, points = word_study(np.random.default_rng(3), family, task, RISING)
    upper, low = d1(points, THRESHOLDS).tests
    assert numbers(upper) == decrease(change[:, 7:].mean(axis=1))  # layers 7 and 8 of 8
    assert numbers(low) == no_decrease(change[:, :lower].mean(axis=1))
    assert upper.about == f"UD-EWT:xpos after {task}: upper quarter of the layers"
    assert low.about == f"UD-EWT:xpos after {task}: lower {name} of the layers"
    upper_only = d1(points[points["x"] > 6], THRESHOLDS).tests
    assert [test.about for test in upper_only] == [upper.about]
    assert [test.about for test in d1(points[points["x"] < 3], THRESHOLDS).tests] == [low.about]


@pytest.mark.parametrize(("family", "margin"), [("roberta", 0.02), ("bert", 0.01)])
def test_d1_allows_roberta_two_points_in_lower_layers(family, margin):
    _, points = word_study(np.random.default_rng(4), family, "SST-2", RISING)
    points = points.assign(value=points["value"].round(3))
    quiet = points.assign(
        value=points.groupby(["finetuned_on", "x"])["value"].transform("mean") + 0.001 * points["seed"]
    )
    assert [test.margin for test in d1(quiet, ClaimThresholds()).tests] == pytest.approx([0.01, margin])
    noisy_points = points.assign(value=points["value"] + 0.1 * (points["seed"] % 2))
    upper, lower = (test.margin for test in d1(noisy_points, ClaimThresholds()).tests)
    assert upper == lower > 0.02  # half of the noise is more


def test_d1_tasks_that_preserve_lose_less_than_the_mean_of_those_that_forget():
    rng = np.random.default_rng(5)
    _, first = word_study(rng, "bert", "SST-2", RISING)
    _, second = word_study(rng, "bert", "QNLI", 2 * RISING)
    _, third = word_study(rng, "bert", "RTE", 0.1 * RISING)
    before = first[first["finetuned_on"] == ""]
    points = pd.concat([first, *(p[p["finetuned_on"] != ""] for p in (second, third))])
    # all changes are from the same probes of the pretrained model
    base = before.pivot(index="seed", columns="x", values="value").to_numpy()
    changes = [
        p[p["finetuned_on"] != ""].pivot(index="seed", columns="x", values="value").to_numpy() - base
        for p in (first, second, third)
    ]
    upper = [c[:, 7:].mean(axis=1) for c in changes]
    tests = {test.about: test for test in d1(points, THRESHOLDS).tests}
    about = "UD-EWT:xpos after RTE against the mean after SST-2 and QNLI: upper quarter of the layers"
    assert numbers(tests[about]) == decrease((upper[0] + upper[1]) / 2 - upper[2])
    assert len(tests) == 5
    assert d1(pd.concat([before, third[third["finetuned_on"] != ""]]), THRESHOLDS).verdict == NOT_TESTED
    assert (
        d1(
            points.assign(finetuned_on=points["finetuned_on"].replace({"SST-2": "CoLA", "QNLI": "CoLA"})),
            THRESHOLDS,
        ).verdict
        == NOT_TESTED
    )
    assert d1(points[points["finetuned_on"] != ""], THRESHOLDS).verdict == NOT_TESTED
    # a seed that lacks a task or a layer has no mean over them, and is left out
    lacking = points[(points["finetuned_on"] != "QNLI") | (points["seed"] != 0)]
    lacking = lacking[(lacking["finetuned_on"] != "RTE") | (lacking["seed"] != 1) | (lacking["x"] != 8)]
    tests = {test.about: test for test in d1(lacking, THRESHOLDS).tests}
    assert numbers(tests[about]) == decrease(((upper[0] + upper[1]) / 2 - upper[2])[2:])
    without_first = lacking[
        (lacking["finetuned_on"] != "SST-2") | (lacking["seed"] != 2) | (lacking["x"] != 0)
    ]
    tests = {test.about: test for test in d1(without_first, THRESHOLDS).tests}
    assert tests["UD-EWT:xpos after SST-2: lower half of the layers"].n == 4


def test_d1_compares_families_with_bert():
    rng = np.random.default_rng(6)
    bert, first = word_study(rng, "bert", "SST-2", RISING, n=4)
    roberta, second = word_study(rng, "roberta", "SST-2", 2 * RISING, n=6)
    _, third = word_study(rng, "roberta", "SST-2", 2 * RISING, corpus="UD-EWT:upos")
    tests = d1(pd.concat([first, second, third]), THRESHOLDS).tests
    (test,) = [test for test in tests if test.about.endswith("against BERT")]
    assert test.about == "UD-EWT:xpos after SST-2: upper quarter of the layers, roberta against BERT"
    assert numbers(test) == below(roberta[:, 7:].mean(axis=1), bert[:, 7:].mean(axis=1))
    single = pd.concat([first[first["seed"] == 0], second])
    assert not any(t.about.endswith("against BERT") for t in d1(single, THRESHOLDS).tests)


def neuron_spread(rng, family, n=5):
    """Shares of the top neurons by layer, before and after, (seeds, layers)."""
    tables = [rng.dirichlet(np.full(9, 50.0), n), rng.dirichlet(50.0 * np.linspace(1.5, 0.5, 9), n)]
    settings = {
        "family": family,
        "model": family,
        "depth": 8,
        "task": "UD-EWT:xpos",
        "ranking": "lca",
        "share": 0.05,
    }
    parts = [
        claim_points(t, LAYERS, "neuron_spread", finetuned_on=on, **settings)
        for t, on in zip(tables, ("", "SST-2"), strict=True)
    ]
    parts.append(parts[1].assign(share=0.2, value=0.0))  # a larger set
    parts.append(parts[1].assign(ranking="probeless", value=0.0))
    return (tables[1] - tables[0]) @ LAYERS, pd.concat(parts)


def test_d2_is_the_shift_of_the_mean_layer():
    rng = np.random.default_rng(7)
    (moved, first), (stays, second) = (neuron_spread(rng, family) for family in ("xlnet", "bert"))
    tests = d2(pd.concat([first, second]), THRESHOLDS).tests
    assert [numbers(test) for test in tests] == [
        decrease(moved, 0.16),
        no_decrease(stays, 0.16),
        below(moved, stays, 0.16),
    ]
    assert {(test.unit, round(test.margin, 9)) for test in tests} == {("layers", 0.16)}  # 2% of 8 layers
    partial = first[~((first["seed"] == 0) & (first["x"] == 3))]
    assert d2(partial, THRESHOLDS).tests[0].n == 4  # a seed without all layers has no mean layer
    assert d2(first.assign(family="gpt2"), THRESHOLDS).verdict == NOT_TESTED
    for other in ("CoLA", "mine"):  # the paper did not finetune on them
        assert d2(first.replace({"finetuned_on": {"SST-2": other}}), THRESHOLDS).verdict == NOT_TESTED


def neurons(rng, family, losses, n=5):
    """Changes of the accuracy with top and bottom neurons, (seeds,) each, and the points."""
    parts, changes = [], {}
    for name, loss in losses.items():
        before = 0.8 + rng.normal(0, 0.02, n)
        after = before - loss + rng.normal(0, 0.005, n)
        changes[name] = after - before
        settings = {"family": family, "model": family, "depth": 8, "task": "UD-EWT:xpos", "ranking": "lca"}
        settings |= {"neurons": name, "share": 0.05}
        parts += [
            claim_points(v[:, None], [0], "neurons", finetuned_on=on, **settings)
            for v, on in ((before, ""), (after, "SST-2"))
        ]
    return changes, pd.concat(parts)


def test_d3_is_the_loss_of_bottom_minus_top_neurons():
    rng = np.random.default_rng(8)
    (a, first), (b, second) = (
        neurons(rng, f, {"top": 0.01, "bottom": loss, "random": 0.5})
        for f, loss in (("roberta", 0.1), ("bert", 0.02))
    )
    tests = d3(pd.concat([first, second]), THRESHOLDS).tests
    assert [numbers(test) for test in tests] == [
        decrease(a["bottom"] - a["top"]),
        no_decrease(b["bottom"] - b["top"]),
        below(a["bottom"], b["bottom"]),
    ]
    assert tests[0].about == "UD-EWT:xpos, roberta after SST-2: bottom against top neurons"
    bottom = d3(pd.concat([first, second])[lambda p: p["neurons"] == "bottom"], THRESHOLDS).tests
    assert [test.about for test in bottom] == [
        "UD-EWT:xpos after SST-2: bottom neurons, roberta against BERT"
    ]
    assert d3(first[first["neurons"] == "top"], THRESHOLDS).verdict == NOT_TESTED
    for other in ("CoLA", "mine"):  # the paper did not finetune on them
        assert d3(first.replace({"finetuned_on": {"SST-2": other}}), THRESHOLDS).verdict == NOT_TESTED


def pruned(rng, family, losses, tasks=("SST-2", "QNLI"), n=5):
    """Scores (seeds,) by task and condition, and the points; three layers are dropped."""
    scores, parts = {}, []
    for task in tasks:
        base = 0.9 + rng.normal(0, 0.02, n)
        for condition, loss in losses.items():
            values = base - loss + rng.normal(0, 0.005, n)
            scores[task, condition] = values
            x = 0 if condition == "all pretrained" else 3
            settings = {"family": family, "model": family, "task": task, "condition": condition}
            parts.append(claim_points(values[:, None], [x], "prune", **settings))
    return scores, pd.concat(parts)


def test_d4_bottom_against_top_and_families_over_shared_tasks():
    rng = np.random.default_rng(9)
    a, first = pruned(
        rng, "roberta", {"all pretrained": 0, "top": 0.02, "bottom": 0.2}, ("SST-2", "QNLI", "RTE")
    )
    b, second = pruned(rng, "bert", {"all pretrained": 0, "top": 0.02, "bottom": 0.1}, n=4)
    *by_task, families = d4(pd.concat([first, second]), THRESHOLDS).tests
    assert [numbers(test) for test in by_task] == [
        decrease(s[task, "bottom"] - s[task, "top"])
        for s, task in ((a, "SST-2"), (a, "QNLI"), (a, "RTE"), (b, "SST-2"), (b, "QNLI"))
    ]
    assert by_task[0].about == "SST-2, roberta: bottom 3 against top 3 dropped"
    lost = [
        np.mean([s[t, "bottom"] - s[t, "all pretrained"] for t in ("SST-2", "QNLI")], axis=0) for s in (a, b)
    ]
    assert numbers(families) == below(*lost)
    assert families.about == "QNLI and SST-2: bottom 3 dropped against none, roberta against BERT"
    assert families.unit == "accuracy"
    top_only = d4(pd.concat([first, second])[lambda p: p["condition"] != "bottom"], THRESHOLDS)
    assert top_only.verdict == NOT_TESTED
    elsewhere = d4(pd.concat([first[first["task"] == "RTE"], second]), THRESHOLDS).tests
    assert not any("BERT" in test.about for test in elsewhere)
    assert not any(
        "BERT" in t.about for t in d4(pd.concat([first, second.assign(x=second["x"] + 1)]), THRESHOLDS).tests
    )


# --- how to finetune ---


def with_training(values, x, **training):
    return claim_points(values, x, "incremental", training=json.dumps({"epochs": 3, "lr": 2e-5} | training))


def test_z1_is_the_mean_over_one_to_six_layers():
    rng = np.random.default_rng(10)
    table = noisy(rng, (0.1, 0.7, 0.72, 0.74, 0.7))
    points = claim_points(table, [1, 2, 5, 7, 8], "incremental", reinit_pooler=True, depth=8)
    (test,) = z1(points, THRESHOLDS).tests
    assert numbers(test) == increase(table[:, 1:4].mean(axis=1) - table[:, 4])  # k = 1 has seven new layers
    assert z1(points[points["x"] != 8], THRESHOLDS) is None
    assert z1(points[points["x"].isin([1, 8])], THRESHOLDS) is None
    assert z1(points.assign(reinit_pooler=False), THRESHOLDS) is None


def test_z2_and_z3_compare_settings_that_differ_in_one_value():
    rng = np.random.default_rng(11)
    shape = (0.5, 0.8)
    plain, without, longer, longest, other = (noisy(rng, shape) for _ in range(5))
    x = [3, 6]
    points = pd.concat(
        [
            with_training(plain, x),
            with_training(without, x, bias_correction=False),
            with_training(longer, x, epochs=10),
            with_training(longest, x, epochs=20),
            with_training(other, x, lr=1e-4, epochs=5),
        ]
    )
    (second,) = z2(points, THRESHOLDS).tests
    assert numbers(second) == increase(plain[:, 1] - without[:, 1])
    (third,) = z3(points, THRESHOLDS).tests
    assert numbers(third) == increase(longest[:, 1] - plain[:, 1])
    alone = with_training(plain, x)
    assert (z2(alone, THRESHOLDS), z3(alone, THRESHOLDS)) == (None, None)
    assert z2(points[points["x"] == 3], THRESHOLDS) is None
    assert z3(points[points["x"] == 3], THRESHOLDS) is None


@pytest.mark.parametrize(("depth", "frozen"), [(8, 6), (12, 9), (6, 4)])
def test_l1_freezes_three_fourths_of_the_layers(depth, frozen):
    table = noisy(np.random.default_rng(12), (0.9, 0.87, 0.5))
    points = claim_points(table, [0, frozen, depth], "freeze", condition="top", depth=depth)
    (test,) = l1(points, THRESHOLDS).tests
    assert numbers(test) == no_decrease(table[:, 1] - 0.9 * table[:, 0], margin=0.0)
    assert l1(points[points["x"] != frozen], THRESHOLDS) is None
    assert l1(points[points["x"] != 0], THRESHOLDS) is None
    assert l1(points.assign(condition="bottom"), THRESHOLDS) is None


def test_p1_drops_at_most_40_percent_of_the_layers():
    table = noisy(np.random.default_rng(13), (0.9, 0.89, 0.885, 0.6))
    whole = claim_points(table[:, :1], [0], "prune", condition="all pretrained", depth=10)
    top = claim_points(table[:, 1:], [2, 4, 5], "prune", condition="top", depth=10)
    (test,) = p1(pd.concat([whole, top]), THRESHOLDS).tests
    assert numbers(test) == no_decrease(table[:, 2] - 0.98 * table[:, 0], margin=0.0)  # 4 of 10 are 40%
    assert p1(pd.concat([whole, top[top["x"] == 5]]), THRESHOLDS) is None
    assert [claim.id for claim in finetuning_claims(pd.concat([whole, top]), THRESHOLDS)] == ["P1"]
