"""Stack sizes from measured memory, and what happens when memory runs out nevertheless."""

from __future__ import annotations

import importlib

import fakes
import pytest
from fakes import FakeAssets, make_study, make_trial, stack_key
from running import assert_complete, computed_trials, run_fake_study

from whichlayers.engine import free_memory
from whichlayers.engine.cost import MemoryCost
from whichlayers.engine.out_of_memory import is_out_of_memory
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import ResultsDB
from whichlayers.results.records import Counts
from whichlayers.runs import resources as resources_module
from whichlayers.runs.events import Note, StackDone, StackFailed, TrialsDone
from whichlayers.runs.executors.local import FreeWorker, run_in_subprocesses
from whichlayers.runs.executors.worker import MeasureMemory, MemoryReport, WorkerConfig
from whichlayers.runs.plan import Stack, make_stacks, memory_key, representative_trials
from whichlayers.runs.resources import PROCESS_BYTES, choose_resources, fit_stack_sizes
from whichlayers.runs.scheduler import Scheduler

GB = 10**9


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    monkeypatch.setattr(resources_module.machine, "usable_cores", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_few_stacks_share_all_cores():
    many = choose_resources(["cpu"], None, None)
    assert (many.workers, many.threads) == (16, 1)
    found = [many.for_stacks(n) for n in (1, 3, 16, 99)]
    assert [(resources.workers, resources.threads) for resources in found] == [
        (1, 16),
        (3, 5),
        (16, 1),
        (16, 1),
    ]
    here = choose_resources(["cpu"], 0, None)
    assert here.for_stacks(5) == here
    assert many.for_stacks(0) == many


@pytest.mark.parametrize(
    ("limit", "alone", "of_five"), [("1", 1, 1), ("2", 2, 2), ("8,2", 8, 3), ("0", 16, 3), ("all", 16, 3)]
)
def test_omp_num_threads_limits_the_threads(monkeypatch, limit, alone, of_five):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert choose_resources(["cpu"], 0, None).threads == alone
    assert choose_resources(["cpu"], 5, None).threads == of_five


def test_the_default_is_one_worker_per_core_or_gpu():
    assert choose_resources(["cpu"], None, None).workers == 16
    few = choose_resources(["cpu"], 5, 2)
    assert (few.workers, few.threads, few.max_stack) == (5, 3, 2)
    assert choose_resources(["cpu"], 0, None).threads == 16
    gpu = choose_resources(["cuda:0", "cuda:1"], None, None)
    assert (gpu.workers, gpu.max_stack) == (2, 64)
    assert gpu.for_stacks(1) == gpu
    assert [s.device for s in gpu.worker_configs(fakes.HANDLERS, None)] == ["cuda:0", "cuda:1"]


def test_how_many_trials_fit():
    cost = MemoryCost(first_trial=3 * GB, extra_trial=1 * GB)
    assert cost.total(4) == 6 * GB
    assert cost.max_trials(10 * GB, limit=64) == 7  # a tenth stays free
    assert cost.max_trials(10 * GB, limit=5) == 5
    assert cost.max_trials(3.4 * GB, limit=5) == 1
    assert cost.max_trials(3.3 * GB, limit=5) == 0


def test_stack_sizes_on_a_gpu_depend_on_the_kind_of_trial():
    small, large = make_trial(size=16), make_trial(size=16, epochs=3, head="pooler")
    other = fakes.Trial(**(vars(small) | {"task_fingerprint": "long texts"}))
    trials = representative_trials([small, large, make_trial(size=50), other])
    assert [trial.train_size for trial in trials] == [50, 16]  # one per task, the largest
    report = MemoryReport([MemoryCost(2 * GB, GB), MemoryCost(20 * GB, 8 * GB)], 100 * GB)
    resources = fit_stack_sizes(
        choose_resources(["cuda"], None, None), trials, [report], 0, fewer_workers=True
    )
    assert (resources.workers, resources.stack_size(small), resources.stack_size(other)) == (1, 64, 9)
    two = fit_stack_sizes(choose_resources(["cuda"], 2, None), trials, [report], 0, fewer_workers=False)
    assert (two.workers, two.stack_size(small), two.stack_size(other)) == (2, 44, 4)


def test_gpus_with_different_memory_have_different_stack_sizes():
    small, large = make_trial(), fakes.Trial(**(vars(make_trial()) | {"task_fingerprint": "long texts"}))
    resources = choose_resources(["cuda:0", "cuda:1"], None, None)
    costs = [MemoryCost(2 * GB, GB), MemoryCost(20 * GB, 8 * GB)]
    one, two = MemoryReport(costs, 100 * GB), MemoryReport(costs, 10 * GB)
    mixed = fit_stack_sizes(resources, [small, large], [one, two], 0, fewer_workers=True)
    assert (mixed.stack_size(small), mixed.stack_size(large)) == (64, 9)
    first, second = mixed.worker_stack_sizes()
    assert (first(small), first(large), second(small), second(large)) == (64, 9, 8, 0)
    first, second = fit_stack_sizes(
        resources, [small, large], [one, one], 0, fewer_workers=True
    ).worker_stack_sizes()
    assert first == second
    with pytest.raises(WhichlayersError, match=r"one trial needs 20.0 GB, and 9.0 GB may be used on cuda:0"):
        fit_stack_sizes(resources, [small, large], [two, two], 0, fewer_workers=True)


def test_on_cpu_the_number_of_workers_is_limited_by_memory():
    trials = [make_trial()]
    report = MemoryReport([MemoryCost(2 * GB, GB)], 20 * GB)
    resources = fit_stack_sizes(
        choose_resources(["cpu"], None, None), trials, [report], int(0.4 * GB), fewer_workers=True
    )
    assert PROCESS_BYTES == 0.6 * GB
    assert (resources.workers, resources.threads, resources.stack_size(trials[0])) == (6, 2, 1)
    with pytest.raises(WhichlayersError, match=r"one trial needs 2.0 GB, and 225.0 MB may be used on cpu"):
        fit_stack_sizes(
            choose_resources(["cpu"], 16, None), trials, [report], int(0.4 * GB), fewer_workers=False
        )
    here = fit_stack_sizes(
        choose_resources(["cpu"], 0, None), trials, [report], int(0.4 * GB), fewer_workers=False
    )
    assert (here.workers, here.stack_size(trials[0])) == (0, 4)
    with pytest.raises(WhichlayersError, match=r"batch_size \(now 8\) or training.max_length \(now 128\)"):
        fit_stack_sizes(
            choose_resources(["cpu"], None, None),
            trials,
            [MemoryReport([MemoryCost(2 * GB, GB)], GB)],
            0,
            fewer_workers=True,
        )


def test_a_study_that_does_not_fit_fails_before_any_work(folder, monkeypatch):
    monkeypatch.setattr(free_memory, "free_memory", lambda device: GB)
    handlers = fakes.handlers_of(fakes.FakeHandler(MemoryCost(5 * GB, GB)))
    with pytest.raises(WhichlayersError, match=r"does not fit into memory: one trial needs 5.0 GB"):
        run_fake_study(folder, handlers=handlers)
    assert computed_trials(folder) == []
    assert not (folder / "results.db").exists()


def test_stacks_are_as_large_as_was_measured(folder, monkeypatch):
    seen = []

    class Measured(fakes.FakeHandler):
        def measure_memory(self, trial, worker, max_stack):
            seen.append(trial.train_size)
            return MemoryCost(2 * GB, GB)

    monkeypatch.setattr(free_memory, "free_memory", lambda device: 6 * GB)
    monkeypatch.setenv("FAKE_MAX_STACK", "4")
    events = []
    study, handlers = make_study(sizes=(16, 32)), fakes.handlers_of(Measured())
    summary = run_fake_study(folder, study, max_stack=64, handlers=handlers, on_event=events.append)
    assert (summary.done, seen) == (30, [32])
    assert not any("memory" in e.text for e in events if isinstance(e, Note))


def test_memory_on_a_gpu_is_measured_in_other_processes(tmp_path, monkeypatch):
    script = tmp_path / "measured_handler.py"
    script.write_text(
        "import os, fakes\nfrom whichlayers.engine.cost import MemoryCost\n"
        "from whichlayers.errors import WhichlayersError\n"
        "class Handler(fakes.FakeHandler):\n"
        "    def measure_memory(self, trial, worker, max_stack):\n"
        "        if max_stack == 13: os._exit(7)\n"
        "        if max_stack == 14: raise WhichlayersError('does not fit')\n"
        "        from whichlayers.engine import free_memory\n"  # imports torch, which takes seconds
        "        free_memory.free_memory = lambda device: 99\n"
        "        return MemoryCost(1, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    handler = importlib.import_module("measured_handler").Handler()
    config = WorkerConfig(fakes.handlers_of(handler), "cuda", 1)

    def measure(max_stack):
        request = MeasureMemory([make_trial()], (), max_stack)
        return run_in_subprocesses([config] * 2, request, MemoryReport, tmp_path / "logs")

    assert measure(5) == [MemoryReport([MemoryCost(1, 2)], 99)] * 2
    with pytest.raises(WhichlayersError, match="the worker process ended with exit code 7"):
        measure(13)
    with pytest.raises(WhichlayersError, match="does not fit"):
        measure(14)


def test_stacks_of_one_kind_are_filled_up_to_one_size():
    trials = [make_trial(seed, size=size) for size in (16, 32) for seed in range(7)]
    stacks = make_stacks(trials, stack_key, lambda trial: 3 if trial.train_size == 16 else 64, fill=True)
    assert sorted((len(s.trials), s.slots) for s in stacks) == [(2, 3), (2, 3), (3, 3), (7, 7)]
    assert {s.size for s in stacks} == {3, 7}


@pytest.mark.parametrize("workers", [0, 2])
def test_running_out_of_memory_halves_stacks_and_those_to_come(folder, monkeypatch, workers):
    monkeypatch.setenv("FAKE_MAX_STACK", "2")
    events = []
    summary = run_fake_study(folder, workers=workers, max_stack=5, on_event=events.append)
    assert (summary.done, summary.failed, summary.ran) == (15, 0, 15)
    assert_complete(folder, 15)
    assert len(computed_trials(folder)) == 15
    notes = [e.text for e in events if isinstance(e, Note) and "out of memory" in e.text]
    assert (
        "out of memory with a stack of 5 trials: from now on at most 3 trials of this kind per stack" in notes
    )
    assert len(notes) <= 2 + 2 * workers  # 5 -> 3 -> 2, and stacks that ran at the same time


def test_a_trial_that_runs_out_of_memory_alone_fails_with_a_clear_error(folder, monkeypatch):
    monkeypatch.setenv("FAKE_MAX_STACK", "0")
    summary = run_fake_study(folder, make_study(trials=1), max_stack=5)
    assert (summary.done, summary.failed) == (0, 5)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert all(f.error.startswith("out of memory with a single trial") for f in db.failures())
    monkeypatch.delenv("FAKE_MAX_STACK")
    assert run_fake_study(folder, make_study(trials=1), retry_failed=True).done == 5


class Recorder:
    """An executor that runs stacks that fit, and records the sizes of all stacks."""

    def __init__(self, fits: int) -> None:
        self.fits, self.sizes, self.workers = fits, [], 1
        self.config = WorkerConfig(fakes.HANDLERS, "cpu", 1)

    def free_workers(self):
        return [FreeWorker(0)]

    def start(self, stack, worker):
        self.sizes.append(stack.size)
        if stack.size > self.fits:
            self.scheduler.handle(StackFailed(stack.number, "MemoryError", out_of_memory=True))
        else:
            results = [fakes.fake_result(trial) for trial in stack.trials]
            self.scheduler.handle(TrialsDone(stack.number, results))
            self.scheduler.handle(StackDone(stack.number))

    def poll(self):
        pass


def test_slots_are_not_filled_up_again_to_the_size_that_failed(tmp_path):
    points = fakes.make_points(seeds=range(8))  # 40 trials
    other = [fakes.Trial(**(vars(make_trial(seed)) | {"task_fingerprint": "other"})) for seed in range(6)]
    with ResultsDB.create(tmp_path / "results.db", "s") as db:
        all_points = [*points, *(fakes.Point("x", "", 0.0, trial) for trial in other)]
        db.set_points(all_points, FakeAssets().task_rows([]), [])
        run_id = db.begin_run(resources_module.machine.describe_run(["cpu"], 1))
        stacks = make_stacks([p.trial for p in points], stack_key, 16, fill=True)
        assert [s.slots for s in stacks] == [14, 14, 14]
        stacks.append(Stack(50, tuple(other), slots=12))
        scheduler = Scheduler(db, run_id, stacks, lambda event: None)
        executor = Recorder(fits=6)
        executor.scheduler = scheduler
        scheduler.run(executor)
        assert db.counts() == Counts(done=46)
    own, others = executor.sizes[: executor.sizes.index(12)], executor.sizes[executor.sizes.index(12) :]
    assert own[:2] == [14, 7]
    assert set(own[2:]) == {4}
    assert others == [12, 6]  # another kind has its own limit, and its six trials run once


class TwoSizes(Recorder):
    """A worker with memory for four trials, and one for two trials of one kind and none of the other."""

    def __init__(self):
        super().__init__(fits=4)
        self.workers, self.started = 2, []

    def free_workers(self):
        def few(trial):
            return 0 if trial.task_fingerprint == "other" else 2

        return [FreeWorker(1, few), FreeWorker(0, lambda trial: 4)]

    def start(self, stack, worker):
        self.started.append((worker.number, len(stack.trials), stack.trials[0].task_fingerprint))
        super().start(stack, worker)


def test_a_worker_gets_only_stacks_that_fit_into_its_memory(tmp_path):
    points = fakes.make_points(seeds=range(2))  # 10 trials
    other = [fakes.Trial(**(vars(make_trial(seed)) | {"task_fingerprint": "other"})) for seed in range(6)]
    all_points = [*points, *(fakes.Point("x", "", 0.0, trial) for trial in other)]
    with ResultsDB.create(tmp_path / "results.db", "s") as db:
        db.set_points(all_points, [], [])
        run_id = db.begin_run(resources_module.machine.describe_run(["cpu"], 1))
        trials = [p.trial for p in all_points]
        stacks = make_stacks(trials, lambda trial: (stack_key(trial), trial.task_fingerprint), 4)
        scheduler = Scheduler(db, run_id, stacks, lambda event: None)
        executor = TwoSizes()
        executor.scheduler = scheduler
        scheduler.run(executor)
        assert db.counts() == Counts(done=16)
    on_small = [(size, kind) for worker, size, kind in executor.started if worker == 1]
    assert on_small
    assert max(size for size, _ in on_small) <= 2
    assert all(kind != "other" for _, kind in on_small)
    assert max(size for worker, size, _ in executor.started if worker == 0) > 2


def test_a_trial_that_fits_on_no_worker_fails_and_the_others_run(tmp_path):
    class Small(TwoSizes):
        def free_workers(self):
            return [FreeWorker(n, lambda trial: int(trial.task_fingerprint != "other")) for n in (0, 1)]

    trials = [make_trial(), fakes.Trial(**(vars(make_trial()) | {"task_fingerprint": "other"}))]
    with ResultsDB.create(tmp_path / "results.db", "s") as db:
        db.set_points([fakes.Point("x", "", 0.0, trial) for trial in trials], [], [])
        run_id = db.begin_run(resources_module.machine.describe_run(["cpu"], 1))
        stacks = [Stack(n, (trial,)) for n, trial in enumerate(trials)]
        scheduler = Scheduler(db, run_id, stacks, lambda event: None)
        executor = Small()
        executor.scheduler = scheduler
        scheduler.run(executor)
        assert db.counts() == Counts(done=1, failed=1)
        assert "does not fit into the memory of any worker" in db.failures()[0].error


def test_a_last_trial_with_many_slots_runs_again_without_them(tmp_path):
    trial = make_trial()
    with ResultsDB.create(tmp_path / "results.db", "s") as db:
        db.set_points([fakes.Point("x", "", 0.0, trial)], [], [])
        run_id = db.begin_run(resources_module.machine.describe_run(["cpu"], 1))
        scheduler = Scheduler(db, run_id, [Stack(0, (trial,), slots=8)], lambda event: None)
        executor = Recorder(fits=1)
        executor.scheduler = scheduler
        scheduler.run(executor)
        assert executor.sizes == [8, 4, 2, 1]
        assert db.counts() == Counts(done=1)


def test_what_counts_as_out_of_memory():
    import torch

    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"))
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_stack_that_runs_out_of_memory_frees_it_before_the_next():
    """The traceback references the failed stack: it must be freed before the failure is reported."""
    import gc
    import weakref

    from whichlayers.runs.executors.worker import TrialRunner

    alive: list[weakref.ref] = []

    class Model:
        pass

    class Heavy(fakes.FakeHandler):
        def run(self, trials, worker, settings, report):
            model = Model()
            model.itself = model  # a cycle, as modules have
            alive.append(weakref.ref(model))
            raise MemoryError("not enough memory")

    gc.disable()
    try:
        reported = []
        TrialRunner(WorkerConfig(fakes.handlers_of(Heavy()), "cpu", 1)).run(
            Stack(3, (make_trial(), make_trial(1))), lambda e: reported.append((e, alive[0]() is None))
        )
    finally:
        gc.enable()
    ((event, freed),) = reported
    assert (event.stack, event.out_of_memory, freed) == (3, True, True)
    assert memory_key(make_trial()) == memory_key(make_trial(5, reinit=(1,), size=99, epochs=9))
