"""A study that a tiny random BERT learns in seconds: the label of a text is one of its words."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from small_study import write_model

from whichlayers.study.study_file import Study

FILLERS = [f"w{i}" for i in range(20)]
SIGNS = {"bad": ["awful", "poor"], "good": ["fine", "great"]}


def texts_and_labels(n: int, seed: int) -> list[tuple[str, str]]:
    """Texts of three to eight words, one of which determines the label."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        label = str(rng.choice(list(SIGNS)))
        words = [*rng.choice(FILLERS, rng.integers(2, 8)), rng.choice(SIGNS[label])]
        rows.append((" ".join(rng.permutation(words)), label))
    return rows


def write_csv(path: Path, n: int, seed: int) -> Path:
    """A CSV file with the columns id, text and label."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label"])
        writer.writerows((i, *row) for i, row in enumerate(texts_and_labels(n, seed)))
    return path


def easy_study(folder: Path, layers: int = 3, **settings: Any) -> Study:
    """A study of a random BERT; its model and its data are written into `folder`."""
    model = write_model(
        folder / "model", [*FILLERS, *(word for words in SIGNS.values() for word in words)], layers
    )
    task = {
        "name": "signs",
        "train": str(write_csv(folder / "train.csv", 150, seed=1)),
        "dev": str(write_csv(folder / "dev.csv", 80, seed=2)),
        "text": "text",
        "label": "label",
    }
    quick: dict[str, Any] = {
        "train_sizes": [120],
        "trials": 4,
        "training": {"epochs": 3, "max_length": 16, "lr": 5e-3, "dropout": 0.0},
        "experiments": [{"kind": "prune", "top": [1, 2]}],
    }
    return Study(name="easy", models=[str(model)], tasks=[task], **(quick | settings))
