"""The numbers that the papers published, as frames, and which of them belong beside a curve of ours.

They come from BERT-Base (12 layers). A curve is set beside ours where task, metric and size are the same; for a
model of another depth its x is mapped by the share of the depth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import pandas as pd

from whichlayers.analysis.frame_utils import each_group

PUBLISHED_DEPTH = 12
SOURCES = {
    "tamkin2020-authors-plots": "Tamkin et al. 2020",
    "singh-giovanardi-cs224n": "Singh & Giovanardi 2020",
}
SAME_SHARE = 0.05  # sizes named as a share of the training set are the same within 5% of one another


@dataclass(frozen=True)
class PublishedCurve:
    source: str  # in words
    experiment: str
    task: str
    size: str  # as published: "5000" or "10%"
    metric: str
    x: np.ndarray  # layers of a model of 12
    values: np.ndarray
    note: str

    def x_for(self, depth: int) -> np.ndarray:
        """x for a model of this depth: the same share of its layers."""
        return self.x * depth / PUBLISHED_DEPTH


@cache
def published_curves() -> pd.DataFrame:
    """source, experiment, task, train_size (text), metric, x, value, note"""
    return _read("curves.csv", {"train_size": str})


@cache
def published_tables() -> pd.DataFrame:
    """source, experiment, task, quantity, value, note"""
    return _read("tables.csv", {})


def curves_beside(
    experiment: str, task: str, metric: str, train_size: int, train_rows: int | None
) -> list[PublishedCurve]:
    """The published curves of the same experiment, task, metric and size as one of ours."""
    every = published_curves()
    mine = every[(every["experiment"] == experiment) & (every["task"] == task) & (every["metric"] == metric)]
    found = []
    for (source, size), rows in each_group(mine, ["source", "train_size"]):
        if same_size(str(size), train_size, train_rows):
            ordered = rows.sort_values("x")
            x, values = ordered["x"].to_numpy(dtype=float), ordered["value"].to_numpy(dtype=float)
            named = SOURCES.get(source, str(source))
            found.append(
                PublishedCurve(named, experiment, task, str(size), metric, x, values, ordered["note"].iloc[0])
            )
    return found


def published_correlations() -> dict[tuple[frozenset[str], str], tuple[float, str]]:
    """Table 1 of Tamkin et al.: ({task, task}, "spearman" or "pearson") -> (coefficient, "p=..., N=...")"""
    rows = published_tables()
    rows = rows[rows["experiment"] == "permutation correlation"]
    return {
        (frozenset(task.split("|")), quantity): (float(value), note)
        for task, quantity, value, note in zip(
            rows["task"], rows["quantity"], rows["value"], rows["note"], strict=True
        )
    }


FAMILIES = {"bert": "BERT", "roberta": "RoBERTa", "xlnet": "XLNet"}
PROPERTIES = {"xpos": "POS", "pos": "POS", "chunk": "chunking", "sem": "SEM"}
SHORT_TASKS = {"SST-2": "SST", "STS-B": "STS", "": "Base"}


def published_words(family: str, corpus: str, finetuned_on: str) -> dict[str, float]:
    """Durrani et al. 2021, Tables 1, 4, 5 and 7, for a model's family, a corpus and a task ("": none): top, bottom,
    accuracy all neurons, accuracy selected neurons, selectivity all, selectivity selected; as shares of 1."""
    model, tags = FAMILIES.get(family), PROPERTIES.get(corpus.rpartition(":")[2])
    if model is None or tags is None or corpus.startswith("builtin:"):
        return {}
    found = _durrani(f"{tags} neurons {model}", SHORT_TASKS.get(finetuned_on, finetuned_on))
    return found | (_durrani(f"{tags} {model}", "base") if not finetuned_on else {})


def published_share(corpus: str) -> float:
    """Of the neurons, in the sets of the paper: a tenth for chunking, a twentieth for other tags."""
    return 0.1 if PROPERTIES.get(corpus.rpartition(":")[2]) == "chunking" else 0.05


def published_pruning(family: str, task: str) -> dict[str, float]:
    """Durrani et al. 2021, Tables 2 and 6: none, prune top 6, prune bottom 6; as shares of 1."""
    return _durrani(f"pruning {FAMILIES[family]}", task) if family in FAMILIES else {}


def _durrani(experiment: str, task: str) -> dict[str, float]:
    rows = published_tables()
    rows = rows[rows["source"].str.startswith("durrani2021") & (rows["experiment"] == experiment)]
    rows = rows[rows["task"] == task]
    return {str(q): float(v) / 100 for q, v in zip(rows["quantity"], rows["value"], strict=True)}


def same_size(published: str, train_size: int, train_rows: int | None) -> bool:
    """Whether a published size, a count or a share of the training set, is that of a curve of ours."""
    share = re.fullmatch(r"([\d.]+)%", published)
    if share is None:
        return published.isdigit() and int(published) == train_size
    if not train_rows:
        return False
    return abs(train_size / train_rows / (float(share[1]) / 100) - 1) <= SAME_SHARE


def _read(name: str, types: dict[str, type]) -> pd.DataFrame:
    path = resources.files("whichlayers.reference") / name
    with path.open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=types)
