"""The other experiments against their baselines: what re-initialising, permuting or dropping layers costs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.intervals import Difference, difference_of_means, false_discovery, paired_difference
from whichlayers.results.frames import CURVE

ALL, NONE = "all pretrained", "none pretrained"
BASELINES = (ALL, NONE)


def against(points: pd.DataFrame, baseline: str = ALL) -> pd.DataFrame:
    """Every (condition, x) minus a baseline of its curve, paired by seed; p is adjusted within the curve."""
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
        table["p_adjusted"] = false_discovery(table["p"])
        for position, (name, value) in enumerate(zip(CURVE, key, strict=True)):
            table.insert(position, name, value)
        frames.append(table)
    filled = [frame for frame in frames if not frame.empty]
    return pd.concat(filled, ignore_index=True) if filled else frames[0] if frames else pd.DataFrame()


def permutation_cost(rows: pd.DataFrame, baseline: str = ALL) -> Difference | None:
    """Permuted less baseline for one curve; None with fewer than two permutations or two trials of the baseline.

    The baseline is known from its trials no better than they agree, which the interval takes in.
    """
    return difference_of_means(permuted_values(rows), rows[rows["condition"] == baseline]["value"].to_numpy())


def permuted_values(rows: pd.DataFrame) -> np.ndarray:
    """One a permutation, for that is what was drawn at random: the mean of its seeds."""
    return rows[~rows["condition"].isin(BASELINES)].groupby("x")["value"].mean().to_numpy()
