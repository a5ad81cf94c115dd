"""Correlations of tasks over permutations (Table 1 of Tamkin et al. 2020), and of probing with incremental curves.

Over permutations, p values are those of exact permutation tests up to n = 7, and of 9,999 random pairings beyond.
Over trials, intervals and p values come from a bootstrap of seeds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from whichlayers.analysis.interaction import greenhouse_geisser
from whichlayers.analysis.intervals import LEVEL, ROUNDING
from whichlayers.results.frame_utils import each_group
from whichlayers.trial import BASELINES

N_RESAMPLES = 9_999
# with fewer resamples in a tail, a normal approximation replaces their empirical quantile
MIN_TAIL_RESAMPLES = 50
MIN_PAIRS = 4  # with three pairs, no two-sided permutation p value is below 1/3


@dataclass(frozen=True)
class Correlation:
    """A correlation coefficient over pairs of values."""

    r: float
    low: float  # 95% interval by Fisher's z transform
    high: float
    p: float  # two-sided, of the permutation test
    n: int  # pairs


@dataclass(frozen=True)
class CurveCorrelation:
    """Pearson's r of two mean curves over layers; the interval is over trials, with the layers fixed.

    Noise alone keeps r below 1: if one curve is a linear function of the other, r is about `reliability`, and
    r / reliability is about 1.
    """

    r: float
    low: float
    high: float
    resampled: np.ndarray  # (N_RESAMPLES,) bootstrap values of r; empty with a single trial
    n: int  # trials of the curve that has fewer
    layers: int  # layers that both curves have
    # √(reliability of one mean curve · that of the other); NaN with a single trial, or if noise hides a curve
    reliability: float = math.nan
    # whether one curve is a linear function of the other; None with a single trial
    misfit: Misfit | None = None


@dataclass(frozen=True)
class Misfit:
    """F test of the hypothesis that two curves are rising linear functions of each other, up to noise."""

    f: float
    df: float  # both degrees of freedom are multiplied by Greenhouse and Geisser's epsilon
    df_denom: float
    p: float


def correlate(a: pd.Series, b: pd.Series, ranks: bool = False) -> Correlation | None:
    """Pearson's r, or Spearman's rho if `ranks`, of two series over the index values that both have.

    None with fewer than `MIN_PAIRS` pairs, or if one side is constant.
    """
    both = pd.concat([a, b], axis=1, join="inner").dropna().to_numpy(dtype=float)
    if len(both) < MIN_PAIRS or min(np.ptp(both, axis=0)) == 0:
        return None
    x, y = stats.rankdata(both, axis=0).T if ranks else both.T
    found = stats.pearsonr(x, y, method=stats.PermutationMethod(N_RESAMPLES, rng=np.random.default_rng(0)))
    with np.errstate(all="ignore"):
        low, high = found.confidence_interval()
        if ranks:
            z, half = np.arctanh(found.statistic), stats.norm.isf((1 - LEVEL) / 2) * rank_error(len(both))
            low, high = np.tanh(z - half), np.tanh(z + half)
    return Correlation(float(found.statistic), float(low), float(high), float(found.pvalue), len(both))


def rank_error(n: int) -> float:
    """Standard error of Fisher's z of Spearman's rho over n > 3 pairs (Fieller, Hartley and Pearson 1957)."""
    return math.sqrt(1.06 / (n - 3))


def task_correlations(points: pd.DataFrame) -> pd.DataFrame:
    """Correlation of every pair of tasks over the permutations that both have.

    Returns:
        One row per model, training size, variant and pair of tasks: model, train_size, variant, task, other, n
        (permutations), then r, p, low and high as spearman, spearman_p, spearman_low, spearman_high, and the same for
        pearson.
    """
    rows = points[(points["experiment"] == "permutation") & ~points["condition"].isin(BASELINES)]
    found = []
    for (model, size, variant), group in each_group(rows, ["model", "train_size", "variant"]):
        means = {task: of.groupby("x")["value"].mean() for (task,), of in each_group(group, ["task"])}
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
    probing: pd.DataFrame, curve: pd.DataFrame, level: float = LEVEL
) -> CurveCorrelation | None:
    """Pearson's r of two mean curves over the layers that both have, with a bootstrap over the seeds of each.

    Seeds are resampled as a whole, because trials of one seed share their examples. The interval is an expanded
    percentile interval (Hesterberg 2015).

    Args:
        probing: Points of one curve, with the columns seed, x (layer), value.
        curve: The same for the other curve.
        level: Confidence level.

    Returns:
        None if fewer than `MIN_PAIRS` layers are shared or no seed is complete; without an interval (NaN) if either
        curve has a single complete seed.
    """
    tables = [rows.pivot_table(index="seed", columns="x", values="value") for rows in (probing, curve)]
    shared = sorted(set(tables[0].columns) & set(tables[1].columns))
    if len(shared) < MIN_PAIRS:
        return None
    complete = [table[shared].dropna().to_numpy() for table in tables]  # (seeds, layers)
    if min(len(table) for table in complete) == 0:
        return None
    r = float(_pearson(complete[0].mean(axis=0), complete[1].mean(axis=0)))
    n = min(len(table) for table in complete)
    if n < 2 or math.isnan(r):
        return CurveCorrelation(r, math.nan, math.nan, np.empty(0), n, len(shared))
    rng = np.random.default_rng(0)
    means = [_bootstrap_means(table, rng) for table in complete]
    resampled = _pearson(means[0], means[1])
    low, high = expanded_percentile_interval(resampled, n, level, is_correlation=True)
    return CurveCorrelation(r, low, high, resampled, n, len(shared), *_reliability_and_misfit(*complete))


def _reliability_and_misfit(a: np.ndarray, b: np.ndarray) -> tuple[float, Misfit | None]:
    """Reliability and misfit of the mean curves of two tables (seeds, layers), as in `CurveCorrelation`.

    The reliability of a mean curve is 1 - (noise of the mean) / (variance over layers), with the noise estimated from
    the interaction of seed and layer: Cronbach's alpha, with seeds as items. The misfit is the sum of squared
    distances from the best rising line through the points (a, b), one per layer, in units of the noise of each mean
    curve: a functional relationship with errors in both variables (Anderson 1984). Its mean square has an F
    distribution, with the degrees of freedom of `interaction_test`.
    """
    layers, scaled, reliabilities, residuals = a.shape[1], [], [], []
    for table in (a, b):
        centered = table - table.mean(axis=1, keepdims=True)
        mean = centered.mean(axis=0)
        noise = ((centered - mean) ** 2).sum() / ((len(table) - 1) * (layers - 1))  # variance of one seed
        if not noise > ROUNDING:
            return math.nan, None
        error = math.sqrt(noise / len(table))
        scaled.append(mean / error)
        reliabilities.append(1 - error**2 / (mean @ mean / (layers - 1)))
        residuals.append((centered - mean) / math.sqrt(noise))
    limit = math.sqrt(reliabilities[0] * reliabilities[1]) if min(reliabilities) > 0 else math.nan
    products = np.array(scaled) @ np.array(scaled).T  # (2, 2)
    # of lines that do not fall: without a positive covariance the best one is horizontal or vertical
    distance = float(np.linalg.eigvalsh(products)[0] if products[0, 1] > 0 else products.diagonal().min())
    epsilon = greenhouse_geisser(np.concatenate(residuals))
    f, df = distance / (layers - 2), epsilon * (layers - 2)
    df_denom = epsilon * (layers - 1) * (len(a) + len(b) - 2)
    return limit, Misfit(f, df, df_denom, float(stats.f.sf(f, df, df_denom)))


def expanded_percentile_interval(
    resampled: np.ndarray, n: int, level: float = LEVEL, is_correlation: bool = False
) -> tuple[float, float]:
    """Bootstrap percentile interval, expanded for small samples (Hesterberg 2015).

    The percentiles are Φ(±z) with z = t((1 + level) / 2, n - 1) · √(n / (n - 1)), which corrects for the narrowness of
    the bootstrap distribution. With few trials they lie beyond all resamples; then the interval is mean ± z · sd of
    the resamples, on Fisher's z scale if they are correlations.

    Args:
        resampled: (resamples,) bootstrap values of the statistic; NaN is ignored.
        n: Size of the sample that was resampled.
        level: Confidence level.
        is_correlation: Whether the statistic is a correlation coefficient.
    """
    z = stats.t.ppf((1 + level) / 2, n - 1) * math.sqrt(n / (n - 1))
    known = resampled[~np.isnan(resampled)]
    tail = stats.norm.sf(z)
    if tail * known.size >= MIN_TAIL_RESAMPLES:
        low, high = np.quantile(known, [tail, 1 - tail])
        return float(low), float(high)
    scaled = _fisher_z(known) if is_correlation else known
    ends = np.array([scaled.mean() - z * scaled.std(), scaled.mean() + z * scaled.std()])
    low, high = np.tanh(ends) if is_correlation else ends
    return float(low), float(high)


def bootstrap_p_below(resampled: np.ndarray, threshold: float, n: int, is_correlation: bool = False) -> float:
    """One-sided bootstrap p value for the statistic being below `threshold`.

    It inverts `expanded_percentile_interval`, whose arguments it shares: p is alpha if the upper end of the interval at
    level 1 - 2·alpha is the threshold. NaN if all resamples are equal.
    """
    known = resampled[~np.isnan(resampled)]
    beyond = int((known >= threshold).sum())
    if MIN_TAIL_RESAMPLES <= beyond <= known.size - MIN_TAIL_RESAMPLES:
        z = stats.norm.ppf(beyond / known.size)
    else:
        values = np.append(known, threshold)
        scaled = _fisher_z(values) if is_correlation else values
        sd = scaled[:-1].std()
        if not sd > 0:
            return math.nan
        z = (scaled[:-1].mean() - scaled[-1]) / sd
    return float(stats.t.cdf(z / math.sqrt(n / (n - 1)), n - 1))


def single_trial_sd(resampled: np.ndarray, n: int, is_correlation: bool = False) -> float:
    """Standard deviation of a single trial, from bootstrap values (resamples,) of a mean over n trials.

    sd of the resamples · n / √(n - 1), on Fisher's z scale if they are correlations.
    """
    known = resampled[~np.isnan(resampled)]
    return float((_fisher_z(known) if is_correlation else known).std() * n / math.sqrt(n - 1))


def _fisher_z(r: np.ndarray) -> np.ndarray:
    return np.arctanh(np.clip(r, -1 + 1e-9, 1 - 1e-9))


def _numbers(c: Correlation) -> tuple[float, float, float, float]:
    return c.r, c.p, c.low, c.high


def _bootstrap_means(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mean curves of resampled seeds: (seeds, layers) -> (N_RESAMPLES, layers)."""
    n = len(table)
    return rng.multinomial(n, np.full(n, 1 / n), size=N_RESAMPLES) @ table / n


def _pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's r over the last axis, (..., layers) -> (...); NaN if either side is constant."""
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(axis=-1) / np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
