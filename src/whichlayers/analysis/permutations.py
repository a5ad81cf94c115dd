"""Differences between models with permuted layers and a baseline.

Permutations and seeds are two random samples that are crossed: every permutation runs with the same seeds. A seed
decides the training examples, and a subset that is easier or harder than most shifts all trials of that seed alike.
Permuted trials are therefore compared with the baseline of their own seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
from scipy import stats

from whichlayers.analysis.intervals import LEVEL, Interval, p_below, t_interval
from whichlayers.analysis.power import PowerFunction, t_test_power
from whichlayers.trial import ALL_PRETRAINED, BASELINES


@dataclass(frozen=True)
class PermutationDifference(Interval):
    """Mean score over permutations minus a reference, paired by seed; `sd` is that of permutations, `n` their number.

    Both permutations and seeds are random samples. The standard error has a part for each:
    √(permutation_variance / n + seed_variance). With several seeds the interaction of permutation and seed is in both
    parts, and so counts twice: the standard error is somewhat too large, and the test conservative.
    """

    standard_error: float
    df: float  # Satterthwaite's
    p: float  # two-sided; NaN without variance
    permutation_variance: float  # of the differences averaged over seeds, between permutations
    seed_variance: float  # of the mean difference, from seeds
    seed_df: int

    def power(self, two_sided: bool = True, margin: float = 0.0) -> PowerFunction:
        """Power of the test against zero as a function of the number of permutations, with the seeds as they are.

        If `margin` is not zero, the estimate must also be at least that far from zero.
        """

        def power(permutations: int, alpha: float) -> float:
            error, df = _crossed_error(
                self.permutation_variance / permutations, permutations - 1, self.seed_variance, self.seed_df
            )
            if not error:
                return math.nan
            return t_test_power(abs(self.mean) / error, df, alpha, two_sided, margin / error)

        return power


def permutation_effect(rows: pd.DataFrame, baseline: str = ALL_PRETRAINED) -> PermutationDifference | None:
    """`permutation_difference` from a baseline, for one curve of the permutation experiment."""
    return permutation_difference(rows, rows[rows["condition"] == baseline].set_index("seed")["value"])


def permutation_difference(
    rows: pd.DataFrame, reference: pd.Series, level: float = LEVEL
) -> PermutationDifference | None:
    """Mean score over permutations minus `reference`, paired by seed.

    Each permuted trial is compared with the reference of its own seed, since trials of one seed share examples, order
    and head. If permutations ran with several seeds, the seeds' part of the variance is that of the differences
    between seeds. If they ran with one seed, it cannot be estimated from the differences; the variance of the
    reference between seeds is taken instead, which is too large by the variance of what a seed's trials share.

    Args:
        rows: Points of one curve of the permutation experiment.
        reference: Score to compare with, indexed by seed: a baseline, or a mean of baselines.
        level: Confidence level of the interval.

    Returns:
        None with fewer than two permutations, or if neither the permutations nor the reference have two seeds.
    """
    permuted = rows[~rows["condition"].isin(BASELINES)]
    table = permuted.pivot_table(index="x", columns="seed", values="value")
    seeds = table.columns.intersection(reference.index)
    differences = table[seeds].sub(reference[seeds], axis=1).dropna().to_numpy()  # (permutations, seeds)
    n, n_seeds = differences.shape
    if n < 2 or n_seeds == 0 or max(n_seeds, len(reference)) < 2:
        return None
    between = t_interval(differences.mean(axis=1))
    if n_seeds > 1:
        of_seeds = t_interval(differences.mean(axis=0))
        seed_variance, seed_df = of_seeds.sd**2 / n_seeds, n_seeds - 1
    else:
        seed_variance, seed_df = t_interval(reference).sd ** 2, len(reference) - 1
    error, df = _crossed_error(between.sd**2 / n, n - 1, seed_variance, seed_df)
    half = float(stats.t.ppf((1 + level) / 2, df)) * error
    mean = between.mean
    p = 2 * p_below(-abs(mean), error, df, 0.0)
    return PermutationDifference(
        *(mean, mean - half, mean + half, between.sd, n, error, df, p, between.sd**2, seed_variance, seed_df)
    )


def _crossed_error(
    permutation_part: float, permutation_df: int, seed_part: float, seed_df: int
) -> tuple[float, float]:
    """Standard error and Satterthwaite's degrees of freedom of a mean over crossed permutations and seeds."""
    total = permutation_part + seed_part
    if total == 0:
        return 0.0, float(permutation_df + seed_df)
    return math.sqrt(total), total**2 / (permutation_part**2 / permutation_df + seed_part**2 / seed_df)
