"""Correlations: of tasks over the same permutations (Table 1 of Tamkin et al.), of probing and re-initialisation.

p values over permutations are exact permutation tests up to n = 7 and rest on 9,999 random pairings beyond;
intervals over trials resample seeds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from whichlayers.analysis.baseline_differences import BASELINES
from whichlayers.analysis.frame_utils import each_group

RESAMPLES = 9_999
ENOUGH = 50  # resamples beyond a point, for their share to be taken; farther out they are taken for normal
LEAST = 4  # pairs: with three, no order of them has a two-sided p below 1/3


@dataclass(frozen=True)
class Correlation:
    r: float
    low: float  # Fisher's interval, for ranks an approximation
    high: float
    p: float  # two-sided, of the permutation test
    n: int


@dataclass(frozen=True)
class CurveCorrelation:
    """Of two curves over layers; the interval is over trials, the layers are what they are."""

    r: float
    low: float
    high: float
    resampled: np.ndarray
    n: int  # trials of the curve that has fewer
    layers: int


def correlate(a: pd.Series, b: pd.Series, ranks: bool = False) -> Correlation | None:
    """Pearson's r over what both are indexed by, or Spearman's: Pearson's of the ranks."""
    both = pd.concat([a, b], axis=1, join="inner").dropna().to_numpy(dtype=float)
    if len(both) < LEAST or min(np.ptp(both, axis=0)) == 0:
        return None
    x, y = stats.rankdata(both, axis=0).T if ranks else both.T
    found = stats.pearsonr(x, y, method=stats.PermutationMethod(RESAMPLES, rng=np.random.default_rng(0)))
    with np.errstate(all="ignore"):
        low, high = found.confidence_interval()
    return Correlation(float(found.statistic), float(low), float(high), float(found.pvalue), len(both))


def task_correlations(points: pd.DataFrame) -> pd.DataFrame:
    """Every pair of tasks over the permutations they share: model, variant, size, tasks, both coefficients."""
    rows = points[(points["experiment"] == "permutation") & ~points["condition"].isin(BASELINES)]
    found = []
    for (model, size, variant), mine in each_group(rows, ["model", "train_size", "variant"]):
        means = {task: of.groupby("x")["value"].mean() for (task,), of in each_group(mine, ["task"])}
        for one, other in itertools.combinations(means, 2):
            spearman, pearson = (correlate(means[one], means[other], ranks) for ranks in (True, False))
            if spearman is not None and pearson is not None:
                found.append(
                    (model, size, variant, one, other, spearman.n, *_numbers(spearman), *_numbers(pearson))
                )
    names = "model train_size variant task other n"
    for kind in ("spearman", "pearson"):
        names += f" {kind} {kind}_p {kind}_low {kind}_high"
    return pd.DataFrame(found, columns=names.split())


def curve_correlation(
    probing: pd.DataFrame, curve: pd.DataFrame, level: float = 0.95
) -> CurveCorrelation | None:
    """Pearson's r of the mean curves over the layers both have, with a bootstrap over the seeds of each.

    Seeds of a curve are drawn as wholes, because their trials share examples. The percentiles are widened as
    for a t interval of so few trials (Hesterberg 2015); with a single trial there is no interval.
    """
    tables = [rows.pivot_table(index="seed", columns="x", values="value") for rows in (probing, curve)]
    shared = sorted(set(tables[0].columns) & set(tables[1].columns))
    if len(shared) < LEAST:
        return None
    whole = [table[shared].dropna().to_numpy() for table in tables]  # (seeds, layers)
    if min(len(table) for table in whole) == 0:
        return None
    r = float(_pearson(whole[0].mean(axis=0), whole[1].mean(axis=0)))
    n = min(len(table) for table in whole)
    if n < 2 or math.isnan(r):
        return CurveCorrelation(r, math.nan, math.nan, np.empty(0), n, len(shared))
    rng = np.random.default_rng(0)
    drawn = [_means_of_resamples(table, rng) for table in whole]
    resampled = _pearson(drawn[0], drawn[1])
    low, high = widened_percentiles(resampled, n, level, of_r=True)
    return CurveCorrelation(r, low, high, resampled, n, len(shared))


def widened_percentiles(
    resampled: np.ndarray, n: int, level: float = 0.95, of_r: bool = False
) -> tuple[float, float]:
    """Percentiles whose normal quantile is √(n / (n - 1)) times that of the t distribution.

    Of few trials they lie beyond what any resample reaches; there the resamples are taken for normal, if they are
    correlations (`of_r`) on Fisher's scale.
    """
    z = stats.t.ppf((1 + level) / 2, n - 1) * math.sqrt(n / (n - 1))
    known = resampled[~np.isnan(resampled)]
    tail = stats.norm.sf(z)
    if tail * known.size >= ENOUGH:
        low, high = np.quantile(known, [tail, 1 - tail])
        return float(low), float(high)
    scaled = _fisher(known) if of_r else known
    ends = np.array([scaled.mean() - z * scaled.std(), scaled.mean() + z * scaled.std()])
    low, high = np.tanh(ends) if of_r else ends
    return float(low), float(high)


def resampled_p_below(resampled: np.ndarray, threshold: float, n: int, of_r: bool = False) -> float:
    """One-sided p of the claim that the truth lies below the threshold, which agrees with `widened_percentiles`: half
    of the level at which they end there. NaN where resamples do not differ."""
    known = resampled[~np.isnan(resampled)]
    beyond = int((known >= threshold).sum())
    if ENOUGH <= beyond <= known.size - ENOUGH:
        z = stats.norm.ppf(beyond / known.size)
    else:
        scaled = _fisher(np.append(known, threshold)) if of_r else np.append(known, threshold)
        spread = scaled[:-1].std()
        if not spread > 0:
            return math.nan
        z = (scaled[:-1].mean() - scaled[-1]) / spread
    return float(stats.t.cdf(z / math.sqrt(n / (n - 1)), n - 1))


def spread_of_one(resampled: np.ndarray, n: int, of_r: bool = False) -> float:
    """The standard deviation of a single trial that these resamples of a mean of n come from."""
    known = resampled[~np.isnan(resampled)]
    return float((_fisher(known) if of_r else known).std() * n / math.sqrt(n - 1))


def _fisher(r: np.ndarray) -> np.ndarray:
    return np.arctanh(np.clip(r, -1 + 1e-9, 1 - 1e-9))


def _numbers(c: Correlation) -> tuple[float, float, float, float]:
    return c.r, c.p, c.low, c.high


def _means_of_resamples(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = len(table)
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) @ table / n  # (resamples, layers)


def _pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Over the last axis; NaN where a side is constant."""
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(axis=-1) / np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
