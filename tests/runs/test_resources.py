"""Stacks that fit: sizes from what was measured, and what happens when memory runs out all the same."""

from __future__ import annotations

import sys

import fakes
import pytest
from fakes import FakeSubjects, make_study, make_trial, stack_key
from running import assert_complete, computed, run

from whichlayers.engine.cost import Need, is_out_of_memory
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import Store
from whichlayers.results.records import Counts
from whichlayers.runs import resources as means_module
from whichlayers.runs.events import Note, StackFailed
from whichlayers.runs.executors.local import Place, measured_elsewhere
from whichlayers.runs.executors.worker import Measure, Room, Setup
from whichlayers.runs.plan import Stack, make_stacks, memory_key
from whichlayers.runs.resources import PROCESS_BYTES, choose_means, fitted, fitted_to_each, kinds_of
from whichlayers.runs.scheduler import Driver

GB = 10**9


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    monkeypatch.setattr(means_module.machine, "usable_cores", lambda: 16)


def test_few_stacks_share_out_all_cores():
    many = choose_means(["cpu"], None, None)
    assert (many.workers, many.threads) == (16, 1)
    found = [many.for_stacks(n) for n in (1, 3, 16, 99)]
    assert [(means.workers, means.threads) for means in found] == [(1, 16), (3, 5), (16, 1), (16, 1)]
    here = choose_means(["cpu"], 0, None)
    assert here.for_stacks(5) == here
    assert many.for_stacks(0) == many


def test_without_memory_in_the_way_there_is_a_process_a_core_or_a_gpu():
    assert choose_means(["cpu"], None, None).workers == 16
    few = choose_means(["cpu"], 5, 2)
    assert (few.workers, few.threads, few.max_stack) == (5, 3, 2)
    assert choose_means(["cpu"], 0, None).threads == 16
    gpu = choose_means(["cuda:0", "cuda:1"], None, None)
    assert (gpu.workers, gpu.max_stack) == (2, 64)
    assert gpu.for_stacks(1) == gpu
    assert [s.device for s in gpu.setups("e", None)] == ["cuda:0", "cuda:1"]


def test_how_many_trials_fit():
    need = Need(first=3 * GB, more=1 * GB)
    assert need.of(4) == 6 * GB
    assert need.fits(10 * GB, most=64) == 7  # a tenth stays free
    assert need.fits(10 * GB, most=5) == 5
    assert need.fits(3.4 * GB, most=5) == 1
    assert need.fits(3.3 * GB, most=5) == 0


def test_a_gpu_gets_stacks_that_fit_each_kind_by_itself():
    small, large = make_trial(size=16), make_trial(size=16, epochs=3, head="pooler")
    other = fakes.Trial(**(vars(small) | {"task_fingerprint": "long texts"}))
    kinds = kinds_of([small, large, make_trial(size=50), other])
    assert [kind.train_size for kind in kinds] == [50, 16]  # one a task, the largest
    room = Room([Need(2 * GB, GB), Need(20 * GB, 8 * GB)], 100 * GB)
    means = fitted(choose_means(["cuda"], None, None), kinds, room, 0, fewer_workers=True)
    assert (means.workers, means.size_for(small), means.size_for(other)) == (1, 64, 9)
    two = fitted(choose_means(["cuda"], 2, None), kinds, room, 0, fewer_workers=False)
    assert (two.workers, two.size_for(small), two.size_for(other)) == (2, 44, 4)


def test_gpus_of_different_sizes_get_stacks_of_their_own_size():
    small, large = make_trial(), fakes.Trial(**(vars(make_trial()) | {"task_fingerprint": "long texts"}))
    means = choose_means(["cuda:0", "cuda:1"], None, None)
    needs = [Need(2 * GB, GB), Need(20 * GB, 8 * GB)]
    one, two = Room(needs, 100 * GB), Room(needs, 10 * GB)
    mixed = fitted_to_each(means, [small, large], [one, two])
    assert (mixed.size_for(small), mixed.size_for(large)) == (64, 9)
    first, second = mixed.sizes_by_worker()
    assert (first(small), first(large), second(small), second(large)) == (64, 9, 8, 0)
    assert fitted_to_each(means, [small, large], [one, one]).sizes_by_worker() is None
    with pytest.raises(
        WhichlayersError, match=r"one trial needs 20.00 GB, and 9.00 GB may be used on cuda:0"
    ):
        fitted_to_each(means, [small, large], [two, two])


