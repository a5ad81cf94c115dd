"""The interaction test against Welch's test, cell means worked out in loops, and the noncentral F distribution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from whichlayers.analysis.interaction import greenhouse_geisser, interaction_test


def frame(tables):
    """Points of groups a, b, ...; each table is (seeds, x), with NaN for missing cells."""
    rows = [
        (group, seed, x, table[seed, x])
        for group, table in zip("abcd", tables, strict=False)
        for seed, x in itertools.product(*map(range, table.shape))
    ]
    return pd.DataFrame(rows, columns=["group", "seed", "x", "value"]).dropna()


def noisy(rng, shape, n, sd):
    return np.asarray(shape) + rng.normal(0, 0.05, (n, 1)) + rng.normal(0, sd, (n, len(shape)))


@pytest.mark.parametrize("sizes", [(2, 2), (3, 5), (7, 2)])
def test_with_two_x_it_is_welchs_test_of_the_differences(sizes):
    rng = np.random.default_rng(sum(sizes))
    tables = [noisy(rng, (0.5, 0.5 + 0.02 * g), n, 0.01 * (g + 1)) for g, n in enumerate(sizes)]
    found = interaction_test(frame(tables), "group")
    d = [table[:, 1] - table[:, 0] for table in tables]
    welch = stats.ttest_ind(*d, equal_var=False)
    assert found.f == pytest.approx(welch.statistic**2)
    assert (found.df, found.df_denom, found.p) == pytest.approx((1, welch.df, welch.pvalue))
    assert (found.epsilon, found.n, found.cells) == (pytest.approx(1), min(sizes), 4)


def unweighted_interaction(tables):
    """(groups, x): mean curve of each group without its level, minus the mean curve of all groups."""
    curves = np.array([table.mean(axis=0) - table.mean() for table in tables])
    return curves - curves.mean(axis=0)


def test_the_effect_is_the_root_mean_square_of_the_interaction_without_its_noise():
    """With complete data, the weighted sum of squares is F · df · noise, of which (F - 1) / F is no noise."""
    rng = np.random.default_rng(0)
    shapes = ([0, 0.02, 0.05, 0.1], [0, 0.05, 0.06, 0.07], [0.02, 0, 0.05, 0.03])
    tables = [noisy(rng, s, n, sd) for s, n, sd in zip(shapes, (8, 3, 5), (0.02, 0.005, 0.01), strict=True)]
    found = interaction_test(frame(tables), "group")
    effect = math.sqrt((found.f - 1) / found.f * (unweighted_interaction(tables) ** 2).mean())
    assert found.effect == pytest.approx(effect)
    assert found.noncentrality == pytest.approx((found.f - 1) * found.df)
    assert found.effect**2 == pytest.approx(found.noncentrality * found.scale)
    assert (found.n, found.cells) == (3, 12)
    assert found.df == pytest.approx(found.epsilon * 6)  # (3 - 1) · (4 - 1)
    # Satterthwaite's degrees of freedom, with (n - 1) · (4 - 1) residual ones in a group
    residuals = [t - t.mean(1, keepdims=True) - t.mean(0) + t.mean() for t in tables]
    dfs = [3 * (len(t) - 1) for t in tables]
    parts = np.array([(r**2).sum() / df / len(r) for r, df in zip(residuals, dfs, strict=True)])
    assert found.df_denom == pytest.approx(found.epsilon * parts.sum() ** 2 / (parts**2 / dfs).sum())

    def noncentrality(probability):
        """The noncentrality for which F is at this quantile."""
        ends = (1e-9, 100 * found.noncentrality)
        return optimize.brentq(
            lambda nc: stats.ncf.cdf(found.f, found.df, found.df_denom, nc) - probability, *ends
        )

    low, high = (math.sqrt(noncentrality(p) * found.scale) for p in (0.975, 0.025))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-3)
    assert found.p_smaller_than(found.high) == pytest.approx(0.025, abs=1e-3)
    wide = interaction_test(frame(tables), "group", alpha=0.1)
    assert wide.high == pytest.approx(math.sqrt(noncentrality(0.05) * found.scale), rel=1e-3)


def test_the_scale_with_missing_cells_by_loops():
    """One seed has a single x, one group lacks cells; means of cells are those of values without their unit's mean."""
    rng = np.random.default_rng(1)
    shapes, sds = ([0, 0.1, 0.1], [0, 0, 0.1], [0.1, 0.1, 0]), (0.02, 0.01, 0.01)
    tables = [noisy(rng, shape, 5, sd) for shape, sd in zip(shapes, sds, strict=True)]
    tables[0][4, 1:] = np.nan
    tables[1][2, 0] = tables[2][1, 2] = np.nan
    found = interaction_test(frame(tables), "group")
    variances, curves, counts = [], [], []
    for table in tables:
        design, y = [], []
        for seed, x in zip(*np.nonzero(~np.isnan(table)), strict=True):
            design.append([*(seed == s for s in range(5)), *(x == k for k in (1, 2))])
            y.append(table[seed, x])
        residual = np.linalg.lstsq(np.array(design, float), np.array(y), rcond=None)[1][0]
        variances.append(residual / (len(y) - 7))
        centered = table - np.nanmean(table, axis=1, keepdims=True)
        curves.append(np.nanmean(centered, axis=0))
        counts.append((~np.isnan(table)).sum(axis=0))
    curves, weights = np.array(curves), np.array(counts) / np.array(variances)[:, None]
    common = (curves * weights).sum(axis=0) / weights.sum(axis=0)
    ratio = ((curves - curves.mean(axis=0)) ** 2).mean() / (weights * (curves - common) ** 2).sum()
    # the weighted residual variance of the full model is 1: each group is divided by its own
    assert found.scale == pytest.approx(ratio / found.epsilon)


