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

from whichlayers.analysis.claims import Claim, ClaimTest
from whichlayers.analysis.incremental_curves import early_gain_fractions, gains, incremental_steps
from whichlayers.analysis.intervals import WelchDifference, welch_difference
from whichlayers.analysis.published import published_curves

MPNET, SMALL, RECIPES = "all-mpnet-base-v2", "carryover-bert-small", "all-mpnet-base-v2-recipes"
TAMKIN = "tamkin2020-all-mpnet-base-v2"


@cache
def points(study: str) -> pd.DataFrame:
    """Finished points, without those of models that keep the layer norms of re-initialized layers."""
    rows = read_points(RESULTS / study)
    return rows[~rows["keep_layer_norm"].astype(bool)]


@cache
def claims(study: str) -> dict[str, Claim]:
    return {claim.id: claim for claim in recompute_claims(RESULTS / study)}


def test_of(study: str, claim: str, about: str) -> ClaimTest:
    """The only test of a claim whose description has this text."""
    (found,) = (test for test in claims(study)[claim].tests if about in test.about)
    return found


def early_gain(study: str, task: str) -> WelchDifference:
    """Fraction of the gain that small k reach with 5,000 examples minus that with 500."""
    rows = points(study).query("experiment == 'incremental' and task == @task")
    few, many = (early_gain_fractions(rows[rows["train_size"] == size]) for size in (500, 5000))
    found = welch_difference(many.to_numpy(), few.to_numpy())
    assert found is not None
    return found


def permutation_baselines(study: str, task: str) -> tuple[str, str]:
    """Scores without and with all pretrained layers, over the seeds of the permuted trials."""
    rows = points(study).query("experiment == 'permutation' and task == @task")
    seeds = set(rows.loc[rows["condition"] == "permuted", "seed"])
    rows = rows[rows["seed"].isin(seeds)]
    none, every = (
        rows.loc[rows["condition"] == c, "value"].mean() for c in ("none pretrained", "all pretrained")
    )
    return pts(none), pts(every)


def permuted_mean(study: str) -> str:
    """Mean score of all permuted trials."""
    return pts(points(study).query("condition == 'permuted'")["value"].mean())


def verdict(study: str, claim: str) -> str:
    return claims(study)[claim].verdict


def values(study: str, **fixed: object) -> pd.Series:
    """Scores of the points with these values, indexed by seed."""
    rows = points(study)
    chosen = np.ones(len(rows), dtype=bool)
    for column, value in fixed.items():
        chosen &= (rows[column] == value).to_numpy()
    found = rows.loc[chosen, ["trial_id", "seed", "value"]].drop_duplicates("trial_id")
    return found.set_index("seed")["value"]


def mean(study: str, **fixed: object) -> float:
    found = values(study, **fixed)
    if found.empty:
        raise ValueError(f"{study} has no point with {fixed}")
    return float(found.mean())


def pts(value: float, decimals: int = 1) -> str:
    """In points, rounded half up as on paper."""
    scaled = math.floor(abs(value) * 100 * 10**decimals + 0.5 + 1e-9) / 10**decimals
    return f"{math.copysign(scaled, value) + 0.0:.{decimals}f}"


def pts_range(value: float, low: float, high: float) -> str:
    """In points, with the interval: "2.7 points (0.1 to 5.2)"."""
    return f"{pts(value)} points ({pts(low)} to {pts(high)})"


def interval(test: ClaimTest, decimals: int = 2) -> str:
    return f"{test.effect:.{decimals}f} ({test.low:.{decimals}f} to {test.high:.{decimals}f})"


def trials(study: str, **fixed: object) -> int:
    rows = points(study)
    for column, value in fixed.items():
        rows = rows[rows[column] == value]
    return rows["trial_id"].nunique()


def run_of(study: str) -> tuple[str, str, str]:
    """Trials, trial-steps of finetuning with batches of 8, and minutes of device time."""
    rows = read_points(RESULTS / study).drop_duplicates("trial_id")
    tuned = rows[~rows["experiment"].isin(WORD_EXPERIMENTS | {"probing"})]
    steps = int((tuned["epochs"] * np.ceil(tuned["train_size"] / 8)).sum())
    return f"{len(rows):,} trials", f"{steps:,} trial-steps", f"{rows['seconds'].sum() / 60:.1f} minutes"


def wall_minutes(study: str) -> float:
    """Minutes from the start of each run to its last trial."""
    runs = pd.read_csv(RESULTS / study / "runs.csv", parse_dates=["started", "last_trial"])
    return float((runs["last_trial"] - runs["started"]).dt.total_seconds().sum() / 60)


def trial_counts(study: str) -> pd.DataFrame:
    """experiment, task, train_size, status, trials."""
    return pd.read_csv(RESULTS / study / "trials.csv")


def finished_and_planned(study: str) -> tuple[int, int]:
    """Number of finished trials, and of all trials of the study.

    Trials that are not finished belong to a single experiment each, so that their counts can be added.
    """
    done = read_points(RESULTS / study)["trial_id"].nunique()
    left = trial_counts(study).query("status != 'done'")["trials"].sum()
    return done, done + int(left)


def same_trials(one: str, other: str) -> tuple[int, float, float]:
    """Trials that both studies ran: their number, mean absolute difference of scores and correlation."""
    a, b = (points(s).drop_duplicates("trial_id").set_index("trial_id")["value"] for s in (one, other))
    both = pd.concat([a.rename("a"), b.rename("b")], axis=1, join="inner")
    return len(both), float((both["a"] - both["b"]).abs().mean()), float(both["a"].corr(both["b"]))


@cache
def steps(study: str) -> pd.DataFrame:
    """Effects of adding single layers (`incremental_steps`)."""
    return incremental_steps(points(study))


def curve_row(study: str, label: str, task: str, size: int, ks: tuple[int, ...]) -> str:
    cells = [pts(mean(study, experiment="incremental", task=task, train_size=size, x=k)) for k in ks]
    return f"| {label} | {' | '.join(cells)} |"


def step(study: str, task: str, size: int, k: int) -> pd.Series:
    """Paired difference of k and the k below it."""
    found = steps(study)
    (row,) = (
        found[(found["task"] == task) & (found["train_size"] == size) & (found["to_k"] == k)]
    ).itertuples()
    return row


def gain(study: str, task: str, size: int) -> pd.Series:
    """Gain from none to all layers pretrained."""
    found = gains(points(study))
    (row,) = found[(found["task"] == task) & (found["train_size"] == size)].itertuples()
    return row


def published(task: str, size: str, k: int) -> float:
    rows = published_curves().query("experiment == 'incremental' and source == 'tamkin2020-authors-plots'")
    return float(
        rows[(rows["task"] == task) & (rows["train_size"] == size) & (rows["x"] == k)]["value"].iloc[0]
    )
