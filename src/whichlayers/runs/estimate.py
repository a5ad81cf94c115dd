"""Estimates of the time and disk space of a study before it runs.

A few steps of one stack of each kind are timed on every worker (`time_stacks.py`); the time of the study follows from a
simulation of the queue (`makespan`). The time left of a running study is estimated in `time_left.py`.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.files import scratch_folder
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.asset_index import CorpusInfo, TaskInfo
from whichlayers.runs.assets import cache_folder
from whichlayers.runs.disk import DiskUsage, disk_use, estimate_disk
from whichlayers.runs.handlers import HANDLERS, Handlers
from whichlayers.runs.plan import Stack, make_stacks, stack_key_fn, unique_trials
from whichlayers.runs.resources import Resources, fit_memory
from whichlayers.runs.scheduler import StackQueue
from whichlayers.runs.time_stacks import StudyTiming, Timings, time_stacks
from whichlayers.text import counted
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.study.study_file import Study

ShowActivity = Callable[[str], AbstractContextManager[None]]  # displays a text while the context is active

# bounds for what a measurement of a minute does not cover: other programs, cold caches, checkpoints
LOW_FACTOR, HIGH_FACTOR = 0.8, 1.3


@dataclass(frozen=True)
class TimeRange:
    """Estimated seconds with a lower and an upper bound."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True)
class StudyTimes:
    """Estimated times of the remaining trials of a study; None where nothing is left, or nothing was measured."""

    here: TimeRange | None = None  # on this machine
    alone: float | None = None  # seconds on this machine if no other programs were running
    on_gpus: TimeRange | None = None  # on the given GPUs
    untimed: int = 0  # number of trials that could not be timed and are not included in the times


