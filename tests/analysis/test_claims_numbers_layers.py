"""Effects, intervals and p values of claims T4 to T7, T9 and T10, worked out by numpy and scipy."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from claim_points import FEW, K, claim_points, noisy, numbers
from scipy import stats

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.tamkin2020_layers import t4, t5
from whichlayers.analysis.claims.tamkin2020_training import t6, t7, t9, t10
from whichlayers.analysis.power import (
    equivalence_power,
    t_test_power,
)

THRESHOLDS = ClaimThresholds()


# --- T4 ---


def permuted_study(rng, n_permutations=6, seeds=3, kept=0.2, **columns):
    """Tables of permuted scores (permutations, seeds) and baselines (seeds,), and the points."""
    level = rng.normal(0, 0.02, seeds)
    every, none = 0.9 + level + rng.normal(0, 0.005, seeds), 0.5 + level + rng.normal(0, 0.005, seeds)
    permuted = (
        0.5
        + 0.4 * kept
        + level
        + rng.normal(0, 0.03, (n_permutations, 1))
        + rng.normal(0, 0.005, (n_permutations, seeds))
    )
    parts = [
        claim_points(permuted.T, range(1, n_permutations + 1), "permutation", condition="permuted", **columns)
    ]
    for values, name in ((every, "all pretrained"), (none, "none pretrained")):
        parts.append(claim_points(values[:, None], [0], "permutation", condition=name, **columns))
    return permuted, every, none, pd.concat(parts)


def crossed(differences):
    """Mean, standard error and Satterthwaite's df of (permutations, seeds) differences."""
    n, s = differences.shape
    parts = differences.mean(axis=1).var(ddof=1) / n, differences.mean(axis=0).var(ddof=1) / s
    df = sum(parts) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (s - 1))
    return differences.mean(), math.sqrt(sum(parts)), df


def test_t4_tests_the_loss_and_the_gain_that_is_kept():
    permuted, every, none, points = permuted_study(np.random.default_rng(8))
    lost, kept = t4(points, THRESHOLDS).tests
    mean, error, df = crossed(permuted - every)
    half = stats.t.ppf(0.975, df) * error
    assert numbers(lost) == pytest.approx(
        (
            mean,
            mean - half,
            mean + half,
            2 * stats.t.cdf(mean / error, df),
            stats.t.cdf(-(mean + lost.margin) / error, df),
            6,
        )
    )
    assert (lost.needs, kept.needs, kept.unit) == ("permutations", "permutations", "of the gain")
    parts = (permuted - every).mean(axis=1).var(ddof=1), (permuted - every).mean(axis=0).var(ddof=1) / 3
    total = parts[0] / 9 + parts[1]
    df_9 = total**2 / ((parts[0] / 9) ** 2 / 8 + parts[1] ** 2 / 2)
    least = lost.margin / math.sqrt(total)
    expected = t_test_power(abs(mean) / math.sqrt(total), df_9, 0.05, True, least)
    assert lost.power(9, 0.05) == pytest.approx(expected)
    gain = (every - none).mean()
    fraction = (permuted - none).mean() / gain
    _, error, df = crossed(permuted - (none + fraction * (every - none)))
    half = stats.t.ppf(0.975, df) * error / gain
    mean, error, df = crossed(permuted - (none + 0.5 * (every - none)))
    p = stats.t.cdf(mean / error, df)
    assert numbers(kept) == pytest.approx((fraction, fraction - half, fraction + half, p, 1 - p, 6))
    assert kept.power(6, 0.05) == pytest.approx(t_test_power(abs(mean) / error, df, 0.05, False))


def test_t4_without_a_loss_a_gain_or_enough_permutations():
    rng = np.random.default_rng(9)
    *_, better = permuted_study(rng, kept=1.5)
    lost, kept = t4(better, THRESHOLDS).tests
    assert (lost.p, lost.power, kept.power) == (1.0, None, None)
    *_, points = permuted_study(rng)
    swap = {"all pretrained": "none pretrained", "none pretrained": "all pretrained"}
    backwards = t4(points.assign(condition=points["condition"].replace(swap)), THRESHOLDS).tests[1]
    assert (backwards.note, backwards.n) == ("SST-2: no significant gain from pretraining", 6)
    same = points.assign(value=np.where(points["condition"] == "permuted", points["value"], 0.5))
    assert t4(same, THRESHOLDS).tests[1].note == "SST-2: no significant gain from pretraining"
    (one,) = t4(points[points["x"] <= 1], THRESHOLDS).tests
    assert (one.n, one.note) == (1, "needs 2 permutations or more, and 2 seeds of the baseline")
    assert t4(points[points["condition"] == "permuted"], THRESHOLDS).verdict == "not tested"


