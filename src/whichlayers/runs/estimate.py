"""What running a study would take, before anything runs: its stacks, its time here and on other GPUs, its disk."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.results.db import Store
from whichlayers.results.folder import DATABASE
from whichlayers.runs.assets import CorpusFacts, TaskFacts, cache_folder
from whichlayers.runs.cost_model import Disk, Paces, Span, at_speed, disk_of, time_of, told_apart
from whichlayers.runs.executors.worker import DEFAULT_ENGINE
from whichlayers.runs.plan import Stack, make_stacks, time_key
from whichlayers.runs.profiling import Timed, feature_bytes, fit_memory, time_stacks, vector_bytes
from whichlayers.runs.resources import Means
from whichlayers.runs.status import disk_use
from whichlayers.text import counted
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.study.file import Study

Doing = Callable[[str], AbstractContextManager[None]]  # shows what is being done


@dataclass(frozen=True)
class Foreseen:
    trials: list[Trial]  # of the study
    done: int  # of them, by earlier runs
    stacks: list[Stack]  # of all of them
    means: Means  # with sizes that fit into memory, if that was measured
    here: Span | None  # of what is left; None: nothing is left, or nobody knows
    on_gpus: Span | None  # on those that were asked for
    untimed: int  # trials of kinds that could not be timed, and are in no span
    disk: Disk
    tasks: list[TaskFacts]
    corpora: list[CorpusFacts]
    notes: list[str]  # about the data


def foresee(
    study: Study,
    folder: Path,
    means: Means,
    speeds: Sequence[float],
    measure: bool,
    fewer_workers: bool,
    doing: Doing,
    subjects_at: Callable[[Path], Any],
) -> Foreseen:
    """`speeds`: of GPUs to forecast for, where the one here has 1. Writes nothing but into a cache that exists."""
    from whichlayers.study.expand import expand

    with tempfile.TemporaryDirectory(prefix="whichlayers-plan-") as scratch:
        cache, logs = cache_folder(folder), Path(scratch) / "logs"
        if not cache.is_dir():
            cache = Path(scratch) / "cache"
        subjects = subjects_at(cache)
        points = expand(study, subjects)
        trials = list({point.trial.id: point.trial for point in points}.values())
        done = _done(folder, trials)
        left = [trial for trial in trials if trial.id not in done]
        tasks = [subjects.task_facts(task) for task in study.tasks]
        corpora = [subjects.corpus_facts(corpus) for corpus in study.corpora]
        if not measure:
            with doing("reading models and data"):
                subjects.check_models(left)
        measure = measure and bool(left)
        before = 0.0
        if measure:
            began = time.monotonic()
            with doing("reading models and data"):
                subjects.check(left)
            with doing("trying how many trials fit into memory"):
                means = fit_memory(means, left, DEFAULT_ENGINE, subjects, logs, fewer_workers)
            before = time.monotonic() - began
        workers = len(speeds) or max(1, means.workers)

        def stacked(some: list[Trial], workers: int) -> list[Stack]:
            return make_stacks(some, subjects.stack_key, means.size_for, workers, means.on_cuda)

        stacks = stacked(left, workers)
        means = means.for_stacks(len(stacks))
        timed = Timed((), 0.0)
        if measure:
            kinds = len({time_key(stack.trials[0]) for stack in stacks})
            with doing(f"timing a few steps of {counted(kinds, 'kind')} of stack"):
                timed = time_stacks(stacks, means, DEFAULT_ENGINE, subjects, logs)
        here = on_gpus = None
        unknown: list[Stack] = []
        if timed.known:
            ours = stacked(left, max(1, means.workers)) if speeds else stacks
            here, unknown = _span(ours, timed.paces, timed.start, before)
            if speeds:
                paces = [at_speed(timed.paces[0], speed) for speed in speeds]
                on_gpus, _ = _span(stacks, paces, timed.start, before)
        models = {facts.fingerprint: facts for facts in map(subjects.model_facts, study.models)}
        depths = {fingerprint: facts.depth for fingerprint, facts in models.items()}
        cached = sum(disk_use(cache).values()) if cache.is_dir() else 0
        cached += feature_bytes(left, subjects) if measure else 0
        on_disk = not means.on_cuda  # a GPU holds the vectors of words itself
        vectors = vector_bytes(left, subjects.corpora(), models) if on_disk else 0
        disk = disk_of(stacks, len(points), workers, subjects.weights_bytes, cached, depths, vectors)
        every = stacks if len(left) == len(trials) else stacked(trials, workers)
    untimed = sum(len(stack.trials) for stack in unknown)
    return Foreseen(
        trials, len(done), every, means, here, on_gpus, untimed, disk, tasks, corpora, subjects.notes()
    )


def _done(folder: Path, trials: Sequence[Trial]) -> set[str]:
    if not (database := folder / DATABASE).is_file():
        return set()
    with Store.read(database) as store:
        return store.ids("done") & {trial.id for trial in trials}


def _span(
    stacks: Sequence[Stack], workers: Sequence[Paces], start: float, before: float
) -> tuple[Span, list[Stack]]:
    known, unknown = told_apart(stacks, workers)
    return time_of(known, workers, start, before), unknown
