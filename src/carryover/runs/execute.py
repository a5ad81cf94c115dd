"""Run a study: check everything, plan, train; stop at any moment and go on later.

    run(study, Path("my-study"))            # start, or go on where an earlier run stopped

Everything that can be wrong with the study, its data and its models is found before the first step.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carryover.runs import machine
from carryover.runs.drive import Driver
from carryover.runs.events import Note, OnEvent, RunStarted, RunSummary
from carryover.runs.executors import Executor, InProcess, WorkerPool, measured_elsewhere
from carryover.runs.folder import StudyFolder
from carryover.runs.lock import study_lock
from carryover.runs.means import Means, choose_means, fitted, kinds_of
from carryover.runs.plan import with_broken_off
from carryover.runs.store import Store
from carryover.runs.subjects import Subjects, cache_folder
from carryover.runs.worker import DEFAULT_ENGINE, Measure, Workplace
from carryover.trial import CarryoverError, Trial

if TYPE_CHECKING:
    from carryover.study.file import Study

CHECKPOINT_COPIES = 3  # of its weights that a trial saves: themselves and Adam's two moments
CHECKPOINT_MINUTES = 5.0


def run(
    study: Study,
    folder: Path | str,
    *,
    device: str | None = None,
    workers: int | None = None,
    max_stack: int | None = None,
    checkpoint_minutes: float = CHECKPOINT_MINUTES,
    retry_failed: bool = False,
    on_event: OnEvent = lambda event: None,
    engine: str = DEFAULT_ENGINE,
    subjects: Any = None,
) -> RunSummary:
    """Run what is not done yet of `study` in `folder`. Raises CarryoverError before training if something is
    wrong, KeyboardInterrupt (on SIGINT and SIGTERM) with everything in order for the next run.

    `workers`: processes; 0 trains in this one; None is one a core, or one a GPU.
    `checkpoint_minutes`: how often a stack under way is saved; 0 saves none.
    `engine` ("module:function") and `subjects` are there to be replaced in tests.
    """
    from carryover.study.expand import expand

    began = time.monotonic()
    place = StudyFolder(Path(folder))
    place.check_free_for(study.name)
    _check_numbers(workers, max_stack, checkpoint_minutes)
    devices = machine.choose_devices(device)
    subjects = subjects or Subjects(cache_folder(place.path))
    points = expand(study, subjects)
    if not points:
        raise CarryoverError("the study asks for no trial at all: give it an experiment")
    place.path.mkdir(parents=True, exist_ok=True)
    with study_lock(place.path), _stoppable():
        place.check_study(study.name)
        for note in (notes := subjects.notes()):
            on_event(Note(note))
        with Store.open(place.database, study.name) as store:
            tasks, models = subjects.task_rows(study.tasks), subjects.model_rows(study.models)
            settled = store.ids("done") if retry_failed else store.ids("done", "failed")
            wanted = [point.trial for point in points if point.trial.id not in settled]
            subjects.check(wanted)
            means = _fit_memory(
                choose_means(devices, workers, max_stack), wanted, place, engine, subjects, workers
            )
            if means.workers:
                subjects.let_go()
            place.write_study(study.to_toml())
            store.set_points(points, tasks, models)
            store.set_notes(notes)
            if retry_failed:
                store.retry_failed()
            ran = _train(store, place, means, engine, subjects, on_event, 60 * checkpoint_minutes)
            counts = store.counts()
    return RunSummary(place.path, counts.total, counts.done, counts.failed, ran, time.monotonic() - began)


def _fit_memory(
    means: Means, wanted: list[Trial], place: StudyFolder, engine: str, subjects: Any, workers: int | None
) -> Means:
    """Stacks as large as memory allows, found by trying. On a GPU that takes a process of its own, unless all
    is done in this one; elsewhere this process has model and data at hand already."""
    if not wanted:
        return means
    order = Measure(kinds_of(wanted), means.devices, means.max_stack)
    setup = means.setups(engine, subjects.catalogue)[0]
    if means.on_cuda and means.workers:
        room = measured_elsewhere(setup, order, place.logs)
    else:
        room = Workplace(setup, subjects).measure(order)
    return fitted(means, order.kinds, room, subjects.weights_bytes, fewer_workers=workers is None)


def _train(
    store: Store,
    place: StudyFolder,
    means: Means,
    engine: str,
    subjects: Any,
    on_event: OnEvent,
    checkpoint_seconds: float,
) -> int:
    key, workers = subjects.stack_key, max(1, means.workers)
    stacks = with_broken_off(
        store.waiting(), store.broken_off(), key, means.size_for, workers, fill=means.on_cuda
    )
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
        checkpoints = None
        if checkpoint_seconds:
            saved = [stack for stack in stacks if stack.trials[0].probe is None]  # probes start anew
            largest = max((len(stack.trials) for stack in saved), default=0)
            need = subjects.weights_bytes * CHECKPOINT_COPIES * max(1, workers) * largest
            checkpoints = _room_for_checkpoints(place, need, on_event)
        setups = means.setups(engine, subjects.catalogue, checkpoints, checkpoint_seconds)[: max(1, workers)]
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


def _room_for_checkpoints(place: StudyFolder, need: int, on_event: OnEvent) -> Path | None:
    """Where long stacks are saved, unless they might fill the disk. An old one goes when the new one is
    there, and half of the disk stays free."""
    if shutil.disk_usage(place.path).free > 4 * need:
        return place.checkpoints
    on_event(
        Note(
            f"no checkpoints: they could take {2 * need / 1e9:.0f} GB, too much for this disk; a stack that"
            " is broken off starts anew"
        )
    )
    return None


def _check_numbers(workers: int | None, max_stack: int | None, checkpoint_minutes: float) -> None:
    if workers is not None and workers < 0:
        raise CarryoverError(f"workers = {workers}: give 0 (train in this process) or more")
    if max_stack is not None and max_stack < 1:
        raise CarryoverError(f"max_stack = {max_stack}: give 1 (each trial by itself) or more")
    if not checkpoint_minutes >= 0:
        raise CarryoverError(f"checkpoint_minutes = {checkpoint_minutes}: give 0 (save nothing) or more")


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
