"""Claims T8 to T10, S3 and S4 on simulated trials: levels under the null, power, limits, messages."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.singh2020 import s3, s4
from whichlayers.analysis.claims.tamkin2020_layers import t8
from whichlayers.analysis.claims.tamkin2020_training import t9, t10

THRESHOLDS = ClaimThresholds()
HOLDS, FAILS, UNDECIDED, NOT_TESTED = "holds", "does not hold", "not enough trials", "not tested"
DEPTH = 12
BLOCK = 3
FIRST = np.arange(1, DEPTH - BLOCK + 2)  # first layers of the blocks
CORRELATION = 0.8 ** np.abs(np.subtract.outer(np.arange(13), np.arange(13)))
EARLY, LATE = slice(0, 4), slice(6, 10)  # blocks within layers 1 to 6, and 7 to 12


def noise(rng, n, k, sd):
    """(n, k) noise correlated over k as in results/, with a level per seed."""
    factor = np.linalg.cholesky(CORRELATION[:k, :k])
    return sd * (rng.normal(size=(n, k)) @ factor.T + rng.normal(size=(n, 1)))


def frame(values, x, **columns):
    """Points of (seeds, x) values with the columns that the claims read."""
    n = len(values)
    rows = pd.DataFrame({"seed": np.repeat(range(n), len(x)), "x": np.tile(x, n), "value": np.ravel(values)})
    settings = {
        "model": "m",
        "task": "SST-2",
        "variant": "",
        "metric": "accuracy",
        "depth": DEPTH,
        "condition": "",
    }
    settings |= {
        "train_size": 500,
        "keep_layer_norm": False,
        "reinit_pooler": False,
        "reinit_lr_factor": 1.0,
        "recipe": "as_described",
    }
    settings |= {
        "head": "mean",
        "untouched": False,
        "training": json.dumps({"epochs": 3, "lr": 2e-5}),
    } | columns
    rows = rows.assign(**{k: [v] * len(rows) if isinstance(v, tuple) else v for k, v in settings.items()})
    ids = [f"{hash(str(sorted(settings.items())))}/{s}/{k}" for s, k in zip(rows.seed, rows.x, strict=True)]
    return rows.assign(trial_id=ids)


# --- T8: early and late blocks ---


def blocks(rng, shapes, trials, sd, gain=0.2, condition="block reinitialized"):
    """One task per shape (blocks,), which gives the fraction of the gain that is left."""
    size = BLOCK if condition == "block reinitialized" else DEPTH - BLOCK
    parts = []
    for i, shape in enumerate(shapes):
        values = 0.5 + noise(rng, trials, 12, sd) + gain * np.concatenate([[0, 1], shape])
        task = f"task {i}"
        parts += [
            frame(values[:, :1], [0], condition="none pretrained", task=task, reinit=tuple(range(12))),
            frame(values[:, 1:2], [0], condition="all pretrained", task=task, reinit=()),
            frame(values[:, 2:], FIRST, condition=condition, task=task, reinit=tuple(range(size))),
        ]
    return pd.concat(parts, ignore_index=True).assign(experiment="localized", train_size=5000)


EARLY_MATTERS = 1 - np.linspace(0.6, 0.0, len(FIRST))
UNIFORM = np.full(len(FIRST), 0.8)


def test_t8_compares_blocks_within_the_two_halves():
    found = t8(blocks(np.random.default_rng(0), [EARLY_MATTERS], 6, 0.002), THRESHOLDS)
    truth = EARLY_MATTERS[EARLY].mean() - EARLY_MATTERS[LATE].mean()
    assert found.verdict == HOLDS
    assert [test.about for test in found.tests] == ["task 0, block reinitialized: early minus late blocks"]
    assert found.effect == pytest.approx(truth, abs=0.03)
    assert found.low < truth < found.high
    assert (found.tests[0].unit, found.tests[0].margin) == ("of the gain", 0.05)


def test_t8_preserved_blocks_are_better_if_early():
    rng = np.random.default_rng(1)
    preserved = 1 - EARLY_MATTERS
    found = t8(blocks(rng, [preserved], 6, 0.002, condition="block preserved"), THRESHOLDS)
    assert found.tests[0].about == "task 0, block preserved: late minus early blocks"
    assert found.effect == pytest.approx(preserved[LATE].mean() - preserved[EARLY].mean(), abs=0.03)
    assert found.verdict == HOLDS
    late = t8(blocks(rng, [preserved[::-1]], 6, 0.002, condition="block preserved"), THRESHOLDS)
    assert late.verdict == FAILS


def test_t8_averages_over_tasks_and_leaves_out_those_without_a_gain():
    rng = np.random.default_rng(2)
    two = t8(blocks(rng, [EARLY_MATTERS, UNIFORM], 6, 0.002), THRESHOLDS)
    assert two.verdict == HOLDS
    assert len(two.tests) == 1
    assert two.effect == pytest.approx(
        (EARLY_MATTERS[EARLY].mean() - EARLY_MATTERS[LATE].mean()) / 2, abs=0.03
    )
    without = blocks(rng, [UNIFORM], 6, 0.002, gain=0.0).assign(task="none")
    some = t8(pd.concat([blocks(rng, [EARLY_MATTERS], 6, 0.002), without]), THRESHOLDS)
    assert "1 of 2 tasks left out" in some.details
    assert some.effect == pytest.approx(EARLY_MATTERS[EARLY].mean() - EARLY_MATTERS[LATE].mean(), abs=0.03)
    nothing = t8(without, THRESHOLDS)
    assert nothing.verdict == UNDECIDED
    assert "no significant gain" in nothing.details


def test_t8_keeps_its_level_if_all_blocks_matter_alike():
    rng = np.random.default_rng(3)
    found = [t8(blocks(rng, [UNIFORM, UNIFORM], 3, 0.01), THRESHOLDS).tests[0] for _ in range(70)]
    assert (
        np.mean([test.p < 0.05 for test in found]) < 0.075
    )  # 2.5% in this direction plus 2.5 standard errors
    assert np.mean([test.low <= 0 <= test.high for test in found]) > 0.9


def test_t8_leaves_out_seeds_without_all_blocks():
    points = blocks(np.random.default_rng(18), [EARLY_MATTERS], 6, 0.002)
    missing = points[~((points.seed == 3) & (points.x == 2))]
    assert t8(missing, THRESHOLDS).tests[0].n == 5


def test_t8_needs_blocks_in_both_halves():
    points = blocks(np.random.default_rng(4), [UNIFORM], 3, 0.01)
    assert t8(points[points.x <= 6], THRESHOLDS).verdict == NOT_TESTED
    assert t8(points[(points.x == 0) | (points.x > 4)], THRESHOLDS).verdict == NOT_TESTED
    assert len(t8(points[(points.x <= 4) | (points.x > 6)], THRESHOLDS).tests) == 1


# --- T9: more epochs ---


def lengths(rng, gain, trials=5, sd=0.01, size=500, epochs=(3, 10), k=(0, 6, 12), **columns):
    """Trials of two lengths; the longer ones score higher by `gain`. They share examples, order and head."""
    level = np.linspace(0.5, 0.8, len(k)) + sd * rng.normal(size=(trials, 1))
    parts = [
        frame(
            level + extra + noise(rng, trials, len(k), sd / 2),
            list(k),
            **{"experiment": "epochs", "epochs": n, "training": json.dumps({"lr": 2e-5, "epochs": n})}
            | {"train_size": size}
            | columns,
        )
        for n, extra in zip(epochs, (0.0, gain), strict=True)
    ]
    return pd.concat(parts, ignore_index=True)


def test_t9_longer_training_helps_with_few_examples_only():
    rng = np.random.default_rng(5)
    as_in_paper = pd.concat([lengths(rng, 0.04), lengths(rng, 0.0, sd=0.004, size=5000)])
    found = t9(as_in_paper, THRESHOLDS)
    assert found.verdict == HOLDS
    assert [test.about for test in found.tests] == [
        "SST-2, 500 examples: 10 against 3 epochs",
        "SST-2, 5,000 examples: 10 against 3 epochs",
    ]
    assert found.tests[0].effect == pytest.approx(0.04, abs=0.015)
    assert found.tests[0].low < 0.04 < found.tests[0].high
    assert [test.level for test in found.tests] == [0.95, pytest.approx(0.9)]
    both = pd.concat([lengths(rng, 0.04), lengths(rng, 0.04, sd=0.004, size=5000)])
    assert [test.verdict for test in t9(both, THRESHOLDS).tests] == [HOLDS, FAILS]
    neither = pd.concat([lengths(rng, 0.0, sd=0.002), lengths(rng, -0.04, size=5000)])
    assert [test.verdict for test in t9(neither, THRESHOLDS).tests] == [FAILS, HOLDS]


def test_t9_compares_trials_of_three_epochs_with_the_longest_of_the_same_settings():
    rng = np.random.default_rng(6)
    three = pd.concat([lengths(rng, 0.1, epochs=(3, 5)), lengths(rng, 0.03)])
    one = t9(three.drop_duplicates(["epochs", "seed", "x"]), THRESHOLDS)
    assert [test.about for test in one.tests] == ["SST-2: 10 against 3 epochs"]
    assert t9(lengths(rng, 0.1, epochs=(5, 10)), THRESHOLDS).verdict == NOT_TESTED
    assert t9(lengths(rng, 0.1, epochs=(2, 3)), THRESHOLDS).verdict == NOT_TESTED
    assert t9(lengths(rng, 0.1, size=2000), THRESHOLDS).verdict == NOT_TESTED
    other_lr = lengths(rng, 0.1)
    other_lr.loc[other_lr.epochs == 10, "training"] = json.dumps({"lr": 5e-5, "epochs": 10})
    assert t9(other_lr, THRESHOLDS).verdict == NOT_TESTED
    assert t9(lengths(rng, 0.1)[lambda p: p.epochs == 3], THRESHOLDS).verdict == NOT_TESTED
    assert t9(lengths(rng, 0.1, experiment="probing"), THRESHOLDS).verdict == NOT_TESTED
    assert t9(lengths(rng, 0.1, trials=1), THRESHOLDS).verdict == UNDECIDED


def test_t9_counts_a_training_that_both_experiments_ran_once():
    points = lengths(np.random.default_rng(17), 0.04)
    twice = points[points.epochs == 3].assign(experiment="incremental", trial_id="again " + points.trial_id)
    once, again = (t9(p, THRESHOLDS).tests[0] for p in (points, pd.concat([points, twice])))
    assert (once.effect, once.p, once.n) == pytest.approx((again.effect, again.p, again.n))


def test_t9_uses_the_k_that_both_lengths_have():
    rng = np.random.default_rng(7)
    long = lengths(rng, 0.0, epochs=(3, 10), sd=0.001)
    more_k = frame(np.zeros((5, 1)), [3], experiment="incremental", epochs=3)
    found = t9(pd.concat([long, more_k]), THRESHOLDS)
    assert found.effect == pytest.approx(0.0, abs=0.003)


@pytest.mark.parametrize("size", [500, 5000])
def test_t9_keeps_its_level(size):
    """At the limit of each hypothesis: no gain with 500 examples, a gain of the margin with 5,000."""
    rng = np.random.default_rng(8)
    thresholds = ClaimThresholds(margin=0.01)
    gain = 0.0 if size == 500 else 0.01
    found = [t9(lengths(rng, gain, trials=4, size=size), thresholds).tests[0].p < 0.05 for _ in range(70)]
    assert np.mean(found) < (0.075 if size == 500 else 0.115)  # 2.5% and 5%, plus 2.5 standard errors


# --- T10: variance ---


def raised_lr(rng, ratio, trials, sd=0.01, gain=0.0):
    k = np.arange(12)
    usual, raised = (noise(rng, trials, 12, sd * factor) for factor in (1.0, ratio))
    settings = {"experiment": "incremental", "train_size": 5000}
    return pd.concat(
        [frame(0.6 + usual, k, **settings), frame(0.6 + gain + raised, k, **settings, reinit_lr_factor=5.0)]
    )


def test_t10_finds_a_larger_variance_whatever_the_mean():
    found = t10(raised_lr(np.random.default_rng(9), 3.0, 20, gain=-0.1), THRESHOLDS)
    assert found.verdict == HOLDS
    assert found.about == "SST-2: 5× lr against usual, accuracy"
    assert found.effect == pytest.approx(math.log(3), abs=0.3)
    assert found.low < math.log(3) < found.high
    assert found.tests[0].margin == pytest.approx(math.log(1.1))
    smaller = t10(raised_lr(np.random.default_rng(9), 1 / 3, 20), THRESHOLDS)
    assert smaller.verdict == FAILS
    assert smaller.effect < 0
    assert smaller.tests[0].needed is None


def test_t10_p_values_are_those_of_the_paired_t_test_of_deviations():
    points = raised_lr(np.random.default_rng(10), 2.0, 8)
    points = points[points.x == 4]
    (test,) = t10(points, THRESHOLDS).tests
    values = [points[points.reinit_lr_factor == f].set_index("seed")["value"] for f in (1.0, 5.0)]
    usual, raised = ((v - v.median()).abs() for v in values)
    assert test.p == pytest.approx(2 * stats.ttest_rel(raised, usual, alternative="greater").pvalue)
    assert test.p_against == pytest.approx(stats.ttest_rel(raised, 1.1 * usual, alternative="less").pvalue)
    assert test.effect == pytest.approx(math.log(raised.mean() / usual.mean()))


def test_t10_is_undecided_with_one_or_two_trials():
    """See tests/analysis/test_variance_ratio.py for its level."""
    rng = np.random.default_rng(11)
    assert t10(raised_lr(rng, 2.0, 1), THRESHOLDS).verdict == UNDECIDED
    two = t10(raised_lr(rng, 2.0, 2), THRESHOLDS)
    assert two.verdict == UNDECIDED
    assert two.details.endswith("fewer than 3 trials, or no variance")
    usual = raised_lr(rng, 2.0, 3)[lambda p: p.reinit_lr_factor == 1.0]
    assert t10(usual, THRESHOLDS).verdict == NOT_TESTED


# --- S3 and S4 ---


def sizes(rng, scratch, pretrained, trials=5, sd=0.01, **columns):
    """k = 0, 6 and 12 at 500 and 5,000 examples."""
    levels = {500: (0.5, 0.6, pretrained), 5000: (scratch, 0.8, 0.9)}
    return pd.concat(
        [
            frame(
                np.array(level) + noise(rng, trials, 3, sd),
                [0, 6, 12],
                experiment="incremental",
                train_size=n,
            )
            for n, level in levels.items()
        ]
    ).assign(**columns)


def test_s3_compares_independent_samples_of_two_sizes():
    rng = np.random.default_rng(12)
    points = sizes(rng, 0.7, 0.8)
    (test,) = s3(points, THRESHOLDS).tests
    scratch = points[(points.x == 0) & (points.train_size == 5000)]["value"]
    pretrained = points[(points.x == 12) & (points.train_size == 500)]["value"]
    welch = stats.ttest_ind(scratch, pretrained, equal_var=False)
    assert test.p == pytest.approx(welch.pvalue)
    assert test.effect == pytest.approx(scratch.mean() - pretrained.mean())
    assert (test.low, test.high) == pytest.approx(tuple(welch.confidence_interval()))
    assert test.verdict == HOLDS
    assert s3(sizes(rng, 0.85, 0.8), THRESHOLDS).verdict == FAILS
    assert s3(sizes(rng, 0.7, 0.8, task="QNLI rebuilt"), THRESHOLDS).verdict == HOLDS
    assert s3(sizes(rng, 0.7, 0.8, trials=1), THRESHOLDS).verdict == UNDECIDED


def test_s3_needs_ten_times_the_data_and_one_of_its_tasks():
    points = sizes(np.random.default_rng(13), 0.7, 0.8)
    less = points.assign(train_size=points.train_size.where(points.train_size == 500, 4999))
    assert s3(less, THRESHOLDS).verdict == NOT_TESTED
    assert s3(points.assign(task="CoLA"), THRESHOLDS).verdict == NOT_TESTED
    assert s3(points[points.x > 0], THRESHOLDS).verdict == NOT_TESTED
    assert s3(points[points.x < 12], THRESHOLDS).verdict == NOT_TESTED


def probes(rng, top, trials=5, sd=0.01, depth=12, **columns):
    """Probes that score 0.7 except those of the two highest layers, `top`."""
    level = np.array([0.7] * (depth - 2) + [top] * 2)
    values = level + noise(rng, trials, depth, sd)
    return frame(values, np.arange(depth) + 1, experiment="probing", depth=depth).assign(**columns)


def test_s4_compares_the_two_highest_layers_with_the_one_below_by_seed():
    rng = np.random.default_rng(15)
    points = probes(rng, 0.65)
    (test,) = s4(points, THRESHOLDS).tests
    table = points.pivot(index="seed", columns="x", values="value")
    expected = stats.ttest_1samp((table[11] + table[12]) / 2 - table[10], 0.0)
    assert test.p == pytest.approx(expected.pvalue)
    assert test.verdict == HOLDS
    assert s4(probes(rng, 0.75), THRESHOLDS).verdict == FAILS
    assert s4(points.assign(task="CoLA"), THRESHOLDS).verdict == NOT_TESTED
    assert s4(points[points.x != 11], THRESHOLDS).verdict == NOT_TESTED
    assert s4(points.assign(experiment="incremental"), THRESHOLDS).verdict == NOT_TESTED
    assert len(s4(probes(rng, 0.65, depth=3), THRESHOLDS).tests) == 1
    assert s4(probes(rng, 0.65, depth=2), THRESHOLDS).verdict == NOT_TESTED
    (short,) = s4(points[~((points.seed == 0) & (points.x == 11))], THRESHOLDS).tests
    assert short.n == 4
