"""Equivalence tests, interaction tests and correlations, on simulated data with known effects."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from whichlayers.analysis.correlations import (
    bootstrap_p_below,
    correlate,
    curve_correlation,
    expanded_percentile_interval,
    single_trial_sd,
    task_correlations,
)
from whichlayers.analysis.interaction import interaction_test
from whichlayers.analysis.intervals import equivalence_test, non_superiority_test


def noise(seed, *shape, sd=0.01):
    return np.random.default_rng(seed).normal(0, sd, shape)


# --- equivalence ---


def test_few_noisy_trials_show_neither_equivalence_nor_a_difference():
    d = equivalence_test(np.array([-0.02, 0.0, 0.021]), margin=0.01)
    assert (
        stats.ttest_1samp([-0.02, 0.0, 0.021], 0).pvalue > 0.9
    )  # not significant, which does not mean "no effect"
    assert d.p_within > 0.05
    assert d.p_beyond > 0.05


def test_tost_is_significant_if_its_interval_is_within_the_margin():
    for seed in range(40):
        d = equivalence_test(0.004 + noise(seed, 6, sd=0.006), margin=0.01)
        assert (d.p_within < 0.05) == (d.low > -0.01 and d.high < 0.01)


def test_tost_keeps_its_level_at_the_margin():
    wrong = [equivalence_test(0.01 + noise(seed, 5), 0.01).p_within < 0.05 for seed in range(400)]
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.03)


def test_non_superiority_is_one_sided():
    harm, help_ = (
        non_superiority_test(-0.2 + noise(0, 4), 0.01),
        non_superiority_test(0.2 + noise(0, 4), 0.01),
    )
    assert harm.p_within < 0.01
    assert help_.p_beyond < 0.01
    assert equivalence_test(-0.2 + noise(0, 4), 0.01).p_beyond < 0.01


def test_equal_differences_and_a_single_one():
    """Without variance, p is NaN."""
    for found in (
        equivalence_test(np.zeros(3), 0.01),
        non_superiority_test(np.full(3, 0.02), 0.01),
        equivalence_test(np.array([0.0]), 0.01),
    ):
        assert math.isnan(found.p_within)
        assert math.isnan(found.p_beyond)


# --- interaction ---


def curves(seed, shapes, trials, sds):
    """A frame of one group per shape, with an offset per (group, seed) and noise of each group's own sd."""
    rng = np.random.default_rng(seed)
    rows = []
    for group, (shape, n, sd) in enumerate(zip(shapes, trials, sds, strict=True)):
        for trial in range(n):
            level = rng.normal(0, 0.05)
            rows += [(group, trial, x, v + level + rng.normal(0, sd)) for x, v in enumerate(shape)]
    return pd.DataFrame(rows, columns=["group", "seed", "x", "value"])


FLAT, RISING = np.zeros(7), np.linspace(0, 0.06, 7)


@pytest.mark.parametrize(("trials", "sds"), [((3, 3), (0.01, 0.01)), ((12, 3), (0.03, 0.005))])
def test_curves_of_one_shape_rarely_interact(trials, sds):
    p = [interaction_test(curves(s, (RISING, RISING + 0.2), trials, sds), "group").p for s in range(120)]
    assert np.mean(np.array(p) < 0.05) < 0.11  # 0.05 plus three standard errors of 120 samples


def test_curves_of_two_shapes_interact_and_the_effect_is_found():
    found = [interaction_test(curves(s, (FLAT, RISING), (3, 3), (0.01, 0.01)), "group") for s in range(30)]
    assert np.mean([i.p < 0.05 for i in found]) > 0.8
    truth = np.sqrt(
        np.mean((RISING - RISING.mean()) ** 2) / 4
    )  # each group deviates by half of the difference
    assert np.mean([i.effect for i in found]) == pytest.approx(truth, rel=0.2)
    assert np.mean([i.low <= truth <= i.high for i in found]) > 0.8


def test_interaction_agrees_with_a_split_plot_anova_if_noise_is_equal():
    """Against anova_lm of the two nested least-squares fits; weights are equal if variances are."""
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
    found = interaction_test(both, "group")
    df, df_denom = table["df_diff"].iloc[1], table["df_resid"].iloc[1]
    assert (found.f, found.df, found.df_denom) == pytest.approx(
        (table["F"].iloc[1], found.epsilon * df, found.epsilon * df_denom)
    )
    assert found.p == pytest.approx(stats.f.sf(found.f, found.epsilon * df, found.epsilon * df_denom))
    assert found.epsilon == pytest.approx(epsilon_by_hand([both[both.group == g] for g in (0, 1)]))


def epsilon_by_hand(groups):
    """Greenhouse and Geisser's epsilon from the elements of the pooled covariance (Winer 1971, p. 523)."""
    tables = [g.pivot(index="seed", columns="x", values="value").to_numpy() for g in groups]
    s = sum((len(t) - 1) * np.cov(t.T) for t in tables) / sum(len(t) - 1 for t in tables)
    k = len(s)
    numerator = k**2 * (np.diag(s).mean() - s.mean()) ** 2
    return numerator / ((k - 1) * ((s**2).sum() - 2 * k * (s.mean(axis=1) ** 2).sum() + k**2 * s.mean() ** 2))


