"""Run a study: check everything, plan, train. A run can be stopped at any time and resumed later.

    run(study, Path("my-study"))            # start, or resume where an earlier run stopped

Errors in the study, its data and its models are found before training starts.
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
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import study_lock
from whichlayers.runs import machine
from whichlayers.runs.assets import Assets, cache_folder
from whichlayers.runs.cost_model import checkpoint_bytes
from whichlayers.runs.events import Note, OnEvent, RunStarted, RunSummary
from whichlayers.runs.executors.local import Executor, InProcessExecutor, ProcessExecutor
from whichlayers.runs.executors.ray import RayExecutor, is_single_machine, parse_ray_address, ray_session
from whichlayers.runs.executors.worker import WorkerConfig
from whichlayers.runs.finetuned_models import delete_unused
from whichlayers.runs.handlers import HANDLERS, Handlers
from whichlayers.runs.plan import (
    Stack,
    make_stacks_to_resume,
    max_finetuned_models,
    models_to_keep,
    stack_key_fn,
)
from whichlayers.runs.profiling import fit_memory
from whichlayers.runs.resources import Resources, check_counts, choose_resources
from whichlayers.runs.scheduler import RETRIES, Scheduler
from whichlayers.text import counted
from whichlayers.trial import Point

if TYPE_CHECKING:
    from whichlayers.study.study_file import Study

CHECKPOINT_MINUTES = 5.0
OUTPUT_FILES = {  # by the command that writes them
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
    handlers: Handlers = HANDLERS,
    assets: Any = None,
) -> RunSummary:
    """Run all trials of a study that are not done yet.

    Args:
        study: The study.
        folder: Its folder, which is created if it does not exist.
        device: "cpu", "cuda", "cuda:1", "cuda:0,cuda:1"; None: all GPUs, else the CPU.
        workers: Number of worker processes; 0 trains in this process; None: one per GPU, or one per CPU core.
        max_stack: Maximum number of trials that train together; None: a default for the device.
        on: "this" machine, "ray" (a local Ray instance) or "ray://HOST:PORT" (a cluster).
        checkpoint_minutes: Time between two checkpoints of a running stack; 0: no checkpoints.
        checkpoints: Folder for checkpoints; None: in `folder`.
        retries: How often a stack whose worker died is run again before it is split.
        retry_failed: Whether to run failed trials again.
        on_event: Called with the events of the run.
        handlers: Run the trials of each kind; for tests.
        assets: Models and data; for tests.

    Raises:
        WhichlayersError: Something is wrong with the study, its data, its models or the options.
        KeyboardInterrupt: On SIGINT or SIGTERM; the study can be resumed.
    """
    from whichlayers.study.expand import expand

    began = time.monotonic()
    study_folder = StudyFolder(Path(folder))
    study_folder.check_available(study.name)
    _check_numbers(workers, max_stack, checkpoint_minutes, retries)
    address = None if on == "this" else parse_ray_address(on, device)
    devices = machine.choose_devices(device) if on == "this" else []
    assets = assets or Assets(cache_folder(study_folder.path))
    points = expand(study, assets)
    if not points:
        raise WhichlayersError("the study has no trials: add an experiment")
    study_folder.path.mkdir(parents=True, exist_ok=True)
    with (
        study_lock(study_folder.path) as killed_run,
        _sigterm_as_interrupt(),
        contextlib.ExitStack() as exit_stack,
    ):
        if killed_run is not None:
            on_event(Note(f"the previous run ({killed_run}) did not shut down cleanly; resuming"))
        study_folder.check_study(study.name)
        for note in (notes := assets.notes()):
            on_event(Note(note))
        tasks, models = assets.task_rows(study.tasks), assets.model_rows(study.models)
        if study.corpora:
            tasks = [*tasks, *assets.corpus_rows(study.corpora)]
        ended = _ended_ids(study_folder, retry_failed)
        trials = [point.trial for point in points if point.trial.id not in ended]
        assets.check(trials)
        checkpointing = CheckpointConfig(
            60 * checkpoint_minutes, None if checkpoints is None else Path(checkpoints)
        )
        ray_executor: RayExecutor | None = None
        if on == "this":
            resources = choose_resources(devices, workers, max_stack)
            resources = fit_memory(resources, trials, handlers, assets, study_folder.logs, workers is None)
        elif trials:
            ray = exit_stack.enter_context(ray_session(address))
            checkpointing = _checkpoints_on_ray(checkpointing, is_single_machine(ray), study_folder, on_event)
            config = WorkerConfig(handlers, "", 1, None, checkpointing.folder, checkpointing.seconds)
            ray_executor = RayExecutor(
                ray, device, workers, max_stack, trials, assets, config, study_folder.path, on_event
            )
            exit_stack.callback(ray_executor.close)
            resources = ray_executor.resources()
        else:
            resources = choose_resources(["cpu"], workers, max_stack)
        if resources.workers:
            assets.release()
        # only after all checks: a folder with results.db always has the study.toml that belongs to it
        db = exit_stack.enter_context(ResultsDB.open(study_folder.database, study.name))
        if db.old_copy is not None:
            on_event(
                Note(
                    f"{db.path.name} was migrated to this version; the old file is kept as {db.old_copy.name}"
                )
            )
        for note in _notes_on_dropped_trials(db, points, study_folder):
            on_event(Note(note))
        study_folder.write_study(study.to_toml())
        db.set_points(points, tasks, models)
        db.set_notes(notes)
        if retry_failed:
            db.retry_failed()
        ran = _train(
            db, study_folder, resources, handlers, assets, on_event, checkpointing, retries, ray_executor
        )
        counts = db.counts()
    return RunSummary(
        study_folder.path, counts.total, counts.done, counts.failed, ran, time.monotonic() - began
    )


def _ended_ids(study_folder: StudyFolder, retry_failed: bool) -> set[str]:
    """Ids of the trials that earlier runs finished and that do not run again."""
    if not study_folder.has_results:
        return set()
    with ResultsDB.open_readonly(study_folder.database) as db:
        return db.trial_ids("done") if retry_failed else db.trial_ids("done", "failed")


def _notes_on_dropped_trials(
    db: ResultsDB, points: Sequence[Point], study_folder: StudyFolder
) -> Iterator[str]:
    """Notes on finished trials that are no longer part of the study, and on output files that are out of date."""
    dropped = db.trial_ids("done", in_study=True) - {point.trial.id for point in points}
    if not dropped:
        return
    is_are, stays = ("is", "stays") if len(dropped) == 1 else ("are", "stay")
    yield (
        f"{counted(len(dropped), 'finished trial')} {is_are} no longer part of the study (the study, its data or its"
        f" model changed) and {stays} unused in {study_folder.database.name}"
    )
    for command, names in OUTPUT_FILES.items():
        if outdated := [name for name in names if (study_folder.path / name).exists()]:
            yield f"out of date: {', '.join(outdated)}; update with: whichlayers {command} {study_folder.path}"


@dataclass(frozen=True)
class CheckpointConfig:
    """How often running stacks are saved, and where."""

    seconds: float  # 0: never
    folder: Path | None = None  # None: in the study folder; on Ray, on the local disk of each machine


def _checkpoints_on_ray(
    checkpointing: CheckpointConfig, single_machine: bool, study_folder: StudyFolder, on_event: OnEvent
) -> CheckpointConfig:
    """Set the folder for checkpoints on Ray: in the study folder on one machine, else on local disks, with a note."""
    if not checkpointing.seconds or checkpointing.folder is not None:
        return checkpointing
    if single_machine:
        return dataclasses.replace(checkpointing, folder=study_folder.checkpoints)
    on_event(
        Note(
            "checkpoints are written to the local disk of each machine: an interrupted stack is resumed if it runs on"
            " the same machine again, and restarts from the beginning on another. Use --checkpoints FOLDER to write"
            " them to a folder that all machines can read"
        )
    )
    return checkpointing


def _train(
    db: ResultsDB,
    study_folder: StudyFolder,
    resources: Resources,
    handlers: Handlers,
    assets: Any,
    on_event: OnEvent,
    checkpointing: CheckpointConfig,
    retries: int,
    ray_executor: RayExecutor | None,
) -> int:
    """Run all unfinished trials and return how many finished or failed."""
    key, workers = stack_key_fn(handlers, assets), max(1, resources.workers)
    stacks = make_stacks_to_resume(
        db.unfinished_trials(),
        db.interrupted_stacks(),
        key,
        resources.stack_size,
        workers,
        fill=resources.on_cuda,
    )
    resources = resources.for_stacks(len(stacks)) if ray_executor is None else resources
    workers = min(resources.workers, len(stacks))
    counts = db.counts()
    devices = tuple(ray_executor.device_names()) if ray_executor is not None else resources.devices
    steps = sum(stack.steps for stack in stacks)
    on_event(RunStarted(study_folder.path, counts.total, counts.done, steps, len(stacks), workers, devices))
    if not stacks:
        return 0
    run_id = db.begin_run(
        machine.describe_run(list(devices), resources.threads, named=ray_executor is not None)
    )
    outcome = "stopped by an error"
    executor: Executor | None = None
    ran = 0
    try:
        checkpoints, finetuned_models = checkpointing.folder, None
        if checkpointing.seconds and ray_executor is None:
            size = checkpoint_bytes(assets.weights_bytes, max_finetuned_models(stacks), workers)
            checkpoints = _checkpoint_folder(checkpointing.folder or study_folder.checkpoints, size, on_event)
        for kind in {stack.trials[0].kind for stack in stacks}:
            handlers[kind].restore(db, assets.index and assets.index.cache)
        if ray_executor is None and any(stack.handler.needs_model_folder for stack in stacks):
            finetuned_models = _finetuned_models_folder(study_folder, stacks, assets.weights_bytes, on_event)
        scheduler = Scheduler(db, run_id, stacks, on_event, checkpoints, finetuned_models, retries)
        configs = resources.worker_configs(
            handlers, assets.index, checkpoints, checkpointing.seconds, finetuned_models
        )
        configs = configs[: max(1, workers)]
        if ray_executor is not None:
            ray_executor.emit = scheduler.handle
            executor = ray_executor
        elif resources.workers == 0:
            executor = InProcessExecutor(configs[0], scheduler.handle, assets)
        else:
            executor = ProcessExecutor(
                configs, scheduler.handle, study_folder.logs, resources.worker_stack_sizes()
            )
        scheduler.run(executor)
        ran = scheduler.ran
        outcome = "complete"
        for unneeded in (study_folder.checkpoints, study_folder.finetuned_models):
            shutil.rmtree(unneeded, ignore_errors=True)
        if ray_executor is not None:
            ray_executor.clean_up()
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    finally:
        with _signals_blocked():
            if executor is not None:
                executor.close()
            with contextlib.suppress(WhichlayersError):  # disk full: the next run corrects the trials' status
                db.end_run(run_id, outcome)
    return ran


def _checkpoint_folder(folder: Path, size: int, on_event: OnEvent) -> Path | None:
    """The folder for checkpoints; None (with a note) if they could fill more than half of the free disk space.

    Old and new checkpoints of `size` bytes exist at the same time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free > 4 * size:
        return folder
    on_event(
        Note(
            f"no checkpoints are written: they could take {2 * size / 1e9:.0f} GB, too much for this disk; an"
            " interrupted stack will restart from the beginning"
        )
    )
    return None


def _finetuned_models_folder(
    study_folder: StudyFolder, stacks: list[Stack], weights_bytes: int, on_event: OnEvent
) -> Path | None:
    """The folder for finetuned models that word probes need; None (with a note) if they could fill the disk."""
    delete_unused(study_folder.finetuned_models, models_to_keep(stacks))
    size = weights_bytes * max_finetuned_models(stacks) * 2
    if shutil.disk_usage(study_folder.path).free > 2 * size:
        return study_folder.finetuned_models
    on_event(
        Note(
            f"finetuned models are not saved: they could take {size / 1e9:.0f} GB, too much for this disk; a resumed"
            " run will finetune them again"
        )
    )
    return None


def _check_numbers(
    workers: int | None, max_stack: int | None, checkpoint_minutes: float, retries: int
) -> None:
    check_counts(workers, max_stack)
    if not checkpoint_minutes >= 0:
        raise WhichlayersError(
            f"checkpoint_minutes = {checkpoint_minutes}: must be 0 (no checkpoints) or more"
        )
    if retries < 0:
        raise WhichlayersError(f"retries = {retries}: must be 0 or more")


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, which batch systems send before they kill a process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM, so that a second Ctrl-C does not interrupt the clean-up."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
