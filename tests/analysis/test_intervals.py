"""t intervals and paired differences against scipy, statsmodels and simulation."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from whichlayers.analysis.intervals import (
    benjamini_yekutieli,
    ends_of_one_of,
    holm,
    paired_difference,
    summarize,
    t_interval,
    welch_difference,
)

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_interval_agrees_with_scipy(n):
    x = RNG.normal(0.8, 0.05, n)
    ours = t_interval(x)
    low, high = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=1e-12)
    assert (ours.mean, ours.sd, ours.n) == (pytest.approx(x.mean()), pytest.approx(x.std(ddof=1)), n)
    assert ours.half_width == pytest.approx((high - low) / 2)


def test_interval_agrees_with_statsmodels():
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    x = RNG.normal(0.8, 0.05, 7)
    assert (t_interval(x).low, t_interval(x).high) == pytest.approx(
        weightstats.DescrStatsW(x).tconfint_mean()
    )


def test_one_value_has_a_mean_and_no_interval():
    one = t_interval([0.7])
    assert (one.mean, one.n) == (0.7, 1)
    assert all(math.isnan(v) for v in (one.low, one.high, one.sd))


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 1 / 3])
def test_equal_values_have_an_interval_of_zero_width(value):
    same = t_interval([value] * 3)
    assert (same.mean, same.low, same.high, same.sd) == (value, value, value, 0.0)


def test_no_value_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


@pytest.mark.parametrize("n", [3, 10, 50])
def test_interval_covers_the_mean_in_95_percent_of_samples(n):
    x = np.random.default_rng(n).normal(size=(4000, n))
    covered = np.mean([i.low <= 0 <= i.high for i in map(t_interval, x)])
    assert covered == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors of 4,000 draws


@pytest.mark.parametrize(("n", "coverage"), [(3, 0.84), (10, 0.968), (50, 0.989)])
def test_the_interval_of_the_published_code_has_another_coverage(n, coverage):
    x = np.random.default_rng(n).normal(size=(40_000, n))
    half = 2.667 / math.sqrt(n) * x.std(axis=1, ddof=0)
    assert np.mean(np.abs(x.mean(axis=1)) <= half) == pytest.approx(coverage, abs=0.006)


def test_summarize_gives_an_interval_per_group_and_ignores_missing_values():
    frame = pd.DataFrame({"task": list("aaabb"), "k": [0, 0, 0, 1, 1], "value": [1.0, 2.0, 4.0, 5.0, np.nan]})
    table = summarize(frame, ["task", "k"])
    assert list(table.columns) == ["task", "k", "mean", "low", "high", "sd", "n"]
    a, b = table.itertuples(index=False)
    expected = t_interval([1.0, 2.0, 4.0])
    assert (a.task, a.k, a.mean, a.low, a.high, a.sd, a.n) == ("a", 0, *vars(expected).values())
    assert (b.mean, b.n) == (5.0, 1)
    assert math.isnan(b.low)


def test_summarize_by_one_column_and_of_an_empty_frame():
    frame = pd.DataFrame({"task": ["a"], "value": [1.0]})
    assert summarize(frame, ["task"])["task"].tolist() == ["a"]
    assert list(summarize(frame[:0], ["task"]).columns) == ["task", "mean", "low", "high", "sd", "n"]


def test_paired_difference_uses_shared_seeds_and_agrees_with_scipy():
    a = pd.Series(RNG.normal(0.8, 0.1, 6), index=[5, 4, 3, 2, 1, 0])
    b = pd.Series(RNG.normal(0.7, 0.1, 5), index=[1, 2, 3, 4, 9])
    ours = paired_difference(a, b)
    theirs = stats.ttest_rel(a[[1, 2, 3, 4]], b[[1, 2, 3, 4]])
    assert ours.n == 4
    assert ours.p == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))


def test_pairing_removes_the_variance_between_seeds():
    of_seed = RNG.normal(0, 0.2, 10)
    a, b = pd.Series(of_seed + 0.02), pd.Series(of_seed + RNG.normal(0, 0.001, 10))
    assert paired_difference(a, b).significant
    assert t_interval(a).low < t_interval(b).mean  # unpaired, the intervals overlap


def test_paired_difference_of_few_or_equal_values():
    a = pd.Series([0.5, 0.6], index=[0, 1])
    assert paired_difference(a, pd.Series([0.5], index=[7])) is None
    one = paired_difference(a, pd.Series([0.4], index=[1]))
    assert (one.mean, one.n, one.significant) == (pytest.approx(0.2), 1, False)
    assert math.isnan(one.p)
    tied = paired_difference(a, a - 0.01)  # accuracy is discrete: equal differences occur by chance
    assert (tied.mean, tied.n, tied.significant) == (pytest.approx(0.01), 2, False)
    assert math.isnan(tied.p)
    with pytest.raises(ValueError, match="seed 3 occurs twice; pass one value per seed"):
        paired_difference(pd.Series([1.0, 2.0], index=[3, 3]), a)


def test_welch_difference_agrees_with_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.8, 0.05, 10), rng.normal(0.9, 0.01, 4)
    d, expected = welch_difference(a, b), stats.ttest_ind(a, b, equal_var=False)
    low, high = expected.confidence_interval()
    assert (d.low, d.high, d.df) == pytest.approx((low, high, expected.df))
    assert d.mean / d.standard_error == pytest.approx(expected.statistic)
    assert (d.n, d.sd) == (10, pytest.approx(math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)))


def test_welch_difference_of_few_or_equal_values():
    one, two = np.array([0.5]), np.array([0.5, 0.6])
    assert welch_difference(one, two) is None
    assert welch_difference(two, one) is None
    same = welch_difference(np.array([0.5, 0.5]), np.array([0.75, 0.75]))
    assert (same.mean, same.low, same.high, same.standard_error) == (-0.25, -0.25, -0.25, 0.0)


def test_benjamini_yekutieli_does_not_count_missing_p_values():
    adjusted = benjamini_yekutieli([0.01, math.nan, 0.5])
    assert adjusted[0] == pytest.approx(0.01 * 2 * 1.5)  # Benjamini-Yekutieli: m · (1 + 1/2) / rank
    assert math.isnan(adjusted[1])
    assert all(np.isnan(benjamini_yekutieli([math.nan])))


def test_holm_agrees_with_statsmodels():
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(0).beta(0.4, 3, 30)
    p[[3, 9]] = p[1]
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])
    with_nan = holm([0.01, np.nan, 0.04])
    assert with_nan[[0, 2]] == pytest.approx([0.02, 0.04])
    assert np.isnan(with_nan[1])


def test_holm_steps_down_and_does_not_count_missing_p_values():
    assert holm([0.01, math.nan, 0.04, 0.03]) == pytest.approx([0.03, math.nan, 0.06, 0.06], nan_ok=True)
    assert np.isnan(holm([math.nan])).all()


@pytest.mark.parametrize(("count", "n"), [(12, 3), (12, 10), (24, 5)])
def test_the_adjusted_interval_of_the_largest_covers_it(count, n):
    """Differences from one baseline, none of which is real: the usual interval of the largest misses it."""
    rng, adjusted, usual = np.random.default_rng(count + n), 0, 0
    for _ in range(1500):
        differences = rng.normal(size=(n, count)) - rng.normal(size=(n, 1))
        largest = t_interval(differences[:, np.abs(differences.mean(0)).argmax()])
        low, high = ends_of_one_of(count, largest.mean, largest.sd, n)
        adjusted += low <= 0 <= high
        usual += largest.low <= 0 <= largest.high
    assert adjusted / 1500 > 0.95
    assert usual / 1500 < 0.88


def test_the_adjusted_interval_of_one_is_the_usual_one():
    one = t_interval(RNG.normal(size=6))
    assert ends_of_one_of(1, one.mean, one.sd, one.n) == pytest.approx((one.low, one.high))
    assert all(math.isnan(end) for end in ends_of_one_of(3, 0.5, math.nan, 1))
