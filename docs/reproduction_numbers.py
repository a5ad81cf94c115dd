"""Numbers of results/ that docs/check_reproduction.py compares with reproduction.md."""

from __future__ import annotations

import math
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "results"))

from recompute import RESULTS, WORD_EXPERIMENTS, read_points, recompute_claims

from whichlayers.analysis.claims import VERDICT_LABELS, Claim, ClaimTest
from whichlayers.analysis.incremental_curves import gains, incremental_steps
from whichlayers.analysis.published import published_curves

MPNET, SMALL, RECIPES = "all-mpnet-base-v2", "carryover-bert-small", "all-mpnet-base-v2-recipes"


def points(study: str) -> pd.DataFrame:
    return read_points(RESULTS / study)


@cache
def claims(study: str) -> dict[str, Claim]:
    return {claim.id: claim for claim in recompute_claims(RESULTS / study)}


def test_of(study: str, claim: str, about: str) -> ClaimTest:
    """The only test of a claim whose description has this text."""
    (found,) = (test for test in claims(study)[claim].tests if about in test.about)
    return found


def verdict(study: str, claim: str) -> str:
    return VERDICT_LABELS[claims(study)[claim].verdict]


def values(study: str, **fixed: object) -> pd.Series:
    """Scores of the points with these values, indexed by seed."""
    rows = points(study)
    for column, value in fixed.items():
        rows = rows[rows[column] == value]
    return rows.drop_duplicates("trial_id").set_index("seed")["value"]


def mean(study: str, **fixed: object) -> float:
    found = values(study, **fixed)
    if found.empty:
        raise ValueError(f"{study} has no point with {fixed}")
    return float(found.mean())


def pts(value: float, decimals: int = 1) -> str:
    """In points, rounded half up as on paper."""
    scaled = math.floor(abs(value) * 100 * 10**decimals + 0.5 + 1e-9) / 10**decimals
    return f"{math.copysign(scaled, value) + 0.0:.{decimals}f}"


def interval(test: ClaimTest, decimals: int = 2) -> str:
    return f"{test.effect:.{decimals}f} ({test.low:.{decimals}f} to {test.high:.{decimals}f})"


def trials(study: str, **fixed: object) -> int:
    rows = points(study)
    for column, value in fixed.items():
        rows = rows[rows[column] == value]
    return rows["trial_id"].nunique()


def run_of(study: str) -> tuple[str, str, str]:
    """Trials, trial-steps of finetuning with batches of 8, and minutes of device time."""
    rows = points(study).drop_duplicates("trial_id")
    tuned = rows[~rows["experiment"].isin(WORD_EXPERIMENTS | {"probing"})]
    steps = int((tuned["epochs"] * np.ceil(tuned["train_size"] / 8)).sum())
    return f"{len(rows):,} trials", f"{steps:,} trial-steps", f"{rows['seconds'].sum() / 60:.1f} minutes"


def curve_row(study: str, label: str, task: str, size: int, ks: tuple[int, ...]) -> str:
    cells = [pts(mean(study, experiment="incremental", task=task, train_size=size, x=k)) for k in ks]
    return f"| {label} | {' | '.join(cells)} |"


def step(study: str, task: str, size: int, k: int) -> pd.Series:
    """Paired difference of k and the k below it."""
    found = incremental_steps(points(study))
    (row,) = (
        found[(found["task"] == task) & (found["train_size"] == size) & (found["to_k"] == k)]
    ).itertuples()
    return row


def gain(study: str, task: str, size: int) -> pd.Series:
    found = gains(points(study))
    (row,) = found[(found["task"] == task) & (found["train_size"] == size)].itertuples()
    return row


def published(task: str, size: str, k: int) -> float:
    rows = published_curves().query("experiment == 'incremental' and source == 'tamkin2020-authors-plots'")
    return float(
        rows[(rows["task"] == task) & (rows["train_size"] == size) & (rows["x"] == k)]["value"].iloc[0]
    )
