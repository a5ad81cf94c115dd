"""What an incremental curve says in numbers: the gain of pretraining, where it is reached, what a layer adds.

Every comparison is paired by seed, because trial i of every k has the same examples, order and head. A curve
need not rise: nothing here assumes that one more pretrained layer helps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pandas as pd

from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.intervals import PairedDifference, false_discovery, paired_difference
from whichlayers.results.frames import CURVE

SHARE = 0.9


@dataclass(frozen=True)
class Curve:
    """One incremental curve: trials of one model, task, size and variant."""

    model: str
    task: str
    train_size: int
    variant: str
    metric: str
    depth: int
    means: dict[int, float]  # k -> mean over all its trials
    gain: PairedDifference | None  # all layers pretrained minus none; None where no seed has both
    reaches: (
        int | None
    )  # smallest k whose mean has SHARE of the gain; None where the gain is not clearly above 0
    falls_back: tuple[int, ...]  # larger k that lie below that share again


def curves(points: pd.DataFrame) -> list[Curve]:
    """Every incremental curve among finished points."""
    chosen = points[points["experiment"] == "incremental"]
    return [_curve(rows) for _, rows in each_group(chosen, CURVE)]


def gains(points: pd.DataFrame) -> pd.DataFrame:
    """`curves` as a table: the gain, its interval and the smallest k that reaches 90% of it."""
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


def layer_worth(points: pd.DataFrame) -> pd.DataFrame:
    """The paired difference of each k and the next smaller k that was run; p is adjusted within the curve."""
    frames = []
    for key, rows in each_group(points[points["experiment"] == "incremental"], CURVE):
        by_k = _by_k(rows)
        ks = sorted(by_k)
        steps = [
            (low, high, paired_difference(by_k[high], by_k[low])) for low, high in itertools.pairwise(ks)
        ]
        table = pd.DataFrame(
            [(low, high, d.mean, d.low, d.high, d.sd, d.n, d.p) for low, high, d in steps if d is not None],
            columns=["from_k", "to_k", "mean", "low", "high", "sd", "n", "p"],
        )
        table["p_adjusted"] = false_discovery(table["p"])
        for position, (name, value) in enumerate(zip(CURVE, key, strict=True)):
            table.insert(position, name, value)
        frames.append(table.drop(columns="experiment"))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _curve(rows: pd.DataFrame) -> Curve:
    first = rows.iloc[0]
    by_k = _by_k(rows)
    depth = int(first["depth"])
    gain = paired_difference(by_k[depth], by_k[0]) if {0, depth} <= set(by_k) else None
    enough = (
        [k for k in sorted(by_k) if k > 0 and _share(by_k, k, depth) >= SHARE]
        if gain and gain.low > 0
        else []
    )
    reaches = enough[0] if enough else None
    falls_back = tuple(k for k in sorted(by_k) if reaches is not None and k > reaches and k not in enough)
    means = {k: float(values.mean()) for k, values in by_k.items()}
    name = (first["model"], first["task"], int(first["train_size"]), first["variant"], first["metric"])
    return Curve(*name, depth, means, gain, reaches, falls_back)


def _share(by_k: dict[int, pd.Series], k: int, depth: int) -> float:
    """How much of the gain the first k layers bring, over the seeds that have all three trials."""
    trio = pd.concat([by_k[0], by_k[k], by_k[depth]], axis=1, join="inner").to_numpy()
    if len(trio) == 0:
        return float("nan")
    none, some, every = trio.mean(axis=0)
    return float((some - none) / (every - none)) if every > none else float("nan")


def _by_k(rows: pd.DataFrame) -> dict[int, pd.Series]:
    return {int(k): group.set_index("seed")["value"] for (k,), group in each_group(rows, ["x"])}
