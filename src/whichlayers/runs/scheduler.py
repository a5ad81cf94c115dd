"""The scheduler: starts stacks on free workers, stores their results, and handles failures.

A stack that fails is split into halves, and these again, until the trial that causes the failure fails alone; the
others keep training together. A stack whose worker died is run again up to `retries` times before it is split. A stack
that ran out of memory is split, and so are all waiting stacks of the same kind that are too large.

Waiting stacks are in a `StackQueue`: retried stacks first, then low seeds first, so that every curve gains one trial at
a time, but long stacks before it is too late.
"""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from whichlayers.engine.cost import TrialWork
from whichlayers.engine.settings import EngineSettings, checkpoint_file
from whichlayers.results.db import ResultsDB
from whichlayers.results.losses import LossLog
from whichlayers.results.records import TrialResultLike
from whichlayers.runs.events import (
    EpochDone,
    LossMeasured,
    Note,
    OnEvent,
    Progress,
    StackDone,
    StackFailed,
    StackLost,
    StepsDone,
    TrialDone,
    TrialFailed,
    TrialsDone,
    WorkerEvent,
    WorkerNote,
)
from whichlayers.runs.executors.local import Executor, FreeWorker
from whichlayers.runs.handlers.finetuned_models import delete_unused
from whichlayers.runs.plan import Stack, memory_key, models_to_keep, split_trials, total_steps
from whichlayers.runs.time_left import TimeLeft
from whichlayers.text import counted

RETRIES = 2  # of a stack whose worker died, before it is split
URGENT_FRACTION = 0.5
SECONDS_BETWEEN_ESTIMATES = 1.0  # of the time left
SECONDS_BETWEEN_STORED_ESTIMATES = 10.0


