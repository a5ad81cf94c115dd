"""Whether two curves have the same shape: the interaction of x (layers kept, block) and a group (size, task).

Trials of one seed and group share examples, order and head, so each (group, seed) is a unit with a level of its
own. The model is a split-plot analysis of variance: value ~ unit + x + x:group, least squares with each group
weighted by its own residual variance, because small data are noisier; the interaction is the F test between the
models with and without x:group. Robust (sandwich) covariances are of no use here: with three trials a cell they
rest on two degrees of freedom each, and reject far too often. Its assumption is that within a group the noise is
about as large at every x.

The effect is the root mean square of the interaction, in points of the metric, with the interval that the
noncentral F distribution gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.oneway import confint_noncentrality

from carryover.analysis.walk import each_group


@dataclass(frozen=True)
class Interaction:
    f: float
    df: float
    df_left: float
    p: float
    effect: float  # root mean square over the cells, 0 where F is below what chance gives
    low: float
    high: float
    noncentrality: float
    scale: float  # times a noncentrality: a mean square in points of the metric
    n: int  # fewest units in a group
    cells: int

    def p_smaller_than(self, effect: float) -> float:
        """One-sided p of the claim that the interaction is smaller than this root mean square."""
        return float(stats.ncf.cdf(self.f, self.df, self.df_left, effect**2 / self.scale))


def interaction(frame: pd.DataFrame, group: str, alpha: float = 0.05) -> Interaction | None:
    """Of x and `group` on `value`, over the x that every group has; None where a group has too few trials.

    `frame` needs columns x, value, seed and the group's.
    """
    every = [set(rows["x"]) for _, rows in each_group(frame, [group])]
    shared = set.intersection(*every) if every else set()
    rows = frame[frame["x"].isin(shared)].reset_index(drop=True)
    groups = list(dict.fromkeys(rows[group]))
    if len(shared) < 2 or len(groups) < 2:
        return None
    variances = {g: _residual_variance(rows[rows[group] == g]) for g in groups}
    if any(math.isnan(v) for v in variances.values()):
        return None
    smallest = max(
        max(variances.values()) * 1e-6, 1e-12
    )  # equal values have no noise, and not all the weight
    weights = 1 / rows[group].map(variances).clip(lower=smallest).to_numpy(dtype=float)
    unit = rows[group].astype(str) + "/" + rows["seed"].astype(str)
    value = rows["value"].to_numpy(dtype=float)
    without = sm.WLS(value, _design(unit, rows["x"]), weights).fit()
    full = sm.WLS(value, _design(unit, rows["x"], rows[group]), weights).fit()
    df = without.df_resid - full.df_resid
    if df < 1 or full.df_resid < 2:
        return None
    if full.scale <= 1e-9:  # in units of the noise: the values are equal, and there is nothing to test
        return None
    f, p, _ = full.compare_f_test(without)
    low, high = confint_noncentrality(f, (df, full.df_resid), alpha=alpha)
    excess = max(0.0, (f - 1) * df)
    scale = full.scale / weights.sum()  # noncentrality -> mean square of the interaction
    sizes = [rows.loc[rows[group] == g, "seed"].nunique() for g in groups]
    effect, least, most = (math.sqrt(max(0.0, float(x)) * scale) for x in (excess, low, high))
    return Interaction(
        f=float(f),
        df=float(df),
        df_left=float(full.df_resid),
        p=float(p),
        effect=effect,
        low=least,
        high=most,
        noncentrality=excess,
        scale=float(scale),
        n=min(sizes),
        cells=len(shared) * len(groups),
    )


def _residual_variance(rows: pd.DataFrame) -> float:
    """Of one group about its units and its x; NaN where nothing is left to estimate it from."""
    fit = sm.OLS(rows["value"].to_numpy(dtype=float), _design(rows["seed"], rows["x"])).fit()
    return float(fit.mse_resid) if fit.df_resid >= 1 else math.nan


def _design(unit: pd.Series, x: pd.Series, group: pd.Series | None = None) -> np.ndarray:
    """Indicators of every unit, and of every x but the lowest: one effect of x, or one for each group."""
    cell = x.astype(str) if group is None else group.astype(str) + "/" + x.astype(str)
    effects = pd.get_dummies(cell[x != x.min()]).reindex(cell.index, fill_value=False)
    return np.hstack([pd.get_dummies(unit.astype(str)).to_numpy(float), effects.to_numpy(float)])
