"""Run a study: check everything, plan, train; stop at any moment and go on later.

    run(study, Path("my-study"))            # start, or go on where an earlier run stopped

Everything that can be wrong with the study, its data and its models is found before the first step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.errors import WhichlayersError
from whichlayers.results.db import Store
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import study_lock
from whichlayers.runs import machine
from whichlayers.runs.assets import Subjects, cache_folder
from whichlayers.runs.cost_model import checkpoint_bytes
from whichlayers.runs.events import Note, OnEvent, RunStarted, RunSummary
from whichlayers.runs.executors.local import Executor, InProcess, WorkerPool
from whichlayers.runs.executors.ray import RayPool, all_here, checked_ray, ray_at
from whichlayers.runs.executors.worker import DEFAULT_ENGINE, Setup
from whichlayers.runs.finetuned_models import keep_only
from whichlayers.runs.plan import Stack, most_finetuned, with_broken_off
from whichlayers.runs.profiling import fit_memory
from whichlayers.runs.resources import Means, check_counts, choose_means
from whichlayers.runs.scheduler import RETRIES, Driver
from whichlayers.runs.stored_penalties import recall_penalties
from whichlayers.trial import Point

if TYPE_CHECKING:
    from whichlayers.study.file import Study

CHECKPOINT_MINUTES = 5.0
WRITTEN_BY = {
    "report": ("report.html", "summary.csv", "claims.csv", "figures"),
    "export": ("results.csv", "results.parquet", "epochs.csv", "epochs.parquet"),
}


def run(
    study: Study,
    folder: Path | str,
    *,
    device: str | None = None,
    workers: int | None = None,
    max_stack: int | None = None,
    on: str = "this",
    checkpoint_minutes: float = CHECKPOINT_MINUTES,
    checkpoints: Path | str | None = None,
    retries: int = RETRIES,
    retry_failed: bool = False,
    on_event: OnEvent = lambda event: None,
    engine: str = DEFAULT_ENGINE,
    subjects: Any = None,
) -> RunSummary:
    """Run what is not done yet of `study` in `folder`. Raises WhichlayersError before training if something is
    wrong, KeyboardInterrupt (on SIGINT and SIGTERM) with everything in order for the next run.

    `workers`: processes; 0 trains in this one; None is one a core, or one a GPU.
    `on`: "this" machine, "ray" (a Ray of its own) or "ray://HOST:PORT" (a cluster).
    `checkpoint_minutes`: how often a stack under way is saved; 0 saves none. `checkpoints`: where to.
    `retries`: how often a stack whose worker died runs again before it is taken apart.
    `engine` ("module:function") and `subjects` are there to be replaced in tests.
    """
    from whichlayers.study.expand import expand

    began = time.monotonic()
    place = StudyFolder(Path(folder))
    place.check_free_for(study.name)
    _check_numbers(workers, max_stack, checkpoint_minutes, retries)
    address = None if on == "this" else checked_ray(on, device)
    devices = machine.choose_devices(device) if on == "this" else []
    subjects = subjects or Subjects(cache_folder(place.path))
    points = expand(study, subjects)
    if not points:
        raise WhichlayersError("the study asks for no trial at all: give it an experiment")
    place.path.mkdir(parents=True, exist_ok=True)
    with (
        study_lock(place.path) as left_behind,
        _stoppable(),
        contextlib.ExitStack() as open_until_done,
    ):
        if left_behind is not None:
            on_event(Note(f"the run of {left_behind} ended without a word; this one goes on from there"))
        place.check_study(study.name)
        for note in (notes := subjects.notes()):
            on_event(Note(note))
        tasks, models = subjects.task_rows(study.tasks), subjects.model_rows(study.models)
        if study.corpora:
            tasks = [*tasks, *subjects.corpus_rows(study.corpora)]
        settled = _settled(place, retry_failed)
        wanted = [point.trial for point in points if point.trial.id not in settled]
        subjects.check(wanted)
        saving = Saving(60 * checkpoint_minutes, None if checkpoints is None else Path(checkpoints))
        pool: RayPool | None = None
        if on == "this":
            means = choose_means(devices, workers, max_stack)
            means = fit_memory(means, wanted, engine, subjects, place.logs, workers is None)
        elif wanted:
            ray = open_until_done.enter_context(ray_at(address))
            saving = _saving_on_ray(saving, all_here(ray), place, on_event)
            setup = Setup(engine, "", 1, None, saving.folder, saving.seconds)
            pool = RayPool(ray, device, workers, max_stack, wanted, subjects, setup, place.path, on_event)
            open_until_done.callback(pool.close)
            means = pool.means()
        else:
            means = choose_means(["cpu"], workers, max_stack)
        if means.workers:
            subjects.let_go()
        # not before all this has worked: a folder with results.db has its study.toml, and both say the same
        store = open_until_done.enter_context(Store.open(place.database, study.name))
        for note in _left_out(store, points, place):
            on_event(Note(note))
        place.write_study(study.to_toml())
        store.set_points(points, tasks, models)
        store.set_notes(notes)
        if retry_failed:
            store.retry_failed()
        ran = _train(store, place, means, engine, subjects, on_event, saving, retries, pool)
        counts = store.counts()
    return RunSummary(place.path, counts.total, counts.done, counts.failed, ran, time.monotonic() - began)


def _settled(place: StudyFolder, retry_failed: bool) -> set[str]:
    """Trials that an earlier run brought to their end, and that are not to be tried again."""
    if not place.has_results:
        return set()
    with Store.read(place.database) as store:
        return store.ids("done") if retry_failed else store.ids("done", "failed")


def _left_out(store: Store, points: Sequence[Point], place: StudyFolder) -> Iterator[str]:
    """What the study as it is now takes out of the results that the folder holds, in words."""
    gone = store.ids("done", in_study=True) - {point.trial.id for point in points}
    if not gone:
        return
    they, are = ("trial is", "it stays") if len(gone) == 1 else ("trials are", "they stay")
    yield (
        f"{len(gone):,} finished {they} no longer asked for (the study, its data or its model changed): {are} in"
        f" {place.database.name} and in no result"
    )
    for command, names in WRITTEN_BY.items():
        if there := [name for name in names if (place.path / name).exists()]:
            yield f"of the study as it was: {', '.join(there)}; whichlayers {command} {place.path} writes anew"


@dataclass(frozen=True)
class Saving:
    """How often stacks under way are saved, and where to."""

    seconds: float  # 0: never
    folder: Path | None = None  # None: in the study's folder; on Ray, on each machine's own disk


def _saving_on_ray(saving: Saving, here: bool, place: StudyFolder, on_event: OnEvent) -> Saving:
    if not saving.seconds or saving.folder is not None:
        return saving
    if here:
        return dataclasses.replace(saving, folder=place.checkpoints)
    on_event(
        Note(
            "checkpoints stay on the disk of the machine that trains: a stack that is broken off goes on from"
            " there on that machine, and starts anew on another. --checkpoints FOLDER saves them where all"
            " machines can read"
        )
    )
    return saving


def _train(
    store: Store,
    place: StudyFolder,
    means: Means,
    engine: str,
    subjects: Any,
    on_event: OnEvent,
    saving: Saving,
    retries: int,
    pool: RayPool | None,
) -> int:
    key, workers = subjects.stack_key, max(1, means.workers)
    stacks = with_broken_off(
        store.waiting(), store.broken_off(), key, means.size_for, workers, fill=means.on_cuda
    )
    means = means.for_stacks(len(stacks)) if pool is None else means
    workers = min(means.workers, len(stacks))
    counts = store.counts()
    devices = tuple(pool.device_names()) if pool is not None else means.devices
    steps = sum(stack.steps for stack in stacks)
    on_event(RunStarted(place.path, counts.total, counts.done, steps, len(stacks), workers, devices))
    if not stacks:
        return 0
    run_id = store.begin_run(machine.this_run(list(devices), means.threads, named=pool is not None))
    outcome = "stopped by an error"
    executor: Executor | None = None
    ran = 0
    try:
        checkpoints, encoders = saving.folder, None
        if saving.seconds and pool is None:
            need = checkpoint_bytes(subjects.weights_bytes, most_finetuned(stacks), workers)
            checkpoints = _room_for_checkpoints(saving.folder or place.checkpoints, need, on_event)
        asked = any(stack.trials[0].word_probe is not None for stack in stacks)
        if asked:
            recall_penalties(store, subjects.catalogue.cache)
        if pool is None and asked:
            encoders = _room_for_encoders(place, stacks, subjects.weights_bytes, on_event)
        driver = Driver(store, run_id, stacks, on_event, checkpoints, encoders, retries)
        setups = means.setups(engine, subjects.catalogue, checkpoints, saving.seconds, encoders)
        setups = setups[: max(1, workers)]
        if pool is not None:
            pool.emit = driver.handle
            executor = pool
        elif means.workers == 0:
            executor = InProcess(setups[0], driver.handle, subjects)
        else:
            executor = WorkerPool(setups, driver.handle, place.logs, means.sizes_by_worker())
        driver.drive(executor)
        ran = driver.ran
        outcome = "complete"
        for finished in (place.checkpoints, place.encoders):
            shutil.rmtree(finished, ignore_errors=True)
        if pool is not None:
            pool.clean()
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    finally:
        with _undisturbed():
            if executor is not None:
                executor.close()
            with contextlib.suppress(WhichlayersError):  # a full disk: the next run puts the trials right
                store.end_run(run_id, outcome)
    return ran


def _room_for_checkpoints(folder: Path, need: int, on_event: OnEvent) -> Path | None:
    """Where long stacks are saved, unless they might fill the disk. An old one goes when the new one is
    there, and half of the disk stays free."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free > 4 * need:
        return folder
    on_event(
        Note(
            f"no checkpoints: they could take {2 * need / 1e9:.0f} GB, too much for this disk; a stack that"
            " is broken off starts anew"
        )
    )
    return None


def _room_for_encoders(
    place: StudyFolder, stacks: list[Stack], weights_bytes: int, on_event: OnEvent
) -> Path | None:
    """Where finetuned models wait for the questions about words, unless they might fill the disk."""
    keep_only(place.encoders, stacks)
    need = weights_bytes * most_finetuned(stacks) * 2
    if shutil.disk_usage(place.path).free > 2 * need:
        return place.encoders
    told = f"finetuned models are not saved: they could take {need / 1e9:.0f} GB, too much for this disk"
    on_event(Note(f"{told}; a run that is broken off finetunes them anew"))
    return None


def _check_numbers(
    workers: int | None, max_stack: int | None, checkpoint_minutes: float, retries: int
) -> None:
    check_counts(workers, max_stack)
    if not checkpoint_minutes >= 0:
        raise WhichlayersError(f"checkpoint_minutes = {checkpoint_minutes}: give 0 (save nothing) or more")
    if retries < 0:
        raise WhichlayersError(f"retries = {retries}: give 0 or more")


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
