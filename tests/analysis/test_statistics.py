"""Equivalence, interaction, correlation and power, on data whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from whichlayers.analysis.correlations import (
    correlate,
    curve_correlation,
    resampled_p_below,
    spread_of_one,
    task_correlations,
    widened_percentiles,
)
from whichlayers.analysis.early_share import early_shares, small_ks
from whichlayers.analysis.equivalence import below_margin, within_margin
from whichlayers.analysis.interaction import interaction
from whichlayers.analysis.intervals import holm
from whichlayers.analysis.power import (
    trials_each,
    trials_for_interaction,
    trials_for_margin,
    trials_for_mean,
)


def noise(seed, *shape, sd=0.01):
    return np.random.default_rng(seed).normal(0, sd, shape)


# --- Holm ---


def test_holm_steps_down_and_leaves_unknown_p_values_out():
    assert holm([0.01, math.nan, 0.04, 0.03]) == pytest.approx([0.03, math.nan, 0.06, 0.06], nan_ok=True)
    assert np.isnan(holm([math.nan])).all()


# --- equivalence ---


def test_few_noisy_trials_show_neither_that_a_difference_is_small_nor_that_it_is_not():
    d = within_margin(np.array([-0.02, 0.0, 0.021]), margin=0.01)
    assert stats.ttest_1samp([-0.02, 0.0, 0.021], 0).pvalue > 0.9  # which a careless reader calls "no effect"
    assert d.p_within > 0.05
    assert d.p_beyond > 0.05


def test_tost_is_its_interval_within_the_margin():
    for seed in range(40):
        d = within_margin(0.004 + noise(seed, 6, sd=0.006), margin=0.01)
        assert (d.p_within < 0.05) == (d.low > -0.01 and d.high < 0.01)


def test_tost_seldom_calls_a_difference_of_the_margin_small():
    wrong = [within_margin(0.01 + noise(seed, 5), 0.01).p_within < 0.05 for seed in range(400)]
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.03)


def test_no_help_is_one_sided():
    harm, help_ = below_margin(-0.2 + noise(0, 4), 0.01), below_margin(0.2 + noise(0, 4), 0.01)
    assert harm.p_within < 0.01
    assert help_.p_beyond < 0.01
    assert within_margin(-0.2 + noise(0, 4), 0.01).p_beyond < 0.01


def test_equal_differences_and_a_single_one():
    """None of them has a spread, and without one there is no p."""
    for found in (
        within_margin(np.zeros(3), 0.01),
        below_margin(np.full(3, 0.02), 0.01),
        within_margin(np.array([0.0]), 0.01),
    ):
        assert math.isnan(found.p_within)
        assert math.isnan(found.p_beyond)


# --- interaction ---


def curves(seed, shapes, trials, sds):
    """One frame: a group a shape, a level a (group, seed), noise of the group's own size."""
    rng = np.random.default_rng(seed)
    rows = []
    for group, (shape, n, sd) in enumerate(zip(shapes, trials, sds, strict=True)):
        for trial in range(n):
            level = rng.normal(0, 0.05)
            rows += [(group, trial, x, v + level + rng.normal(0, sd)) for x, v in enumerate(shape)]
    return pd.DataFrame(rows, columns=["group", "seed", "x", "value"])


FLAT, RISING = np.zeros(7), np.linspace(0, 0.06, 7)


@pytest.mark.parametrize(("trials", "sds"), [((3, 3), (0.01, 0.01)), ((12, 3), (0.03, 0.005))])
def test_curves_of_one_shape_seldom_interact(trials, sds):
    p = [interaction(curves(s, (RISING, RISING + 0.2), trials, sds), "group").p for s in range(120)]
    assert np.mean(np.array(p) < 0.05) < 0.11  # 0.05, and three standard errors of 120 draws


def test_curves_of_two_shapes_interact_and_the_effect_is_found():
    found = [interaction(curves(s, (FLAT, RISING), (3, 3), (0.01, 0.01)), "group") for s in range(30)]
    assert np.mean([i.p < 0.05 for i in found]) > 0.8
    truth = np.sqrt(np.mean((RISING - RISING.mean()) ** 2) / 4)  # half of the difference lies in each group
    assert np.mean([i.effect for i in found]) == pytest.approx(truth, rel=0.2)
    assert np.mean([i.low <= truth <= i.high for i in found]) > 0.8


def test_interaction_agrees_with_the_textbook_split_plot_when_noise_is_equal():
    """Against anova_lm of the two nested least-squares fits; weights are equal where variances are."""
    import statsmodels.formula.api as smf
    from statsmodels.stats.anova import anova_lm

    frame = curves(3, (FLAT, RISING), (4, 4), (0.01, 0.01))
    flipped = frame[frame.group == 0].assign(group=1)
    flipped["value"] += np.where(flipped.x == 2, 0.01, 0)  # the same noise in both groups: one variance
    both = pd.concat([frame[frame.group == 0], flipped])
    both["unit"] = both.group.astype(str) + "/" + both.seed.astype(str)
    table = anova_lm(
        smf.ols("value ~ C(unit) + C(x)", both).fit(),
        smf.ols("value ~ C(unit) + C(x) + C(x):C(group)", both).fit(),
    )
    assert interaction(both, "group").p == pytest.approx(table["Pr(>F)"].iloc[1])