class Scheduler:
    """Runs stacks on an executor and writes their results to results.db.

    Args:
        db: The results database, open for writing.
        run_id: Id of the current run.
        stacks: The stacks to run.
        on_event: Called with the events of the run.
        checkpoints: Folder of checkpoints; a checkpoint is deleted when the results of its stack are stored.
        finetuned_models: Folder of finetuned models; a model is deleted when all its word probes are finished.
        retries: How often a stack whose worker died is run again before it is split.
        time_left: Estimates the time left. Default: one that takes all steps to be equally long.
    """

    def __init__(
        self,
        db: ResultsDB,
        run_id: int,
        stacks: Sequence[Stack],
        on_event: OnEvent,
        checkpoints: Path | None = None,
        finetuned_models: Path | None = None,
        retries: int = RETRIES,
        time_left: TimeLeft | None = None,
    ) -> None:
        counts = db.counts()
        self.db = db
        self.run_id = run_id
        self.on_event = on_event
        self.settings = EngineSettings(checkpoint_folder=checkpoints)
        self.finetuned_models = finetuned_models
        self.retries = retries
        self.losses = LossLog(db.path.parent)
        self.queue = StackQueue(stacks)
        self.running: dict[int, Stack] = {}  # by number
        self.announced: dict[int, int] = {}  # by worker: number of the stack that it prepares
        self.ended_ids: dict[int, set[str]] = {}  # by stack: trials that ended before their stack did
        self.next_number = 1 + max((stack.number for stack in stacks), default=0)
        self.ran = 0  # number of trials that ended in this run
        self.done, self.failed = counts.done, counts.failed
        self.steps = sum(stack.steps for stack in stacks)
        self.steps_ended = 0  # of trials that ended
        self.steps_running: dict[int, int] = {}  # by running stack
        self.restored: dict[int, int] = {}  # by stack: steps that an earlier run did
        self.time_left = time_left or TimeLeft(1, lambda stack: TrialWork())
        self.seconds_left: float | None = None
        self.estimated = self.stored = -SECONDS_BETWEEN_STORED_ESTIMATES  # when `seconds_left` was

    def run(self, executor: Executor) -> None:
        """Run all stacks; returns when every trial is done or failed."""
        executor.emit = self.handle
        self.queue.workers = executor.workers
        while self.queue or self.running:
            free = executor.free_workers()
            started = [self._start_on(worker, executor) for worker in free if self.queue]
            if self.queue and not any(started) and not self.running and len(free) == executor.workers:
                self._fail_too_large()
            executor.poll()

    def _start_on(self, worker: FreeWorker, executor: Executor) -> bool:
        """Start the next stack that fits into the memory of this worker; False if there is none."""
        preferred = self.announced.pop(worker.number, None)
        stack = self.queue.pop(lambda stack: worker.max_models(stack) > 0, preferred)
        if stack is None:
            return False
        if (max_models := worker.max_models(stack)) < stack.size:  # this worker has less memory than others
            stack, *rest = self._split(stack, max_models)
            self.queue.push_front(*rest)
        self._mark_started(stack)
        if executor.config.preloads:
            self._announce_next(worker, executor)
        executor.start(stack, worker)
        return True

    def _announce_next(self, worker: FreeWorker, executor: Executor) -> None:
        """Tell a worker which stack will probably be its next, so that it is prepared while the current one trains."""
        of_others = set(self.announced.values())
        stack = self.queue.peek(lambda s: worker.max_models(s) > 0 and s.number not in of_others)
        if stack is not None:
            self.announced[worker.number] = stack.number
            executor.announce(stack, worker)

    def _mark_started(self, stack: Stack) -> None:
        self.db.start(stack.trial_ids, self.run_id)
        self.running[stack.number] = stack
        self.time_left.start(stack, time.monotonic())

    def _fail_too_large(self) -> None:
        """Fail the next stack: all workers are free, and none can hold it."""
        stack = self.queue.pop()
        assert stack is not None
        self._mark_started(stack)
        self._pop_unfinished(stack.number)
        self._fail(stack, "one trial does not fit into the memory of any worker: use a larger device")

    def handle(self, event: WorkerEvent) -> None:
        """Process an event from a worker."""
        match event:
            case EpochDone(trial_id, epoch):
                self.db.record_epoch(trial_id, epoch)
            case StepsDone(number, steps, restored):
                self.steps_running[number], self.restored[number] = steps, restored
                self.time_left.update(number, steps, restored, time.monotonic())
                self._report_progress()
            case LossMeasured(step, losses):
                self.losses.record(step, losses)
            case TrialsDone(number, results):
                self.losses.forget([result.trial_id for result in results])
                self._store_results(self.running[number], results)
            case StackDone(number):
                self.time_left.end(number, time.monotonic(), finished=True)
                self._finish(self.running.pop(number))
            case StackFailed(number, error, out_of_memory):
                stack = self._pop_unfinished(number)
                if not stack.trials:
                    self._finish(stack)
                elif out_of_memory:
                    self._handle_out_of_memory(stack, error)
                else:
                    self._handle_failure(stack, error)
            case StackLost(number, reason, log):
                stack = self._pop_unfinished(number)
                if not stack.trials:
                    self._finish(stack)
                else:
                    self._handle_lost_worker(stack, reason, log)
            case WorkerNote(text):
                self.on_event(Note(text))

    def _pop_unfinished(self, number: int) -> Stack:
        """Remove a running stack and return it without the trials that ended already."""
        stack, ended = self.running.pop(number), self.ended_ids.pop(number, set())
        self.time_left.end(number, time.monotonic(), finished=False)
        self.steps_ended += total_steps(t for t in stack.trials if t.id in ended)
        unfinished = tuple(trial for trial in stack.trials if trial.id not in ended)
        return dataclasses.replace(stack, trials=unfinished) if ended else stack

    def _finish(self, stack: Stack) -> None:
        """All trials of a stack have ended."""
        self.ended_ids.pop(stack.number, None)
        self.steps_ended += stack.steps
        self._forget_running_steps(stack)
        self._delete_unused_models()

    def _store_results(self, stack: Stack, results: Sequence[TrialResultLike]) -> None:
        self.db.finish(results, time_fraction=1 / len(results))
        if (checkpoint := checkpoint_file(self.settings, stack.trials)) is not None:
            checkpoint.unlink(missing_ok=True)  # not earlier: a run killed in between would lose both
        trials = {trial.id: trial for trial in stack.trials}
        for result in results:
            trial = trials[result.trial_id]
            self._count_ended(failed=bool(result.error))
            if result.error:
                self.on_event(TrialFailed(trial, result.error))
            else:
                metrics = result.epochs[-1].metrics if result.epochs else {}
                self.on_event(TrialDone(trial, dict(metrics)))
        ended = self.ended_ids.setdefault(stack.number, set())
        ended.update(result.trial_id for result in results)
        if len(ended) < len(stack.trials):  # otherwise the stack ends now, which is reported then
            self._report_progress()

    def _delete_unused_models(self) -> None:
        """Delete finetuned models without unfinished probes; called after the results are in results.db."""
        if self.finetuned_models is not None:
            unfinished = [*self.queue, *self.running.values()]
            delete_unused(self.finetuned_models, models_to_keep(unfinished))

    def _handle_failure(self, stack: Stack, error: str) -> None:
        """Run a stack that raised an exception again in halves; fail a stack of one model."""
        if stack.models > 1:
            first_line = error.partition("\n")[0]
            trials = counted(len(stack.trials), "trial")
            self.on_event(Note(f"a stack of {trials} failed ({first_line}): running it again in halves"))
            self._run_again_split(stack, (stack.models + 1) // 2)
        else:
            self._fail(stack, error)

    def _handle_out_of_memory(self, stack: Stack, error: str) -> None:
        """Halve a stack that ran out of memory, and limit waiting stacks of its kind; fail a stack of one trial."""
        if stack.size == 1:
            self._fail(
                stack,
                "out of memory with a single trial: reduce training.batch_size or training.max_length,"
                f" close other programs, or use another device\n{error}",
            )
            return
        smaller = (stack.size + 1) // 2
        self.on_event(
            Note(
                f"out of memory with a stack of {counted(stack.size, 'trial')}: from now on at most"
                f" {counted(smaller, 'trial')} of this kind per stack"
            )
        )
        self._run_again_split(stack, smaller)
        self._limit_waiting(stack, smaller)

    def _limit_waiting(self, failed: Stack, max_models: int) -> None:
        """Split waiting stacks of the same kind as the failed one that are larger than `max_models`."""
        key = memory_key(failed.trials[0])

        def parts_of(stack: Stack) -> list[Stack]:
            too_large = memory_key(stack.trials[0]) == key and stack.size > max_models
            return self._split(stack, max_models) if too_large else [stack]

        self.queue.split(parts_of)

    def _handle_lost_worker(self, stack: Stack, reason: str, log: str) -> None:
        """Run a stack whose worker died again, after `retries` times in halves; fail a stack of one trial."""
        stack = dataclasses.replace(stack, lost_workers=stack.lost_workers + 1)
        trials = counted(len(stack.trials), "trial")
        if stack.lost_workers <= self.retries:
            self.on_event(Note(f"{reason}; running its {trials} again"))
            self.restored.pop(stack.number, None)
            self._forget_running_steps(stack)
            self.queue.push_front(stack)
        elif stack.size > 1:
            self.on_event(Note(f"{reason}, again; running its {trials} again in halves"))
            self._run_again_split(stack, (stack.size + 1) // 2)  # the most likely cause is memory
        else:
            earlier = stack.lost_workers - 1
            workers = f", like {counted(earlier, 'earlier worker')} that ran this trial" if earlier else ""
            self._fail(stack, f"{reason}{workers}\n{log}".strip())

    def _run_again_split(self, stack: Stack, max_models: int) -> None:
        """Run a stack again before all others, in parts of at most `max_models` models."""
        self.restored.pop(stack.number, None)
        self._forget_running_steps(stack)
        self.queue.push_front(*self._split(stack, max_models))

    def _split(self, stack: Stack, max_models: int) -> list[Stack]:
        """New stacks of at most `max_models` models, with new numbers."""
        chunks = split_trials(stack.trials, max_models)
        slots = None if stack.slots is None else min(stack.slots, max_models)
        first, self.next_number = self.next_number, self.next_number + len(chunks)
        return [
            dataclasses.replace(stack, number=first + place, trials=tuple(chunk), slots=slots)
            for place, chunk in enumerate(chunks)
        ]

    def _fail(self, stack: Stack, error: str) -> None:
        """Mark all trials of a stack as failed."""
        self.db.fail(stack.trial_ids, error)
        for trial in stack.trials:
            self._count_ended(failed=True)
            self.on_event(TrialFailed(trial, error))
        self.steps_ended += stack.steps
        self._forget_running_steps(stack)
        self._delete_unused_models()

    def _count_ended(self, failed: bool) -> None:
        self.ran += 1
        self.done += not failed
        self.failed += failed

    def _forget_running_steps(self, stack: Stack) -> None:
        self.steps_running.pop(stack.number, None)
        self._report_progress()

    def _report_progress(self) -> None:
        steps = self.steps_ended + sum(self.steps_running.values())
        self._estimate_time_left(time.monotonic(), self.steps - steps)
        restored = sum(self.restored.values())
        self.on_event(Progress(self.done, self.failed, steps, restored, self.seconds_left))

    def _estimate_time_left(self, now: float, steps_left: int) -> None:
        """Update the time left, and store it and the steps left now and then for `whichlayers status` and `watch`."""
        if self.seconds_left is not None and now - self.estimated < SECONDS_BETWEEN_ESTIMATES:
            return
        self.seconds_left, self.estimated = self.time_left.estimate(self.queue, now), now
        if self.seconds_left is not None and now - self.stored >= SECONDS_BETWEEN_STORED_ESTIMATES:
            self.db.set_time_left(self.run_id, self.seconds_left, steps_left)
            self.stored = now


def any_stack(stack: Stack) -> bool:
    """The default of `StackQueue.pop`: every stack fits."""
    return True


class StackQueue:
    """Stacks that wait for a free worker; each has a unique number.

    Low seeds first, followed strictly, could leave a long stack for the end, where one worker trains while all others
    are idle. Therefore the longest stack is next as soon as it would take longer than URGENT_FRACTION of an even share
    of all pending steps among the workers. A consequence is that the last stacks, about two per worker, always run
    longest first. A single worker is never idle and always follows the seeds.
    """

    def __init__(self, stacks: Iterable[Stack], workers: int = 1) -> None:
        self.workers = workers
        self.front: deque[Stack] = deque()  # stacks to run before all others, such as retries
        self.pending: dict[int, Stack] = {}  # by number, low seeds first
        self.longest: list[tuple[int, int]] = []  # heap of (-steps, number); may contain popped stacks
        self.steps = 0  # of all pending stacks
        self._fill(stacks)

    def _fill(self, stacks: Iterable[Stack]) -> None:
        self.pending = {stack.number: stack for stack in stacks}
        self.longest = [(-stack.steps, stack.number) for stack in self.pending.values()]
        heapq.heapify(self.longest)
        self.steps = -sum(steps for steps, _ in self.longest)

    def split(self, parts_of: Callable[[Stack], list[Stack]]) -> None:
        """Replace every stack by its parts."""
        self.front = deque(chain.from_iterable(map(parts_of, self.front)))
        self._fill(chain.from_iterable(map(parts_of, list(self.pending.values()))))

    def __len__(self) -> int:
        return len(self.front) + len(self.pending)

    def __iter__(self) -> Iterator[Stack]:
        yield from self.front
        yield from self.pending.values()

    def push_front(self, *stacks: Stack) -> None:
        """Put stacks before all others, in the given order."""
        self.front.extendleft(reversed(stacks))

    def peek(self, fits: Callable[[Stack], bool] = any_stack, preferred: int | None = None) -> Stack | None:
        """The next stack for which `fits` is true; None if there is none.

        Stacks that run before all others and urgent ones come before the stack with the number `preferred`, if that
        is still waiting.
        """
        urgent, prepared = self._urgent(), self.pending.get(-1 if preferred is None else preferred)
        candidates = (stack for stack in (urgent, prepared) if stack is not None)
        return next(filter(fits, chain(self.front, candidates, self.pending.values())), None)

    def pop(self, fits: Callable[[Stack], bool] = any_stack, preferred: int | None = None) -> Stack | None:
        """Remove and return the stack that `peek` returns."""
        stack = self.peek(fits, preferred)
        if stack is not None and stack.number in self.pending:
            return self._remove(stack)
        if stack is not None:
            self.front.remove(stack)
        return stack

    def _urgent(self) -> Stack | None:
        """The longest pending stack if it takes too long to be left for later."""
        while self.longest and self.longest[0][1] not in self.pending:
            heapq.heappop(self.longest)
        if not self.longest or self.workers == 1:
            return None
        stack = self.pending[self.longest[0][1]]
        return stack if stack.steps * self.workers >= self.steps * URGENT_FRACTION else None

    def _remove(self, stack: Stack) -> Stack:
        del self.pending[stack.number]
        self.steps -= stack.steps
        return stack
