"""Differences between re-initialized, permuted or pruned models and the baselines of their experiment."""

from __future__ import annotations

import numpy as np
import pandas as pd

from whichlayers.analysis.intervals import (
    WelchDifference,
    benjamini_yekutieli,
    paired_difference,
    welch_difference,
)
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import CURVE
from whichlayers.trial import ALL_PRETRAINED, NONE_PRETRAINED

BASELINES = (ALL_PRETRAINED, NONE_PRETRAINED)


def differences_from_baseline(points: pd.DataFrame, baseline: str = ALL_PRETRAINED) -> pd.DataFrame:
    """Paired difference of every (condition, x) from the baseline of its curve.

    Args:
        points: Finished points, as from `finished(load_points(folder))`.
        baseline: The `condition` to compare with, one of `BASELINES`.

    Returns:
        One row per curve, condition and x: the columns in `CURVE`, condition, x, mean, low, high (95% interval), sd, n
        (paired trials), p, and p_adjusted (Benjamini-Yekutieli within the curve).
    """
    frames = []
    for key, rows in each_group(points, CURVE):
        reference = rows[rows["condition"] == baseline].set_index("seed")["value"]
        cells = each_group(rows[~rows["condition"].isin(BASELINES)], ["condition", "x"])
        found = []
        for (condition, x), cell in cells:
            d = paired_difference(cell.set_index("seed")["value"], reference)
            if d is not None:
                found.append((condition, x, d.mean, d.low, d.high, d.sd, d.n, d.p))
        table = pd.DataFrame(found, columns=["condition", "x", "mean", "low", "high", "sd", "n", "p"])
        table["p_adjusted"] = benjamini_yekutieli(table["p"])
        for position, (name, value) in enumerate(zip(CURVE, key, strict=True)):
            table.insert(position, name, value)
        frames.append(table)
    nonempty = [frame for frame in frames if not frame.empty]
    return pd.concat(nonempty, ignore_index=True) if nonempty else frames[0] if frames else pd.DataFrame()


def permutation_effect(rows: pd.DataFrame, baseline: str = ALL_PRETRAINED) -> WelchDifference | None:
    """Mean over permutations minus the mean of the baseline, for one curve of the permutation experiment.

    The two samples are the permutations (one mean each) and the trials of the baseline; the interval includes the
    uncertainty of both. None with fewer than two permutations or fewer than two baseline trials.
    """
    return welch_difference(permutation_means(rows), rows[rows["condition"] == baseline]["value"].to_numpy())


def permutation_means(rows: pd.DataFrame) -> np.ndarray:
    """Mean over seeds of each permutation in one curve: (permutations,). Permutations are the random sample."""
    return rows[~rows["condition"].isin(BASELINES)].groupby("x")["value"].mean().to_numpy()
