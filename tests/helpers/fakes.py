"""Fakes of models, data and trial handlers: a study that runs in milliseconds, without torch.

Environment variables, which worker processes inherit, control the fake handler:
FAKE_LOG        a file to which the id of every computed trial is appended
FAKE_SECONDS    duration of one epoch of a stack
FAKE_FAIL_SEED  seed of the trials that raise an exception
FAKE_KILL_SEED  seed of the trials that kill their process
FAKE_KILL_LOG   a file to which a line is appended for every killed process
FAKE_KILL_ONCE  if set, only one process is killed
FAKE_MAX_STACK  maximum number of trials in a stack; larger stacks run out of memory
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from whichlayers.engine.cost import MemoryCost, TrialWork
from whichlayers.results.records import DataStatistics, ModelRow, RunRow, TaskRow
from whichlayers.runs.handlers import Handlers, TrialHandler
from whichlayers.runs.handlers.finetune import FinetuneHandler
from whichlayers.runs.plan import trial_steps
from whichlayers.study.study_file import Study
from whichlayers.trial import Point, Surgery, Training, Trial, TrialKind

DEPTH = 4

# rows of results.db for the model and the task of `make_trial`, and for a run
MODELS = [ModelRow("model of fake-org/fake", "fake-org/fake", None, "bert", DEPTH)]
TASKS = [
    TaskRow(
        "data of builtin:sentiment", "builtin:sentiment", "classification", "accuracy", ("accuracy",), 100
    )
]
RUN = RunRow("host", 1, "cpu", 2, {"torch": "2"}, None, "whichlayers run")


@dataclass(frozen=True)
class FakeEpoch:
    epoch: int
    train_loss: float
    dev_loss: float
    metrics: dict[str, float]
    seconds: float = 0.01


@dataclass(frozen=True)
class FakeTrialResult:
    trial_id: str
    epochs: list[FakeEpoch]
    error: str | None = None
    seconds: float = 0.02


def accuracy(trial: Trial, epoch: int) -> float:
    """A fake accuracy that depends on the trial and the epoch only, like a real one."""
    return (int(trial.id, 16) % 1000 + epoch) / 2000


def fake_result(trial: Trial, error: str | None = None) -> FakeTrialResult:
    epochs = [
        FakeEpoch(e, 1 / e, 2 / e, {"accuracy": accuracy(trial, e)})
        for e in range(1, 1 + trial.training.epochs)
    ]
    return FakeTrialResult(trial.id, epochs, error)


class FakeHandler(FinetuneHandler):
    """In place of the handlers of all kinds; `cost` is the memory of a trial."""

    def __init__(self, cost: MemoryCost | None = None) -> None:
        self.cost = cost

    def stack_key(self, trial, assets):
        return stack_key(trial)

    def prepare(self, worker):
        pass

    def measure_memory(self, trial, worker, max_stack):
        return self.cost

    def work(self, trials, assets):
        return TrialWork()

    def cache_bytes(self, trials, assets):
        return 0

    def run(self, trials, worker, settings, report):
        if max(len(trials), settings.slots or 0) > int(os.environ.get("FAKE_MAX_STACK", "1000")):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        seeds = {str(trial.seed) for trial in trials}
        results = [fake_result(trial) for trial in trials]
        for epoch in range(trials[0].training.epochs):
            time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
            report.steps(sum(map(trial_steps, trials)) // trials[0].training.epochs)
            for result in results:
                report.epoch(result.trial_id, result.epochs[epoch])
            if os.environ.get("FAKE_FAIL_SEED") in seeds:
                raise ValueError("this seed is bad")
            if os.environ.get("FAKE_KILL_SEED") in seeds:
                kill_this_process()
        with open(os.environ.get("FAKE_LOG", os.devnull), "a") as log:
            log.write("".join(f"{trial.id}\n" for trial in trials))
        report.results(results)


def handlers_of(handler: TrialHandler) -> Handlers:
    """The same handler for all kinds of trials."""
    return dict.fromkeys(get_args(TrialKind), handler)


HANDLERS = handlers_of(FakeHandler())


def kill_this_process() -> None:
    deaths = Path(os.environ["FAKE_KILL_LOG"])
    before = len(deaths.read_text().split()) if deaths.exists() else 0
    if os.environ.get("FAKE_KILL_ONCE") and before:
        return
    with open(deaths, "a") as log:
        log.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)


class NoResults(FakeHandler):
    def run(self, trials, worker, settings, report):
        pass


class Diverging(FakeHandler):
    def run(self, trials, worker, settings, report):
        error = "loss is not a number"
        report.results([fake_result(trial, error if trial.seed == 1 else None) for trial in trials])


def stack_key(trial: Trial):
    return trial.model, trial.task, trial.train_size, trial.training.epochs


@dataclass(frozen=True)
class FakeInfo:
    """Properties of a model or a task."""

    name: str
    fingerprint: str
    depth: int = DEPTH
    has_pooler: bool = True
    has_biases: bool = True
    family: str = "bert"
    causal: bool = False
    layers_differ: bool = False
    has_pairs: bool = False
    train_rows: int = 100
    dev_rows: int = 40
    kind: str = "classification"
    classes: int = 2
    metric: str = "accuracy"
    class_counts: dict[str, int] = field(default_factory=lambda: {"a": 60, "b": 40})
    guess_scores: dict[str, float] = field(default_factory=lambda: {"accuracy": 0.6})


@dataclass
class FakeAssets:
    """In place of `Assets`; `check` raises `error` if it is set."""

    index: None = None
    weights_bytes: int = 0
    checked: list[str] = field(default_factory=list)
    error: Exception | None = None

    def model_info(self, spec):
        return FakeInfo(spec.name, f"model of {spec.name}")

    def task_info(self, spec):
        return FakeInfo(spec.name, f"data of {spec.name}")

    def model_of(self, trial):
        return FakeInfo(trial.model, trial.model_fingerprint)

    def model_rows(self, specs):
        return [ModelRow(f"model of {s.name}", s.name, s.revision, "bert", DEPTH) for s in specs]

    def task_rows(self, specs):
        return [
            TaskRow(f"data of {s.name}", s.name, "classification", "accuracy", ("accuracy",), 100)
            for s in specs
        ]

    def data_statistics(self, tasks, corpora):
        return {f"data of {spec.name}": DataStatistics(2, 100, 20) for spec in tasks}

    def check(self, trials):
        self.checked = [trial.id for trial in trials]
        if self.error:
            raise self.error

    def check_models(self, trials):
        self.check(trials)

    def release(self):
        pass

    def loaded_corpora(self):
        return {}

    def notes(self):
        return ["builtin:sentiment: nothing left out"]

    def prompts(self, trials):
        return {}

    def truncated(self, trials):
        return {}


def make_study(trials: int = 3, sizes=(16,), name: str = "fake study") -> Study:
    """A study of one curve with 5 points at each size: `5 * trials * len(sizes)` trials."""
    return Study(
        name=name,
        models=["fake-org/fake"],
        tasks=["builtin:sentiment"],
        experiments=["incremental"],
        train_sizes=list(sizes),
        trials=trials,
        training={"epochs": 2},
    )


def make_trial(seed: int = 0, reinit=(), size: int = 16, epochs: int = 2, **other) -> Trial:
    return Trial(
        model="fake-org/fake",
        model_fingerprint="model of fake-org/fake",
        task="builtin:sentiment",
        task_fingerprint="data of builtin:sentiment",
        train_size=size,
        seed=seed,
        surgery=Surgery(reinit=tuple(reinit)),
        training=Training(epochs=epochs),
        **other,
    )


def make_points(seeds=(0, 1, 2), kept=range(DEPTH + 1), size: int = 16) -> list[Point]:
    return [
        Point("incremental", "", float(k), make_trial(seed, range(k + 1, DEPTH + 1), size))
        for k in kept
        for seed in seeds
    ]
