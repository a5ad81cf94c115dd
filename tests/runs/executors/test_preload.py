"""Preparing the next stack in the background: which stack, what is loaded, and that no result changes."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import drive_preload
import fakes
import numpy as np
import pytest
import torch
from fakes import make_points
from running import run_fake_study
from small_study import small_study, write_model

import whichlayers
from whichlayers.data.load_task import load_task
from whichlayers.engine import compile_ahead, free_memory
from whichlayers.errors import WhichlayersError
from whichlayers.models import load
from whichlayers.results.db import ResultsDB
from whichlayers.results.records import Counts
from whichlayers.runs import machine
from whichlayers.runs.assets import Assets
from whichlayers.runs.events import StackDone, TrialsDone
from whichlayers.runs.executors.local import FreeWorker
from whichlayers.runs.executors.worker import TrialRunner, WorkerConfig
from whichlayers.runs.handlers import HANDLERS
from whichlayers.runs.plan import Stack, make_stacks
from whichlayers.runs.scheduler import Scheduler, StackQueue
from whichlayers.study.expand import expand

SMALL = {"train_sizes": [40], "trials": 1, "training": {"epochs": 1, "max_length": 32, "lr": 1e-3}}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """With several threads, such a small model would take minutes on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_cores", lambda: 1)
        yield


@pytest.fixture
def preloads(monkeypatch):
    """Prepare the next stack on a CPU as well."""
    monkeypatch.setattr(WorkerConfig, "preloads", True)


# --- which stack is announced ---


class Recorder:
    """An executor with some workers that records its calls; stacks end in the order in which they were started."""

    def __init__(self, workers: int, device: str = "cuda") -> None:
        self.workers, self.config = workers, WorkerConfig(fakes.HANDLERS, device, 1)
        self.running: dict[int, Stack] = {}
        self.calls: list[tuple[str, int, int]] = []  # method, worker, stack

    def free_workers(self):
        return [FreeWorker(n) for n in range(self.workers) if n not in self.running]

    def announce(self, stack, worker):
        self.calls.append(("announce", worker.number, stack.number))

    def start(self, stack, worker):
        self.calls.append(("start", worker.number, stack.number))
        self.running[worker.number] = stack

    def poll(self):
        stack = self.running.pop(next(iter(self.running)))
        self.scheduler.handle(TrialsDone(stack.number, [fakes.fake_result(t) for t in stack.trials]))
        self.scheduler.handle(StackDone(stack.number))


def record(tmp_path, executor: Recorder) -> list[tuple[str, int, int]]:
    points = make_points(seeds=range(6))
    with ResultsDB.create(tmp_path / "results.db", "s") as db:
        db.set_points(points, fakes.TASKS, [])
        run_id = db.begin_run(fakes.RUN)
        stacks = make_stacks([p.trial for p in points], fakes.stack_key, 3)
        executor.scheduler = scheduler = Scheduler(db, run_id, stacks, lambda event: None)
        scheduler.run(executor)
        assert db.counts() == Counts(done=len(points))
    return executor.calls


def test_the_announced_stack_is_the_next_one(tmp_path):
    calls = record(tmp_path, Recorder(workers=1))
    starts = [number for method, _, number in calls if method == "start"]
    announced = [number for method, _, number in calls if method == "announce"]
    assert announced == starts[1:], "all but the first, each before the stack that precedes it starts"
    assert [method for method, *_ in calls] == ["announce", "start"] * (len(starts) - 1) + ["start"]


def test_two_workers_prepare_different_stacks_and_each_runs_its_own(tmp_path):
    calls, waiting = record(tmp_path, Recorder(workers=2)), dict[int, int]()
    own = 0
    for method, worker, stack in calls:
        if method == "announce":
            assert stack not in waiting.values()
            waiting[worker] = stack
        else:
            own += waiting.get(worker) == stack or stack not in waiting.values()
            waiting = {w: s for w, s in waiting.items() if s != stack and w != worker}
    assert own >= len([c for c in calls if c[0] == "start"]) - 2, "but for long stacks at the end"


def test_nothing_is_announced_on_a_cpu(tmp_path):
    assert {method for method, *_ in record(tmp_path, Recorder(workers=1, device="cpu"))} == {"start"}


def test_a_preferred_stack_comes_after_retries_and_urgent_ones():
    trials = [point.trial for point in make_points(seeds=range(4))]
    queue = StackQueue([Stack(n, (trial,)) for n, trial in enumerate(trials[:5])], workers=1)
    assert queue.peek(preferred=3).number == 3
    assert queue.peek(lambda stack: stack.number != 3, preferred=3).number == 0
    assert queue.peek(preferred=77).number == 0, "it has started elsewhere"
    queue.push_front(Stack(9, (trials[9],)))
    assert queue.pop(preferred=3).number == 9
    assert queue.pop(preferred=3).number == 3
    assert [stack.number for stack in queue] == [0, 1, 2, 4]
    long = dataclasses.replace(trials[5], training=dataclasses.replace(trials[5].training, epochs=90))
    urgent = StackQueue([Stack(0, (trials[0],)), Stack(1, (trials[1],)), Stack(2, (long,))], workers=2)
    assert urgent.pop(preferred=1).number == 2


