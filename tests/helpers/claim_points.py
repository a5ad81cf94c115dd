"""Finished points of simulated curves, as claims read them, without a results.db."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

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
