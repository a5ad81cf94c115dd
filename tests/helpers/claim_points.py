"""Finished points of simulated curves, as claims read them, without a results.db."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from whichlayers.analysis.claims.base import ClaimTest

K = np.arange(7)
FEW = 0.5 + 0.3 * (K / 6) ** 2  # score against k

SETTINGS = {
    "model": "m",
    "family": "bert",
    "task": "SST-2",
    "variant": "",
    "metric": "accuracy",
    "depth": 6,
    "condition": "",
    "train_size": 500,
    "keep_layer_norm": False,
    "reinit_pooler": False,
    "reinit_lr_factor": 1.0,
    "recipe": "as_described",
    "head": "mean",
    "untouched": False,
    "epochs": 3,
    "training": json.dumps({"epochs": 3, "lr": 2e-5}),
    "finetuned_on": "",
    "neurons": "",
    "ranking": "",
    "share": 1.0,
}


def claim_points(values: np.ndarray, x: Sequence[float], experiment: str, **columns: object) -> pd.DataFrame:
    """One row per value of (seeds, x), NaN left out; `columns` replace the settings."""
    n, settings = len(values), SETTINGS | {"experiment": experiment} | columns
    rows = pd.DataFrame({"seed": np.repeat(range(n), len(x)), "x": np.tile(x, n), "value": np.ravel(values)})
    rows = rows.assign(**{k: [v] * len(rows) if isinstance(v, tuple) else v for k, v in settings.items()})
    name = str(sorted(settings.items()))
    return rows.assign(trial_id=[f"{name}/{s}/{k}" for s, k in zip(rows.seed, rows.x, strict=True)]).dropna()


def noisy(
    rng: np.random.Generator, shape: np.ndarray | Sequence[float], n: int, sd: float = 0.01
) -> np.ndarray:
    """(n, len(shape)) curves around a shape: with one offset per seed, and noise of each point."""
    return np.asarray(shape) + rng.normal(0, 0.02, (n, 1)) + rng.normal(0, sd, (n, len(shape)))


def numbers(test: ClaimTest) -> tuple[float | int | None, ...]:
    """The numbers of a test, to be compared with numbers that were worked out otherwise."""
    return test.effect, test.low, test.high, test.p, test.p_against, test.n
