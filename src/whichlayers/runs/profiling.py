"""What a study takes on this machine, found by trying: memory decides how large stacks are, then a few steps
of such stacks tell how long they take."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.engine.cost import Pace
from whichlayers.runs.executors.local import asked_elsewhere, measured_elsewhere
from whichlayers.runs.executors.worker import Measure, Times, TimeStacks, Workplace
from whichlayers.runs.plan import Stack, steps_of, time_key
from whichlayers.runs.resources import Means, fitted, fitted_to_each, kinds_of
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.data.corpora import Corpus

SECONDS_TO_TIME = 30.0
STARTING = 6.0  # seconds at most that a process takes to import torch and transformers
UNSEEN_ERROR = 0.25  # of a kind that was not timed itself


@dataclass(frozen=True)
class Timed:
    """How long stacks take in each worker, and what comes before the first one."""

    paces: tuple[dict[Hashable, Pace], ...]  # by worker, then by time_key
    start: float  # seconds until a worker has its model and data

    @property
    def known(self) -> bool:
        return any(self.paces)


def fit_memory(
    means: Means, wanted: list[Trial], engine: str, subjects: Any, logs: Path, fewer_workers: bool
) -> Means:
    """Stacks as large as memory allows, found by trying. On a GPU that takes a process of its own, unless all
    is done in this one; elsewhere this process has model and data at hand already."""
    if not wanted:
        return means
    kinds, setups = kinds_of(wanted), means.setups(engine, subjects.catalogue)
    if means.on_cuda and means.workers:
        order = Measure(kinds, (), means.max_stack)
        rooms = measured_elsewhere(setups[: len(means.devices)], order, logs)
        if len(rooms) > 1:
            return fitted_to_each(means, kinds, rooms)
        (room,) = rooms
    else:
        room = Workplace(setups[0], subjects).measure(Measure(kinds, means.devices, means.max_stack))
    return fitted(means, kinds, room, subjects.weights_bytes, fewer_workers)


def time_stacks(
    stacks: Sequence[Stack],
    means: Means,
    engine: str,
    subjects: Any,
    logs: Path,
    seconds: float = SECONDS_TO_TIME,
) -> Timed:
    """Every worker times one stack of each kind, all at once, as they will train: on a CPU they slow each
    other down. A kind for which there was no time is judged by another of its model."""
    chosen = _one_of_each_kind(stacks)
    order = TimeStacks(chosen, seconds)
    setups = means.setups(engine, subjects.catalogue)
    began = time.monotonic()
    if means.workers:
        answers = asked_elsewhere(setups, order, logs, "timed a few steps")
        told = [answer for answer in answers if isinstance(answer, Times)]
    else:
        told = [Workplace(setups[0], subjects).time(order)]
    spent = time.monotonic() - began
    by_device: dict[str, list[Times]] = {}
    for times in told:
        by_device.setdefault(times.device, []).append(times)
    known = {
        device: _filled_in(chosen, [_mean(column) for column in zip(*_paces(of_it), strict=True)], subjects)
        for device, of_it in by_device.items()
    }
    loading = max((times.loading for times in told), default=0.0)
    start = loading + (min(spent, STARTING) if means.workers else 0.0)
    return Timed(tuple(known[times.device] for times in told), start)


def _paces(told: Sequence[Times]) -> list[list[Pace | None]]:
    return [times.paces for times in told]


def _one_of_each_kind(stacks: Sequence[Stack]) -> list[Stack]:
    """The longest of each kind; each model's longest first, so that every model is timed."""
    longest: dict[Hashable, Stack] = {}
    for stack in stacks:
        kind = time_key(stack.trials[0])
        if kind not in longest or _work(stack) > _work(longest[kind]):
            longest[kind] = stack
    by_work = sorted(longest.values(), key=_work, reverse=True)
    seen: set[Hashable] = set()
    first: list[Stack] = []
    for stack in by_work:
        sort = (
            stack.trials[0].model_fingerprint,
            stack.trials[0].probe is None,
            stack.trials[0].word_probe is None,
        )
        if sort not in seen:
            seen.add(sort)
            first.append(stack)
    return [*first, *(stack for stack in by_work if stack not in first)]