def test_interaction_is_that_of_a_regression_with_an_indicator_for_every_unit():
    """With weights of each group's own and with holes: against statsmodels on the whole design."""
    import statsmodels.api as sm

    frame = curves(5, (FLAT, RISING, RISING[::-1]), (9, 3, 4), (0.03, 0.004, 0.01))
    frame = frame.drop(frame.index[[0, 9, 30, 66]])

    def design(rows, unit, cell):
        effects = pd.get_dummies(cell[rows.x != 0]).reindex(rows.index, fill_value=False)
        return np.hstack([pd.get_dummies(unit).to_numpy(float), effects.to_numpy(float)])

    noise = {
        group: sm.OLS(rows.value.to_numpy(), design(rows, rows.seed, rows.x)).fit().mse_resid
        for group, rows in frame.groupby("group")
    }
    weights = 1 / frame.group.map(noise)
    unit = frame.group.astype(str) + "/" + frame.seed.astype(str)
    plain = sm.WLS(frame.value.to_numpy(), design(frame, unit, frame.x), weights).fit()
    cells = frame.group.astype(str) + "/" + frame.x.astype(str)
    full = sm.WLS(frame.value.to_numpy(), design(frame, unit, cells), weights).fit()
    f, _, df = full.compare_f_test(plain)
    found = interaction(frame, "group")
    assert (found.f, found.df) == pytest.approx((f, df))
    assert found.p == pytest.approx(stats.f.sf(f, df, found.df_left))
    assert 20 < found.df_left < full.df_resid  # of the noisiest group, and of all


def test_interaction_of_groups_that_differ_in_noise_keeps_its_level_and_its_size():
    """Six times as noisy: no more false alarms than promised, and the effect counts both groups alike."""
    shape = np.linspace(-1, 1, 9) / np.sqrt((np.linspace(-1, 1, 9) ** 2).mean())
    rejected, effects, small = [], [], []
    for seed in range(200):
        same = interaction(curves(seed, (0 * shape, 0 * shape), (3, 3), (0.03, 0.005)), "group")
        rejected.append(same.p < 0.05)
        apart = interaction(curves(seed, (0.02 * shape, -0.02 * shape), (3, 3), (0.03, 0.005)), "group")
        effects.append(apart.effect)
        small.append(apart.p_smaller_than(0.01) < 0.05)
    assert np.mean(rejected) < 0.09
    assert np.mean(effects) == pytest.approx(0.02, rel=0.15)
    assert np.mean(small) < 0.05


def test_interaction_of_too_little_is_none():
    assert interaction(curves(0, (FLAT, FLAT), (1, 1), (0.01, 0.01)), "group") is None
    assert interaction(curves(0, (FLAT,), (3,), (0.01,)), "group") is None
    frame = curves(0, (FLAT, RISING), (3, 3), (0.01, 0.01))
    assert interaction(frame.drop(frame.index[[0, 9, 30]]), "group").p < 0.05  # holes do no harm
    assert interaction(frame.assign(value=0.5), "group") is None


# --- correlations ---


def test_correlations_agree_with_scipy_and_small_samples_are_exact():
    a, b = pd.Series(noise(1, 5)), pd.Series(noise(2, 5))
    ours = correlate(a, b, ranks=True)
    assert ours.r == pytest.approx(stats.spearmanr(a, b).statistic)
    exact = stats.permutation_test(
        (a,), lambda x: stats.spearmanr(x, b).statistic, permutation_type="pairings", n_resamples=np.inf
    )
    assert ours.p == pytest.approx(exact.pvalue)
    assert correlate(a, b).r == pytest.approx(stats.pearsonr(a, b).statistic)


def test_correlation_needs_four_pairs_and_some_spread():
    assert correlate(pd.Series([1.0, 2, 3]), pd.Series([1.0, 2, 3])) is None
    assert correlate(pd.Series([1.0] * 5), pd.Series(noise(0, 5))) is None
    shared = correlate(pd.Series(range(6)), pd.Series(range(6), index=range(2, 8)))
    assert shared.n == 4


def table_of(values, name="layer"):
    n, layers = values.shape
    return pd.DataFrame(
        {"seed": np.repeat(range(n), layers), "x": np.tile(range(layers), n), "value": values.ravel()}
    )


def test_curve_correlation_is_that_of_the_means_and_its_interval_covers_it():
    shape = np.linspace(0, 0.2, 12)
    covered = []
    for seed in range(60):
        probing, curve = shape + noise(seed, 4, 12, sd=0.03), shape**2 * 4 + noise(seed + 99, 3, 12, sd=0.03)
        found = curve_correlation(table_of(probing), table_of(curve))
        assert found.r == pytest.approx(np.corrcoef(probing.mean(axis=0), curve.mean(axis=0))[0, 1])
        assert found.low <= found.r <= found.high
        covered.append(found.low <= 0.9 <= found.high)  # about what the noise leaves of it
    assert np.mean(covered) > 0.8
    alone = curve_correlation(table_of(probing), table_of(curve[:1]))
    assert math.isnan(alone.low)