def test_on_cpu_there_are_as_many_workers_as_memory_has_room_for():
    kinds = [make_trial()]
    room = Room([Need(2 * GB, GB)], 20 * GB)
    means = fitted(choose_means(["cpu"], None, None), kinds, room, int(0.4 * GB), fewer_workers=True)
    assert PROCESS_BYTES == 0.6 * GB
    assert (means.workers, means.threads, means.size_for(kinds[0])) == (6, 2, 1)
    with pytest.raises(WhichlayersError, match=r"one trial needs 2.00 GB, and 0.23 GB may be used on cpu"):
        fitted(choose_means(["cpu"], 16, None), kinds, room, int(0.4 * GB), fewer_workers=False)
    here = fitted(choose_means(["cpu"], 0, None), kinds, room, int(0.4 * GB), fewer_workers=False)
    assert (here.workers, here.size_for(kinds[0])) == (0, 4)
    with pytest.raises(WhichlayersError, match=r"batch_size \(now 8\) or training.max_length \(now 128\)"):
        fitted(choose_means(["cpu"], None, None), kinds, Room([Need(2 * GB, GB)], GB), 0, fewer_workers=True)


def test_a_study_that_does_not_fit_fails_before_any_work(folder, monkeypatch):
    room = Room([Need(5 * GB, GB)], GB)
    monkeypatch.setattr(fakes, "engine_room", lambda order, workplace: room, raising=False)
    with pytest.raises(WhichlayersError, match=r"does not fit into memory: one trial needs 5.00 GB"):
        run(folder)
    assert computed(folder) == []
    assert not (folder / "results.db").exists()


def test_stacks_are_as_large_as_was_measured(folder, monkeypatch):
    seen = []

    def room(order, workplace):
        seen.append([trial.train_size for trial in order.kinds])
        return Room([Need(2 * GB, GB)] * len(order.kinds), 6 * GB)

    monkeypatch.setattr(fakes, "engine_room", room, raising=False)
    monkeypatch.setenv("FAKE_FITS", "4")
    events = []
    summary = run(folder, make_study(sizes=(16, 32)), max_stack=64, on_event=events.append)
    assert (summary.done, seen) == (30, [[32]])
    assert not any("memory" in e.text for e in events if isinstance(e, Note))


