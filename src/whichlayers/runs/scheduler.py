"""The driver: hands out stacks, writes what comes back, and decides what becomes of a stack that went wrong.

A stack that fails is run again in halves, and those in halves, until the culprit is alone and fails alone:
the others keep training together. A stack whose worker died runs again elsewhere, `retries` times, before it
is halved. A stack that ran out of memory is halved as well, and all stacks of its kind that are still to come are cut
down to a size that has not failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from whichlayers.engine.results import EngineSettings, checkpoint_file
from whichlayers.results.db import Store
from whichlayers.results.records import Outcome
from whichlayers.runs.events import (
    EpochDone,
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
from whichlayers.runs.executors.local import Executor, Place
from whichlayers.runs.finetuned_models import keep_only
from whichlayers.runs.plan import Stack, cut, memory_key, total_steps
from whichlayers.runs.queue import Waiting
from whichlayers.trial import Trial

RETRIES = 2  # of a stack whose worker died, before it is taken apart


class Driver:
    def __init__(
        self,
        store: Store,
        run_id: int,
        stacks: Sequence[Stack],
        on_event: OnEvent,
        checkpoints: Path | None = None,
        encoders: Path | None = None,
        retries: int = RETRIES,
    ) -> None:
        counts = store.counts()
        self.store = store
        self.run_id = run_id
        self.on_event = on_event
        self.settings = EngineSettings(checkpoint_folder=checkpoints)
        self.retries = retries
        self.waiting = Waiting(stacks)
        self.under_way: dict[int, Stack] = {}
        self.ended: dict[int, set[str]] = {}  # ids of trials that came to their end before their stack did
        self.encoders = encoders
        self.next_number = 1 + max((stack.number for stack in stacks), default=0)
        self.ran = 0  # trials that came to their end
        self.done, self.failed = counts.done, counts.failed
        self.steps_closed = 0  # of trials that came to their end
        self.steps_open: dict[int, int] = {}  # of stacks under way
        self.restored: dict[int, int] = {}  # by stack: steps that an earlier run did

    def drive(self, executor: Executor) -> None:
        self.waiting.workers = executor.workers
        while self.waiting or self.under_way:
            free = executor.free()
            started = [self._start_at(place, executor) for place in free if self.waiting]
            if self.waiting and not any(started) and not self.under_way and len(free) == executor.workers:
                self._fits_nowhere()
            executor.pump()

    def _start_at(self, place: Place, executor: Executor) -> bool:
        stack = self.waiting.take(lambda stack: place.most(stack) > 0)
        if stack is None:
            return False
        if (most := place.most(stack)) < stack.size:  # its memory holds fewer than that of others
            stack, *rest = self._pieces(stack, most)
            self.waiting.first(*rest)
        self._begin(stack)
        executor.start(stack, place)
        return True

    def _begin(self, stack: Stack) -> None:
        self.store.start(stack.trial_ids, self.run_id)
        self.under_way[stack.number] = stack

    def _fits_nowhere(self) -> None:
        stack = self.waiting.take()
        assert stack is not None
        self._begin(stack)
        del self.under_way[stack.number]
        self._fail(stack, "one trial does not fit into the memory of any worker: use a larger device")

    def handle(self, event: WorkerEvent) -> None:
        match event:
            case EpochDone(trial_id, epoch):
                self.store.record_epoch(trial_id, epoch)
            case StepsDone(number, steps, restored):
                more = restored != self.restored.get(number, 0)
                self.steps_open[number], self.restored[number] = steps, restored
                if more:
                    self.store.note_restored(self.run_id, sum(self.restored.values()))
                self._tell_progress()
            case TrialsDone(number, outcomes):
                self._put_away(self.under_way[number], outcomes, share=1 / len(outcomes))
                self.ended.setdefault(number, set()).update(outcome.trial_id for outcome in outcomes)
                self._tell_progress()
            case StackDone(number, outcomes):
                self._close(self.under_way.pop(number), outcomes)
            case StackFailed(number, error, out_of_memory):
                stack = self._rest(number)
                if out_of_memory:
                    self._out_of_memory(stack, error)
                else:
                    self._failed(stack, error)
            case StackLost(number, reason, log):
                self._lost(self._rest(number), reason, log)
            case WorkerNote(text):
                self.on_event(Note(text))

    def _rest(self, number: int) -> Stack:
        """The stack that was under way, with those of its trials that did not come to their end before."""
        stack, ended = self.under_way.pop(number), self.ended.pop(number, set())
        self.steps_closed += total_steps(t for t in stack.trials if t.id in ended)
        left = tuple(trial for trial in stack.trials if trial.id not in ended)
        return dataclasses.replace(stack, trials=left) if ended else stack

    def _close(self, stack: Stack, outcomes: Sequence[Outcome]) -> None:
        self._put_away(stack, outcomes, share=1 / len(stack.trials))
        self.ended.pop(stack.number, None)
        self.steps_closed += stack.steps
        self._forget_open(stack)
        self._forget_encoders()

    def _put_away(self, stack: Stack, outcomes: Sequence[Outcome], share: float) -> None:
        self.store.finish(outcomes, share)
        if (saved := checkpoint_file(self.settings, stack.trials)) is not None:
            saved.unlink(missing_ok=True)  # not before: a run killed in between would have neither
        trials = {trial.id: trial for trial in stack.trials}
        for outcome in outcomes:
            trial = trials[outcome.trial_id]
            self._count(trial, failed=bool(outcome.error))
            if outcome.error:
                self.on_event(TrialFailed(trial, outcome.error))
            else:
                metrics = outcome.epochs[-1].metrics if outcome.epochs else {}
                self.on_event(TrialDone(trial, dict(metrics)))

    def _forget_encoders(self) -> None:
        """Finetuned models that no question is left for go; not before the answers are in results.db."""
        if self.encoders is not None:
            keep_only(self.encoders, [*self.waiting, *self.under_way.values()])

    def _failed(self, stack: Stack, error: str) -> None:
        if stack.models > 1:
            first_line = error.partition("\n")[0]
            self.on_event(
                Note(
                    f"a stack of {len(stack.trials)} trials failed ({first_line}): it is run again in halves"
                )
            )
            self._split(stack, (stack.models + 1) // 2)
        else:
            self._fail(stack, error)

    def _out_of_memory(self, stack: Stack, error: str) -> None:
        if stack.size == 1:
            self._fail(
                stack,
                "out of memory with this trial alone: set training.batch_size or training.max_length lower,"
                f" close other programs, or use another device\n{error}",
            )
            return
        smaller = (stack.size + 1) // 2
        size = f"out of memory with {stack.size} trials at once: from here on {smaller} at most"
        self.on_event(Note(f"{size}, of this kind"))
        self._split(stack, smaller)
        self._cut_down(stack, smaller)

    def _cut_down(self, failed: Stack, most: int) -> None:
        """Stacks to come that take memory like the failed one get at most so many trials and slots."""
        kind = memory_key(failed.trials[0])

        def pieces(stack: Stack) -> list[Stack]:
            too_large = memory_key(stack.trials[0]) == kind and stack.size > most
            return self._pieces(stack, most) if too_large else [stack]

        self.waiting.cut(pieces)

    def _lost(self, stack: Stack, reason: str, log: str) -> None:
        stack = dataclasses.replace(stack, lost=stack.lost + 1)
        if not stack.trials:  # all of them had come to their end
            self._forget_open(stack)
        elif stack.lost <= self.retries:
            self.on_event(Note(f"{reason}; its {_trials(stack)} will be run again"))
            self.restored.pop(stack.number, None)
            self._forget_open(stack)
            self.waiting.first(stack)
        elif stack.size > 1:
            self.on_event(Note(f"{reason}, again; its {_trials(stack)} are run again in halves"))
            self._split(stack, (stack.size + 1) // 2)  # most often it was memory
        else:
            self._fail(
                stack, f"{reason}, and so did {stack.lost - 1} before that ran this trial\n{log}".strip()
            )

    def _split(self, stack: Stack, most: int) -> None:
        """Run a stack again, first of all, in pieces of at most so many trials."""
        self.restored.pop(stack.number, None)
        self._forget_open(stack)
        self.waiting.first(*self._pieces(stack, most))

    def _pieces(self, stack: Stack, most: int) -> list[Stack]:
        chunks = cut(stack.trials, most)
        slots = None if stack.slots is None else min(stack.slots, most)
        first, self.next_number = self.next_number, self.next_number + len(chunks)
        return [Stack(first + place, tuple(chunk), slots, stack.lost) for place, chunk in enumerate(chunks)]

    def _fail(self, stack: Stack, error: str) -> None:
        self.store.fail(stack.trial_ids, error)
        for trial in stack.trials:
            self._count(trial, failed=True)
            self.on_event(TrialFailed(trial, error))
        self.steps_closed += stack.steps
        self._forget_open(stack)
        self._forget_encoders()

    def _count(self, trial: Trial, failed: bool) -> None:
        self.ran += 1
        self.done += not failed
        self.failed += failed

    def _forget_open(self, stack: Stack) -> None:
        self.steps_open.pop(stack.number, None)
        self._tell_progress()

    def _tell_progress(self) -> None:
        steps = self.steps_closed + sum(self.steps_open.values())
        self.on_event(Progress(self.done, self.failed, steps, sum(self.restored.values())))


def _trials(stack: Stack) -> str:
    return "trial" if len(stack.trials) == 1 else f"{len(stack.trials)} trials"