def test_t4_keeps_a_fraction_of_the_gain_of_its_own_seeds():
    """Permuted trials of one seed, whose gain is half of the other seeds': the fraction and its p value agree."""
    rng = np.random.default_rng(12)
    every, none = np.array([0.7, 0.9, 0.91, 0.89]), np.array([0.5, 0.5, 0.51, 0.5])
    permuted = 0.62 + rng.normal(0, 0.002, 8)
    parts = [claim_points(permuted[None], range(1, 9), "permutation", condition="permuted")]
    for values, name in ((every, "all pretrained"), (none, "none pretrained")):
        parts.append(claim_points(values[:, None], [0], "permutation", condition=name))
    points = pd.concat(parts)
    kept = t4(points, THRESHOLDS).tests[1]
    fraction = (permuted.mean() - 0.5) / 0.2  # 0.6; of the mean gain of all seeds it would be 0.35
    assert kept.effect == pytest.approx(fraction)
    assert kept.p > 0.5 > kept.p_against  # more than half
    reference = none + fraction * (every - none)
    parts = permuted.var(ddof=1) / 8, reference.var(ddof=1)
    df = sum(parts) ** 2 / (parts[0] ** 2 / 7 + parts[1] ** 2 / 3)
    half = stats.t.ppf(0.975, df) * math.sqrt(sum(parts)) / 0.2
    assert (kept.low, kept.high) == pytest.approx((fraction - half, fraction + half))
    unsure = points.assign(value=np.where(points["value"] > 0.88, [0.3, 0.9] * 8, points["value"]))
    assert t4(unsure, THRESHOLDS).tests[1].note == "SST-2: no significant gain from pretraining"


def test_t4_correlates_tasks():
    rng = np.random.default_rng(10)
    a, *_, first = permuted_study(rng)
    b, *_, second = permuted_study(rng, task="CoLA", metric="mcc")
    *_, test = t4(pd.concat([first, second]), THRESHOLDS).tests
    rho = stats.spearmanr(a.mean(axis=1), b.mean(axis=1)).statistic
    error = math.sqrt(1.06 / 3)  # of Spearman's rho over 6 permutations
    against = stats.norm.cdf((math.atanh(rho) - math.atanh(0.3)) / error)
    assert (test.effect, test.p_against, test.n) == pytest.approx((rho, against, 6))
    assert (test.about, test.margin) == ("SST-2 and CoLA: Spearman over permutations", 0.3)
    assert test.p == 1.0 if rho < 0 else test.p < 1.0
    agreeing = second.assign(
        value=np.where(second["condition"] == "permuted", first["value"], second["value"])
    )
    *_, same = t4(pd.concat([first, agreeing]), THRESHOLDS).tests
    assert same.effect == pytest.approx(1.0)
    assert same.p == pytest.approx(2 / math.factorial(6))
    assert same.p_against == pytest.approx(stats.norm.cdf((math.atanh(0.999) - math.atanh(0.3)) / error))
    opposite = agreeing.assign(value=-agreeing["value"])
    *_, opposed = t4(pd.concat([first, opposite]), THRESHOLDS).tests
    assert opposed.p == 1.0
    assert opposed.p_against == pytest.approx(
        stats.norm.cdf((-math.atanh(0.999) - math.atanh(0.3)) / error), rel=1e-6, abs=0
    )
    both = pd.concat([first, second])
    sizes = pd.concat([both, both.assign(train_size=5000, variant="v")])
    assert [test.about for test in t4(sizes, THRESHOLDS).tests if test.unit == "rho"] == [
        "SST-2 and CoLA, 500 examples: Spearman over permutations",
        "SST-2 and CoLA, 5,000 examples, v: Spearman over permutations",
    ]
    remark = t4(first, THRESHOLDS).details
    assert "the correlation of tasks needs two tasks and 4 permutations" in remark
    assert "little: less than 50% of the gain" in t4(pd.concat([first, second]), THRESHOLDS).details


# --- T5 ---


