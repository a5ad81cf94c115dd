"""Interaction test: whether curves over x (layers kept, block) have the same shape in all groups (sizes, tasks).

Trials of one group and seed share examples, order and head, so each (group, seed) is a unit with its own mean. The
test is a split-plot analysis of variance: weighted least squares of value ~ unit + x + x:group, where each group is
weighted by the inverse of its residual variance, since small training sets give noisier scores. F compares the models
with and without x:group; its denominator degrees of freedom are Satterthwaite's. (Sandwich covariances are no
alternative: with three trials per cell they rest on two degrees of freedom each and reject far too often.)

Scores at neighboring x are correlated, which violates the sphericity that the F distribution assumes: without a
correction the test rejects 10 to 21% of true null hypotheses at a nominal 5%. Both degrees of freedom are therefore
multiplied by the Greenhouse-Geisser epsilon of the residuals, pooled over groups with the weights of the fit. With the
noise of results/ and 3 to 50 trials per group this rejects 1.0 to 5.2%; the Huynh-Feldt epsilon, which corrects the
downward bias of Greenhouse and Geisser's, rejects up to 10% with three trials and is not used.

The effect size is the root mean square of the interaction in units of the metric, with the interval that follows from
the noncentral F distribution (Steiger 2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.oneway import confint_noncentrality

from whichlayers.results.frame_utils import each_group


@dataclass(frozen=True)
class Interaction:
    """Result of `interaction_test`."""

    f: float
    df: float  # numerator degrees of freedom, multiplied by epsilon
    df_denom: float  # Satterthwaite's, multiplied by epsilon
    p: float
    effect: float  # root mean square over all (group, x) with equal weights; 0 if F <= 1
    low: float  # confidence interval of the effect
    high: float
    noncentrality: float  # (F - 1) · df, at least 0
    scale: float  # effect² = noncentrality · scale
    n: int  # units in the smallest group
    cells: int  # (group, x) pairs
    epsilon: float  # Greenhouse and Geisser's: 1 for spherical noise, 1 / (number of x - 1) at least

    def p_smaller_than(self, effect: float) -> float:
        """One-sided p value for the root mean square of the interaction being below `effect`."""
        return float(stats.ncf.cdf(self.f, self.df, self.df_denom, effect**2 / self.scale))


def interaction_test(frame: pd.DataFrame, group: str, alpha: float = 0.05) -> Interaction | None:
    """F test of the interaction of x and `group` on `value`, over the x that all groups have.

    Args:
        frame: Columns x, value, seed and `group`, one row per trial; missing cells are allowed.
        group: The column whose values name the groups.
        alpha: The interval of the effect has the confidence level 1 - alpha.

    Returns:
        None if there are fewer than two groups or shared x, if a group has no residual degrees of freedom (a single
        trial), or if there is no residual variance.
    """
    x_by_group = [set(rows["x"]) for _, rows in each_group(frame, [group])]
    shared = set.intersection(*x_by_group) if x_by_group else set()
    rows = frame[frame["x"].isin(shared)].reset_index(drop=True)
    groups = list(dict.fromkeys(rows[group]))
    if len(shared) < 2 or len(groups) < 2:
        return None
    unit = pd.factorize(rows[group].astype(str) + "/" + rows["seed"].astype(str))[0]
    group_index, x_index = pd.factorize(rows[group])[0], pd.factorize(rows["x"], sort=True)[0]
    value = rows["value"].to_numpy(dtype=float)
    ones = np.ones(len(value))
    fits = [
        _fit(value[chosen], unit[chosen], x_index[chosen], ones[chosen])
        for chosen in (group_index == g for g in range(len(groups)))
    ]
    if any(fit.df_resid < 1 for fit in fits):
        return None
    variances = [fit.sum_of_squares / fit.df_resid for fit in fits]
    smallest = max(max(variances) * 1e-6, 1e-12)  # a group without variance must not get all the weight
    weights = 1 / np.clip(variances, smallest, None)[group_index]
    reduced = _fit(value, unit, x_index, weights)
    full = _fit(value, unit, x_index + group_index * len(shared), weights, cells_per_group=len(shared))
    df = float(reduced.df_resid - full.df_resid)
    if df < 1 or full.df_resid < 2:
        return None
    noise = full.sum_of_squares / full.df_resid
    if noise <= 1e-9:  # relative to the group variances: values are equal, and F is undefined
        return None
    f = max(0.0, (reduced.sum_of_squares - full.sum_of_squares) / df / noise)
    sizes = [rows.loc[rows[group] == g, "seed"].nunique() for g in groups]
    residuals = np.zeros((unit.max() + 1, len(shared)))  # (units, x); missing cells count as 0
    residuals[unit, x_index] = full.residuals
    epsilon = greenhouse_geisser(residuals)
    df = epsilon * df
    df_denom = epsilon * _satterthwaite_df(np.divide(variances, sizes), [fit.df_resid for fit in fits])
    low, high = confint_noncentrality(f, (df, df_denom), alpha=alpha)
    noncentrality = max(0.0, (f - 1) * df)
    scale = noise / epsilon * _mean_square_ratio(value, unit, x_index, group_index, weights)
    effect, effect_low, effect_high = (
        math.sqrt(max(0.0, float(x)) * scale) for x in (noncentrality, low, high)
    )
    return Interaction(
        f=float(f),
        df=df,
        df_denom=df_denom,
        p=float(stats.f.sf(f, df, df_denom)),
        effect=effect,
        low=effect_low,
        high=effect_high,
        noncentrality=noncentrality,
        scale=float(scale),
        n=min(sizes),
        cells=len(shared) * len(groups),
        epsilon=epsilon,
    )


def _mean_square_ratio(
    value: np.ndarray, unit: np.ndarray, x_index: np.ndarray, group_index: np.ndarray, weights: np.ndarray
) -> float:
    """Unweighted mean square of the interaction divided by its weighted sum of squares.

    F weights groups by their noise, while the effect size is in units of the metric with equal weights. With two
    groups this ratio depends on the weights alone; with more it is estimated from the observed curves. All arguments
    are (rows,).
    """
    n_groups, n_x = group_index.max() + 1, x_index.max() + 1
    level = np.bincount(unit, value) / np.maximum(np.bincount(unit), 1)
    sums, counts, cell_weights = np.zeros((3, n_groups, n_x))
    for table, added in ((sums, value - level[unit]), (counts, 1.0), (cell_weights, weights)):
        np.add.at(table, (group_index, x_index), added)
    curves = sums / np.maximum(counts, 1)  # (groups, x)
    unweighted = curves - curves.mean(axis=0)
    weighted = curves - (curves * cell_weights).sum(axis=0) / cell_weights.sum(axis=0)
    squares = float((cell_weights * weighted**2).sum())
    return float((unweighted**2).mean()) / squares if squares > 0 else 1 / float(weights.sum())


class _Fit(NamedTuple):
    sum_of_squares: float  # weighted residual sum of squares
    df_resid: int
    residuals: np.ndarray  # (rows,) weighted


def _fit(
    value: np.ndarray,
    unit: np.ndarray,
    cell: np.ndarray,
    weights: np.ndarray,
    cells_per_group: int | None = None,
) -> _Fit:
    """Weighted least squares of value ~ unit + cell; all arguments are (rows,), weights are constant within a unit.

    Unit means are removed by centering (Frisch-Waugh-Lovell), so that the design matrix has one column per cell and
    none per unit: the same residuals as with an indicator for every unit, a hundred times faster. The first cell is
    the reference; with `cells_per_group`, the first cell of every group is.
    """
    cells = np.unique(cell)
    columns = cells[cells % cells_per_group != 0] if cells_per_group else cells[1:]
    table = np.column_stack([value, cell[:, None] == columns])  # (rows, 1 + cells)
    sums = np.zeros((unit.max() + 1, table.shape[1]))
    np.add.at(sums, unit, table)
    counts = np.bincount(unit, minlength=len(sums))
    centered = (table - (sums / np.maximum(counts, 1)[:, None])[unit]) * np.sqrt(weights)[:, None]
    y, design = centered[:, 0], centered[:, 1:]
    solution, _, rank, _ = np.linalg.lstsq(design, y, rcond=1e-10)
    residuals = y - design @ solution
    return _Fit(float(residuals @ residuals), len(value) - int((counts > 0).sum()) - int(rank), residuals)


def greenhouse_geisser(residuals: np.ndarray) -> float:
    """Greenhouse and Geisser's epsilon of the covariance S over x: (tr S)² / ((number of x - 1) · tr S²).

    `residuals` (units, x) have mean zero in each unit, so that S is the covariance of contrasts.
    """
    covariance = residuals.T @ residuals
    return float(np.trace(covariance) ** 2 / ((len(covariance) - 1) * (covariance**2).sum()))


def _satterthwaite_df(variances: np.ndarray, df: Sequence[int]) -> float:
    """Satterthwaite's degrees of freedom of a sum of independent variance estimates: (Σ v)² / Σ (v² / df).

    The sum of all `df` if groups have equal variances and df; that of the noisiest group if it dominates.
    """
    total = variances.sum()
    return float(total**2 / (variances**2 / np.array(df)).sum()) if total > 0 else float(sum(df))
