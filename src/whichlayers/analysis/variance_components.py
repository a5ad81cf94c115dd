"""Variance components: how much subset, order, re-initialization, head and dropout contribute to the variance.

For studies with `vary_apart`, in which trials share seeds of single components. The scores of n trials of one point are

    y = mean + sum over components c of the effect of its seed in each trial + residual

with independent effects of variance s_c; the residual holds all interactions. Variances are estimated by MINQUE with
equal prior weights (Rao 1971), which is unbiased for any design and equals the ANOVA estimate in a balanced one.
Estimates below zero are set to zero.

Intervals are parametric bootstrap tests, inverted: a variance belongs to the 95% interval unless the estimate lies in
one of the outer 2.5% of its distribution for that variance, with the other components at their estimates. They do not
extend below zero, unlike Wald intervals, and allow for the few seeds of a component, unlike percentile intervals. Where
failed trials make the design unbalanced, they are too narrow: with 4 of 25 trials missing, those of components without
effect exclude zero in 8 to 12% of simulated studies if another component dominates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from whichlayers.analysis.intervals import LEVEL
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import CURVE
from whichlayers.trial import COMPONENTS

RESIDUAL = "residual"
MIN_TRIALS = 10  # of a point; with fewer, no component has more than one pair of trials per seed
RESAMPLES = 2000  # of the parametric bootstrap
POINT = [*CURVE, "condition", "x"]
COLUMNS = [*POINT, "metric", "component", "variance", "low", "high", "share", "seeds", "trials"]


@dataclass(frozen=True)
class VarianceComponent:
    """The variance that one component contributes, with its 95% interval."""

    component: str  # one of COMPONENTS, or RESIDUAL
    variance: float
    low: float
    high: float  # infinite if the trials give no upper limit
    share: float  # of the sum of all components; NaN if that is zero
    seeds: int  # number of its seeds; of the residual, the number of trials


def variance_components(
    values: np.ndarray, seeds: Mapping[str, np.ndarray], resamples: int = RESAMPLES
) -> list[VarianceComponent] | None:
    """Variance components of the scores of one point.

    Args:
        values: (n,) scores of the trials.
        seeds: Component -> (n,) its seed in each trial. Components whose seed is the same in all trials, or different
            in all, are left out: the former contribute nothing here, the latter belong to the residual.
        resamples: Number of bootstrap samples.

    Returns:
        One entry per component that varies, the residual last; None if no component can be told apart from the others.
    """
    values = np.asarray(values, float)
    n = len(values)
    same = {c: np.equal.outer(s, s).astype(float) for c, s in seeds.items() if 1 < len(np.unique(s)) < n}
    if n < 3 or not same:
        return None
    names = [*same, RESIDUAL]
    covariances = [*same.values(), np.eye(n)]
    forms = minque_forms(covariances)
    if forms is None:
        return None
    raw = np.array([values @ form @ values for form in forms])
    variances = raw.clip(min=0)
    total = variances.sum()
    random = np.random.default_rng(0)
    found = []
    for c, name in enumerate(names):
        factor = np.eye(n) if name == RESIDUAL else _indicators(seeds[name])  # (n, seeds)
        own = random.standard_normal((resamples, factor.shape[1])) @ factor.T
        others = np.zeros((resamples, n))
        for d, other in enumerate(names):
            if d != c:
                effects = np.eye(n) if other == RESIDUAL else _indicators(seeds[other])
                draws = random.standard_normal((resamples, effects.shape[1])) @ effects.T
                others += np.sqrt(variances[d]) * draws
        low, high = _inverted_test(c, forms, covariances, raw, own, others)
        share = float(variances[c] / total) if total > 0 else float("nan")
        found.append(VarianceComponent(name, float(variances[c]), low, high, share, factor.shape[1]))
    return found


def minque_forms(covariances: list[np.ndarray]) -> np.ndarray | None:
    """Matrices (k, n, n) whose quadratic forms in y estimate the variances without bias, whatever the mean of y.

    Args:
        covariances: (n, n) covariance of y per unit of each of the k variances.

    Returns:
        The matrices; None if the variances cannot be told apart.
    """
    n = len(covariances[0])
    inverse = np.linalg.inv(np.sum(covariances, axis=0))
    weights = inverse.sum(0)
    projection = inverse - np.outer(weights, weights) / weights.sum()  # removes the mean
    inner = np.array([projection @ v @ projection for v in covariances])  # (k, n, n)
    traces = np.einsum("aij,bji->ab", inner, np.array(covariances))
    if np.linalg.matrix_rank(traces, tol=1e-8 * n) < len(covariances):
        return None
    return np.einsum("ab,bij->aij", np.linalg.inv(traces), inner)


def variance_table(points: pd.DataFrame) -> pd.DataFrame:
    """Variance components of every point with at least `MIN_TRIALS` trials that share seeds of single components.

    Args:
        points: Finished points, as from `finished(load_points(folder), shared_seeds=True)`.

    Returns:
        A frame with `COLUMNS`, one row per point and component; empty unless the study has `vary_apart`.
    """
    rows = []
    for key, cell in each_group(points, POINT):
        if len(cell) < MIN_TRIALS:
            continue
        seeds = {str(component): cell[f"seed_{component}"].to_numpy() for component in COMPONENTS}
        found = variance_components(cell["value"].to_numpy(float), seeds)
        for part in found or ():
            numbers = (part.component, part.variance, part.low, part.high, part.share, part.seeds, len(cell))
            rows.append((*key, cell["metric"].iloc[0], *numbers))
    return pd.DataFrame(rows, columns=COLUMNS)


def _indicators(seeds: np.ndarray) -> np.ndarray:
    """(n, seeds): 1 where a trial has the seed."""
    return np.equal.outer(seeds, np.unique(seeds)).astype(float)


def _inverted_test(
    index: int,
    forms: np.ndarray,
    covariances: Sequence[np.ndarray],
    estimates: np.ndarray,
    own: np.ndarray,
    others: np.ndarray,
) -> tuple[float, float]:
    """The variances of a component for which its estimate is not extreme.

    The statistic is (estimate - variance) / standard error of the estimate, which for a component without effect does
    not depend on the size of the residual, a nuisance of few degrees of freedom.

    Args:
        index: Number of the component.
        forms: (k, n, n), the quadratic forms of all estimates.
        covariances: (n, n) covariance per unit of each variance.
        estimates: (k,) all estimates, not truncated.
        own: (resamples, n), effects of the component with variance 1.
        others: (resamples, n), effects of all other components.

    Returns:
        The lowest and the highest variance.
    """
    scaled = [forms[index] @ v for v in covariances]
    errors = 2 * np.array([[np.sum(p * q.T) for q in scaled] for p in scaled])  # (k, k)
    # the estimates of a sample with variance s are a * s + 2 * b * sqrt(s) + c
    a, b, c = (
        np.stack([((left @ form) * right).sum(1) for form in forms], axis=1)  # (resamples, k)
        for left, right in ((own, own), (own, others), (others, others))
    )
    tail = (1 - LEVEL) / 2

    def statistic(found: np.ndarray, s: float) -> np.ndarray:
        """The statistic of estimates (..., k)."""
        positive = found.clip(min=0)
        squared = np.einsum("...i,ij,...j->...", positive, errors, positive)
        return (found[..., index] - s) / np.sqrt(squared.clip(min=1e-300))

    def limit(quantile: float) -> float:
        """The variance for which the observed statistic is this quantile."""

        def below(s: float) -> bool:
            simulated = statistic(a * s + 2 * b * np.sqrt(s) + c, s)
            return bool(np.mean(simulated <= statistic(estimates, s)) <= quantile)

        if below(0.0):
            return 0.0
        high = max(float(estimates[index]), float(np.abs(c).mean()), 1e-300)
        for _ in range(20):
            if below(high):
                break
            high *= 4
        else:
            return float("inf")
        low = 0.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (low, middle) if below(middle) else (middle, high)
        return high

    return limit(1 - tail), limit(tail)
