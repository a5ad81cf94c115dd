"""How much of the gain of pretraining the lowest layers bring: a ratio of means, with a value for every seed.

The share is (mean of small k - none) / (all - none). A ratio for each seed would be wild where a gain is small,
so each seed gets its linearised value: their mean is the ratio of the means, their spread its standard error
(the delta method), and two sizes are compared by Welch's t test on them.
"""

from __future__ import annotations

import pandas as pd

from whichlayers.analysis.intervals import t_interval

SMALL = 1 / 3  # of the depth: the k that count as small


def small_ks(depth: int) -> list[int]:
    return [k for k in range(1, depth) if k <= max(1, round(SMALL * depth))]


def early_shares(curve: pd.DataFrame) -> pd.Series | None:
    """A value per seed of one incremental curve; None where it lacks an end, a small k, or a clear gain."""
    depth = int(curve["depth"].iloc[0])
    table = curve.pivot_table(index="seed", columns="x", values="value")
    small = [k for k in small_ks(depth) if k in table.columns]
    if not small or not {0, depth} <= set(table.columns):
        return None
    table = table[[0, *small, depth]].dropna()
    if len(table) < 2:
        return None
    gain = table[depth] - table[0]
    early = table[small].mean(axis=1) - table[0]
    if not t_interval(gain).low > 0:
        return None
    share = early.mean() / gain.mean()
    return share + (early - share * gain) / gain.mean()
