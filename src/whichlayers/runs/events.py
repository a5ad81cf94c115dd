"""What happens during a run: the news a worker sends to the driver, and the news the driver gives to whoever
looks on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whichlayers.results.records import Epoch, Outcome
from whichlayers.trial import Trial

# --- from a worker to the driver ---


@dataclass(frozen=True)
class EpochDone:
    trial_id: str
    epoch: Epoch


@dataclass(frozen=True)
class StepsDone:
    stack: int
    steps: int  # optimiser steps of this stack so far, summed over its trials
    restored: int = 0  # of these: done by an earlier run, and read from the disk


@dataclass(frozen=True)
class TrialsDone:
    """Some trials of a stack have come to their end while it goes on."""

    stack: int
    outcomes: list[Outcome]


@dataclass(frozen=True)
class StackDone:
    stack: int
    outcomes: list[Outcome]


@dataclass(frozen=True)
class StackFailed:
    stack: int
    error: str
    out_of_memory: bool = False


@dataclass(frozen=True)
class StackLost:
    """The process that ran the stack died."""

    stack: int
    reason: str
    log: str  # the last lines it wrote


@dataclass(frozen=True)
class WorkerNote:
    """Something the engine warned of while it trained on."""

    text: str


WorkerEvent = EpochDone | StepsDone | TrialsDone | StackDone | StackFailed | StackLost | WorkerNote
Emit = Callable[[WorkerEvent], None]

# --- from the driver to whoever looks on ---


@dataclass(frozen=True)
class RunStarted:
    folder: Path
    trials: int  # in the study
    trials_done: int  # by earlier runs
    steps: int  # that this run has to do
    stacks: int
    workers: int  # 0: in the driving process
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    trials_done: int  # in the study, earlier runs included
    trials_failed: int
    steps_done: int  # of those that this run had to do
    steps_restored: int = 0  # of these: done by an earlier run, which says nothing of the pace


@dataclass(frozen=True)
class TrialDone:
    trial: Trial
    metrics: dict[str, float]  # of its last epoch


@dataclass(frozen=True)
class TrialFailed:
    trial: Trial
    error: str


@dataclass(frozen=True)
class Note:
    """Something the user should know that ends nothing."""

    text: str


RunEvent = RunStarted | Progress | TrialDone | TrialFailed | Note
OnEvent = Callable[[RunEvent], None]


@dataclass(frozen=True)
class RunSummary:
    folder: Path
    trials: int
    done: int
    failed: int
    ran: int  # trials that came to their end in this run
    seconds: float