def test_widened_percentiles_are_wider_with_fewer_trials_and_agree_with_their_p():
    draws = noise(5, 9999, sd=1.0) + 2.4
    few, many = widened_percentiles(draws, 3), widened_percentiles(draws, 50)
    assert few[1] - few[0] > many[1] - many[0]
    for n in (3, 8, 50):
        low, _ = widened_percentiles(draws, n)
        assert (resampled_p_below(-draws, 0.0, n) < 0.025) == (low > 0)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
@pytest.mark.parametrize("distance", [0.5, 2.0, 4.0, 20.0])
def test_p_of_resamples_is_that_of_t_however_far_out(n, distance):
    """No floor where no resample reaches: three trials can decide, if the effect is large enough."""
    draws = noise(5, 9999, sd=1.0)
    expected = stats.t.cdf(-distance / math.sqrt(n / (n - 1)), n - 1)
    assert resampled_p_below(draws, distance, n) == pytest.approx(expected, rel=0.2)
    assert resampled_p_below(-draws, -distance, n) == pytest.approx(1 - expected, rel=0.2)
    r = np.tanh(draws * 0.1)  # correlations: the same on Fisher's scale
    assert resampled_p_below(r, math.tanh(distance * 0.1), n, of_r=True) == pytest.approx(expected, rel=0.2)
    low, high = widened_percentiles(r, n, of_r=True)
    half = stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1)) * 0.1
    assert (low, high) == pytest.approx((math.tanh(-half), math.tanh(half)), abs=0.02)


def test_resamples_that_do_not_differ_decide_nothing():
    assert math.isnan(resampled_p_below(np.full(99, 0.5), 0.9, 5))


def test_the_spread_of_one_trial_is_found_again():
    trials = noise(1, 6, sd=0.5)
    means = np.random.default_rng(0).choice(trials, (50_000, 6)).mean(axis=1)
    assert spread_of_one(means, 6) == pytest.approx(trials.std(ddof=1), rel=0.02)


def test_task_correlations_pair_the_same_permutation():
    rows = [
        ("permutation", "permuted", "m", 5000, "", task, n, 0, sign * n + offset)
        for task, sign, offset in (("a", 1, 0), ("b", 2, 5), ("c", -1, 0))
        for n in range(1, 8)
    ]
    names = ["experiment", "condition", "model", "train_size", "variant", "task", "x", "seed", "value"]
    table = task_correlations(pd.DataFrame(rows, columns=names))
    assert table[["task", "other"]].to_numpy().tolist() == [["a", "b"], ["a", "c"], ["b", "c"]]
    assert table.spearman.tolist() == pytest.approx([1, -1, -1])
    assert table.spearman_p.tolist() == pytest.approx([2 / math.factorial(7)] * 3)
    assert table.n.tolist() == [7] * 3


# --- shares and power ---


def test_early_share_is_the_ratio_of_means():
    assert small_ks(12) == [1, 2, 3, 4]
    assert small_ks(2) == [1]
    rng = np.random.default_rng(0)
    rows = [
        (seed, k, 12, 0.5 + 0.3 * min(1, k / 6) + 0.02 * seed + rng.normal(0, 0.003))
        for seed in range(4)
        for k in range(13)
    ]
    frame = pd.DataFrame(rows, columns=["seed", "x", "depth", "value"])
    table = frame.pivot(index="seed", columns="x", values="value").mean()
    expected = (table[[1, 2, 3, 4]].mean() - table[0]) / (table[12] - table[0])
    assert early_shares(frame).mean() == pytest.approx(expected)
    assert early_shares(frame[frame.x != 12]) is None
    assert early_shares(frame.assign(value=noise(0, len(frame)))) is None


def test_the_number_of_trials_has_the_power_it_promises():
    n = trials_for_mean(0.01, 0.012)
    rejected = np.mean([stats.ttest_1samp(0.01 + noise(s, n, sd=0.012), 0).pvalue < 0.05 for s in range(500)])
    assert rejected == pytest.approx(0.82, abs=0.07)
    assert trials_for_mean(1.0, 0.01) == 2
    assert trials_each(0.01, 0.02) > trials_for_mean(0.01, 0.02)
    assert trials_for_margin(0.002, 0.005, 0.01) < 10
    assert trials_for_margin(0.02, 0.005, 0.01) is None
    assert trials_for_mean(0.0, 0.01) is None
    assert trials_for_mean(1e-6, 1.0) is None  # more than anybody would run


def test_trials_for_an_interaction_fall_with_its_size():
    few, many = trials_for_interaction(10.0, 6, 3, 24), trials_for_interaction(2.0, 6, 3, 24)
    assert 3 < few < many
    assert trials_for_interaction(0.0, 6, 3, 24) is None