def layers_study(rng, shifts, n=5, sd=0.002, task="SST-2"):
    base = 0.8 + rng.normal(0, 0.02, (n, 1))
    values = base + np.asarray(shifts) + rng.normal(0, sd, (n, len(shifts)))
    parts = [claim_points(base, [0], "single_layer", condition="all pretrained", task=task)]
    parts.append(claim_points(values, range(1, len(shifts) + 1), "single_layer", task=task))
    return values - base, pd.concat(parts).assign(depth=len(shifts))


def test_t5_is_the_largest_p_of_all_layers_and_the_smallest_against():
    differences, points = layers_study(np.random.default_rng(11), [0.004, -0.007, 0.001])
    thresholds = ClaimThresholds(margin=0.01)
    (test,) = t5(points, thresholds).tests
    p = [
        max(
            stats.ttest_1samp(d, 0.01, alternative="less").pvalue,
            stats.ttest_1samp(d, -0.01, alternative="greater").pvalue,
        )
        for d in differences.T
    ]
    beyond = [
        min(
            1.0,
            2
            * min(
                stats.ttest_1samp(d, 0.01, alternative="greater").pvalue,
                stats.ttest_1samp(d, -0.01, alternative="less").pvalue,
            ),
        )
        for d in differences.T
    ]
    worst = int(np.argmax(p))
    d = differences[:, worst]
    interval = stats.ttest_1samp(d, 0).confidence_interval(0.9)
    assert numbers(test) == pytest.approx((d.mean(), *interval, max(p), min(1.0, 3 * min(beyond)), 5))
    assert test.about == f"SST-2: layer {worst + 1}, of 3 tested"
    power = 1 - sum(
        1 - equivalence_power(d.mean() / d.std(ddof=1), 0.01 / d.std(ddof=1), 9, 0.05) for d in differences.T
    )
    assert test.power(9, 0.05) == pytest.approx(max(0.0, power))
    far, points = layers_study(np.random.default_rng(12), [0.0, 0.03, -0.05])
    (test,) = t5(points, thresholds).tests
    assert test.about == "SST-2: layer 3, of 3 tested"  # beyond the margin, the most significant
    against = 3 * 2 * stats.ttest_1samp(far[:, 2], -0.01, alternative="less").pvalue
    assert test.p_against == pytest.approx(against)
    assert test.power is None


def test_t5_on_cola_tests_the_first_layer_apart():
    differences, points = layers_study(np.random.default_rng(13), [-0.05, 0.001], task="CoLA")
    rest, first = t5(points, ClaimThresholds(margin=0.01)).tests
    assert (rest.about, first.about) == ("CoLA: layer 2, of 1 tested", "CoLA: layer 1")
    found = stats.ttest_1samp(differences[:, 0], 0)
    assert (first.effect, first.p) == pytest.approx((differences[:, 0].mean(), found.pvalue))
    only_first = t5(points[points["x"] <= 1], THRESHOLDS).tests
    assert (only_first[0].n, only_first[0].about) == (0, "CoLA: every layer")
    fewer = points[(points["seed"] == 0) | ((points["seed"] == 1) & (points["x"] == 2))]
    undecided = t5(fewer, THRESHOLDS).tests[0]
    assert (undecided.n, undecided.about) == (1, "CoLA: every layer")
    assert t5(points[points["condition"] == ""], THRESHOLDS).verdict == "not tested"
    without_first = t5(points[points["x"] != 1], ClaimThresholds(margin=0.01))
    assert without_first.verdict == "not enough trials"  # although the other layer is equivalent
    assert without_first.tests[0].verdict == "holds"
    assert without_first.details.endswith("CoLA: layer 1 was not re-initialized")


def test_t5_says_why_layers_were_not_tested():
    _, points = layers_study(np.random.default_rng(14), [0.001, 0.002, -0.001])
    constant = points["x"] == 2
    base = points["seed"].map(points[points["x"] == 0].set_index("seed")["value"].round(2))
    points = points.assign(
        value=np.where(constant, base + 0.25, np.where(points["x"] == 0, base, points["value"]))
    )
    (test,) = t5(points, THRESHOLDS).tests
    assert test.note == "SST-2: all trials of layer 2 differ equally, so that there is no variance"
    (fewer,) = t5(points[(points["x"] != 1) | (points["seed"] == 0)], THRESHOLDS).tests
    assert fewer.note == "SST-2: only 2 of 3 layers have enough trials; " + test.note
    (alone,) = t5(points[constant | (points["x"] == 0)], THRESHOLDS).tests
    assert alone.note == "SST-2: only 1 of 3 layers have enough trials; " + test.note


