"""Verdicts at their limits: exactly at the level, at the margin, and with the fewest trials."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.power import TTestPower

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.base import (
    ClaimTest,
    decrease_test,
    evaluate_claim,
    group_label,
    increase_test,
    is_task,
    metric_margin,
    no_decrease_test,
    no_increase_test,
    not_tested,
    rows_with_default_settings,
    undecided_test,
)
from whichlayers.errors import WhichlayersError

HOLDS, BELOW, FAILS, UNDECIDED = "holds", "below the margin", "does not hold", "not enough trials"
THRESHOLDS = ClaimThresholds()
SAMPLE = np.array([0.011, 0.002, 0.017, -0.004, 0.009])


def claim(*tests, **thresholds):
    """The claim of tests that are given as (p, p against the claim)."""
    made = [
        ClaimTest(str(i), "accuracy", 0.1 * i, -0.1, 0.2, p, against, n=5)
        for i, (p, against) in enumerate(tests)
    ]
    return evaluate_claim("X", "text", made, ClaimThresholds(**thresholds))


@pytest.mark.parametrize(
    ("p", "against", "verdict"),
    [
        (0.049, 1.0, HOLDS),
        (0.05, 1.0, UNDECIDED),  # smaller than the level, not equal
        (0.049, 0.499, BELOW),
        (0.049, 0.5, HOLDS),  # the estimate is the margin
        (0.049, 0.6, HOLDS),
        (0.5, 0.049, FAILS),
        (0.5, 0.05, UNDECIDED),
        (0.05, 0.049, FAILS),
        (0.5, 0.5, UNDECIDED),
        (math.nan, math.nan, UNDECIDED),
    ],
)
def test_the_verdict_of_a_single_test(p, against, verdict):
    found = claim((p, against))
    assert found.verdict == found.tests[0].verdict == verdict
    assert found.details == ("present, but smaller than the margin: 0" if verdict == BELOW else "")


def test_the_decisive_test():
    """The weakest one if a claim holds, the strongest against it if it fails, the weakest undecided one otherwise."""
    assert claim((0.01, 1), (0.03, 1), (0.02, 1)).about == "1"
    assert claim((0.9, 0.002), (0.9, 0.001), (0.9, 0.003), (0.01, 1)).about == "1"
    assert claim((0.001, 0.3), (0.001, 0.1), (0.001, 0.2), (0.002, 0.9)).about == "1"
    undecided = claim((0.001, 1), (0.2, 1), (0.3, 1), (math.nan, math.nan))
    assert (undecided.verdict, undecided.about, undecided.effect) == (UNDECIDED, "2", pytest.approx(0.2))
    assert claim((0.001, 1), (math.nan, math.nan)).about == "1"
    assert claim((0.01, 1), (0.05, 1)).about == "1"


def test_a_significant_effect_does_not_fail_even_if_it_is_smaller_than_the_margin():
    tests = [(0.04, 0.001)] + [(0.5, 0.5)] * 2  # not significant after Holm, but significant alone
    found = claim(*tests)
    assert [test.verdict for test in found.tests] == [UNDECIDED] * 3
    assert claim((0.05, 0.001), (0.5, 0.5), (0.5, 0.5)).tests[0].verdict == FAILS


def test_what_the_details_say():
    assert claim((0.01, 1), (0.02, 1)).details == "2 of 2 tests hold"
    assert claim((0.04, 1), (0.04, 1)).details == "all 2 tests hold together, 0 also alone (Holm-adjusted)"
    assert claim((0.01, 1), (0.2, 1)).details == "1 of 2 tests hold"
    both = claim((0.001, 0.1), (0.001, 0.2), (0.001, 1))
    assert both.details == "1 of 3 tests hold; present, but smaller than the margin: 0 and 1"
    notes = [undecided_test(name, "r", 1, "too few trials") for name in "ab"]
    found = evaluate_claim("X", "text", notes, THRESHOLDS, "a remark")
    assert found.details == "0 of 2 tests hold; a remark; too few trials"
    assert not_tested("X", "text", "run this").details == "run this"


def test_trials_that_are_needed():
    def test(p, n, at, alphas):
        def power(trials, alpha):
            alphas.append(alpha)
            return 0.85 if trials >= at else 0.0

        return ClaimTest("a", "r", 0.1, 0.0, 0.2, p, 0.9, n=n, power=power)

    levels = []
    found = evaluate_claim("X", "text", [test(0.2, 5, 9, levels), test(0.001, 20, 3, levels)], THRESHOLDS)
    assert [t.needed for t in found.tests] == [9, 3]
    assert set(levels) == {
        0.025,
        0.05,
    }  # Holm's level for single tests, the plain one for all of them together
    assert found.needed is None  # 1 - 2 · 0.15 is never 80%
    found = evaluate_claim("X", "text", [test(0.05, 12, 9, [])], THRESHOLDS)
    assert (found.needed, found.tests[0].needed) == (13, 9)  # more than there are
    assert evaluate_claim("X", "text", [test(0.2, 5, 9, [])], THRESHOLDS).needed == 9
    assert evaluate_claim("X", "text", [test(0.04, 5, 9, [])], THRESHOLDS).needed is None  # it holds
    nothing = evaluate_claim("X", "text", [undecided_test("a", "r", 1, "")], THRESHOLDS)
    assert nothing.needed is None
    missing = [test(0.2, 5, 9, levels := []), undecided_test("a", "r", 1, "")]
    evaluate_claim("X", "text", missing, THRESHOLDS)
    assert set(levels) == {0.05}  # a test without a p value is not one of Holm's


@pytest.mark.parametrize("margin", [1e-6, 0.5, 1.0])
def test_margins_that_are_allowed(margin):
    assert ClaimThresholds(margin=margin).margin == margin


@pytest.mark.parametrize("margin", [0.0, 9e-7, 1.001, math.nan])
def test_margins_that_are_not(margin):
    with pytest.raises(WhichlayersError, match="give a number from 1e-06 to 1, in units of the metric"):
        ClaimThresholds(margin=margin)


def test_the_default_thresholds():
    """As documented in docs/claims.md; verdicts of stored results depend on them."""
    assert (THRESHOLDS.alpha, THRESHOLDS.gain_margin, THRESHOLDS.max_kept_gain) == (0.05, 0.05, 0.5)
    assert (THRESHOLDS.task_correlation, THRESHOLDS.probing_margin, THRESHOLDS.correlation_margin) == (
        0.3,
        0.1,
        0.05,
    )


def test_two_values_are_enough_and_one_is_not():
    for make in (decrease_test, increase_test):
        assert make(SAMPLE[:2], "a", "r", 0.01).n == 2
        assert not math.isnan(make(SAMPLE[:2], "a", "r", 0.01).p)
        assert math.isnan(make(SAMPLE[:1], "a", "r", 0.01).p)
    for make in (no_decrease_test, no_increase_test):
        assert not math.isnan(make(SAMPLE[:2], "a", "r", 0.01, 0.05).p)
        assert math.isnan(make(SAMPLE[:1], "a", "r", 0.01, 0.05).p)


def test_powers_of_single_tests_are_those_of_statsmodels():
    effect = abs(SAMPLE.mean()) / SAMPLE.std(ddof=1)
    for test in (decrease_test(-SAMPLE, "a", "r", 1e-9), increase_test(SAMPLE, "a", "r", 1e-9)):
        assert test.power(9, 0.05) == pytest.approx(TTestPower().power(effect, 9, 0.05), abs=1e-5)
    assert increase_test(SAMPLE, "a", "r", 0.0071).power is None  # the mean is 0.007
    assert increase_test(SAMPLE, "a", "r", 0.0069).power is not None
    within = (0.02 - SAMPLE.mean()) / SAMPLE.std(ddof=1)
    for test in (
        no_increase_test(SAMPLE, "a", "r", 0.02, 0.05),
        no_decrease_test(-SAMPLE, "a", "r", 0.02, 0.05),
    ):
        expected = TTestPower().power(within, 9, 0.05, alternative="larger")
        assert test.power(9, 0.05) == pytest.approx(expected, abs=1e-5)
    assert (
        no_increase_test(np.array([0.25, 0.75]), "a", "r", 0.5, 0.05).power is None
    )  # the mean is the margin


def test_the_margin_pools_the_variances_of_cells_by_their_degrees_of_freedom():
    rng = np.random.default_rng(0)
    cells = [rng.normal(0, 0.1, n) for n in (2, 3, 9)] + [np.array([0.5])]
    rows = [("incremental", x, s, v, math.nan) for x, cell in enumerate(cells) for s, v in enumerate(cell)]
    frame = pd.DataFrame(rows, columns=["experiment", "x", "seed", "value", "share"])
    pooled = sum(((cell - cell.mean()) ** 2).sum() for cell in cells) / (1 + 2 + 8)
    assert metric_margin(frame, THRESHOLDS) == pytest.approx(0.5 * math.sqrt(pooled))
    single = frame[frame["seed"] == 0]
    assert metric_margin(single, THRESHOLDS) == 0.01
    apart = pd.concat([frame, frame.assign(value=frame["value"] + 9, finetuned_on="SST-2")])
    assert metric_margin(apart.fillna({"finetuned_on": ""}), THRESHOLDS) == pytest.approx(
        0.5 * math.sqrt(pooled)
    )


def test_names_of_tasks_and_labels():
    assert is_task("QNLI rebuilt", "SST-2", "QNLI")
    assert not is_task("QNLI", "SST-2")
    assert not is_task("rebuilt QNLI", "QNLI")
    rows = pd.DataFrame({"task": ["a", "a"], "model": "m", "train_size": [500, 5000], "variant": ["x", "y"]})
    assert group_label(rows, rows) == "a, x"
    assert group_label(rows.drop(columns="task"), rows) == "x"


def test_default_settings_are_preferred():
    settings = {
        "experiment": "incremental",
        "keep_layer_norm": [False, True, False],
        "reinit_lr_factor": [1.0, 1.0, 5.0],
    }
    rows = pd.DataFrame(settings | {"value": [1, 2, 3]})
    assert rows_with_default_settings(rows, "incremental")["value"].tolist() == [1]
    assert rows_with_default_settings(rows[1:], "incremental")["value"].tolist() == [2, 3]
    assert rows_with_default_settings(rows, "probing").empty
