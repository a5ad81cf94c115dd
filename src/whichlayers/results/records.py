"""The values that go into results.db and come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from whichlayers.trial import Trial


class Epoch(Protocol):
    """What the engine tells about one epoch of one trial."""

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


class WeightChange(Protocol):
    """How far training moved one matrix of one trial."""

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


class Outcome(Protocol):
    """What the engine tells about one trial that has come to its end."""

    @property
    def trial_id(self) -> str: ...
    @property
    def epochs(self) -> Sequence[Epoch]: ...
    @property
    def error(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True)
class TaskRow:
    fingerprint: str
    name: str
    kind: str
    metric: str
    metrics: tuple[str, ...]
    train_rows: int


@dataclass(frozen=True)
class ModelRow:
    fingerprint: str
    name: str
    revision: str | None
    family: str
    depth: int


@dataclass(frozen=True)
class RunRow:
    """What a run was made by and with: enough to tell later why two results differ."""

    host: str
    pid: int
    device: str
    threads: int
    versions: dict[str, str]
    git_commit: str | None
    command: str


@dataclass(frozen=True)
class Failure:
    trial: Trial
    error: str


@dataclass(frozen=True)
class Counts:
    """Trials of the study as it stands now, by status."""

    pending: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        return self.pending + self.running + self.done + self.failed