# --- with the real engine ---


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> whichlayers.Study:
    """Two models with 3 and 2 layers: a stack of 4 and one of 3 trials."""
    first = small_study(tmp_path_factory.mktemp("first"), experiments=["incremental"], trials=1)
    words = sorted({w for text in load_task("builtin:sentiment").train.texts for w in text.lower().split()})
    second = write_model(tmp_path_factory.mktemp("second"), words, layers=2)
    models = [first.models[0].name, str(second)]
    return whichlayers.Study(
        name="two", models=models, tasks=["builtin:sentiment"], experiments=["incremental"], **SMALL
    )


def values(folder) -> dict[tuple, float]:
    with ResultsDB.open_readonly(folder / "results.db") as db:
        rows = db.connection.execute(
            "SELECT trial_id, epoch, metric, value FROM epochs WHERE metric != 'seconds'"
        )
        return {tuple(row[:3]): row[3] for row in rows}


def watch_loading(monkeypatch) -> list[str]:
    """The names of the threads that load models from now on."""
    threads, load_encoder = list[str](), load.load_encoder

    def watched(files):
        threads.append(threading.current_thread().name)
        return load_encoder(files)

    monkeypatch.setattr(load, "load_encoder", watched)
    return threads


@pytest.fixture(scope="module")
def expected(study, tmp_path_factory) -> dict[tuple, float]:
    folder = tmp_path_factory.mktemp("expected") / "study"
    whichlayers.run(study, folder, device="cpu", workers=0)
    return values(folder)


def test_results_are_the_same_bits(study, expected, tmp_path, monkeypatch, preloads):
    monkeypatch.setattr("whichlayers.runs.assets.MAX_KEPT_BYTES", 0)  # keep one model at a time
    threads = watch_loading(monkeypatch)
    whichlayers.run(study, tmp_path / "study", device="cpu", workers=0, max_stack=4)
    assert "preload" in threads
    assert values(tmp_path / "study") == expected


def make_runner(study, cache) -> tuple[TrialRunner, list[Stack]]:
    assets = Assets(cache)
    trials = [point.trial for point in expand(study, assets)]
    stacks = make_stacks(trials, lambda trial: trial.model_fingerprint, 4)
    return TrialRunner(WorkerConfig(HANDLERS, "cpu", 1), assets), stacks


def test_a_stack_is_loaded_into_host_memory_without_global_random_numbers(study, tmp_path):
    runner, stacks = make_runner(study, tmp_path)
    assets, trial = runner.context.assets, stacks[1].trials[0]
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    assert assets.bytes_to_load(trial) > 0
    runner.preloader.start(stacks[1])
    runner.preloader.wait()
    assert assets.bytes_to_load(trial) == 0
    assert len(assets.tokenized_tasks()) == 1
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


def test_a_stack_is_not_loaded_where_memory_is_short(study, tmp_path, monkeypatch):
    runner, stacks = make_runner(study, tmp_path)
    trial = stacks[1].trials[0]
    needed = runner.context.assets.bytes_to_load(trial)
    monkeypatch.setattr(free_memory, "free_memory", lambda device: 4 * needed - 1)
    runner.preloader.start(stacks[1])
    runner.preloader.wait()
    assert runner.context.assets.bytes_to_load(trial) == needed


def test_an_error_is_reported_for_the_stack_that_causes_it(study, expected, tmp_path, monkeypatch, preloads):
    monkeypatch.setattr("whichlayers.runs.assets.MAX_KEPT_BYTES", 0)
    load_encoder, broken, threads = load.load_encoder, set[str](), list[str]()

    def load_or_fail(files):
        threads.append(threading.current_thread().name)
        if threads[-1] == "preload":
            broken.add(files.fingerprint)
        if files.fingerprint in broken:
            raise WhichlayersError("the disk is gone")
        return load_encoder(files)

    monkeypatch.setattr(load, "load_encoder", load_or_fail)
    results = whichlayers.run(study, tmp_path / "study", device="cpu", workers=0, max_stack=4)
    assert threads.count("preload") == 1
    assert (results.last_run.done, results.last_run.failed) in {(4, 3), (3, 4)}
    with ResultsDB.open_readonly(tmp_path / "study" / "results.db") as db:
        assert {failure.error for failure in db.failures()} == {"the disk is gone"}
    found = values(tmp_path / "study")
    assert found == {key: expected[key] for key in found}


class Compiling(fakes.FakeHandler):
    """A stack that takes 3 GB of device memory to compile."""

    def preload(self, trials, worker):
        pass

    def plan_compile_job(self, trials, worker, settings):
        return SimpleNamespace(device_bytes=3e9, trials=trials, settings=settings)


