"""How many more trials each comparison of a study needs to show a difference of a size that the user names.

    for c in comparisons(finished(load_points(folder)), difference=0.01): print(c.about, c.more, c.minutes)

Every comparison is paired by seed, so what counts is how much the differences scatter, not the values. That
scatter is estimated from the trials there are: of three trials it is a rough guess, of ten a fair one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from whichlayers.analysis.baseline_differences import ALL, BASELINES
from whichlayers.analysis.frame_utils import each_group
from whichlayers.analysis.intervals import paired_difference
from whichlayers.analysis.power import trials_for_mean
from whichlayers.results.frames import CURVE


@dataclass(frozen=True)
class Comparison:
    """Two points of a curve, paired by seed."""

    curve: tuple[object, ...]  # experiment, model, its fingerprint, task, train_size, variant
    about: str
    mean: float  # of the differences seen
    sd: float  # NaN where there are fewer than two pairs
    n: int
    needed: int | None  # pairs in all; None: more than anyone will run, or not to be told yet
    minutes: float  # that one more pair takes, on the devices that ran the study

    @property
    def known(self) -> bool:
        return self.n > 1 and self.sd > 0  # equal differences say nothing of how much others will scatter

    @property
    def more(self) -> int | None:
        return None if self.needed is None else max(0, self.needed - self.n)


def comparisons(points: pd.DataFrame, difference: float, alpha: float = 0.05) -> list[Comparison]:
    """From finished points: neighbouring k of incremental curves, all other points against `all pretrained`."""
    found = []
    for key, rows in each_group(points, CURVE):
        pairs = _neighbours(rows) if key[0] == "incremental" else _against_baseline(rows)
        found += [_comparison(key, about, a, b, difference, alpha) for about, a, b in pairs]
    return found


Pair = tuple[str, pd.DataFrame, pd.DataFrame]


def _neighbours(rows: pd.DataFrame) -> Iterator[Pair]:
    by_k = {int(k): cell for (k,), cell in each_group(rows, ["x"])}
    ks = sorted(by_k)
    for low, high in itertools.pairwise(ks):
        yield f"k = {high} against {low}", by_k[high], by_k[low]


def _against_baseline(rows: pd.DataFrame) -> Iterator[Pair]:
    baseline = rows[rows["condition"] == ALL]
    for (condition, x), cell in each_group(rows[~rows["condition"].isin(BASELINES)], ["condition", "x"]):
        if not baseline.empty:
            yield f"{condition or 'x ='} {x:g} against {ALL}", cell, baseline


def _comparison(
    key: tuple[object, ...], about: str, a: pd.DataFrame, b: pd.DataFrame, difference: float, alpha: float
) -> Comparison:
    d = paired_difference(a.set_index("seed")["value"], b.set_index("seed")["value"])
    minutes = float(a["seconds"].mean() + b["seconds"].mean()) / 60
    if d is None or d.n < 2:
        return Comparison(
            key, about, math.nan if d is None else d.mean, math.nan, d.n if d else 0, None, minutes
        )
    needed = trials_for_mean(difference, d.sd, alpha) if d.sd > 0 else None
    return Comparison(key, about, d.mean, d.sd, d.n, needed, minutes)


def minutes_of_a_trial_more(points: pd.DataFrame) -> float:
    """What one more seed at every point of the study takes; a trial at several points counts once."""
    each = points.drop_duplicates("trial_id")
    cells = each.groupby(["experiment", "condition", "x", *CURVE[1:]], dropna=False)["seconds"].mean()
    return float(cells.sum()) / 60
