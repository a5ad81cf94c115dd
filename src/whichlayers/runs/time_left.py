"""The time left of a run, from the speed of its stacks so far.

Steps of different stacks take different times: of long and short texts, of large and small models. Therefore speed is
measured in work per second, for each kind of stack by itself, and evaluation counts as work. Kinds that have not run
yet are assumed to be as fast as the others: work has the same unit for finetuning and for probes.

A stack takes time before its first step. The first stack of a kind is compiled, on a GPU, in that time; unless its code
was compiled while another stack trained: then only what is left of that counts.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from whichlayers.engine.cost import CACHED_COMPILATION, TrialWork
from whichlayers.runs.plan import Stack

StackKind = tuple[str, Hashable]  # kind of the trials, Stack.time_key
# of a stack: of a kind that is new, of one that is new but was compiled ahead, or of one that was compiled before
SetupKind = Literal["new", "ahead", "known"]


@dataclass
class _RunningStack:
    stack: Stack
    started: float
    setup: SetupKind
    steps: int = 0  # summed over trials
    reported: float = 0.0  # when they were reported
    first_step: float | None = None  # when the first step of this run was reported
    first_work: float = 0.0  # work that was done by then


class TimeLeft:
    """Estimates the time left of a run.

    Args:
        workers: Number of stacks that run at the same time.
        work_of: Returns the work of each trial of a stack.
        compiles_ahead: Whether a stack is compiled while another one trains.
    """

    def __init__(
        self,
        workers: int,
        work_of: Callable[[Stack], TrialWork],
        compiles_ahead: Callable[[Stack], bool] = lambda stack: False,
    ) -> None:
        self.workers, self.work_of, self.compiles_ahead = max(1, workers), work_of, compiles_ahead
        self.started = 0  # number of stacks
        self.running: dict[int, _RunningStack] = {}  # by number
        self.compiled: set[StackKind] = set()  # kinds that have taken a step
        self.setups: dict[SetupKind, list[float]] = defaultdict(list)  # seconds before the first step
        # after the first step, by finished stacks
        self.work_done: dict[StackKind, float] = defaultdict(float)
        self.seconds: dict[StackKind, float] = defaultdict(float)  # that it took
        self._trial_work: dict[StackKind, TrialWork] = {}

    def start(self, stack: Stack, now: float) -> None:
        """A stack was started."""
        setup = self._setup_kind(stack, self.compiled, self.started)
        self.running[stack.number] = _RunningStack(stack, now, setup)
        self.started += 1

    def update(self, number: int, steps: int, restored: int, now: float) -> None:
        """A running stack has done so many steps, summed over its trials, of which some were restored from disk."""
        run = self.running[number]
        run.steps, run.reported = steps, now
        if steps > restored and run.first_step is None:
            run.first_step, run.first_work = now, self._done(run)
            self.compiled.add(_kind(run.stack))
            self.setups[run.setup].append(now - run.started)

    def end(self, number: int, now: float, finished: bool) -> None:
        """A stack ended. The time of a stack that failed is not counted."""
        run = self.running.pop(number)
        if finished and run.first_step is not None:
            kind = _kind(run.stack)
            self.work_done[kind] += self._total(run.stack) - run.first_work
            self.seconds[kind] += now - run.first_step

    def estimate(self, waiting: Iterable[Stack], now: float) -> float | None:
        """Seconds until the last stack ends; None while the speed is unknown.

        Args:
            waiting: The stacks that have not been started.
            now: The current time, on the clock of the other methods.
        """
        seconds_per_work = self._seconds_per_work()
        if not seconds_per_work:
            return None
        speeds: dict[str, list[float]] = defaultdict(list)  # by kind of trial
        for (trial_kind, _), speed in seconds_per_work.items():
            speeds[trial_kind].append(speed)

        def seconds(kind: StackKind, work: float) -> float:
            if (speed := seconds_per_work.get(kind)) is None:
                speed = statistics.fmean(speeds.get(kind[0]) or seconds_per_work.values())
            return speed * work

        compiled, left = self.compiled.copy(), list[float]()
        for run in self.running.values():
            kind = _kind(run.stack)
            work = seconds(kind, self._total(run.stack) - self._done(run))
            if run.first_step is None:
                left.append(work + max(0.0, self._setup(run.setup) - (now - run.started)))
            else:
                left.append(max(0.0, work - (now - run.reported)))
            compiled.add(kind)
        total = sum(left)
        previous = statistics.fmean(left) if left else 0.0  # seconds that the stack before trains
        for started, stack in enumerate(waiting, self.started):
            kind = _kind(stack)
            stack_seconds = seconds(kind, self._total(stack))
            total += self._setup(self._setup_kind(stack, compiled, started), previous) + stack_seconds
            previous = stack_seconds
            compiled.add(kind)
        return max([total / self.workers, *left])

    def _seconds_per_work(self) -> dict[StackKind, float]:
        """Seconds per unit of work, of finished and running stacks."""
        work, seconds = self.work_done.copy(), self.seconds.copy()
        for run in self.running.values():
            if run.first_step is not None:
                work[_kind(run.stack)] += self._done(run) - run.first_work
                seconds[_kind(run.stack)] += run.reported - run.first_step
        return {kind: seconds[kind] / done for kind, done in work.items() if done > 0 and seconds[kind] > 0}

    def _setup_kind(self, stack: Stack, compiled: Container[StackKind], started: int) -> SetupKind:
        """How a stack is set up, given the kinds that are compiled and the number of stacks that were started before.

        The first stack of a worker cannot be compiled ahead.
        """
        if _kind(stack) in compiled:
            return "known"
        return "ahead" if started >= self.workers and self.compiles_ahead(stack) else "new"

    def _setup(self, setup: SetupKind, previous: float = math.inf) -> float:
        """Expected seconds before the first step of a stack.

        Args:
            setup: How it is set up.
            previous: Seconds that the stack before it trains, in which it may be compiled.
        """
        if known := self.setups[setup]:
            return statistics.median(known)
        if setup == "known":
            return 0.0
        new = statistics.median(self.setups["new"]) if self.setups["new"] else 0.0
        if setup == "new":
            return new
        compilation = max(0.0, new - self._setup("known"))
        return new - min(previous, (1 - CACHED_COMPILATION) * compilation)

    def _total(self, stack: Stack) -> float:
        """The work of a stack."""
        trials = len(stack.trials)
        return trials * self._work_of_trial(stack).total(stack.steps / trials)

    def _done(self, run: _RunningStack) -> float:
        """The work that a running stack has done."""
        trials = len(run.stack.trials)
        return trials * self._work_of_trial(run.stack).done(run.steps / trials)

    def _work_of_trial(self, stack: Stack) -> TrialWork:
        kind = _kind(stack)
        if kind not in self._trial_work:
            self._trial_work[kind] = self.work_of(stack)
        return self._trial_work[kind]


def _kind(stack: Stack) -> StackKind:
    return stack.trials[0].kind, stack.time_key