def test_what_a_gpu_needs_is_measured_in_a_process_of_its_own(tmp_path, monkeypatch):
    script = tmp_path / "meter.py"
    script.write_text(
        "from whichlayers.engine.cost import Need\nfrom whichlayers.runs.executors.worker import Room\n"
        "from whichlayers.trial import WhichlayersError\ndef engine *args : pass\n"
        "def engine_room(order, workplace):\n"
        "    if order.most == 13: import os; os._exit(7)\n"
        "    if order.most == 14: raise WhichlayersError('does not fit')\n"
        "    return Room([Need(1, 2) for _ in order.kinds], 99)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    setup = Setup("meter:engine", "cuda", 1)

    def measured(most):
        return measured_elsewhere([setup] * 2, Measure([make_trial()], (), most), tmp_path / "logs")

    assert measured(5) == [Room([Need(1, 2)], 99)] * 2
    with pytest.raises(WhichlayersError, match="the worker process ended with exit code 7"):
        measured(13)
    with pytest.raises(WhichlayersError, match="does not fit"):
        measured(14)


def test_stacks_of_one_kind_are_filled_up_to_one_size():
    trials = [make_trial(seed, size=size) for size in (16, 32) for seed in range(7)]
    stacks = make_stacks(trials, stack_key, lambda trial: 3 if trial.train_size == 16 else 64, fill=True)
    assert sorted((len(s.trials), s.slots) for s in stacks) == [(2, 3), (2, 3), (3, 3), (7, 7)]
    assert {s.size for s in stacks} == {3, 7}


@pytest.mark.parametrize("workers", [0, 2])
def test_running_out_of_memory_halves_stacks_and_those_to_come(folder, monkeypatch, workers):
    monkeypatch.setenv("FAKE_FITS", "2")
    events = []
    summary = run(folder, workers=workers, max_stack=5, on_event=events.append)
    assert (summary.done, summary.failed, summary.ran) == (15, 0, 15)
    assert_complete(folder, 15)
    assert len(computed(folder)) == 15
    told = [e.text for e in events if isinstance(e, Note) and "out of memory" in e.text]
    assert "out of memory with 5 trials at once: from here on 3 at most, of this kind" in told
    assert len(told) <= 2 + 2 * workers  # 5 -> 3 -> 2, and what was under way beside


def test_a_trial_that_runs_out_of_memory_alone_fails_with_a_clear_error(folder, monkeypatch):
    monkeypatch.setenv("FAKE_FITS", "0")
    summary = run(folder, make_study(trials=1), max_stack=5)
    assert (summary.done, summary.failed) == (0, 5)
    with Store.read(folder / "results.db") as store:
        assert all(f.error.startswith("out of memory with this trial alone") for f in store.failures())
    monkeypatch.delenv("FAKE_FITS")
    assert run(folder, make_study(trials=1), retry_failed=True).done == 5


class Recorder:
    """An executor that runs what fits and notes the sizes it was given."""

    def __init__(self, fits: int) -> None:
        self.fits, self.sizes, self.workers = fits, [], 1

    def free(self):
        return [Place(0)]

    def start(self, stack, place):
        self.sizes.append(stack.size)
        if stack.size > self.fits:
            self.driver.handle(StackFailed(stack.number, "MemoryError", out_of_memory=True))
        else:
            outcomes = [fakes.outcome(trial) for trial in stack.trials]
            self.driver.handle(fakes_done(stack.number, outcomes))

    def pump(self):
        pass


def fakes_done(number, outcomes):
    from whichlayers.runs.events import StackDone

    return StackDone(number, outcomes)


def test_slots_are_not_filled_up_again_to_the_size_that_failed(tmp_path):
    points = fakes.make_points(seeds=range(8))  # 40 trials
    other = [fakes.Trial(**(vars(make_trial(seed)) | {"task_fingerprint": "other"})) for seed in range(6)]
    with Store.create(tmp_path / "results.db", "s") as store:
        asked = [*points, *(fakes.Point("x", "", 0.0, trial) for trial in other)]
        store.set_points(asked, FakeSubjects().task_rows([]), [])
        run_id = store.begin_run(means_module.machine.this_run(["cpu"], 1))
        stacks = make_stacks([p.trial for p in points], stack_key, 16, fill=True)
        assert [s.slots for s in stacks] == [14, 14, 14]
        stacks.append(Stack(50, tuple(other), slots=12))
        driver = Driver(store, run_id, stacks, lambda event: None)
        executor = Recorder(fits=6)
        executor.driver = driver
        driver.drive(executor)
        assert store.counts() == Counts(done=46)
    own, others = executor.sizes[: executor.sizes.index(12)], executor.sizes[executor.sizes.index(12) :]
    assert own[:2] == [14, 7]
    assert set(own[2:]) == {4}
    assert others == [12, 6]  # another kind: it finds its own size, and its six trials run once


class TwoSizes(Recorder):
    """A worker whose memory holds four trials and one that holds none of one kind, two of the other."""

    def __init__(self):
        super().__init__(fits=4)
        self.workers, self.given = 2, []

    def free(self):
        def few(trial):
            return 0 if trial.task_fingerprint == "other" else 2

        return [Place(1, few), Place(0, lambda trial: 4)]

    def start(self, stack, place):
        self.given.append((place.number, len(stack.trials), stack.trials[0].task_fingerprint))
        super().start(stack, place)


def test_a_worker_gets_only_what_its_own_memory_holds(tmp_path):
    points = fakes.make_points(seeds=range(2))  # 10 trials
    other = [fakes.Trial(**(vars(make_trial(seed)) | {"task_fingerprint": "other"})) for seed in range(6)]
    asked = [*points, *(fakes.Point("x", "", 0.0, trial) for trial in other)]
    with Store.create(tmp_path / "results.db", "s") as store:
        store.set_points(asked, [], [])
        run_id = store.begin_run(means_module.machine.this_run(["cpu"], 1))
        trials = [p.trial for p in asked]
        stacks = make_stacks(trials, lambda trial: (stack_key(trial), trial.task_fingerprint), 4)
        driver = Driver(store, run_id, stacks, lambda event: None)
        executor = TwoSizes()
        executor.driver = driver
        driver.drive(executor)
        assert store.counts() == Counts(done=16)
    at_small = [(size, kind) for place, size, kind in executor.given if place == 1]
    assert at_small
    assert max(size for size, _ in at_small) <= 2
    assert all(kind != "other" for _, kind in at_small)
    assert max(size for place, size, _ in executor.given if place == 0) > 2


def test_a_trial_that_no_worker_can_hold_fails_and_the_others_run(tmp_path):
    class Small(TwoSizes):
        def free(self):
            return [Place(n, lambda trial: int(trial.task_fingerprint != "other")) for n in (0, 1)]

    trials = [make_trial(), fakes.Trial(**(vars(make_trial()) | {"task_fingerprint": "other"}))]
    with Store.create(tmp_path / "results.db", "s") as store:
        store.set_points([fakes.Point("x", "", 0.0, trial) for trial in trials], [], [])
        run_id = store.begin_run(means_module.machine.this_run(["cpu"], 1))
        stacks = [Stack(n, (trial,)) for n, trial in enumerate(trials)]
        driver = Driver(store, run_id, stacks, lambda event: None)
        executor = Small()
        executor.driver = driver
        driver.drive(executor)
        assert store.counts() == Counts(done=1, failed=1)
        assert "does not fit into the memory of any worker" in store.failures()[0].error


def test_a_last_trial_with_many_slots_runs_again_without_them(tmp_path):
    trial = make_trial()
    with Store.create(tmp_path / "results.db", "s") as store:
        store.set_points([fakes.Point("x", "", 0.0, trial)], [], [])
        run_id = store.begin_run(means_module.machine.this_run(["cpu"], 1))
        driver = Driver(store, run_id, [Stack(0, (trial,), slots=8)], lambda event: None)
        executor = Recorder(fits=1)
        executor.driver = driver
        driver.drive(executor)
        assert executor.sizes == [8, 4, 2, 1]
        assert store.counts() == Counts(done=1)


def test_what_counts_as_out_of_memory():
    import torch

    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"))
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_real_stack_that_runs_out_of_memory_lets_go_of_it_before_the_next(monkeypatch):
    """The error's traceback holds the failed stack: it must be gone when the failure is told."""
    import gc
    import weakref

    from whichlayers.runs.executors.worker import Workplace

    alive: list[weakref.ref] = []

    class Model:
        pass

    def engine(stack, workplace, on_epoch, on_steps):
        model = Model()
        model.itself = model  # a cycle, as modules have
        alive.append(weakref.ref(model))
        raise MemoryError("no room")

    monkeypatch.setattr(fakes, "heavy", engine, raising=False)
    gc.disable()
    try:
        told = []
        Workplace(Setup("fakes:heavy", "cpu", 1)).run(
            Stack(3, (make_trial(), make_trial(1))), lambda e: told.append((e, alive[0]() is None))
        )
    finally:
        gc.enable()
    ((event, gone),) = told
    assert (event.stack, event.out_of_memory, gone) == (3, True, True)
    assert memory_key(make_trial()) == memory_key(make_trial(5, reinit=(1,), size=99, epochs=9))
    assert "fakes" in sys.modules
