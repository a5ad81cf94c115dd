"""Run a study: check everything, plan, train. A run can be stopped at any time and resumed later.

    run(study, Path("my-study"))            # start, or resume where an earlier run stopped

Errors in the study, its data and its models are found before training starts.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.engine.cost import TrialWork
from whichlayers.engine.settings import CHECKPOINT_MINUTES
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import study_lock
from whichlayers.results.records import DataStatistics, ModelRow, TaskRow
from whichlayers.runs import machine
from whichlayers.runs.assets import Assets, cache_folder, prompt_key, tokens_key
from whichlayers.runs.disk import finetuned_models_folder
from whichlayers.runs.events import Loading, Note, OnEvent, RunStarted, RunSummary
from whichlayers.runs.executors.local import Executor, InProcessExecutor, ProcessExecutor
from whichlayers.runs.executors.ray import RayExecutor, is_single_machine, parse_ray_address, ray_session
from whichlayers.runs.executors.worker import WorkerConfig
from whichlayers.runs.handlers import HANDLERS, Handlers
from whichlayers.runs.handlers.finetuned_models import delete_unused
from whichlayers.runs.plan import (
    Stack,
    make_stacks_to_resume,
    models_to_keep,
    stack_key_fn,
    unique_trials,
)
from whichlayers.runs.resources import Resources, check_counts, choose_resources, fit_memory
from whichlayers.runs.scheduler import RETRIES, Scheduler
from whichlayers.runs.time_left import TimeLeft
from whichlayers.text import counted
from whichlayers.trial import Point, Trial

if TYPE_CHECKING:
    from whichlayers.study.study_file import Study

OUTPUT_FILES = {  # by the command that writes them
    "report": (
        "report.html",
        "summary.csv",
        "claims.csv",
        "variance_components.csv",
        "neuron_overlap.csv",
        "figures",
    ),
    "export": ("results.csv",),
    "export --format parquet": ("results.parquet",),
    "export --epochs": ("epochs.csv",),
    "export --epochs --format parquet": ("epochs.parquet",),
    "export --neurons": ("neurons.csv",),
    "export --neurons --format parquet": ("neurons.parquet",),
}


@dataclass(frozen=True)
class RunSettings:
    """The options of `run`."""

    folder: StudyFolder
    assets: Any
    handlers: Handlers
    on_event: OnEvent
    device: str | None
    workers: int | None
    max_stack: int | None
    checkpoint_seconds: float  # 0: no checkpoints
    # None: no checkpoints, or in the study folder; on a cluster, on the local disk of each machine
    checkpoints: Path | None
    retries: int


@dataclass(frozen=True)
class CheckedStudy:
    """A study whose models and data have been read and checked."""

    points: list[Point]
    trials: list[Trial]  # those that this run has to do
    tasks: list[TaskRow]  # with the corpora
    models: list[ModelRow]
    statistics: dict[str, DataStatistics]  # sizes of tasks and corpora, by fingerprint
    notes: list[str]  # on models and data
    texts: dict[str, str]  # notes on prompts and truncated texts, by `prompt_key` or `tokens_key`


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
        max_stack: Maximum number of models that train together; None: a default for the device.
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
    devices = machine.choose_devices(device) if on == "this" else ["cpu"]
    assets = assets or Assets(cache_folder(study_folder.path))
    settings = RunSettings(
        folder=study_folder,
        assets=assets,
        handlers=handlers,
        on_event=on_event,
        device=device,
        workers=workers,
        max_stack=max_stack,
        checkpoint_seconds=60 * checkpoint_minutes,
        checkpoints=Path(checkpoints) if checkpoints is not None and checkpoint_minutes else None,
        retries=retries,
    )
    on_event(Loading("reading models and data"))
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
        checked = _check_study(study, points, settings, retry_failed)
        trials = checked.trials
        resources, ray_executor = choose_resources(devices, workers, max_stack), None
        if on == "this":
            if trials:
                on_event(Loading("measuring how many trials fit into memory"))
            logs, fewer_workers = study_folder.logs, workers is None
            resources = fit_memory(resources, trials, handlers, assets, logs, fewer_workers)
        elif trials:
            ray_executor = exit_stack.enter_context(_ray_executor(settings, address, trials))
            resources = ray_executor.resources()
        if resources.workers:
            assets.release()
        db = exit_stack.enter_context(_open_results(settings, study, checked, retry_failed))
        ran = _train(settings, resources, ray_executor, db)
        counts = db.counts()
    return RunSummary(
        study_folder.path, counts.total, counts.done, counts.failed, ran, time.monotonic() - began
    )


def _check_study(
    study: Study, points: list[Point], settings: RunSettings, retry_failed: bool
) -> CheckedStudy:
    """Read models and data for all unfinished trials, and report notes on them.

    Raises:
        WhichlayersError: Something is wrong with the data or the models.
    """
    from whichlayers.study.checks import notes_on_models

    assets = settings.assets
    on_models = notes_on_models(study, [assets.model_info(model) for model in study.models])
    for note in (notes := [*on_models, *assets.notes()]):
        settings.on_event(Note(note))
    tasks, models = assets.task_rows(study.tasks), assets.model_rows(study.models)
    if study.corpora:
        tasks = [*tasks, *assets.corpus_rows(study.corpora)]
    statistics = assets.data_statistics(study.tasks, study.corpora)
    ended = settings.folder.ended_trials(retry_failed)
    trials = [trial for trial in unique_trials(points) if trial.id not in ended]
    assets.check(trials)
    texts = assets.prompts(trials) | assets.truncated(trials)
    for note in texts.values():
        settings.on_event(Note(note))
    return CheckedStudy(points, trials, tasks, models, statistics, notes, texts)


@contextlib.contextmanager
def _open_results(
    settings: RunSettings, study: Study, checked: CheckedStudy, retry_failed: bool
) -> Iterator[ResultsDB]:
    """results.db, open for writing, with the points of a study and what is known of its models and data.

    Called after all checks: a folder with results.db always has the study.toml that belongs to it.
    """
    folder = settings.folder
    with ResultsDB.open(folder.database, study.name) as db:
        if db.old_copy is not None:
            settings.on_event(
                Note(
                    f"{db.path.name} was migrated to this version; the old file is kept as {db.old_copy.name}"
                )
            )
        for note in _notes_on_dropped_trials(db, checked.points, folder):
            settings.on_event(Note(note))
        folder.write_study(study.to_toml(folder.path))
        db.set_folder(folder.path)
        _store_study(db, checked)
        if retry_failed:
            db.retry_failed()
        yield db


def _store_study(db: ResultsDB, checked: CheckedStudy) -> None:
    """Write the points of a study, and what is known of its models and data, into results.db."""
    db.set_points(checked.points, checked.tasks, checked.models)
    db.set_notes(checked.notes)
    db.set_data_statistics(checked.statistics)
    keys = {key(point.trial) for point in checked.points for key in (tokens_key, prompt_key)}
    db.set_truncated(checked.texts, keys)


def _train(
    settings: RunSettings, resources: Resources, ray_executor: RayExecutor | None, db: ResultsDB
) -> int:
    """Run all unfinished trials and return how many finished or failed."""
    stacks = make_stacks_to_resume(
        db.unfinished_trials(),
        db.interrupted_stacks(),
        stack_key_fn(settings.handlers, settings.assets),
        resources.stack_size,
        max(1, resources.workers),
        fill=resources.on_cuda,
    )
    if ray_executor is None:
        resources = resources.for_stacks(len(stacks))
    devices = resources.devices if ray_executor is None else tuple(ray_executor.device_names())
    workers = min(resources.workers, len(stacks))
    counts, steps = db.counts(), sum(stack.steps for stack in stacks)
    settings.on_event(
        RunStarted(settings.folder.path, counts.total, counts.done, steps, len(stacks), workers, devices)
    )
    if not stacks:
        return 0
    run_id = db.begin_run(
        machine.describe_run(list(devices), resources.threads, named=ray_executor is not None)
    )
    return _run_stacks(settings, resources, ray_executor, db, run_id, stacks, workers)


def _run_stacks(
    settings: RunSettings,
    resources: Resources,
    ray_executor: RayExecutor | None,
    db: ResultsDB,
    run_id: int,
    stacks: Sequence[Stack],
    workers: int,
) -> int:
    """Run these stacks on a Ray cluster or on `workers` processes here; returns how many trials finished or failed.

    However it ends, workers are stopped and the outcome of the run is stored.
    """
    folder, assets = settings.folder, settings.assets

    def work_of(stack: Stack) -> TrialWork:
        return settings.handlers[stack.trials[0].kind].work(stack.trials, assets)

    def compiles_ahead(stack: Stack) -> bool:
        return resources.on_cuda and stack.handler.compiles_ahead(stack.trials[0])

    outcome = "stopped by an error"
    executor: Executor | None = None
    try:
        for kind in {stack.trials[0].kind for stack in stacks}:
            settings.handlers[kind].restore(db, assets.index and assets.index.cache)
        executor = ray_executor or _local_executor(settings, resources, workers, stacks)
        scheduler = Scheduler(
            db,
            run_id,
            stacks,
            settings.on_event,
            executor.config.checkpoints,
            executor.config.finetuned_models,
            settings.retries,
            TimeLeft(workers, work_of, compiles_ahead),
        )
        scheduler.run(executor)
        outcome = "complete"
        for unneeded in (folder.checkpoints, folder.finetuned_models):
            shutil.rmtree(unneeded, ignore_errors=True)
        executor.clean_up()
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    finally:
        with _signals_blocked():
            if executor is not None:
                executor.close()
            with contextlib.suppress(WhichlayersError):  # disk full: the next run corrects the trials' status
                db.end_run(run_id, outcome)
    return scheduler.ran


def _local_executor(
    settings: RunSettings, resources: Resources, workers: int, stacks: Sequence[Stack]
) -> Executor:
    """The executor on this machine, with `workers` worker processes; 0: in the main process."""
    folder, assets = settings.folder, settings.assets
    finetuned_models = None
    checkpoints = (settings.checkpoints or folder.checkpoints) if settings.checkpoint_seconds else None
    if any(stack.handler.needs_model_folder for stack in stacks):
        delete_unused(folder.finetuned_models, models_to_keep(stacks))
        finetuned_models = finetuned_models_folder(
            folder.finetuned_models, stacks, assets.weights_bytes, settings.on_event
        )
    configs = resources.worker_configs(
        settings.handlers, assets.index, checkpoints, settings.checkpoint_seconds, finetuned_models
    )
    if workers:
        return ProcessExecutor(configs[:workers], folder.logs, resources.worker_stack_sizes())
    return InProcessExecutor(configs[0], assets)


@contextlib.contextmanager
def _ray_executor(settings: RunSettings, address: str | None, trials: list[Trial]) -> Iterator[RayExecutor]:
    """An executor on a Ray cluster, for these trials."""
    with ray_session(address) as ray:
        checkpoints = settings.checkpoints
        if settings.checkpoint_seconds and checkpoints is None and is_single_machine(ray):
            checkpoints = settings.folder.checkpoints
        elif settings.checkpoint_seconds and checkpoints is None:
            settings.on_event(
                Note(
                    "checkpoints are written to the local disk of each machine: an interrupted stack is resumed if it"
                    " runs on the same machine again, and restarts from the beginning on another. Use --checkpoints"
                    " FOLDER to write them to a folder that all machines can read"
                )
            )
        executor = RayExecutor(
            ray,
            settings.device,
            settings.workers,
            settings.max_stack,
            trials,
            settings.assets,
            WorkerConfig(settings.handlers, "", 1, None, checkpoints, settings.checkpoint_seconds),
            settings.folder.path,
            settings.on_event,
        )
        try:
            yield executor
        finally:
            executor.close()


def _notes_on_dropped_trials(
    db: ResultsDB, points: Sequence[Point], study_folder: StudyFolder
) -> Iterator[str]:
    """Notes on finished trials that are no longer part of the study, and on output files that are out of date."""
    kept = {point.trial.id for point in points}
    dropped, unused = (db.trial_ids("done", in_study=current) - kept for current in (True, False))
    if not dropped:
        return
    is_are = "is" if len(dropped) == 1 else "are"
    in_total = f", {len(unused):,} in total" if len(unused) > len(dropped) else ""
    yield (
        f"{counted(len(dropped), 'finished trial')} {is_are} no longer part of the study (the study, its data or its"
        f" model changed){in_total}: results leave them out. {study_folder.study_file} now has the settings of this"
        " run; a run with the earlier settings includes them again"
    )
    for command, names in OUTPUT_FILES.items():
        if outdated := [name for name in names if (study_folder.path / name).exists()]:
            yield f"out of date: {', '.join(outdated)}; update with: whichlayers {command} {study_folder.path}"


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
