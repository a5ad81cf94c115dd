"""How tests become verdicts: margins, more trials, several tests at once, and the numbers of trials needed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.base import (
    BELOW_MARGIN,
    FAILS,
    HOLDS,
    UNDECIDED,
    ClaimTest,
    decrease_test,
    evaluate_claim,
    metric_margin,
    no_decrease_test,
)
from whichlayers.analysis.intervals import holm
from whichlayers.analysis.power import tost_power, trials_for

THRESHOLDS = ClaimThresholds()
MARGIN = 0.01


def sample(n, mean, sd):
    """n values with exactly this mean and standard deviation."""
    z = stats.norm.ppf((np.arange(n) + 0.5) / n)
    return mean + sd * (z - z.mean()) / z.std(ddof=1)


def verdict(values, test=decrease_test, *args):
    return evaluate_claim("X", "text", [test(values, "a", "accuracy", MARGIN, *args)], THRESHOLDS).verdict


def plain_test(p, p_against=1.0):
    return ClaimTest("a", "accuracy", -0.1, -0.2, 0.0, p, p_against, n=5)


# --- more trials ---


@pytest.mark.parametrize("mean", [-0.03, -0.011, -0.009, -0.003, -0.001, 0.002, 0.02])
@pytest.mark.parametrize("sd", [0.001, 0.004, 0.02])
def test_more_trials_with_the_same_effect_do_not_turn_a_verdict_round(mean, sd):
    """0.002 with sd 0.001 did not hold with 3 trials, and held with 20."""
    verdicts = [verdict(sample(n, mean, sd)) for n in (2, 3, 4, 5, 8, 12, 20, 50, 200, 5000)]
    decided = [v for v in verdicts if v != UNDECIDED]
    assert not {HOLDS, FAILS} <= set(decided)
    assert not {HOLDS, BELOW_MARGIN} <= set(decided)
    expected = HOLDS if mean < -MARGIN else BELOW_MARGIN if mean < 0 else FAILS
    assert decided[-1] == expected
    assert verdicts[-1] == expected
    once_decided = list(itertools.dropwhile(lambda v: v == UNDECIDED, verdicts))
    assert UNDECIDED not in once_decided


def test_an_effect_below_its_margin_is_a_verdict_of_its_own():
    assert verdict(sample(20, -0.003, 0.004)) == BELOW_MARGIN
    assert verdict(sample(20, -0.03, 0.004)) == HOLDS
    assert verdict(sample(20, 0.003, 0.004)) == FAILS
    mixed = [decrease_test(sample(20, m, 0.004), f"{m}", "accuracy", MARGIN) for m in (-0.003, -0.03)]
    found = evaluate_claim("X", "text", mixed, THRESHOLDS)
    assert (found.verdict, found.about) == (BELOW_MARGIN, "-0.003")
    assert [test.verdict for test in found.tests] == [BELOW_MARGIN, HOLDS]


def test_the_absence_of_an_effect_is_never_below_the_margin():
    """A decrease within the margin is what "no decrease" claims."""
    assert verdict(sample(20, -0.003, 0.004), no_decrease_test, 0.05) == HOLDS
    assert verdict(sample(20, -0.03, 0.004), no_decrease_test, 0.05) == FAILS


# --- several tests ---


def test_a_claim_holds_without_adjustment_and_single_tests_with_it():
    """Intersection-union test: 15 tests with p = 0.04 show the claim at 5%, and none of them alone."""
    found = evaluate_claim("X", "text", [plain_test(0.04)] * 15, THRESHOLDS)
    assert (found.verdict, found.p) == (HOLDS, 0.04)
    assert {test.verdict for test in found.tests} == {UNDECIDED}
    assert [test.p_adjusted for test in found.tests] == pytest.approx([0.6] * 15)
    assert "all 15 tests hold together, 0 also alone (Holm-adjusted)" in found.details
    assert (
        evaluate_claim("X", "text", [plain_test(0.001)] * 14 + [plain_test(0.06)], THRESHOLDS).verdict
        == UNDECIDED
    )


def test_a_claim_fails_by_a_single_test_only_after_adjustment():
    tests = [plain_test(0.5, 0.5)] * 14
    assert evaluate_claim("X", "text", [*tests, plain_test(0.9, 0.02)], THRESHOLDS).verdict == UNDECIDED
    assert evaluate_claim("X", "text", [*tests, plain_test(0.9, 0.002)], THRESHOLDS).verdict == FAILS


def test_an_intersection_union_test_keeps_its_level_and_holm_would_lose_power():
    """Four tests with 6 trials: if one effect is zero, at most 5% hold; if all are there, Holm finds fewer."""
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(4000, 4, 6))
    one_null = samples + np.array([0.0, 5, 5, 5])[:, None]
    assert np.mean((stats.ttest_1samp(one_null, 0, axis=2).pvalue < 0.05).all(axis=1)) < 0.06
    p = stats.ttest_1samp(samples[:300] + 1.8, 0, axis=2).pvalue
    both = []
    for row in p:
        claim = evaluate_claim("X", "text", [plain_test(value) for value in row], THRESHOLDS)
        both.append((claim.verdict == HOLDS, bool((holm(row) < 0.05).all())))
    found, with_holm = np.mean(both, axis=0)
    assert found == np.mean((p < 0.05).all(axis=1))
    assert found >= with_holm


# --- trials needed ---


def test_needed_trials_of_one_test_of_many_have_80_percent_power_after_holm():
    """One effect among 15 tests: the count for a single test without adjustment has far too little power."""
    effect = decrease_test(sample(5, -1.2, 1.0), "a", "accuracy", MARGIN)
    alone = evaluate_claim("X", "text", [effect], THRESHOLDS).tests[0].needed
    needed = evaluate_claim("X", "text", [effect] + [plain_test(0.5)] * 14, THRESHOLDS).tests[0].needed
    rng = np.random.default_rng(1)

    def power(n):
        samples = rng.normal(size=(1500, 15, n))
        samples[:, 0] -= 1.2
        p = stats.ttest_1samp(samples, 0, axis=2).pvalue
        return np.mean([holm(row)[0] < 0.05 for row in p])

    assert power(alone) < 0.5
    assert power(needed) == pytest.approx(0.82, abs=0.05)


def test_needed_trials_of_a_claim_have_80_percent_power_for_all_tests_together():
    tests = [decrease_test(sample(4, -m, 1.0), f"{m}", "accuracy", MARGIN) for m in (1.0, 1.1, 1.2)]
    needed = evaluate_claim("X", "text", tests, THRESHOLDS).needed
    most = max(trials_for(test.power) for test in tests)
    means, rng = np.array([1.0, 1.1, 1.2])[:, None], np.random.default_rng(2)

    def power(n):
        p = stats.ttest_1samp(rng.normal(size=(4000, 3, n)) - means, 0, axis=2).pvalue
        return np.mean((p < 0.05).all(axis=1))

    assert power(most) < 0.75
    assert 0.78 < power(needed) < 0.9


@pytest.mark.parametrize("mean", [-0.25, -0.45, -1.2])
def test_needed_trials_have_80_percent_power_to_reach_the_margin_too(mean):
    """With a margin of 0.2 an effect of 0.25 is significant with 128 trials, and 29% of its estimates are below 0.2."""
    test = decrease_test(sample(8, mean, 1.0), "a", "r", 0.2)
    needed = evaluate_claim("X", "text", [test], THRESHOLDS).tests[0].needed
    samples = np.random.default_rng(5).normal(mean, 1.0, (4000, needed))
    held = (stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05) & (samples.mean(axis=1) <= -0.2)
    assert np.mean(held) == pytest.approx(0.82, abs=0.04)
    below = decrease_test(sample(8, -0.19, 1.0), "a", "r", 0.2)
    assert evaluate_claim("X", "text", [below], THRESHOLDS).tests[0].needed is None


# --- margins ---


def points(task_sd, trials=20):
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        [("incremental", k, 500, s, 0.5 + rng.normal(0, task_sd)) for k in range(13) for s in range(trials)],
        columns=["experiment", "x", "train_size", "seed", "value"],
    )


def test_the_margin_is_one_point_or_half_of_the_noise():
    assert metric_margin(points(0.012), THRESHOLDS) == 0.01  # SST-2 with 500 examples
    assert metric_margin(points(0.04), THRESHOLDS) == pytest.approx(0.02, rel=0.1)  # CoLA with 500 examples
    assert metric_margin(points(0.04), ClaimThresholds(margin=0.01)) == 0.01
    assert metric_margin(points(0.04, trials=1), THRESHOLDS) == 0.01


def test_the_margin_can_be_reached_on_cola():
    """Seeds of CoLA differ by 4 points at 500 examples, paired differences by as much: one point is out of reach."""
    assert trials_for(tost_power(0.0, 0.04, 0.01)) > 130
    assert trials_for(tost_power(0.0, 0.04, metric_margin(points(0.04), THRESHOLDS))) < 50


# --- no variance ---


def test_equal_values_decide_nothing_in_any_test():
    for test in (decrease_test(np.full(3, -0.5), "a", "accuracy", MARGIN),
                 no_decrease_test(np.full(3, 0.5), "a", "accuracy", MARGIN, 0.05)):  # fmt: skip
        assert math.isnan(test.p)
        assert math.isnan(test.p_against)
        assert evaluate_claim("X", "text", [test], THRESHOLDS).verdict == UNDECIDED
    rounded = np.array([0.9 - 0.6, 0.7 - 0.4, 0.8 - 0.5])  # 0.3 up to rounding error
    assert np.ptp(rounded) > 0
    assert math.isnan(decrease_test(-rounded, "a", "accuracy", MARGIN).p)