@pytest.mark.parametrize(("free", "compiles"), [(10.1e9, True), (9.9e9, False), (None, False)])
def test_code_is_compiled_ahead_where_the_device_has_memory_to_spare(monkeypatch, free, compiles):
    jobs, killed = [], threading.Event()

    class Process:
        def __init__(self, job):
            jobs.append(job)

        def wait(self, timeout):
            return -9 if killed.wait(20) else 0

        def kill(self):
            killed.set()

    monkeypatch.setattr(compile_ahead, "CompileProcess", Process)
    monkeypatch.setattr(free_memory, "free_memory", lambda device: free if device == "cuda" else 1e12)
    monkeypatch.setattr(fakes.FakeAssets, "bytes_to_load", lambda self, trial: 0, raising=False)
    config = WorkerConfig(fakes.handlers_of(Compiling()), "cuda", 1)
    runner = TrialRunner(config, fakes.FakeAssets())
    trials = tuple(point.trial for point in make_points())
    runner.preloader.start(Stack(0, trials, slots=20, similar_stacks=3))
    while compiles and runner.preloader.process is None:
        time.sleep(0.01)
    runner.preloader.close()
    assert [(job.trials, job.settings.slots, job.settings.similar_stacks) for job in jobs] == (
        [(trials, 20, 3)] if compiles else []
    )
    assert killed.is_set() == compiles


class SlowLoading(fakes.FakeHandler):
    """Loading the next stack lasts until the test allows it to end."""

    may_end = threading.Event()
    begun = threading.Event()

    def preload(self, trials, worker):
        self.begun.set()
        self.may_end.wait(20)

    def run(self, trials, worker, settings, report):
        super().run(trials, worker, settings, report)
        if self.begun.wait(20):
            self.may_end.set()
            raise KeyboardInterrupt


def test_a_run_that_is_interrupted_while_it_prepares_a_stack_can_be_resumed(folder, monkeypatch, preloads):
    monkeypatch.setattr(fakes.FakeAssets, "bytes_to_load", lambda self, trial: 0, raising=False)
    with pytest.raises(KeyboardInterrupt):
        run_fake_study(folder, max_stack=3, workers=0, handlers=fakes.handlers_of(SlowLoading()))
    assert not [t for t in threading.enumerate() if t.name == "preload"]
    assert run_fake_study(folder, max_stack=3, workers=0).done == 15


def test_a_worker_process_prepares_the_announced_stack(study, expected, tmp_path, preloads):
    whichlayers.run(study, tmp_path / "study", device="cpu", workers=1, max_stack=4)
    assert values(tmp_path / "study") == expected


# --- kill -9 while the next stack is loaded ---


def start_run(study, folder, workers, endless) -> subprocess.Popen[str]:
    """A run in a process of its own, whose stack number `endless` is never completely loaded in the background."""
    logs = {name: str(folder.parent / name) for name in ("PRELOAD_LOG", "TRIALS_LOG")}
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PRELOAD_FOREVER": str(endless), **logs}
    study_file = folder.parent / "two.toml"
    study_file.write_text(study.to_toml())
    return subprocess.Popen(
        [sys.executable, drive_preload.__file__, str(study_file), str(folder), str(workers)],
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def lines_of(path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def wait_for_loading(process, log) -> int:
    """The id of the process that is loading a stack in the background."""
    deadline = time.monotonic() + 120
    while not lines_of(log):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "nothing is loaded in the background"
        time.sleep(0.02)
    return int(lines_of(log)[0])


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "victim"), [(0, "main"), (1, "main"), (1, "worker")])
def test_kill_9_while_a_stack_is_loaded_loses_no_trial_and_doubles_none(
    study, expected, tmp_path, workers, victim
):
    """Stacks of two, two, two and one trial: killed while the third is loaded, after the first is done."""
    folder, log = tmp_path / "study", tmp_path / "TRIALS_LOG"
    process = start_run(study, folder, workers, endless=1)
    loading = wait_for_loading(process, tmp_path / "PRELOAD_LOG")
    assert (loading == process.pid) == (workers == 0)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        done = db.trial_ids("done")
    assert done == set(lines_of(log)[:2])
    if victim == "worker":
        os.kill(loading, signal.SIGKILL)  # the main process starts another one
    else:
        process.kill()
        process.communicate(timeout=60)
        while is_running(loading):  # workers end with the main process
            time.sleep(0.02)
        process = start_run(study, folder, workers, endless=99)
    output, _ = process.communicate(timeout=180)
    assert output.splitlines()[-1] == "7 0", output
    assert values(folder) == pytest.approx(expected, abs=1e-5)  # rounding depends on the size of stacks
    trained = lines_of(log)
    assert not set(trained[2:]) & done
    assert len(trained) <= 7 + 2  # at most the stack that was running is trained twice
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert db.counts() == Counts(done=7)
        outcomes = [row[0] for row in db.connection.execute("SELECT outcome FROM runs ORDER BY run_id")]
    assert outcomes == (["complete"] if victim == "worker" else ["killed", "complete"])
    assert not list(folder.rglob("*.partial"))
