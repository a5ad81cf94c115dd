"""Effects, intervals and p values of claims T1 to T3 and T8, worked out by numpy and scipy from the same trials."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from claim_points import FEW, K, claim_points, noisy, numbers
from scipy import stats

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.tamkin2020_layers import t3, t8
from whichlayers.analysis.claims.tamkin2020_sizes import t1, t2
from whichlayers.analysis.correlations import (
    bootstrap_p_below,
    curve_correlation,
    expanded_percentile_interval,
    single_trial_sd,
)
from whichlayers.analysis.interaction import interaction_test
from whichlayers.analysis.power import (
    interaction_power,
    mean_power,
    welch_power,
)

THRESHOLDS = ClaimThresholds()
MANY = 0.6 + 0.3 * (K / 6) ** 0.5


# --- T1 ---


def fraction_values(table, small):
    """(seeds,) fractions of the gain at small k, linearized: their mean is the ratio of means."""
    early, gain = table[:, small].mean(axis=1) - table[:, 0], table[:, -1] - table[:, 0]
    ratio = early.mean() / gain.mean()
    return ratio + (early - ratio * gain) / gain.mean()


def test_t1_at_the_largest_and_the_smallest_of_three_sizes():
    rng = np.random.default_rng(0)
    tables = {2000: noisy(rng, FEW, 5), 500: noisy(rng, FEW, 4), 5000: noisy(rng, MANY, 6)}
    points = pd.concat(
        [claim_points(t, K, "incremental", train_size=n, task="QNLI") for n, t in tables.items()]
    )
    interaction, early = t1(points, THRESHOLDS).tests
    found = interaction_test(points, "train_size")
    pooled = sum(((t - t.mean(axis=0)) ** 2).sum() for t in tables.values()) / (7 * (3 + 4 + 5))
    margin = max(0.01, 0.5 * math.sqrt(pooled))
    assert numbers(interaction) == pytest.approx(
        (found.effect, found.low, found.high, found.p, found.p_smaller_than(margin), 4)
    )
    assert (interaction.about, interaction.unit) == ("QNLI: interaction of k and size", "rms, accuracy")
    assert interaction.margin == pytest.approx(margin)
    of_margin = margin**2 / found.scale
    expected = interaction_power(found.noncentrality, found.df, found.n, found.df_denom, of_margin)
    assert interaction.power(7, 0.05) == pytest.approx(expected(7, 0.05))
    few, many = (fraction_values(tables[n], [1, 2]) for n in (500, 5000))
    welch = stats.ttest_ind(many, few, equal_var=False)
    against = stats.ttest_ind(many - 0.05, few, equal_var=False, alternative="less").pvalue
    assert numbers(early) == pytest.approx(
        (many.mean() - few.mean(), *welch.confidence_interval(), welch.pvalue, against, 4)
    )
    assert early.about == "QNLI: fraction of the gain at small k, 5,000 against 500"
    variances = (many.var(ddof=1), few.var(ddof=1))
    power = welch_power(many.mean() - few.mean(), variances, margin=0.05)
    assert early.power(9, 0.05) == pytest.approx(power(9, 0.05))


def test_t1_leaves_out_what_the_paper_excepts():
    rng = np.random.default_rng(3)
    tables = {500: noisy(rng, MANY, 4), 5000: noisy(rng, FEW, 5), 50_000: noisy(rng, MANY, 6)}
    points = pd.concat([claim_points(t, K, "incremental", train_size=n) for n, t in tables.items()])
    (alone,) = t1(points[points["train_size"] <= 5000], THRESHOLDS).tests
    assert alone.about == "SST-2: interaction of k and size"
    interaction, early = t1(points, THRESHOLDS).tests
    assert interaction.n == 4  # of all sizes
    few, many = (fraction_values(tables[n], [1, 2]) for n in (5000, 50_000))
    assert early.about == "SST-2: fraction of the gain at small k, 50,000 against 5,000"
    assert early.effect == pytest.approx(many.mean() - few.mean())
    own = t1(points[points["train_size"] <= 5000].assign(task="mine"), THRESHOLDS)
    assert [test.about for test in own.tests][1] == "mine: fraction of the gain at small k, 5,000 against 500"
    assert own.tests[1].effect < 0


def test_t1_without_a_gain_a_single_trial_and_equal_trials():
    rng = np.random.default_rng(1)
    flat, rising = 0.5 + 0 * K, MANY
    for few, many in ((flat, rising), (rising, flat)):
        parts = [noisy(rng, few, 3), noisy(rng, many, 5)]
        points = pd.concat(
            [claim_points(t, K, "incremental", train_size=n) for n, t in zip((600, 5000), parts, strict=True)]
        )
        early = t1(points, THRESHOLDS).tests[1]
        assert (math.isnan(early.p), early.n) == (True, 3)
        assert early.note.startswith("no significant gain from pretraining at one of the training sizes")
    single = claim_points(noisy(rng, rising, 1), K, "incremental", train_size=500)
    more = claim_points(noisy(rng, rising, 5), K, "incremental", train_size=5000)
    alone = t1(pd.concat([single, more]), THRESHOLDS).tests[0]
    assert (math.isnan(alone.p), alone.n) == (True, 1)
    falling = pd.concat(
        [
            claim_points(noisy(rng, s, 5), K, "incremental", train_size=n)
            for n, s in ((600, MANY), (5000, FEW))
        ]
    )
    early = t1(falling, THRESHOLDS).tests[1]
    assert early.effect < 0
    assert (early.p, early.power) == (1.0, None)
    assert t1(more, THRESHOLDS).verdict == "not tested"


# --- T2 ---


def probing_study(rng, probe, few, many, trials=(4, 5, 6), sd=0.01):
    parts = [claim_points(noisy(rng, probe, trials[0], sd), K, "probing", train_size=9000)]
    parts += [claim_points(noisy(rng, few, trials[1], sd), K, "incremental", train_size=500)]
    parts += [claim_points(noisy(rng, many, trials[2], sd), K, "incremental", train_size=5000)]
    return parts


def test_t2_corrects_correlations_for_noise():
    rng = np.random.default_rng(2)
    probe, few, many = probing_study(rng, FEW, FEW, MANY[::-1] + 0.1 * FEW)
    smaller = claim_points(noisy(rng, MANY, 4), K, "probing", train_size=100)  # not the largest size
    other = claim_points(noisy(rng, MANY, 4), K, "probing", train_size=99_999, task="CoLA")
    another = claim_points(noisy(rng, MANY, 4), K, "probing", train_size=99_999, model="n")
    middle = claim_points(noisy(rng, MANY, 4), K, "incremental", train_size=2000)
    misfit, difference = t2(pd.concat([other, another, smaller, probe, middle, few, many]), THRESHOLDS).tests
    a, b = curve_correlation(probe, few), curve_correlation(probe, many)
    against = bootstrap_p_below(-b.resampled, -0.9 * b.reliability, 4, is_correlation=True)
    assert numbers(misfit) == pytest.approx(
        (b.r / b.reliability, b.low / b.reliability, b.high / b.reliability, b.misfit.p, against, 4)
    )
    power = interaction_power((b.misfit.f - 1) * b.misfit.df, b.misfit.df, 4, b.misfit.df_denom)
    assert misfit.power(6, 0.05) == pytest.approx(power(6, 0.05))
    assert misfit.about == "SST-2: correlation with probing at 5,000"
    corrected = a.resampled / a.reliability - b.resampled / b.reliability
    effect = a.r / a.reliability - b.r / b.reliability
    low, high = expanded_percentile_interval(corrected, 4)
    p = min(1.0, 2 * bootstrap_p_below(-corrected, 0.0, 4))
    assert numbers(difference) == pytest.approx(
        (effect, low, high, p, bootstrap_p_below(corrected, 0.05, 4), 4)
    )
    assert difference.about == "SST-2: correlation with probing, 500 against 5,000"
    assert difference.power(6, 0.05) == pytest.approx(
        mean_power(effect, single_trial_sd(corrected, 4), margin=0.05)(6, 0.05)
    )
    swapped = pd.concat([probe, few.assign(train_size=5000), many.assign(train_size=500)])
    assert t2(swapped, THRESHOLDS).tests[1].power is None
    *_, alike = probing_study(rng, FEW, FEW, 0.7 * FEW + 0.3 * MANY[::-1])
    smaller = t2(pd.concat([probe, few, alike]), THRESHOLDS).tests[1]
    assert 0 < smaller.effect < 1
    assert smaller.effect < smaller.margin
    assert smaller.power is None  # more trials do not make it reach the margin


def test_t2_power_of_a_misfit_that_is_close_to_noise():
    probe, few, many = probing_study(np.random.default_rng(17), FEW, FEW, FEW + 0.2 * MANY, sd=0.03)
    misfit = t2(pd.concat([probe, few, many]), THRESHOLDS).tests[0]
    m = curve_correlation(probe, many).misfit
    power = interaction_power((m.f - 1) * m.df, m.df, 4, m.df_denom)
    assert misfit.power(6, 0.05) == pytest.approx(power(6, 0.05))
    assert 0.1 < misfit.power(6, 0.05) < 0.9


def test_t2_corrected_correlations_stay_within_1():
    rng = np.random.default_rng(3)
    same = pd.concat(probing_study(rng, FEW, FEW, FEW))
    for sign in (1, -1):
        test = t2(
            same.assign(value=np.where(same["experiment"] == "probing", sign, 1) * same["value"]), THRESHOLDS
        ).tests[0]
        assert -1.0 <= test.low <= test.effect <= test.high <= 1.0
        assert sign * test.effect > 0.95
    assert t2(same[same["train_size"] != 500], THRESHOLDS).verdict == "not tested"


@pytest.mark.parametrize("single", [0, 1, 2])
def test_t2_needs_two_trials_of_each_curve(single):
    rng = np.random.default_rng(4)
    trials = [3, 3, 3]
    enough = t2(pd.concat(probing_study(rng, FEW, FEW, MANY, [2, 2, 2])), THRESHOLDS)
    assert all(not math.isnan(test.p) for test in enough.tests)
    trials[single] = 1
    for test in t2(pd.concat(probing_study(rng, FEW, FEW, MANY, trials)), THRESHOLDS).tests:
        assert (math.isnan(test.p), test.n) == (True, 1)
        assert test.note == "the curves need at least 4 layers in common and 2 trials each"
    constant = [FEW, FEW, MANY]
    constant[single] = 0 * K
    parts = probing_study(rng, *constant, [4, 5, 3])
    parts[single]["value"] = 0.5
    assert all("at least 4 layers" in test.note for test in t2(pd.concat(parts), THRESHOLDS).tests)
    hidden = probing_study(rng, *constant, [4, 5, 3])
    noise = rng.normal(0, 0.1, (len(hidden[single]) // 7, 7))
    hidden[single]["value"] = np.ravel(noise - noise.mean(axis=0) + 1e-3 * K)
    assert {(test.note, test.n) for test in t2(pd.concat(hidden), THRESHOLDS).tests} == {
        ("noise is larger than the differences between layers: more trials are needed", 3)
    }


# --- T3 and T8 ---

STARTS = np.arange(1, 6)  # blocks of two layers


def localized(rng, shapes, n=5, condition="block reinitialized", gain=0.3, sd=0.01):
    """{task: (seeds, none + all + blocks)}, and the points."""
    tables = {
        f"task {i}": noisy(rng, np.r_[0.5, 0.5 + gain, 0.5 + gain * np.asarray(s)], n, sd)
        for i, s in enumerate(shapes)
    }
    size = 2 if condition == "block reinitialized" else 4
    parts = []
    for task, table in tables.items():
        for name, columns, x, layers in (
            ("none pretrained", slice(0, 1), [0], 6),
            ("all pretrained", slice(1, 2), [0], 0),
        ):
            parts.append(
                claim_points(
                    table[:, columns], x, "localized", task=task, condition=name, reinit=tuple(range(layers))
                )
            )
        parts.append(
            claim_points(
                table[:, 2:], STARTS, "localized", task=task, condition=condition, reinit=tuple(range(size))
            )
        )
    return tables, pd.concat(parts)


def scaled(table):
    """(seeds, blocks) fractions of the gain, linearized."""
    gain, above = table[:, 1] - table[:, 0], table[:, 2:] - table[:, :1]
    ratio = above.mean(axis=0) / gain.mean()
    return ratio + (above - np.outer(gain, ratio)) / gain.mean()


def test_t3_is_the_interaction_of_scaled_scores():
    rng = np.random.default_rng(6)
    tables, points = localized(rng, ([0.2, 0.4, 0.6, 0.8, 0.9], [0.9, 0.4, 0.3, 0.5, 0.6]))
    (test,) = t3(points, THRESHOLDS).tests
    rows = pd.concat([claim_points(scaled(t), STARTS, "localized", task=task) for task, t in tables.items()])
    found = interaction_test(rows, "task")
    assert numbers(test) == pytest.approx(
        (found.effect, found.low, found.high, found.p, found.p_smaller_than(0.05), 5)
    )
    assert (test.about, test.note) == ("block reinitialized: interaction of block and task", "")
    of_margin = test.margin**2 / found.scale
    expected = interaction_power(found.noncentrality, found.df, found.n, found.df_denom, of_margin)
    assert test.power(7, 0.05) == pytest.approx(expected(7, 0.05))
    single = t3(points[points["seed"] == 0], THRESHOLDS).tests[0]
    assert (single.n, single.note) == (0, "2 of 2 tasks left out: no significant gain from pretraining")
    two = points[points["seed"] < 2]
    one_block = t3(two[(two["x"] <= 1)], THRESHOLDS).tests[0]  # a single x cannot interact
    assert (one_block.n, one_block.note) == (2, "a single trial per point has no variance: run at least 3")
    assert t3(points[points["task"] == "task 0"], THRESHOLDS).verdict == "not tested"


@pytest.mark.parametrize("condition", ["block reinitialized", "block preserved"])
def test_t8_is_the_difference_of_early_and_late_blocks(condition):
    """Of six layers, blocks at 1 and 2 are early, at 4 and 5 late; that at 3 is neither."""
    rng = np.random.default_rng(7)
    tables, points = localized(
        rng, ([0.2, 0.4, 0.6, 0.8, 0.9], [0.9, 0.4, 0.3, 0.5, 0.6]), condition=condition
    )
    (test,) = t8(points, THRESHOLDS).tests
    sign = 1 if condition == "block reinitialized" else -1
    parts = [scaled(table) for table in tables.values()]
    values = sign * np.mean([s[:, :2].mean(axis=1) - s[:, 3:].mean(axis=1) for s in parts], axis=0)
    found = stats.ttest_1samp(values, 0)
    against = stats.ttest_1samp(values, -0.05, alternative="greater").pvalue
    p = found.pvalue if values.mean() < 0 else 1.0
    assert numbers(test) == pytest.approx((values.mean(), *found.confidence_interval(), p, against, 5))
    single = t8(points[points["seed"] == 0], THRESHOLDS).tests[0]
    assert (single.n, single.note) == (0, "2 of 2 tasks left out: no significant gain from pretraining")
    incomplete = points[~((points["seed"] == 0) & (points["x"] == 4) & (points["task"] == "task 1"))]
    assert t8(incomplete, THRESHOLDS).tests[0].n == 4
    one_left = t8(points[(points["seed"] == 0) | (points["x"] != 4)], THRESHOLDS).tests[0]
    assert (one_left.n, one_left.note) == (1, "a single trial per point has no variance: run at least 3")
    assert t8(points[points["x"] <= 3], THRESHOLDS).verdict == "not tested"
    assert t8(points[~points["x"].isin([1, 2])], THRESHOLDS).verdict == "not tested"
