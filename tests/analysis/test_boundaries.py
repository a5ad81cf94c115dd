"""Limits of intervals, tests, powers and decisions, against scipy and statsmodels."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from whichlayers.analysis import power
from whichlayers.analysis.decisions import (
    CHOICE_LEVEL,
    CrossFit,
    NonInferiority,
    cross_fit,
    fixed_sequence,
    non_inferiority,
)
from whichlayers.analysis.intervals import (
    Interval,
    equivalence_test,
    holm,
    non_superiority_test,
    p_below,
    paired_difference,
    summarize,
    t_interval,
    two_sided,
    welch_difference,
)
from whichlayers.analysis.power import (
    MAX_TRIALS,
    PowerEstimate,
    equivalence_power,
    mean_power,
    power_estimates,
    tost_power,
    trials_for,
    welch_power,
)

SAMPLE = np.array([0.011, 0.002, 0.017, -0.004, 0.009])


# --- intervals and p values ---


def test_an_interval_that_touches_zero_is_not_significant():
    assert Interval(0.1, 0.01, 0.2, 0.1, 2).significant
    assert Interval(-0.1, -0.2, -0.01, 0.1, 2).significant
    assert not Interval(0.1, 0.0, 0.2, 0.1, 2).significant
    assert not Interval(-0.1, -0.2, 0.0, 0.1, 2).significant
    assert not Interval(0.0, -0.2, 0.2, 0.1, 2).significant
    assert not Interval(0.1, 0.1, 0.1, 0.0, 2).significant
    assert Interval(3.0, 2.0, 4.0, 0.5, 3).half_width == 1.0


def test_groups_without_a_name_are_summarized_too():
    table = summarize(pd.DataFrame({"share": [0.1, 0.1, math.nan], "value": [0.5, 0.7, 0.9]}), ["share"])
    assert table["mean"].tolist() == pytest.approx([0.6, 0.9])
    assert table["high"][0] == pytest.approx(t_interval([0.5, 0.7]).high)
    narrow = summarize(pd.DataFrame({"share": 0.1, "value": [0.5, 0.7]}), ["share"], level=0.5)
    assert narrow["high"][0] == pytest.approx(t_interval([0.5, 0.7], 0.5).high)


def test_two_pairs_have_a_p_value():
    a, b = pd.Series([0.5, 0.7]), pd.Series([0.4, 0.45])
    assert paired_difference(a, b).p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert paired_difference(a, b).n == 2
    large = paired_difference(a * 0 + [5.0, 8.0], b * 0)  # a standard deviation above 1
    assert large.p == pytest.approx(stats.ttest_rel([5.0, 8.0], [0, 0]).pvalue)
    missing = paired_difference(pd.Series([0.5, np.nan, 0.9]), pd.Series([0.4, 0.5, 0.6]))
    assert (missing.n, missing.mean) == (2, pytest.approx(0.2))
    with pytest.raises(ValueError, match="seed 5 occurs twice"):
        paired_difference(a, pd.Series([1.0, 2.0, 3.0, 4.0], index=[5, 5, 6, 6]))


@pytest.mark.parametrize("level", [0.8, 0.99])
def test_levels_of_intervals(level):
    low, high = stats.ttest_1samp(SAMPLE, 0).confidence_interval(level)
    assert (t_interval(SAMPLE, level).low, t_interval(SAMPLE, level).high) == pytest.approx((low, high))
    paired = paired_difference(pd.Series(SAMPLE), pd.Series(SAMPLE * 0), level)
    assert (paired.low, paired.high) == pytest.approx((low, high))
    welch = stats.ttest_ind(SAMPLE, SAMPLE[:2] + 0.01, equal_var=False).confidence_interval(level)
    found = welch_difference(SAMPLE, SAMPLE[:2] + 0.01, level)
    assert (found.low, found.high) == pytest.approx(tuple(welch))


def test_welchs_difference_without_variance_and_with_two_values():
    same = welch_difference(np.full(3, 0.5), np.full(4, 0.75))
    assert (same.sd, same.standard_error, same.df, same.n, same.variances) == (0.0, 0.0, 5.0, 3, (0.0, 0.0))
    assert math.isnan(same.p)
    a, b = SAMPLE[:2], SAMPLE[2:4]
    assert welch_difference(a, b).p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    large = welch_difference(100 * SAMPLE, 300 * SAMPLE[:3])  # a standard error above 1
    assert large.p == pytest.approx(stats.ttest_ind(100 * SAMPLE, 300 * SAMPLE[:3], equal_var=False).pvalue)
    assert welch_difference(a, b).variances == pytest.approx((a.var(ddof=1), b.var(ddof=1)))


def test_equivalence_at_another_level():
    for alpha in (0.05, 0.01):
        interval = stats.ttest_1samp(SAMPLE, 0).confidence_interval(1 - 2 * alpha)
        for test in (equivalence_test, non_superiority_test):
            found = test(SAMPLE, 0.02, alpha)
            assert (found.low, found.high) == pytest.approx(tuple(interval))
    assert non_superiority_test(SAMPLE, 0.02).high == pytest.approx(t_interval(SAMPLE, 0.9).high)
    # TOST is significant exactly if the interval is within the margin
    ends = equivalence_test(SAMPLE, 1.0)
    edge = max(abs(ends.low), abs(ends.high))
    assert (
        equivalence_test(SAMPLE, edge * 1.0001).p_within
        < 0.05
        < equivalence_test(SAMPLE, edge * 0.9999).p_within
    )


def test_p_values_that_do_not_exist():
    assert p_below(0.1, 0.5, 3, 0.2) == pytest.approx(stats.t.cdf(-0.2, 3))
    assert p_below(0.1, 2.0, 0.5, 0.2) == pytest.approx(stats.t.cdf(-0.05, 0.5))
    for error, df in ((0.0, 3), (math.inf, 3), (math.nan, 3), (-1.0, 3), (0.5, 0)):
        assert math.isnan(p_below(0.1, error, df, 0.2))
    assert (two_sided(0.2), two_sided(0.7)) == (0.4, 1.0)
    assert math.isnan(two_sided(math.nan))


def test_holm_of_one_test_and_above_1():
    assert holm([0.04]).tolist() == [0.04]
    assert holm([0.04, math.nan])[0] == 0.04
    assert holm([0.6, 0.7]).tolist() == [1.0, 1.0]


# --- power ---


def test_the_smallest_number_of_trials_by_trying_all():
    def reaches(at, at_power=0.8):
        return lambda n, alpha: at_power if n >= at else 0.79

    for at in (2, 3, 4, 5, 7, 8, 9, 100, 999, MAX_TRIALS):
        assert trials_for(reaches(at)) == at
    assert trials_for(reaches(MAX_TRIALS + 1)) is None
    assert MAX_TRIALS == 1000
    assert trials_for(reaches(1)) == 2
    assert trials_for(reaches(1), least=5) == 5
    assert trials_for(reaches(6), least=5) == 6
    assert trials_for(lambda n, alpha: math.nan) is None
    assert trials_for(None) is None
    seen = []
    trials_for(lambda n, alpha: seen.append(alpha) or 1.0)
    assert set(seen) == {0.05}


def test_powers_are_one_sided_or_two_sided():
    for n, sided in ((4, True), (9, False)):
        alternative = "two-sided" if sided else "larger"
        expected = TTestPower().power(0.8, n, 0.03, alternative=alternative)
        assert mean_power(-0.4, 0.5, sided)(n, 0.03) == pytest.approx(expected, abs=1e-5)
    # Welch's test with equal variances has 2 (n - 1) degrees of freedom
    from statsmodels.stats.power import TTestIndPower

    for sided in (True, False):
        expected = TTestIndPower().power(0.9, 8, 0.05, alternative="two-sided" if sided else "larger")
        assert welch_power(0.9 * 3, (9.0, 9.0), sided)(8, 0.05) == pytest.approx(expected, abs=1e-5)
    unequal = welch_power(2.0, (9.0, 1.0))
    df = (9 + 1) ** 2 / (81 + 1) * 7  # Welch-Satterthwaite with 8 trials each
    expected = power.t_test_power(2.0 / math.sqrt(10 / 8), df, 0.05, True)
    assert unequal(8, 0.05) == pytest.approx(expected)


def test_powers_without_an_effect_or_variance():
    for effect, sd in (
        (0.0, 1.0),
        (1.0, 0.0),
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, 1.0),
        (1.0, math.inf),
    ):
        assert mean_power(effect, sd) is None
    assert mean_power(0.5, 0.5) is not None
    assert welch_power(0.1, (0.0, 0.0)) is None
    assert welch_power(0.1, (0.0, 0.04)) is not None
    for mean, sd in ((0.02, 0.01), (-0.02, 0.01), (0.0, 0.0), (0.0, math.nan)):
        assert tost_power(mean, sd, 0.02) is None
    assert tost_power(0.01, 0.02, 0.05)(7, 0.05) == pytest.approx(equivalence_power(0.5, 2.5, 7, 0.05))
    assert equivalence_power(0.0, 0.1, 2, 0.05) == pytest.approx(0.001, abs=1e-4)


def test_equivalence_with_two_trials_by_integration():
    """One degree of freedom: S is |Z|, the critical value t(0.05, 1) = 6.314."""
    critical, mean, margin = stats.t.isf(0.05, 1), 0.4, 9.0

    def both(s):
        upper, lower = (
            math.sqrt(2) * (margin - mean) - critical * s,
            math.sqrt(2) * (-margin - mean) + critical * s,
        )
        return max(0.0, stats.norm.cdf(upper) - stats.norm.cdf(lower))

    from scipy import integrate

    expected = integrate.quad(lambda s: both(s) * 2 * stats.norm.pdf(s), 0, 10, limit=200)[0]
    assert equivalence_power(mean, margin, 2, 0.05) == pytest.approx(expected, abs=1e-4)


def points(n, seconds=(60.0, 120.0), condition=""):
    rng = np.random.default_rng(n)
    rows = [
        (float(x), s, 0.5 + rng.normal(0, 0.02), seconds[x], f"{x}-{s}") for x in range(2) for s in range(n)
    ]
    frame = pd.DataFrame(rows, columns=["x", "seed", "value", "seconds", "trial_id"])
    names = {
        "experiment": "single_layer",
        "model": "m",
        "model_fingerprint": "f",
        "task": "t",
        "train_size": 500,
    }
    conditions = np.where(frame["x"] == 0, "all pretrained", condition)
    return frame.assign(**names, variant="", condition=conditions)


def test_estimates_with_one_two_and_no_pairs():
    (two,) = power_estimates(points(2), 0.01)
    assert (two.about, two.n, two.estimable) == ("x = 1 against all pretrained", 2, True)
    pairs = points(2).pivot(index="seed", columns="x", values="value")
    assert (two.mean, two.sd) == pytest.approx(((pairs[1] - pairs[0]).mean(), (pairs[1] - pairs[0]).std()))
    assert two.minutes_per_trial == 3.0
    (one,) = power_estimates(points(1), 0.01)
    assert (one.n, one.needed, one.estimable) == (1, None, False)
    assert one.mean == pytest.approx(points(1)["value"].diff().iloc[1])
    apart = points(2)
    (none,) = power_estimates(apart[(apart["x"] == 0) ^ (apart["seed"] == 1)], 0.01)
    assert (none.n, none.needed) == (0, None)
    assert math.isnan(none.mean)
    rows = points(5)
    assert power_estimates(rows[rows["x"] == 1], 0.01) == []  # no baseline
    (plain,) = power_estimates(rows, 0.01)
    solved = TTestPower().solve_power(0.01 / plain.sd, alpha=0.05, power=0.8)
    assert plain.needed == math.ceil(solved)
    (strict,) = power_estimates(rows, 0.01, alpha=0.01)
    assert strict.needed == math.ceil(TTestPower().solve_power(0.01 / plain.sd, alpha=0.01, power=0.8))


def test_additional_trials():
    assert PowerEstimate((), "", 0.0, 0.1, 5, 8, 1.0).additional == 3
    assert PowerEstimate((), "", 0.0, 0.1, 5, 5, 1.0).additional == 0
    assert PowerEstimate((), "", 0.0, 0.1, 9, 5, 1.0).additional == 0
    assert PowerEstimate((), "", 0.0, 0.1, 9, None, 1.0).additional is None
    assert not PowerEstimate((), "", 0.0, 0.0, 5, 8, 1.0).estimable
    assert not PowerEstimate((), "", 0.0, 0.1, 1, 8, 1.0).estimable
    assert PowerEstimate((), "", 0.0, 0.1, 2, 8, 1.0).estimable


# --- decisions ---


def test_non_inferiority_at_its_level():
    interval = Interval(0.0, -0.01, 0.01, 0.02, 5)
    assert NonInferiority(interval, 0.01, 0.05, 0.049, 0.9).within
    assert not NonInferiority(interval, 0.01, 0.05, 0.05, 0.9).within
    assert NonInferiority(interval, 0.01, 0.05, 0.9, 0.049).worse
    assert not NonInferiority(interval, 0.01, 0.05, 0.9, 0.05).worse
    test = non_inferiority(SAMPLE, 0.01, alpha=0.01)
    ends = stats.ttest_1samp(SAMPLE, 0).confidence_interval(0.98)
    assert (test.interval.low, test.interval.high) == pytest.approx(tuple(ends))
    assert (test.alpha, non_inferiority(SAMPLE, 0.01).alpha) == (0.01, 0.05)
    assert not math.isnan(non_inferiority(SAMPLE[:2], 0.01).p)
    for few in (SAMPLE[:1], SAMPLE[:0]):
        assert math.isnan(non_inferiority(few, 0.01).p)
        assert math.isnan(non_inferiority(few, 0.01).p_worse)
        assert non_inferiority(few, 0.01).trials_needed is None


def test_trials_for_non_inferiority_are_those_of_statsmodels():
    values = SAMPLE - 0.012
    effect = (values.mean() + 0.01) / values.std(ddof=1)
    solved = TTestPower().solve_power(effect, alpha=0.05, power=0.8, alternative="larger")
    assert non_inferiority(values, 0.01).trials_needed == math.ceil(solved)
    assert non_inferiority(SAMPLE, 0.1).trials_needed == 6  # at least one more than there are
    assert non_inferiority(values[:2], 0.01).trials_needed is not None
    assert (
        non_inferiority(np.array([-0.5, 0.0]), 0.25).trials_needed is None
    )  # the estimate is exactly the loss
    far = np.array([-0.02, 0.02, -0.021, 0.021])
    assert non_inferiority(far, 1e-4).trials_needed is None  # more than 1,000


def test_a_sequence_and_the_level_of_its_tests():
    steps = [SAMPLE, SAMPLE - 0.016, SAMPLE]
    sequence = fixed_sequence(steps, 0.01, alpha=0.2)
    assert [test.alpha for test in sequence.tests] == [0.2] * len(sequence.tests)
    assert fixed_sequence(steps, 0.01).tests[0].alpha == 0.05
    assert (sequence.passed, sequence.failed) == (1, sequence.tests[1])


def test_cross_fit_by_hand_with_an_odd_number_of_seeds():
    candidates = np.array([[0.1, 0.5], [0.6, 0.2], [0.3, 0.4], [0.7, 0.1], [0.2, 0.6]])
    baseline = np.array([0.05, 0.1, 0.2, 0.15, 0.1])
    fit = cross_fit(candidates, baseline)
    # seeds 0, 2 and 4 choose the second candidate, seeds 1 and 3 the first; each is valued on the other seeds
    gains = np.array([0.1 - 0.05, 0.2 - 0.1, 0.3 - 0.2, 0.1 - 0.15, 0.2 - 0.1])
    assert (fit.halves, fit.chosen, fit.agree) == ((1, 0), 0, False)
    own = candidates - baseline[:, None]
    fitted, naive = t_interval(gains, CHOICE_LEVEL), t_interval(own[:, 0], CHOICE_LEVEL)
    assert (fit.gain.mean, fit.gain.low, fit.gain.sd, fit.gain.n) == (fitted.mean, fitted.low, fitted.sd, 5)
    assert fit.gain.high == naive.high > fitted.high  # the larger one of both
    assert fit.ceiling == pytest.approx(max(t_interval(own[:, 0]).high, t_interval(own[:, 1]).high))
    assert fit.naive == pytest.approx(own[:, 0].mean())
    assert fit.level == CHOICE_LEVEL
    alone = cross_fit(candidates[:4, :1], baseline[:4])
    assert alone.agree
    assert alone.gain == t_interval(candidates[:4, 0] - baseline[:4])
    assert cross_fit(candidates[:3], baseline[:3]) is None


def test_gains_are_shown_or_excluded_strictly():
    def fit(low, high, sd=0.1, n=5, halves=(0, 0)):
        return CrossFit(0, halves, Interval((low + high) / 2, low, high, sd, n), 0.95, 0.0, high)

    assert fit(0.01, 0.2).shown
    assert not fit(0.01, 0.2, halves=(0, 1)).shown  # not the gain of one candidate
    assert not fit(0.0, 0.2).shown
    assert not fit(0.1, 0.1, sd=0.0).shown
    assert fit(-0.2, 0.01).excluded(0.02)
    assert not fit(-0.2, 0.02).excluded(0.02)
    still = np.ones((4, 1))
    assert not cross_fit(still, still[:, 0]).excluded(0.02)  # without variance
    solved = TTestPower().solve_power(0.05 / 0.1, alpha=0.05, power=0.8)
    assert fit(-0.1, 0.1).trials_needed(0.05) == math.ceil(solved)
    assert fit(-0.1, 0.1, n=50).trials_needed(0.05) == 51
    assert fit(-0.1, 0.1).trials_needed(1e-4) is None
