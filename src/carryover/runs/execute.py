"""Run a study: check everything, plan, train; stop at any moment and go on later.

    run(study, Path("my-study"))            # start, or go on where an earlier run stopped

Everything that can be wrong with the study, its data and its models is found before the first step.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carryover.runs import machine
from carryover.runs.drive import Driver
from carryover.runs.events import Note, OnEvent, RunStarted, RunSummary
from carryover.runs.executors import Executor, InProcess, WorkerPool
from carryover.runs.folder import StudyFolder
from carryover.runs.lock import study_lock
from carryover.runs.plan import with_broken_off
from carryover.runs.store import Store
from carryover.runs.subjects import Catalogue, Subjects, cache_folder
from carryover.runs.worker import DEFAULT_ENGINE, Setup
from carryover.trial import CarryoverError

if TYPE_CHECKING:
    from carryover.study.file import Study

DEFAULT_STACK = {"cuda": 32}  # trials, where the user names no number
DEFAULT_STACK_ELSEWHERE = 4
PROCESS_BYTES = 600e6  # torch and transformers, before any model
COPIES = 4  # of its weights that a trial holds: themselves, their gradient, Adam's two moments
CHECKPOINT_COPIES = 3  # the gradient is not saved


@dataclass(frozen=True)
class Means:
    """What a run trains with."""

    devices: tuple[str, ...]
    workers: int  # 0: this process
    threads: int  # of each process
    max_stack: int

    def setups(self, engine: str, catalogue: Catalogue | None, checkpoints: Path | None) -> list[Setup]:
        devices = [self.devices[place % len(self.devices)] for place in range(max(1, self.workers))]
        return [Setup(engine, device, self.threads, catalogue, checkpoints) for device in devices]


def run(
    study: Study,
    folder: Path | str,
    *,
    device: str | None = None,
    workers: int | None = None,
    max_stack: int | None = None,
    retry_failed: bool = False,
    on_event: OnEvent = lambda event: None,
    engine: str = DEFAULT_ENGINE,
    subjects: Any = None,
) -> RunSummary:
    """Run what is not done yet of `study` in `folder`. Raises CarryoverError before training if something is
    wrong, KeyboardInterrupt (on SIGINT and SIGTERM) with everything in order for the next run.

    `workers`: processes; 0 trains in this one; None is one a core, or one a GPU.
    `engine` ("module:function") and `subjects` are there to be replaced in tests.
    """
    from carryover.study.expand import expand

    began = time.monotonic()
    place = StudyFolder(Path(folder))
    place.check_free_for(study.name)
    _check_numbers(workers, max_stack)
    devices = machine.choose_devices(device)
    subjects = subjects or Subjects(cache_folder(place.path))
    points = expand(study, subjects)
    if not points:
        raise CarryoverError("the study asks for no trial at all: give it an experiment")
    place.path.mkdir(parents=True, exist_ok=True)
    with study_lock(place.path), _stoppable():
        place.check_study(study.name)
        for note in subjects.notes():
            on_event(Note(note))
        with Store.open(place.database, study.name) as store:
            tasks, models = subjects.task_rows(study.tasks), subjects.model_rows(study.models)
            means = choose_means(devices, workers, max_stack, subjects.weights_bytes)
            settled = store.ids("done") if retry_failed else store.ids("done", "failed")
            wanted = [point.trial for point in points if point.trial.id not in settled]
            subjects.check(wanted, keep=means.workers == 0)
            place.write_study(study.to_toml())
            store.set_points(points, tasks, models)
            if retry_failed:
                store.retry_failed()
            ran = _train(store, place, means, engine, subjects, on_event)
            counts = store.counts()
    return RunSummary(place.path, counts.total, counts.done, counts.failed, ran, time.monotonic() - began)


def _train(
    store: Store,
    place: StudyFolder,
    means: Means,
    engine: str,
    subjects: Any,
    on_event: OnEvent,
) -> int:
    key, workers = subjects.stack_key, max(1, means.workers)
    stacks = with_broken_off(store.waiting(), store.broken_off(), key, means.max_stack, workers)
    workers = min(means.workers, len(stacks))
    counts = store.counts()
    started = RunStarted(
        place.path,
        counts.total,
        counts.done,
        sum(s.steps for s in stacks),
        len(stacks),
        workers,
        means.devices,
    )
    on_event(started)
    if not stacks:
        return 0
    run_id = store.begin_run(machine.this_run(list(means.devices), means.threads))
    driver = Driver(store, run_id, stacks, on_event)
    outcome = "stopped by an error"
    executor: Executor | None = None
    try:
        checkpoints = _room_for_checkpoints(place, means, subjects.weights_bytes, on_event)
        setups = means.setups(engine, subjects.catalogue, checkpoints)[: max(1, workers)]
        if means.workers == 0:
            executor = InProcess(setups[0], driver.handle, subjects)
        else:
            executor = WorkerPool(setups, driver.handle, place.logs)
        driver.drive(executor)
        outcome = "complete"
        shutil.rmtree(place.checkpoints, ignore_errors=True)
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    finally:
        with _undisturbed():
            if executor is not None:
                executor.close()
            with contextlib.suppress(CarryoverError):  # a full disk: the next run puts the trials right
                store.end_run(run_id, outcome)
    return driver.ran


def _room_for_checkpoints(
    place: StudyFolder, means: Means, weights_bytes: int, on_event: OnEvent
) -> Path | None:
    """Where long stacks are saved, unless they might fill the disk."""
    trials = max(1, means.workers) * means.max_stack
    need = 2 * weights_bytes * CHECKPOINT_COPIES * trials  # twice: the old one goes when the new one is there
    if shutil.disk_usage(place.path).free > 2 * need:
        return place.checkpoints
    on_event(
        Note(
            f"no checkpoints: they could take {need / 1e9:.0f} GB, too much for this disk; a stack that is"
            " broken off starts anew"
        )
    )
    return None


def choose_means(
    devices: Sequence[str], workers: int | None, max_stack: int | None, weights_bytes: int
) -> Means:
    """One process a GPU; on CPU one a core, as far as memory goes, and the cores shared out among them."""
    kind = devices[0].partition(":")[0]
    stack = max_stack or DEFAULT_STACK.get(kind, DEFAULT_STACK_ELSEWHERE)
    cores = machine.usable_cores()
    if workers is None:
        workers = len(devices)
        if kind == "cpu":
            workers = cores
            if (free := machine.free_memory()) is not None:
                each = PROCESS_BYTES + weights_bytes * (1 + COPIES * stack)
                workers = max(1, min(cores, math.floor(free / each)))
    return Means(tuple(devices), workers, max(1, cores // max(1, workers)), stack)


def _check_numbers(workers: int | None, max_stack: int | None) -> None:
    if workers is not None and workers < 0:
        raise CarryoverError(f"workers = {workers}: give 0 (train in this process) or more")
    if max_stack is not None and max_stack < 1:
        raise CarryoverError(f"max_stack = {max_stack}: give 1 (each trial by itself) or more")


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM, which a cluster sends before it kills, ends a run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not break off the clean-up after the first."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