def _work(stack: Stack) -> int:
    return stack.size * steps_of(stack.trials[0])


def _mean(paces: Sequence[Pace | None]) -> Pace | None:
    """Of workers on devices of one kind; their differences count as error."""
    found = [pace for pace in paces if pace is not None]
    if not found:
        return None
    n = len(found)
    mean = {name: sum(getattr(pace, name) for pace in found) / n for name in vars(found[0])}
    apart = max(abs(pace.step - mean["step"]) for pace in found) / mean["step"] if mean["step"] else 0.0
    return Pace(**{**mean, "trials": found[0].trials, "error": max(mean["error"], apart)})


def _filled_in(stacks: Sequence[Stack], paces: Sequence[Pace | None], subjects: Any) -> dict[Hashable, Pace]:
    """By kind. One that was not timed gets the pace of one of its model, in proportion to its tokens."""
    known = {
        time_key(stack.trials[0]): pace for stack, pace in zip(stacks, paces, strict=True) if pace is not None
    }
    for stack, pace in zip(stacks, paces, strict=True):
        trial = stack.trials[0]
        like = next(
            (
                (other, found)
                for other, found in zip(stacks, paces, strict=True)
                if found is not None
                and trial.word_probe is None
                and other.trials[0].model_fingerprint == trial.model_fingerprint
                and (other.trials[0].probe is None) == (trial.probe is None)
            ),
            None,
        )
        if pace is None and like is not None:
            known[time_key(trial)] = _scaled(like[1], like[0], stack, subjects)
    return known


def _scaled(pace: Pace, timed: Stack, other: Stack, subjects: Any) -> Pace:
    known, wanted = (subjects.data(stack.trials[0]) for stack in (timed, other))

    def tokens(split: Any) -> float:
        return float(split.offsets[-1]) / max(1, len(split))

    batches = other.trials[0].training.batch_size / timed.trials[0].training.batch_size
    step = tokens(wanted.train) / tokens(known.train) * batches
    dev = sum(float(s.offsets[-1]) for s in wanted.evals.values())
    dev /= max(1.0, sum(float(s.offsets[-1]) for s in known.evals.values()))
    return replace(
        pace, step=pace.step * step, evaluation=pace.evaluation * dev, error=max(pace.error, UNSEEN_ERROR)
    )


def vector_bytes(trials: Sequence[Trial], corpora: Mapping[str, Corpus], models: Mapping[str, Any]) -> int:
    """What the vectors of the words of the largest corpus take; twice that where a search for L1 and L2 asks the
    pretrained model beside the finetuned one. Corpora and facts of models by fingerprint."""
    most = 0
    for trial in trials:
        if (words := trial.word_probe) is None:
            continue
        corpus, model = corpora[words.fingerprint], models[trial.model_fingerprint]
        size = corpus.n_words * (model.depth + 1) * model.hidden * 2  # float16
        most = max(most, size * (2 if words.lambdas is None and trial.train_size else 1))
    return most


def feature_bytes(trials: Sequence[Trial], subjects: Any) -> int:
    """What the states of frozen models take, which probes read from the cache."""
    probed: dict[Hashable, list[Trial]] = {}
    for trial in trials:
        if trial.probe is not None:
            key = (trial.model_fingerprint, trial.task_fingerprint, trial.train_size, trial.probe.pooling)
            probed.setdefault(key, []).append(trial)
    total = 0
    for mine in probed.values():
        data, config = subjects.data(mine[0]), subjects.encoder(mine[0]).config
        rows = min(len(data.train), mine[0].train_size * len({trial.seed for trial in mine}))
        rows += sum(len(split) for split in data.evals.values())
        total += rows * (config.num_hidden_layers + 1) * config.hidden_size * 4  # float32
    return total
