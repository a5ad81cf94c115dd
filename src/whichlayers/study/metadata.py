"""What `expand` needs to know about the models, tasks and corpora of a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.sections import ModelSpec, TaskSpec


class InfoLike(Protocol):
    """Metadata of a model, task or corpus."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...


class ModelInfoLike(InfoLike, Protocol):
    """Metadata of a model."""

    @property
    def depth(self) -> int: ...
    @property
    def has_pooler(self) -> bool: ...
    @property
    def linear_modules(self) -> Mapping[str, tuple[int, int]]: ...
    @property
    def has_biases(self) -> bool: ...
    @property
    def causal(self) -> bool: ...


class TaskInfoLike(InfoLike, Protocol):
    """Metadata of a task."""

    @property
    def train_rows(self) -> int: ...
    @property
    def has_pairs(self) -> bool: ...


class CorpusInfoLike(InfoLike, Protocol):
    """Metadata of a corpus."""

    @property
    def has_validation_data(self) -> bool: ...


class InfoSource(Protocol):
    """Source of the metadata of models, tasks and corpora."""

    def model_info(self, model: ModelSpec) -> ModelInfoLike: ...
    def task_info(self, task: TaskSpec) -> TaskInfoLike: ...
    def corpus_info(self, corpus: CorpusSpec) -> CorpusInfoLike: ...