def test_interaction_agrees_with_a_regression_with_an_indicator_for_every_unit():
    """With unequal weights and missing cells, against statsmodels on the full design matrix."""
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
    found = interaction_test(frame, "group")
    assert (found.f, found.df) == pytest.approx((f, found.epsilon * df))
    assert found.p == pytest.approx(stats.f.sf(f, found.df, found.df_denom))
    # between the df of the noisiest group and of all groups
    assert 20 < found.df_denom / found.epsilon < full.df_resid


def test_interaction_of_groups_with_unequal_noise_keeps_its_level_and_effect_size():
    """One group is six times as noisy: the test keeps its level, and the effect weights both groups equally."""
    shape = np.linspace(-1, 1, 9) / np.sqrt((np.linspace(-1, 1, 9) ** 2).mean())
    rejected, effects, small = [], [], []
    for seed in range(200):
        same = interaction_test(curves(seed, (0 * shape, 0 * shape), (3, 3), (0.03, 0.005)), "group")
        rejected.append(same.p < 0.05)
        apart = interaction_test(curves(seed, (0.02 * shape, -0.02 * shape), (3, 3), (0.03, 0.005)), "group")
        effects.append(apart.effect)
        small.append(apart.p_smaller_than(0.01) < 0.05)
    assert np.mean(rejected) < 0.09
    assert np.mean(effects) == pytest.approx(0.02, rel=0.15)
    assert np.mean(small) < 0.05


def test_interaction_is_none_without_enough_data():
    assert interaction_test(curves(0, (FLAT, FLAT), (1, 1), (0.01, 0.01)), "group") is None
    assert interaction_test(curves(0, (FLAT,), (3,), (0.01,)), "group") is None
    frame = curves(0, (FLAT, RISING), (3, 3), (0.01, 0.01))
    assert (
        interaction_test(frame.drop(frame.index[[0, 9, 30]]), "group").p < 0.05
    )  # missing cells are allowed
    assert interaction_test(frame.assign(value=0.5), "group") is None


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


def test_correlation_needs_four_pairs_and_some_variance():
    assert correlate(pd.Series([1.0, 2, 3]), pd.Series([1.0, 2, 3])) is None
    assert correlate(pd.Series([1.0] * 5), pd.Series(noise(0, 5))) is None
    shared = correlate(pd.Series(range(6)), pd.Series(range(6), index=range(2, 8)))
    assert shared.n == 4


def table_of(values, name="layer"):
    n, layers = values.shape
    return pd.DataFrame(
        {"seed": np.repeat(range(n), layers), "x": np.tile(range(layers), n), "value": values.ravel()}
    )


def test_curve_correlation_is_that_of_the_mean_curves_and_its_interval_covers_it():
    shape = np.linspace(0, 0.2, 12)
    covered = []
    for seed in range(60):
        probing, curve = shape + noise(seed, 4, 12, sd=0.03), shape**2 * 4 + noise(seed + 99, 3, 12, sd=0.03)
        found = curve_correlation(table_of(probing), table_of(curve))
        assert found.r == pytest.approx(np.corrcoef(probing.mean(axis=0), curve.mean(axis=0))[0, 1])
        assert found.low <= found.r <= found.high
        covered.append(found.low <= 0.9 <= found.high)  # about the true correlation of noisy means
    assert np.mean(covered) > 0.8
    alone = curve_correlation(table_of(probing), table_of(curve[:1]))
    assert math.isnan(alone.low)


def test_expanded_intervals_are_wider_with_fewer_trials_and_agree_with_p():
    draws = noise(5, 9999, sd=1.0) + 2.4
    few, many = expanded_percentile_interval(draws, 3), expanded_percentile_interval(draws, 50)
    assert few[1] - few[0] > many[1] - many[0]
    for n in (3, 8, 50):
        low, _ = expanded_percentile_interval(draws, n)
        assert (bootstrap_p_below(-draws, 0.0, n) < 0.025) == (low > 0)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
@pytest.mark.parametrize("distance", [0.5, 2.0, 4.0, 20.0])
def test_bootstrap_p_agrees_with_t_far_out_in_the_tail(n, distance):
    """p has no lower bound at 1 / resamples, so that three trials can be significant if the effect is large."""
    draws = noise(5, 9999, sd=1.0)
    expected = stats.t.cdf(-distance / math.sqrt(n / (n - 1)), n - 1)
    assert bootstrap_p_below(draws, distance, n) == pytest.approx(expected, rel=0.2)
    assert bootstrap_p_below(-draws, -distance, n) == pytest.approx(1 - expected, rel=0.2)
    r = np.tanh(draws * 0.1)  # correlations: the same on Fisher's z scale
    assert bootstrap_p_below(r, math.tanh(distance * 0.1), n, is_correlation=True) == pytest.approx(
        expected, rel=0.2
    )
    low, high = expanded_percentile_interval(r, n, is_correlation=True)
    half = stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1)) * 0.1
    assert (low, high) == pytest.approx((math.tanh(-half), math.tanh(half)), abs=0.02)


def test_bootstrap_p_of_equal_resamples_is_nan():
    assert math.isnan(bootstrap_p_below(np.full(99, 0.5), 0.9, 5))


def test_single_trial_sd_is_recovered_from_resamples():
    trials = noise(1, 6, sd=0.5)
    means = np.random.default_rng(0).choice(trials, (50_000, 6)).mean(axis=1)
    assert single_trial_sd(means, 6) == pytest.approx(trials.std(ddof=1), rel=0.02)


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
