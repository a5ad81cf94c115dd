"""The events of a run: from workers to the scheduler, and from the scheduler to the caller.

Whatever happens while a stack runs is sent by its `Reporter`, in the main process, in worker processes and on Ray.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from whichlayers.errors import WhichlayersError
from whichlayers.results.records import EpochLike, TrialResultLike
from whichlayers.trial import Trial

PROGRESS_SECONDS = 0.25  # minimum time between two progress events of a stack
TRACEBACK_LINES = 30

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
class LossMeasured:
    """Training losses of the trials of a running stack."""

    step: int  # optimizer steps of a trial so far
    losses: dict[str, float]  # by trial id: mean over the steps since the last event


@dataclass(frozen=True)
class TrialsDone:
    """Some or all trials of a running stack are finished."""

    stack: int
    results: Sequence[TrialResultLike]


@dataclass(frozen=True)
class StackDone:
    """A stack is finished, after the results of all its trials were sent."""

    stack: int


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


WorkerEvent = (
    EpochDone | StepsDone | LossMeasured | TrialsDone | StackDone | StackFailed | StackLost | WorkerNote
)
Emit = Callable[[WorkerEvent], None]


class Reporter:
    """Sends the events of one running stack to the scheduler.

    Args:
        stack: Number of the stack.
        emit: Sends an event.
    """

    def __init__(self, stack: int, emit: Emit) -> None:
        self.stack, self.emit = stack, emit
        self.finished: list[str] = []  # ids of the trials whose results were sent
        self._steps = self._restored = 0
        self._last_sent = 0.0

    def epoch(self, trial_id: str, epoch: EpochLike) -> None:
        """Report that a trial finished an epoch."""
        self.emit(EpochDone(trial_id, epoch))

    def steps(self, more: int) -> None:
        """Report `more` completed steps, summed over trials. Events are sent at most every PROGRESS_SECONDS."""
        self._steps += more
        if (now := time.monotonic()) - self._last_sent >= PROGRESS_SECONDS:
            self._last_sent = now
            self.emit(StepsDone(self.stack, self._steps, self._restored))

    def loss(self, step: int, losses: dict[str, float]) -> None:
        """Report the mean training loss of each trial since the last call; each has done `step` steps so far."""
        self.emit(LossMeasured(step, losses))

    def restored(self, more: int) -> None:
        """Report `more` steps, summed over trials, that an earlier run did and that were read from disk."""
        self._restored += more
        self._last_sent = 0.0  # send at once
        self.steps(more)

    def results(self, results: Sequence[TrialResultLike]) -> None:
        """Report finished trials; the seconds of a result are shared by all of them."""
        self.finished += [result.trial_id for result in results]
        self.emit(TrialsDone(self.stack, results))

    def note(self, text: str) -> None:
        """Report a message for the user."""
        self.emit(WorkerNote(text))


def error_text(error: BaseException) -> str:
    """The error in one line, followed by the end of its traceback unless it is a WhichlayersError."""
    if isinstance(error, WhichlayersError):
        return str(error)
    first = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    tail = "".join(traceback.format_exception(error)).strip().splitlines()[-TRACEBACK_LINES:]
    return "\n".join([first, "", *tail])


# --- from the scheduler to the caller of `run` ---


@dataclass(frozen=True)
class Loading:
    """What a run does before it trains, such as "reading models and data"."""

    text: str


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
    steps_restored: int = 0  # number of these that were restored from disk: not counted for the speed
    seconds_left: float | None = None  # None: not known yet


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


RunEvent = Loading | RunStarted | Progress | TrialDone | TrialFailed | Note
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