@dataclass(frozen=True)
class Estimate:
    """The result of `estimate_study`."""

    trials: list[Trial]  # of the study
    done: int  # number of trials that earlier runs finished
    failed: int  # number of trials that failed in earlier runs; they run again only with --retry-failed
    stacks: list[Stack]  # of all trials
    resources: Resources  # with stack sizes that fit into memory, if memory was measured
    here: TimeRange | None  # for the remaining trials on this machine; None: nothing left, or not measured
    on_gpus: TimeRange | None  # for the remaining trials on the given GPUs
    untimed: int  # number of trials that could not be timed and are not included in the times
    disk: DiskUsage
    tasks: list[TaskInfo]
    corpora: list[CorpusInfo]
    notes: list[str]  # about the data
    # number of finished trials in the folder that this study, with its settings, does not have
    other_done: int = 0
    alone: float | None = None  # seconds on this machine if no other programs were running


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
        handlers: Run the trials of each kind; for tests.
    """
    with scratch_folder("whichlayers-plan-") as scratch:
        cache, logs = cache_folder(folder), scratch / "logs"
        if not cache.is_dir():
            cache = scratch / "cache"
        assets = make_assets(cache)
        state = _read_study(study, assets, StudyFolder(folder))
        trials, left = state.trials, state.left
        if not measure:
            with show_activity("reading models and data"):
                assets.check_models(left)
        measure = measure and bool(left)
        preparation = 0.0  # seconds
        if measure:
            began = time.monotonic()
            with show_activity("reading models and data"):
                assets.check(left)
            with show_activity("measuring how many trials fit into memory"):
                resources = fit_memory(resources, left, handlers, assets, logs, fewer_workers)
            preparation = time.monotonic() - began
        workers = len(speeds) or max(1, resources.workers)

        def to_stacks(some: list[Trial], workers: int) -> list[Stack]:
            key = stack_key_fn(handlers, assets)
            return make_stacks(some, key, resources.stack_size, workers, resources.on_cuda)

        stacks = to_stacks(left, workers)
        resources = resources.for_stacks(len(stacks))
        timing = StudyTiming((), 0.0)
        if measure:
            kinds = len({stack.time_key for stack in stacks})
            with show_activity(f"timing a few steps of {counted(kinds, 'kind')} of stack"):
                timing = time_stacks(stacks, resources, handlers, assets, logs)
        times = StudyTimes()
        if timing.known:
            own_stacks = to_stacks(left, max(1, resources.workers)) if speeds else stacks
            times = estimate_times(own_stacks, stacks, timing, speeds, preparation)
        cached = sum(disk_use(cache).values()) if cache.is_dir() else 0
        if measure:
            for kind, handler in handlers.items():
                cached += handler.cache_bytes([trial for trial in left if trial.kind == kind], assets)
        disk = estimate_disk(stacks, state.points, workers, assets, cached, resources.on_cuda)
        all_stacks = stacks if len(left) == len(trials) else to_stacks(trials, workers)
    texts = assets.prompts(trials) | assets.truncated(trials)
    return Estimate(
        trials=trials,
        done=state.done,
        failed=state.failed,
        stacks=all_stacks,
        resources=resources,
        here=times.here,
        on_gpus=times.on_gpus,
        untimed=times.untimed,
        disk=disk,
        tasks=state.tasks,
        corpora=state.corpora,
        notes=[*state.notes, *assets.notes(), *texts.values()],
        other_done=state.other_done,
        alone=times.alone,
    )


@dataclass(frozen=True)
class _StudyState:
    """The trials of a study, and what earlier runs have done."""

    points: int
    trials: list[Trial]
    left: list[Trial]  # those that are neither done nor failed
    done: int
    failed: int
    other_done: int  # finished trials in the folder that are not in the study
    tasks: list[TaskInfo]
    corpora: list[CorpusInfo]
    notes: list[str]  # on models


def _read_study(study: Study, assets: Any, folder: StudyFolder) -> _StudyState:
    """Expand a study into trials, and look up which of them are in the results of its folder."""
    from whichlayers.study.checks import notes_on_models
    from whichlayers.study.expand import expand

    points = expand(study, assets)
    trials, ended = unique_trials(points), folder.ended_trials()
    statuses = Counter(ended[trial.id] for trial in trials if trial.id in ended)
    return _StudyState(
        points=len(points),
        trials=trials,
        left=[trial for trial in trials if trial.id not in ended],
        done=statuses["done"],
        failed=statuses["failed"],
        other_done=sum(status == "done" for status in ended.values()) - statuses["done"],
        tasks=[assets.task_info(task) for task in study.tasks],
        corpora=[assets.corpus_info(corpus) for corpus in study.corpora],
        notes=notes_on_models(study, [assets.model_info(model) for model in study.models]),
    )


# --- the time of stacks whose kinds were timed ---


def estimate_times(
    own_stacks: Sequence[Stack],
    gpu_stacks: Sequence[Stack],
    timing: StudyTiming,
    speeds: Sequence[float],
    preparation: float,
) -> StudyTimes:
    """Estimated times of stacks on this machine, and on other GPUs.

    Args:
        own_stacks: The stacks on this machine.
        gpu_stacks: The same trials in stacks for the GPUs.
        timing: Of stacks on this machine.
        speeds: Speeds of the GPUs, relative to the one of this machine; empty: none.
        preparation: Seconds of the main process before the workers start.
    """
    timed, untimed = split_by_timed(own_stacks, timing.timings)
    here = estimate_time(timed, timing.timings, timing.start, preparation)
    alone = preparation + makespan(timed, without_slowdown(timing.timings), timing.start)
    on_gpus = None
    if speeds:
        gpu_timings = [scale_speed(timing.timings[0], speed) for speed in speeds]
        timed, _ = split_by_timed(gpu_stacks, gpu_timings)
        on_gpus = estimate_time(timed, gpu_timings, timing.start, preparation)
    return StudyTimes(here, alone, on_gpus, sum(len(stack.trials) for stack in untimed))


def split_by_timed(stacks: Iterable[Stack], workers: Sequence[Timings]) -> tuple[list[Stack], list[Stack]]:
    """The stacks of kinds that all workers timed, and the other stacks."""
    timed: list[Stack] = []
    untimed: list[Stack] = []
    for stack in stacks:
        key = stack.time_key
        (timed if all(key in timings for timings in workers) else untimed).append(stack)
    return timed, untimed


def estimate_time(
    stacks: Sequence[Stack], workers: Sequence[Timings], start: float, before: float = 0.0
) -> TimeRange:
    """Estimated time until the last stack is finished.

    Args:
        stacks: Stacks whose kinds were timed.
        workers: The timings on each worker.
        start: Seconds until a worker has loaded its model and data.
        before: Seconds of the main process before the workers start.
    """
    alone = without_slowdown(workers)  # other programs may end
    low = before + makespan(stacks, alone, start, -1)
    expected, high = (before + makespan(stacks, workers, start, bound) for bound in (0, 1))
    return TimeRange(low * LOW_FACTOR, expected, high * HIGH_FACTOR)


def without_slowdown(workers: Sequence[Timings]) -> list[Timings]:
    """The timings on the same machine without other programs."""
    return [{key: replace(timing, slowdown=1.0) for key, timing in timings.items()} for timings in workers]


def makespan(stacks: Sequence[Stack], workers: Sequence[Timings], start: float, bound: int = 0) -> float:
    """Seconds until the last worker is done if stacks run in the order of `StackQueue`.

    The code of a worker's next stack is compiled while the present one trains: only the rest of it counts.

    Args:
        stacks, workers, start: As in `estimate_time`.
        bound: -1 for the lower bound, 0 for the expected time, 1 for the upper bound.
    """
    free = [(start, worker) for worker in range(len(workers))]  # heap of (time at which it is free, worker)
    seen: list[set[Hashable]] = [set() for _ in workers]
    trained = [0.0] * len(workers)  # seconds that the present stack of each worker trains
    end, queue = 0.0, StackQueue(stacks, len(workers))
    while (stack := queue.pop()) is not None:
        now, worker = heapq.heappop(free)
        shape = (stack.time_key, stack.size)
        first = shape not in seen[worker]
        done = now + stack_seconds(stack, workers[worker], first, bound)
        if first and stack.handler.compiles_ahead(stack.trials[0]):
            done -= workers[worker][stack.time_key].hidden_compilation(trained[worker])
        trained[worker] = stack_seconds(stack, workers[worker], first=False, bound=bound)
        seen[worker].add(shape)
        heapq.heappush(free, (done, worker))
        end = max(end, done)
    return end


def stack_seconds(stack: Stack, timings: Timings, first: bool, bound: int = 0) -> float:
    """Seconds of one stack.

    Args:
        stack: The stack.
        timings: The timings on its worker.
        first: Whether it is the first stack of its shape in its worker.
        bound: As in `makespan`.
    """
    trial = stack.trials[0]
    return stack.handler.seconds(trial, stack.size, timings[stack.time_key], first, bound)


def scale_speed(timings: Timings, speed: float) -> Timings:
    """The timings on a device that is `speed` times as fast."""
    fields = ("setup", "compile", "capture", "step", "fixed_step", "evaluation", "finish")
    return {
        key: replace(timing, **{name: getattr(timing, name) / speed for name in fields})
        for key, timing in timings.items()
    }
