"""Published results of the reproduced papers, as frames, and the lookup of those that match a curve of a study.

Tamkin et al. 2020 and Singh & Giovanardi 2020 used BERT-Base (12 layers). A published curve matches a curve of a study
if task, metric and training size are the same; for models of other depths, x is mapped to the same fraction of the
depth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import pandas as pd

from whichlayers.results.frame_utils import each_group

PUBLISHED_DEPTH = 12
CITATIONS = {  # by source in the data files
    "tamkin2020-authors-plots": "Tamkin et al. 2020",
    "singh-giovanardi-cs224n": "Singh & Giovanardi 2020",
}
SIZE_TOLERANCE = 0.05  # relative, for sizes published as a percentage of the training set


@dataclass(frozen=True)
class PublishedCurve:
    """One published curve of scores over layers."""

    source: str  # citation, e.g. "Tamkin et al. 2020"
    experiment: str
    task: str
    size: str  # training size as published: "5000" or "10%"
    metric: str
    x: np.ndarray  # (points,) layers, of 12
    values: np.ndarray  # (points,)
    note: str

    def x_for(self, depth: int) -> np.ndarray:
        """x mapped to the same fractions of a model with `depth` layers: (points,)."""
        return self.x * depth / PUBLISHED_DEPTH


@cache
def published_curves() -> pd.DataFrame:
    """All published curves: source, experiment, task, train_size (text), metric, x, value, note."""
    return _read("curves.csv", {"train_size": str})


@cache
def published_tables() -> pd.DataFrame:
    """All published tables: source, experiment, task, quantity, value, note."""
    return _read("tables.csv", {})


def matching_published_curves(
    experiment: str, task: str, metric: str, train_size: int, train_rows: int | None
) -> list[PublishedCurve]:
    """The published curves with this experiment, task, metric and training size.

    `train_rows` is the size of the full training set, for sizes published as a percentage of it.
    """
    every = published_curves()
    chosen = every[
        (every["experiment"] == experiment) & (every["task"] == task) & (every["metric"] == metric)
    ]
    found = []
    for (source, size), rows in each_group(chosen, ["source", "train_size"]):
        if same_size(str(size), train_size, train_rows):
            ordered = rows.sort_values("x")
            x, values = ordered["x"].to_numpy(dtype=float), ordered["value"].to_numpy(dtype=float)
            citation, note = CITATIONS.get(source, str(source)), ordered["note"].iloc[0]
            found.append(PublishedCurve(citation, experiment, task, str(size), metric, x, values, note))
    return found


def published_correlations() -> dict[tuple[frozenset[str], str], tuple[float, str]]:
    """Table 1 of Tamkin et al. 2020: ({task, task}, "spearman" or "pearson") -> (coefficient, "p=..., N=...")."""
    rows = published_tables()
    rows = rows[rows["experiment"] == "permutation correlation"]
    return {
        (frozenset(task.split("|")), quantity): (float(value), note)
        for task, quantity, value, note in zip(
            rows["task"], rows["quantity"], rows["value"], rows["note"], strict=True
        )
    }


# Names that the tables of Durrani et al. 2021 use
PUBLISHED_FAMILIES = {"bert": "BERT", "roberta": "RoBERTa", "xlnet": "XLNet"}
PROPERTIES = {"xpos": "POS", "pos": "POS", "chunk": "chunking", "sem": "SEM"}
SHORT_TASKS = {"SST-2": "SST", "STS-B": "STS", "": "Base"}


def published_word_probing(family: str, corpus: str, finetuned_on: str) -> dict[str, float]:
    """Word-level probing results of Durrani et al. 2021 (Tables 1, 4, 5 and 7), as fractions of 1.

    Args:
        family: Model family, a key of `PUBLISHED_FAMILIES`.
        corpus: Name of a probing dataset, e.g. "UD-EWT:xpos".
        finetuned_on: The task that the model was finetuned on; "" for the pretrained model.

    Returns:
        Quantity -> value, for top, bottom, accuracy all neurons, accuracy selected neurons, selectivity all,
        selectivity selected, as far as published; empty for other models and corpora.
    """
    model, tags = PUBLISHED_FAMILIES.get(family), PROPERTIES.get(corpus.rpartition(":")[2])
    if model is None or tags is None or corpus.startswith("builtin:"):
        return {}
    found = _durrani2021(f"{tags} neurons {model}", SHORT_TASKS.get(finetuned_on, finetuned_on))
    return found | (_durrani2021(f"{tags} {model}", "base") if not finetuned_on else {})


def published_neuron_fraction(corpus: str) -> float:
    """Fraction of the neurons in the top and bottom sets of Durrani et al. 2021: 10% for chunking, 5% for others."""
    return 0.1 if PROPERTIES.get(corpus.rpartition(":")[2]) == "chunking" else 0.05


def published_pruning(family: str, task: str) -> dict[str, float]:
    """Accuracy after dropping layers (Durrani et al. 2021, Tables 2 and 6), as fractions of 1.

    Quantity -> value, for none, prune top 6, prune bottom 6; empty for other model families and tasks.
    """
    return _durrani2021(f"pruning {PUBLISHED_FAMILIES[family]}", task) if family in PUBLISHED_FAMILIES else {}


def _durrani2021(experiment: str, task: str) -> dict[str, float]:
    rows = published_tables()
    rows = rows[rows["source"].str.startswith("durrani2021") & (rows["experiment"] == experiment)]
    rows = rows[rows["task"] == task]
    return {str(q): float(v) / 100 for q, v in zip(rows["quantity"], rows["value"], strict=True)}


def same_size(published: str, train_size: int, train_rows: int | None) -> bool:
    """Whether a published size, a count ("500") or a percentage of the training set ("10%"), equals `train_size`.

    Percentages match within `SIZE_TOLERANCE`, and never if `train_rows` is unknown.
    """
    percentage = re.fullmatch(r"([\d.]+)%", published)
    if percentage is None:
        return published.isdigit() and int(published) == train_size
    if not train_rows:
        return False
    return abs(train_size / train_rows / (float(percentage[1]) / 100) - 1) <= SIZE_TOLERANCE


def _read(name: str, types: dict[str, type]) -> pd.DataFrame:
    path = resources.files("whichlayers.reference") / name
    with path.open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=types)
