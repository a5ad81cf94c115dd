"""Estimate of a study before it runs: its stacks, its time on this machine and on other GPUs, its disk space."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.results.connection import DATABASE
from whichlayers.results.db import ResultsDB
from whichlayers.runs.assets import CorpusInfo, TaskInfo, cache_folder
from whichlayers.runs.cost_model import (
    DiskUsage,
    TimeRange,
    Timings,
    estimate_disk,
    estimate_time,
    scale_speed,
    split_by_timed,
)
from whichlayers.runs.handlers import HANDLERS, Handlers
from whichlayers.runs.plan import Stack, make_stacks, stack_key_fn, time_key
from whichlayers.runs.profiling import StudyTiming, fit_memory, time_stacks
from whichlayers.runs.resources import Resources
from whichlayers.runs.status import disk_use
from whichlayers.text import counted
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.study.study_file import Study

ShowActivity = Callable[[str], AbstractContextManager[None]]  # displays a text while the context is active


@dataclass(frozen=True)
class Estimate:
    """The result of `estimate_study`."""

    trials: list[Trial]  # of the study
    done: int  # number of trials that earlier runs finished
    stacks: list[Stack]  # of all trials
    resources: Resources  # with stack sizes that fit into memory, if memory was measured
    here: TimeRange | None  # for the remaining trials on this machine; None: nothing left, or not measured
    on_gpus: TimeRange | None  # for the remaining trials on the given GPUs
    untimed: int  # number of trials that could not be timed and are not included in the times
    disk: DiskUsage
    tasks: list[TaskInfo]
    corpora: list[CorpusInfo]
    notes: list[str]  # about the data


def estimate_study(
    study: Study,
    folder: Path,
    resources: Resources,
    speeds: Sequence[float],
    measure: bool,
    fewer_workers: bool,
    show_activity: ShowActivity,
    make_assets: Callable[[Path], Any],
    handlers: Handlers = HANDLERS,
) -> Estimate:
    """Check a study and estimate its time and disk space. Writes nothing but to an existing cache folder.

    Args:
        study: The study.
        folder: Its folder, which may not exist yet.
        resources: With the wanted number of workers and maximum stack size.
        speeds: Speeds of GPUs to estimate the time on, relative to the one of this machine.
        measure: Whether to measure memory and time.
        fewer_workers: Whether the number of workers may be reduced to fit into memory.
        show_activity: Displays what is being done.
        make_assets: Creates `Assets` with a cache folder.
        handlers: For tests.
    """
    from whichlayers.study.expand import expand

    with tempfile.TemporaryDirectory(prefix="whichlayers-plan-") as scratch:
        cache, logs = cache_folder(folder), Path(scratch) / "logs"
        if not cache.is_dir():
            cache = Path(scratch) / "cache"
        assets = make_assets(cache)
        points = expand(study, assets)
        trials = list({point.trial.id: point.trial for point in points}.values())
        done = _done_ids(folder, trials)
        left = [trial for trial in trials if trial.id not in done]
        tasks = [assets.task_info(task) for task in study.tasks]
        corpora = [assets.corpus_info(corpus) for corpus in study.corpora]
        if not measure:
            with show_activity("reading models and data"):
                assets.check_models(left)
        measure = measure and bool(left)
        before = 0.0
        if measure:
            began = time.monotonic()
            with show_activity("reading models and data"):
                assets.check(left)
            with show_activity("measuring how many trials fit into memory"):
                resources = fit_memory(resources, left, handlers, assets, logs, fewer_workers)
            before = time.monotonic() - began
        workers = len(speeds) or max(1, resources.workers)

        def to_stacks(some: list[Trial], workers: int) -> list[Stack]:
            key = stack_key_fn(handlers, assets)
            return make_stacks(some, key, resources.stack_size, workers, resources.on_cuda)

        stacks = to_stacks(left, workers)
        resources = resources.for_stacks(len(stacks))
        timing = StudyTiming((), 0.0)
        if measure:
            kinds = len({time_key(stack.trials[0]) for stack in stacks})
            with show_activity(f"timing a few steps of {counted(kinds, 'kind')} of stack"):
                timing = time_stacks(stacks, resources, handlers, assets, logs)
        here = on_gpus = None
        untimed: list[Stack] = []
        if timing.known:
            own_stacks = to_stacks(left, max(1, resources.workers)) if speeds else stacks
            here, untimed = _estimate_timed(own_stacks, timing.timings, timing.start, before)
            if speeds:
                gpu_timings = [scale_speed(timing.timings[0], speed) for speed in speeds]
                on_gpus, _ = _estimate_timed(stacks, gpu_timings, timing.start, before)
        models = {model.fingerprint: model for model in map(assets.model_info, study.models)}
        depths = {fingerprint: model.depth for fingerprint, model in models.items()}
        cached = sum(disk_use(cache).values()) if cache.is_dir() else 0
        if measure:
            for kind, handler in handlers.items():
                cached += handler.cache_bytes([trial for trial in left if trial.kind == kind], assets)
        activations = [
            max(stack.handler.activation_bytes(t, assets, models[t.model_fingerprint]) for t in stack.trials)
            for stack in stacks
            if not resources.on_cuda  # with a GPU, hidden states stay in its memory
        ]
        disk = estimate_disk(stacks, len(points), workers, assets.weights_bytes, cached, depths, activations)
        all_stacks = stacks if len(left) == len(trials) else to_stacks(trials, workers)
    return Estimate(
        trials,
        len(done),
        all_stacks,
        resources,
        here,
        on_gpus,
        sum(len(stack.trials) for stack in untimed),
        disk,
        tasks,
        corpora,
        assets.notes(),
    )


def _done_ids(folder: Path, trials: Sequence[Trial]) -> set[str]:
    """Ids of the trials that are done in this folder."""
    if not (database := folder / DATABASE).is_file():
        return set()
    with ResultsDB.open_readonly(database) as db:
        return db.trial_ids("done") & {trial.id for trial in trials}


def _estimate_timed(
    stacks: Sequence[Stack], workers: Sequence[Timings], start: float, before: float
) -> tuple[TimeRange, list[Stack]]:
    """The time of the stacks whose kinds were timed, and the other stacks."""
    timed, untimed = split_by_timed(stacks, workers)
    return estimate_time(timed, workers, start, before), untimed
