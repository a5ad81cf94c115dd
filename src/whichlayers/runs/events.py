"""The events of a run: from workers to the scheduler, and from the scheduler to the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whichlayers.results.records import EpochLike, TrialResultLike
from whichlayers.trial import Trial

# --- from a worker to the scheduler ---


@dataclass(frozen=True)
class EpochDone:
    """A trial finished an epoch."""

    trial_id: str
    epoch: EpochLike


@dataclass(frozen=True)
class StepsDone:
    """The progress of a stack."""

    stack: int
    steps: int  # optimizer steps of this stack so far, summed over its trials
    restored: int = 0  # number of these steps that an earlier run did and that were read from disk


@dataclass(frozen=True)
class TrialsDone:
    """Some trials of a stack are finished while the stack is still running."""

    stack: int
    results: list[TrialResultLike]


@dataclass(frozen=True)
class StackDone:
    """A stack is finished; `results` are those of the trials that were not reported before."""

    stack: int
    results: list[TrialResultLike]


@dataclass(frozen=True)
class StackFailed:
    """A stack raised an exception."""

    stack: int
    error: str
    out_of_memory: bool = False


@dataclass(frozen=True)
class StackLost:
    """The process that ran the stack died."""

    stack: int
    reason: str
    log: str  # the last lines of its log


@dataclass(frozen=True)
class WorkerNote:
    """A warning that the engine logged while training."""

    text: str


WorkerEvent = EpochDone | StepsDone | TrialsDone | StackDone | StackFailed | StackLost | WorkerNote
Emit = Callable[[WorkerEvent], None]

# --- from the scheduler to the caller of `run` ---


@dataclass(frozen=True)
class RunStarted:
    """The plan of the run; sent before the first stack starts."""

    folder: Path
    trials: int  # in the study
    trials_done: int  # by earlier runs
    steps: int  # that this run has to do
    stacks: int
    workers: int  # 0: train in the main process
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """The progress of the study."""

    trials_done: int  # in the study, including earlier runs
    trials_failed: int
    steps_done: int  # of `RunStarted.steps`
    steps_restored: int = 0  # number of these that were restored from disk: not counted for the time left


@dataclass(frozen=True)
class TrialDone:
    """A trial finished successfully."""

    trial: Trial
    metrics: dict[str, float]  # of its last epoch


@dataclass(frozen=True)
class TrialFailed:
    """A trial failed."""

    trial: Trial
    error: str


@dataclass(frozen=True)
class Note:
    """A message for the user; the run continues."""

    text: str


RunEvent = RunStarted | Progress | TrialDone | TrialFailed | Note
OnEvent = Callable[[RunEvent], None]


@dataclass(frozen=True)
class RunSummary:
    """The result of `run`."""

    folder: Path
    trials: int
    done: int
    failed: int
    ran: int  # number of trials that finished or failed in this run
    seconds: float
