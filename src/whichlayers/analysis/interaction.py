"""Whether two curves have the same shape: the interaction of x (layers kept, block) and a group (size, task).

Trials of one seed and group share examples, order and head, so each (group, seed) is a unit with a level of its
own. The model is a split-plot analysis of variance: value ~ unit + x + x:group, least squares with each group
weighted by its own residual variance, because small data are noisier; the interaction is the F test between the
models with and without x:group, with Satterthwaite's degrees of freedom. Robust (sandwich) covariances are of no
use here: with three trials per cell they rest on two degrees of freedom each, and reject far too often. Its
assumption is that within a group the noise is about as large at every x.

The effect is the root mean square of the interaction, in points of the metric, with the interval that the
noncentral F distribution gives.
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

from whichlayers.analysis.frame_utils import each_group


@dataclass(frozen=True)
class Interaction:
    f: float
    df: float
    df_left: float
    p: float
    effect: float  # root mean square over the cells, all alike; 0 where F is below what chance gives
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
    unit = pd.factorize(rows[group].astype(str) + "/" + rows["seed"].astype(str))[0]
    column, place = pd.factorize(rows[group])[0], pd.factorize(rows["x"], sort=True)[0]
    value = rows["value"].to_numpy(dtype=float)
    ones = np.ones(len(value))
    alone = [
        _fit(value[mine], unit[mine], place[mine], ones[mine])
        for mine in (column == g for g in range(len(groups)))
    ]
    if any(fit.df_left < 1 for fit in alone):
        return None
    variances = [fit.squares / fit.df_left for fit in alone]
    smallest = max(max(variances) * 1e-6, 1e-12)  # equal values have no noise, and not all the weight
    weights = 1 / np.clip(variances, smallest, None)[column]
    without = _fit(value, unit, place, weights)
    full = _fit(value, unit, place + column * len(shared), weights, each=len(shared))
    df = without.df_left - full.df_left
    if df < 1 or full.df_left < 2:
        return None
    noise = full.squares / full.df_left
    if noise <= 1e-9:  # in units of the noise: the values are equal, and there is nothing to test
        return None
    f = max(0.0, (without.squares - full.squares) / df / noise)
    sizes = [rows.loc[rows[group] == g, "seed"].nunique() for g in groups]
    left = _satterthwaite(np.divide(variances, sizes), [fit.df_left for fit in alone])
    low, high = confint_noncentrality(f, (df, left), alpha=alpha)
    excess = max(0.0, (f - 1) * df)
    scale = noise * _mean_square_of_unit(value, unit, place, column, weights)
    effect, least, most = (math.sqrt(max(0.0, float(x)) * scale) for x in (excess, low, high))
    return Interaction(
        f=float(f),
        df=float(df),
        df_left=left,
        p=float(stats.f.sf(f, df, left)),
        effect=effect,
        low=least,
        high=most,
        noncentrality=excess,
        scale=float(scale),
        n=min(sizes),
        cells=len(shared) * len(groups),
    )


def _mean_square_of_unit(
    value: np.ndarray, unit: np.ndarray, place: np.ndarray, column: np.ndarray, weights: np.ndarray
) -> float:
    """What the plain mean square of the interaction is where its weighted sum of squares is 1.

    F weighs groups by their noise; the effect is told in points of the metric, in which all groups count alike.
    For two groups the ratio of the two is a matter of the weights alone; for more it is taken from how the groups
    differ here.
    """
    groups, places = column.max() + 1, place.max() + 1
    level = np.bincount(unit, value) / np.maximum(np.bincount(unit), 1)
    sums, counts, heavy = np.zeros((3, groups, places))
    for table, what in ((sums, value - level[unit]), (counts, 1.0), (heavy, weights)):
        np.add.at(table, (column, place), what)
    curves = sums / np.maximum(counts, 1)
    plain = curves - curves.mean(axis=0)
    weighted = curves - (curves * heavy).sum(axis=0) / heavy.sum(axis=0)
    squares = float((heavy * weighted**2).sum())
    return float((plain**2).mean()) / squares if squares > 0 else 1 / float(weights.sum())


class _Fit(NamedTuple):
    squares: float  # weighted sum of squares that is left
    df_left: int


def _fit(
    value: np.ndarray, unit: np.ndarray, cell: np.ndarray, weights: np.ndarray, each: int | None = None
) -> _Fit:
    """Least squares of value ~ unit + cell, weighted; weights are one and the same within a unit.

    A unit's own level is taken out by centring it, so that what is solved has a column a cell and none a unit:
    the same numbers as with an indicator for every unit, at a hundredth of the work. `each` cells make a group,
    whose first stands for its level.
    """
    cells = np.unique(cell)
    columns = cells[cells % each != 0] if each else cells[1:]
    table = np.column_stack([value, cell[:, None] == columns])  # (rows, 1 + cells)
    sums = np.zeros((unit.max() + 1, table.shape[1]))
    np.add.at(sums, unit, table)
    counts = np.bincount(unit, minlength=len(sums))
    centred = (table - (sums / np.maximum(counts, 1)[:, None])[unit]) * np.sqrt(weights)[:, None]
    y, design = centred[:, 0], centred[:, 1:]
    solution, _, rank, _ = np.linalg.lstsq(design, y, rcond=1e-10)
    left = y - design @ solution
    return _Fit(float(left @ left), len(value) - int((counts > 0).sum()) - int(rank))


def _satterthwaite(variances: np.ndarray, df: Sequence[int]) -> float:
    """Degrees of freedom of a sum of variances that were each estimated with df of their own: all of them where
    groups are alike, those of the noisiest group where it drowns the others."""
    total = variances.sum()
    return float(total**2 / (variances**2 / np.array(df)).sum()) if total > 0 else float(sum(df))
