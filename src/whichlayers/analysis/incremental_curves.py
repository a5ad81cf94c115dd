"""Statistics of incremental curves: the gain from pretraining, where it is reached, and the effect of each step in k.

An incremental curve is the score of models whose first k layers are pretrained, for k from 0 to the depth. All
comparisons are paired by seed: trials of one seed share examples, their order and the initial head at every k. Curves
are not assumed to rise with k.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from whichlayers.analysis.intervals import (
    PairedDifference,
    benjamini_yekutieli,
    paired_difference,
    t_interval,
)
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import CURVE

GAIN_FRACTION = 0.9  # of the gain from pretraining, which `Curve.reaches` refers to
SMALL_K = 1 / 3  # of the depth: values of k up to this count as small


@dataclass(frozen=True)
class Curve:
    """One incremental curve: the trials of one model, task, training size and variant."""

    model: str
    task: str
    train_size: int
    variant: str
    metric: str
    depth: int
    means: dict[int, float]  # k -> mean score over all its trials
    gain: PairedDifference | None  # all layers pretrained minus none; None if no seed has both
    reaches: int | None  # smallest k with GAIN_FRACTION of the gain; None if the gain's interval includes 0
    falls_back: tuple[int, ...]  # larger k whose mean is below that fraction again


def curves(points: pd.DataFrame) -> list[Curve]:
    """All incremental curves among finished points."""
    chosen = points[points["experiment"] == "incremental"]
    return [_curve(rows) for _, rows in each_group(chosen, CURVE)]


def gains(points: pd.DataFrame) -> pd.DataFrame:
    """`curves` as a table with one row per curve.

    Returns:
        model, task, train_size, variant, metric, none and all (mean scores at k = 0 and k = depth), gain, low, high
        (95% interval), n (paired trials), p, reaches_90 (smallest k with 90% of the gain).
    """
    rows = []
    for c in curves(points):
        g = c.gain
        numbers = (g.mean, g.low, g.high, g.n, g.p) if g else (None, None, None, 0, None)
        ends = (c.means.get(0), c.means.get(c.depth))
        rows.append((c.model, c.task, c.train_size, c.variant, c.metric, *ends, *numbers, c.reaches))
    names = "model task train_size variant metric none all gain low high n p reaches_90"
    frame = pd.DataFrame(rows, columns=names.split())
    frame["reaches_90"] = frame["reaches_90"].astype("Int64")
    return frame


def incremental_steps(points: pd.DataFrame) -> pd.DataFrame:
    """Paired difference between each k and the next smaller k that was run.

    Returns:
        One row per step: the columns in `CURVE` without experiment, from_k, to_k, mean, low, high (95% interval), sd,
        n (paired trials), p, and p_adjusted (Benjamini-Yekutieli within the curve).
    """
    frames = []
    for key, rows in each_group(points[points["experiment"] == "incremental"], CURVE):
        by_k = _by_k(rows)
        steps = [
            (low, high, paired_difference(by_k[high], by_k[low]))
            for low, high in itertools.pairwise(sorted(by_k))
        ]
        table = pd.DataFrame(
            [(low, high, d.mean, d.low, d.high, d.sd, d.n, d.p) for low, high, d in steps if d is not None],
            columns=["from_k", "to_k", "mean", "low", "high", "sd", "n", "p"],
        )
        table["p_adjusted"] = benjamini_yekutieli(table["p"])
        for position, (name, value) in enumerate(zip(CURVE, key, strict=True)):
            table.insert(position, name, value)
        frames.append(table.drop(columns="experiment"))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def small_ks(depth: int) -> list[int]:
    """The k from 1 up to a third of the depth, and at least k = 1."""
    return [k for k in range(1, depth) if k <= max(1, round(SMALL_K * depth))]


def early_gain_fractions(curve: pd.DataFrame) -> pd.Series | None:
    """Fraction of the gain from pretraining that small k reach, linearized to one value per seed.

    For each seed, early = (mean score over small k) - (score at k = 0) and gain = (score at k = depth) - (score at
    k = 0); see `fractions_of_gain`.

    Args:
        curve: Points of one incremental curve, with the columns seed, x, depth, value.

    Returns:
        One value per seed, indexed by seed; None if k = 0, k = depth or all small k are missing, if there are fewer
        than two complete seeds, or if the gain is not significant.
    """
    depth = int(curve["depth"].iloc[0])
    table = curve.pivot_table(index="seed", columns="x", values="value")
    small = [k for k in small_ks(depth) if k in table.columns]
    if not small or not {0, depth} <= set(table.columns):
        return None
    table = table[[0, *small, depth]].dropna()
    early = table[small].mean(axis=1)
    found = fractions_of_gain(early.to_frame(), table[0], table[depth])
    return None if found is None else found.iloc[:, 0]


def fractions_of_gain(scores: pd.DataFrame, none: pd.Series, every: pd.Series) -> pd.DataFrame | None:
    """Scores as fractions of the gain from pretraining, linearized to one value per seed and column.

    The estimate for a column is the ratio of means R = mean(score - none) / mean(every - none). Ratios of single seeds
    vary wildly if gains are small, so each seed gets the delta-method value
    R + (score - none - R · (every - none)) / mean(every - none): their mean is R, and the covariance of their means is
    that of R over columns, including the error of the estimated gain, which all columns share.

    Args:
        scores: (seeds, columns), indexed by seed; may have missing values.
        none: Score without pretrained layers, indexed by seed.
        every: Score with all layers pretrained, indexed by seed.

    Returns:
        A frame like `scores`, of the seeds that have both baselines; None if there are fewer than two, or if the gain
        is not significant and positive.
    """
    both = pd.concat([none.rename("none"), every.rename("every")], axis=1, join="inner").dropna()
    seeds = scores.index.intersection(both.index)
    if len(seeds) < 2:
        return None
    base, gain = both.loc[seeds, "none"], both.loc[seeds, "every"] - both.loc[seeds, "none"]
    i = t_interval(gain)
    if not (i.significant and i.mean > 0):
        return None
    above = scores.loc[seeds].sub(base, axis=0)
    ratio = above.mean() / i.mean
    return ratio + (above - np.outer(gain, ratio)) / i.mean


def _curve(rows: pd.DataFrame) -> Curve:
    first = rows.iloc[0]
    by_k = _by_k(rows)
    depth = int(first["depth"])
    gain = paired_difference(by_k[depth], by_k[0]) if {0, depth} <= set(by_k) else None
    enough = []
    if gain and gain.significant and gain.mean > 0:
        enough = [k for k in sorted(by_k) if k > 0 and _fraction_of_gain(by_k, k, depth) >= GAIN_FRACTION]
    reaches = enough[0] if enough else None
    falls_back = tuple(k for k in sorted(by_k) if reaches is not None and k > reaches and k not in enough)
    means = {k: float(values.mean()) for k, values in by_k.items()}
    name = (first["model"], first["task"], int(first["train_size"]), first["variant"], first["metric"])
    return Curve(*name, depth, means, gain, reaches, falls_back)


def _fraction_of_gain(by_k: dict[int, pd.Series], k: int, depth: int) -> float:
    """(score at k - score at 0) / (score at depth - score at 0), means over the seeds that have all three; or NaN."""
    scores = pd.concat([by_k[0], by_k[k], by_k[depth]], axis=1, join="inner").to_numpy()  # (seeds, 3)
    if len(scores) == 0:
        return float("nan")
    at_0, at_k, at_depth = scores.mean(axis=0)
    return float((at_k - at_0) / (at_depth - at_0)) if at_depth > at_0 else float("nan")


def _by_k(rows: pd.DataFrame) -> dict[int, pd.Series]:
    """k -> scores indexed by seed."""
    return {int(k): group.set_index("seed")["value"] for (k,), group in each_group(rows, ["x"])}
