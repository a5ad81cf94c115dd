"""Published data statistics, run times and elastic net penalties, for tables of the report.

They are in reference/settings.csv: Table 2 and appendix I.4 of Tamkin et al. 2020, section 5.3 of Singh & Giovanardi
2020, and Tables 3 and 8 and appendix A.7 of Durrani et al. 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import pandas as pd

from whichlayers.analysis.published import PROPERTIES, PUBLISHED_FAMILIES

CITATIONS = {
    "tamkin2020": "Tamkin et al. 2020",
    "singh2020": "Singh & Giovanardi 2020",
    "durrani2021": "Durrani et al. 2021",
}


@dataclass(frozen=True)
class PublishedTime:
    """A published run time, of one trial or, for the search among neurons, of one model and corpus."""

    minutes: float
    source: str  # citation
    note: str


@cache
def published_settings() -> pd.DataFrame:
    """All rows of settings.csv: source, about, name, quantity, value, note."""
    with (resources.files("whichlayers.reference") / "settings.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False)


def published_data(name: str) -> dict[str, int]:
    """Sizes of a task or corpus as published: train, dev, test, classes; empty if there are none.

    Tasks are counted in examples, corpora in sentences and tags.
    """
    rows = _rows("data", property_of(name) or name)
    return {
        str(quantity): int(value) for quantity, value in zip(rows["quantity"], rows["value"], strict=True)
    }


def published_penalty(family: str, corpus: str) -> tuple[float, float] | None:
    """Best L1 and L2 of a model family and corpus (Durrani et al. 2021, Table 8)."""
    rows = _rows("elastic net", f"{property_of(corpus)} {PUBLISHED_FAMILIES.get(family, family)}")
    values = {
        str(quantity): float(value) for quantity, value in zip(rows["quantity"], rows["value"], strict=True)
    }
    return (values["l1"], values["l2"]) if values else None


def published_times(experiment: str, task: str, train_size: int, train_rows: int) -> list[PublishedTime]:
    """Published run times of trials of an experiment; `task` is the corpus of a word-level experiment.

    Those of Tamkin et al. belong to a training size, those of Singh & Giovanardi to the full training set of a task.
    """
    keys = [f"{experiment} {train_size}"]
    if train_size and train_size == train_rows and published_data(task):
        keys += [f"{experiment} all", f"{experiment} {task}"]
    if tags := property_of(task):
        keys.append(f"{experiment} {tags}")
    rows = published_settings()
    rows = rows[(rows["about"] == "run time") & rows["name"].isin(keys)]
    return [
        PublishedTime(float(value), CITATIONS[source.split()[0]], note)
        for source, value, note in zip(rows["source"], rows["value"], rows["note"], strict=True)
    ]


def property_of(corpus: str) -> str | None:
    """What Durrani et al. call the tags of a corpus: POS, chunking, SEM; None for other corpora and for tasks."""
    if corpus.startswith("builtin:") or ":" not in corpus:
        return None
    return PROPERTIES.get(corpus.rpartition(":")[2])


def _rows(about: str, name: str) -> pd.DataFrame:
    rows = published_settings()
    return rows[(rows["about"] == about) & (rows["name"] == name)]
