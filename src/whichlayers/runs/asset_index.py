"""Metadata of tasks and corpora, and where the models, tasks and corpora of a study come from.

Workers receive an `AssetIndex`, which is small and picklable, and load models and data with it (`assets.Assets`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichlayers.config.corpus import CorpusSpec
    from whichlayers.config.sections import TaskSpec
    from whichlayers.data.corpora import Corpus
    from whichlayers.data.tasks import Task
    from whichlayers.models.load import ModelFiles

CORPUS_KEYS = ("source", "train", "test", "dev", "format", "column", "train_words", "test_words")
TASK_KEYS = ("source", "train", "dev", "text", "pair", "label", "kind", "metric")


@dataclass(frozen=True)
class TaskInfo:
    """Metadata of a task."""

    name: str
    fingerprint: str
    train_rows: int
    kind: str
    metric: str
    metrics: tuple[str, ...]
    classes: int  # number of classes; 0: regression
    dev_rows: int
    class_counts: dict[str, int]  # training examples of each class; empty for regression
    guess_scores: dict[str, float]  # by metric: scores of always predicting the most frequent class
    has_pairs: bool = False  # an example is a pair of texts


@dataclass(frozen=True)
class CorpusInfo:
    """Metadata of a tagged corpus."""

    name: str
    fingerprint: str
    train_words: int
    has_validation_data: bool
    tag_counts: dict[str, int]  # training words with each tag
    guess_accuracy: float  # of always predicting the most frequent tag


@dataclass(frozen=True)
class DataSource:
    """The source of a task or a corpus: the arguments of `load_task` or `load_corpus`."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def from_spec(spec: TaskSpec | CorpusSpec, keys: tuple[str, ...]) -> DataSource:
        return DataSource(spec.name, tuple((key, getattr(spec, key, None)) for key in keys))

    def load_task(self) -> Task:
        from whichlayers.data.load_task import load_task

        return load_task(self.name, **dict(self.settings))

    def load_corpus(self) -> Corpus:
        from whichlayers.data.corpora import load_corpus

        return load_corpus(self.name, **dict(self.settings))


@dataclass
class AssetIndex:
    """The sources of all models, tasks and corpora of a study, by fingerprint."""

    cache: Path | None
    models: dict[str, ModelFiles] = field(default_factory=dict)
    tasks: dict[str, DataSource] = field(default_factory=dict)
    corpora: dict[str, DataSource] = field(default_factory=dict)