def test_only_x_that_all_groups_have_count():
    rng = np.random.default_rng(2)
    tables = [noisy(rng, (0.1, 0.2, 0.3), 4, 0.01) for _ in range(2)]
    more = frame(tables)
    extra = more[more["group"] == "a"].assign(x=7, value=0.9)
    found, wide = (interaction_test(rows, "group") for rows in (more, pd.concat([more, extra])))
    assert (wide.f, wide.p, wide.cells) == (found.f, found.p, 6)
    assert interaction_test(more[(more["group"] == "a") | (more["x"] == 0)], "group") is None  # one shared x
    assert interaction_test(more.head(0), "group") is None


def test_equal_curves_have_no_effect():
    """F below 1 gives an effect of zero with an interval that starts there."""
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.01, (6, 4))
    noise -= noise.mean(axis=0)
    shape = np.array([0.1, 0.2, 0.25, 0.3])
    found = interaction_test(frame([shape + noise, shape + noise[::-1] + 0.1]), "group")
    assert found.f == pytest.approx(0, abs=1e-12)
    assert (found.effect, found.low, found.noncentrality) == (0.0, 0.0, 0.0)
    assert found.p == pytest.approx(1.0)
    assert found.scale > 0


def test_greenhouse_and_geissers_epsilon_is_1_for_spherical_noise_and_least_for_one_direction():
    contrasts = np.eye(4) - 0.25
    assert greenhouse_geisser(contrasts) == pytest.approx(1.0)
    assert greenhouse_geisser(np.outer([1.0, -2, 0.5], [1, 0, -1, 0])) == pytest.approx(1 / 3)


def test_a_group_with_one_residual_degree_of_freedom_is_enough_and_none_is_not():
    rng = np.random.default_rng(4)
    two, one = noisy(rng, (0.1, 0.2), 2, 0.01), noisy(rng, (0.1, 0.2), 1, 0.01)
    assert interaction_test(frame([two, two[::-1] ** 2]), "group") is not None
    assert interaction_test(frame([two, one]), "group") is None


@pytest.mark.parametrize("size", [1e-4, 0.1])
def test_the_scale_of_two_groups_depends_on_their_noise_alone(size):
    """Each group deviates by d / 2, and the weighted sum of squares is that of d over 1 / W1 + 1 / W2."""
    rng = np.random.default_rng(5)
    noise = [rng.normal(0, sd, (n, 4)) for n, sd in ((6, 0.02), (4, 0.01))]
    exact = [n - n.mean(axis=0) for n in noise]  # both mean curves are flat
    found = interaction_test(frame([exact[0], exact[1] + size * np.array([1, -1, 2, -2])]), "group")
    weights = []
    for table in exact:
        residuals = table - table.mean(axis=1, keepdims=True)
        weights.append(len(table) * 3 * (len(table) - 1) / (residuals**2).sum())
    assert found.scale * found.epsilon == pytest.approx((1 / weights[0] + 1 / weights[1]) / (4 * 4))


def test_identical_groups_have_the_scale_of_their_noise():
    table = np.random.default_rng(6).normal(0, 0.02, (5, 3))
    found = interaction_test(frame([table, table]), "group")
    residuals = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    variance = (residuals**2).sum() / (4 * 2)
    assert found.scale * found.epsilon == pytest.approx(variance / 30)  # 30 rows of weight 1 / variance
