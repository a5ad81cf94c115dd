"""The values that are written to results.db and read from it.

The `...Like` protocols describe what the engine reports, so that this package does not import the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from whichlayers.trial import Trial


class EpochLike(Protocol):
    """Losses and metrics of one trial after one epoch."""

    @property
    def epoch(self) -> int: ...
    @property
    def train_loss(self) -> float: ...
    @property
    def dev_loss(self) -> float: ...
    @property
    def metrics(self) -> dict[str, float]: ...
    @property
    def seconds(self) -> float: ...


class WeightChangeLike(Protocol):
    """Norms of the change of one weight matrix during finetuning, and of the matrix before it."""

    @property
    def name(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def frobenius(self) -> float: ...
    @property
    def spectral(self) -> float: ...
    @property
    def start_frobenius(self) -> float: ...
    @property
    def start_spectral(self) -> float: ...


class TrialResultLike(Protocol):
    """The result of one finished trial: its epochs, or the error that it failed with."""

    @property
    def trial_id(self) -> str: ...
    @property
    def epochs(self) -> Sequence[EpochLike]: ...
    @property
    def error(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True)
class TaskRow:
    """One row of the table `tasks`: a task or a corpus."""

    fingerprint: str
    name: str
    kind: str
    metric: str
    metrics: tuple[str, ...]
    train_rows: int
    # by metric: scores of always predicting the most frequent class
    guess_scores: dict[str, float] | None = None
    class_counts: dict[str, int] | None = None  # training rows of each class; None for regression


@dataclass(frozen=True)
class DataStatistics:
    """Sizes of a task (in examples) or a corpus (in words, and in sentences); None: no such split, or not counted."""

    classes: int  # or tags of a corpus; 0: regression
    train: int
    dev: int | None = None
    test: int | None = None
    train_sentences: int | None = None
    dev_sentences: int | None = None
    test_sentences: int | None = None


@dataclass(frozen=True)
class ModelRow:
    """One row of the table `models`."""

    fingerprint: str
    name: str
    revision: str | None
    family: str
    depth: int


@dataclass(frozen=True)
class RunRow:
    """One row of the table `runs`: the machine, the software versions and the command of a run."""

    host: str
    pid: int
    device: str
    threads: int
    versions: dict[str, str]
    git_commit: str | None
    command: str


@dataclass(frozen=True)
class Failure:
    """A failed trial and its error message."""

    trial: Trial
    error: str


@dataclass(frozen=True)
class Counts:
    """Number of trials of the current study, by status."""

    pending: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        return self.pending + self.running + self.done + self.failed
