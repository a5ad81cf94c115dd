"""Differences between re-initialized or pruned models and the baselines of their experiment, paired by seed."""

from __future__ import annotations

import pandas as pd

from whichlayers.analysis.intervals import benjamini_yekutieli, paired_difference
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import CURVE
from whichlayers.trial import ALL_PRETRAINED, BASELINES


def differences_from_baseline(points: pd.DataFrame, baseline: str = ALL_PRETRAINED) -> pd.DataFrame:
    """Paired difference of every (condition, x) from the baseline of its curve.

    Args:
        points: Finished points, as from `finished(load_points(folder))`.
        baseline: The `condition` to compare with, one of `BASELINES`.

    Returns:
        One row per curve, condition and x: the columns in `CURVE`, condition, x, mean, low, high (95% interval), sd, n
        (paired trials), p, and p_adjusted (Benjamini-Yekutieli within the curve).
    """
    statistics = ["mean", "low", "high", "sd", "n", "p"]
    frames = []
    for key, rows in each_group(points, CURVE):
        reference = rows[rows["condition"] == baseline].set_index("seed")["value"]
        cells = each_group(rows[~rows["condition"].isin(BASELINES)], ["condition", "x"])
        found = []
        for (condition, x), cell in cells:
            d = paired_difference(cell.set_index("seed")["value"], reference)
            if d is not None:
                found.append((condition, x, d.mean, d.low, d.high, d.sd, d.n, d.p))
        table = pd.DataFrame(found, columns=["condition", "x", *statistics])
        table["p_adjusted"] = benjamini_yekutieli(table["p"])
        for position, (name, value) in enumerate(zip(CURVE, key, strict=True)):
            table.insert(position, name, value)
        frames.append(table)
    nonempty = [frame for frame in frames if not frame.empty]
    if nonempty:
        return pd.concat(nonempty, ignore_index=True)
    return pd.DataFrame(columns=[*CURVE, "condition", "x", *statistics, "p_adjusted"])