# --- T6, T7, T9 and T10 ---


@pytest.mark.parametrize(
    ("claim", "change", "name"),
    [(t6, {"reinit_lr_factor": 5.0}, "5× lr"), (t7, {"keep_layer_norm": True}, "layer norms kept")],
)
def test_t6_and_t7_are_one_sided_tests_of_the_mean_over_k(claim, change, name):
    rng = np.random.default_rng(14)
    usual, changed = noisy(rng, FEW, 5), noisy(rng, FEW + 0.002, 5)
    changed[0, 3] = np.nan
    points = pd.concat(
        [claim_points(usual, K, "incremental"), claim_points(changed, K, "incremental", **change)]
    )
    (test,) = claim(points, ClaimThresholds(margin=0.02)).tests
    gains = (changed - usual)[1:].mean(axis=1)
    p = stats.ttest_1samp(gains, 0.02, alternative="less").pvalue
    interval = stats.ttest_1samp(gains, 0).confidence_interval(0.9)
    assert numbers(test) == pytest.approx((gains.mean(), *interval, p, 1 - p, 4))
    assert test.about == f"SST-2: {name} against usual"
    other = points.assign(model="n", recipe="bert_init", train_size=5000)
    abouts = {test.about for test in claim(pd.concat([points, other]), THRESHOLDS).tests}
    assert abouts == {
        f"SST-2, m, 500 examples, as_described: {name} against usual",
        f"SST-2, n, 5,000 examples, bert_init: {name} against usual",
    }
    assert claim(points.assign(untouched=True), THRESHOLDS).verdict == "not tested"
    assert claim(points.assign(experiment="epochs"), THRESHOLDS).verdict == "not tested"
    apart = points[(points["x"] < 3) == (points[next(iter(change))] == next(iter(change.values())))]
    assert claim(apart, THRESHOLDS).verdict == "not tested"  # no k in both


@pytest.mark.parametrize(
    ("size", "tested"), [(100, True), (500, True), (501, False), (4999, False), (5000, True)]
)
def test_t9_at_the_sizes_of_the_paper(size, tested):
    rng = np.random.default_rng(15)
    short, long = noisy(rng, FEW, 5), noisy(rng, FEW + 0.01, 5)
    parts = [
        claim_points(
            t, K, "epochs", epochs=n, train_size=size, training=json.dumps({"lr": 2e-5, "epochs": n})
        )
        for n, t in ((3, short), (4, long))
    ]
    found = t9(pd.concat(parts), ClaimThresholds(margin=0.02))
    assert (found.verdict != "not tested") == tested
    if tested:
        (test,) = found.tests
        gains = (long - short).mean(axis=1)
        several = size <= 500
        p = (
            stats.ttest_1samp(gains, 0).pvalue
            if several
            else stats.ttest_1samp(gains, 0.02, alternative="less").pvalue
        )
        interval = stats.ttest_1samp(gains, 0).confidence_interval(0.95 if several else 0.9)
        assert (test.effect, test.low, test.high, test.p) == pytest.approx((gains.mean(), *interval, p))
        assert test.about == "SST-2: 4 against 3 epochs"


def test_t10_power_only_for_a_larger_variance():
    rng = np.random.default_rng(16)
    usual, raised = noisy(rng, FEW, 6), noisy(rng, FEW, 6, 0.05)
    points = [claim_points(t, K, "incremental", reinit_lr_factor=f) for t, f in ((usual, 1.0), (raised, 5.0))]
    (test,) = t10(pd.concat(points), THRESHOLDS).tests
    spread = [np.abs(t - np.median(t, axis=0)).mean() for t in (usual, raised)]
    assert test.effect == pytest.approx(math.log(spread[1] / spread[0]))
    assert test.power(30, 0.05) > 0.5
    smaller = [
        claim_points(t, K, "incremental", reinit_lr_factor=f) for t, f in ((raised, 1.0), (usual, 5.0))
    ]
    (test,) = t10(pd.concat(smaller), THRESHOLDS).tests
    assert (test.power, test.p) == (None, 1.0)
