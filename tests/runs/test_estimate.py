"""Estimates of time and disk space: makespans against a simple simulation, and times against a real run."""

from __future__ import annotations

import dataclasses
import itertools
import random
from types import SimpleNamespace

import pytest
from fakes import make_trial, stack_key
from small_study import small_study

import whichlayers
from whichlayers.cli.plan import describe_slowdown, gpu_speeds
from whichlayers.engine.cost import StackTiming
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import ResultsDB
from whichlayers.runs import machine
from whichlayers.runs.assets import Assets
from whichlayers.runs.disk import estimate_disk
from whichlayers.runs.estimate import (
    TimeRange,
    estimate_time,
    makespan,
    scale_speed,
    split_by_timed,
    stack_seconds,
)
from whichlayers.runs.handlers import HANDLERS
from whichlayers.runs.plan import Stack, make_stacks, stack_key_fn
from whichlayers.runs.resources import choose_resources, fit_memory
from whichlayers.runs.scheduler import StackQueue
from whichlayers.runs.time_stacks import _mean, _share_slowdown, time_stacks
from whichlayers.study.expand import expand
from whichlayers.trial import Adapter, Probe

TIMING = StackTiming(trials=4, setup=1, compile=10, capture=2, step=0.5, error=0.1, evaluation=3, finish=0.25)


def test_a_stacks_seconds_are_its_parts():
    assert TIMING.seconds(4, steps=10, evaluations=2, first=True) == 10 + 2 + (1 + 5 + 6 + 0.25)
    assert TIMING.seconds(4, steps=10, evaluations=2, first=False) == 2 + 12.25
    twice = TIMING.seconds(8, steps=10, evaluations=2, first=False) - 2
    assert 1.5 * 12.25 < twice < 2 * 12.25  # not all of it grows with the trials
    slow = dataclasses.replace(TIMING, slowdown=3.0)
    assert slow.seconds(4, steps=10, evaluations=2, first=True) == 3 * (10 + 2 + 12.25)


def test_the_makespan_is_that_of_a_simulation_of_the_queue():
    rng = random.Random(0)
    stacks = [
        Stack(i, tuple(make_trial(seed, size=rng.randint(8, 800)) for seed in range(3))) for i in range(20)
    ]
    timings = {stacks[0].time_key: TIMING}
    fast = scale_speed(timings, 2.0)
    workers = [timings, fast, timings]
    busy = [5.0, 5.0, 5.0]
    seen = [False, False, False]
    for stack in iter(StackQueue(stacks, 3).pop, None):
        worker = busy.index(min(busy))
        seconds = stack_seconds(stack, workers[worker], first=not seen[worker])
        busy[worker] += seconds
        seen[worker] = True
    assert makespan(stacks, workers, start=5.0) == pytest.approx(max(busy))
    time_range = estimate_time(stacks, workers, start=5.0, before=7.0)
    assert time_range.expected == pytest.approx(max(busy) + 7)
    assert time_range.low < time_range.expected < time_range.high
    assert makespan([], workers, 5.0) == 0


def test_code_that_is_compiled_ahead_counts_only_as_far_as_it_is_not_hidden():
    """Three shapes of stack on one worker: the first is compiled in full, the others while the one before trains."""
    timing = StackTiming(4, setup=0, compile=20, capture=0, step=1, error=0, evaluation=0, finish=0)

    def seconds(steps: int, **change) -> float:
        stacks = [
            Stack(
                n,
                tuple(
                    dataclasses.replace(make_trial(n, size=8 * steps), task_fingerprint=str(n), **change)
                    for _ in range(4)
                ),
            )
            for n in range(3)
        ]
        assert stacks[0].trials[0].steps == steps * stacks[0].trials[0].training.epochs
        trained = 3 * stacks[0].trials[0].steps
        return makespan(stacks, [{stack.time_key: timing for stack in stacks}], 0) - trained

    assert seconds(100) == pytest.approx(20 + 2 * 4)  # a fifth of each is left: reading it from the cache
    epochs = make_trial().training.epochs
    assert seconds(1) == pytest.approx(3 * 20 - 2 * epochs)  # no more than the stack before trains
    assert seconds(100, adapter=Adapter("lora", (1,), ("query",))) == pytest.approx(
        3 * 20
    )  # not compiled ahead


def test_more_and_faster_gpus_take_less_time():
    stacks = make_stacks([make_trial(seed, size=400) for seed in range(64)], stack_key, 4)
    timings = {stacks[0].time_key: TIMING}
    times = [makespan(stacks, [timings] * n, 0) for n in (1, 2, 4, 8)]
    assert all(slow / fast == pytest.approx(2, rel=0.05) for slow, fast in itertools.pairwise(times))
    assert makespan(stacks, [scale_speed(timings, 2.0)], 0) == pytest.approx(times[0] / 2)


def test_probes_stop_between_their_patience_and_their_last_epoch():
    probe = make_trial(probe=Probe(1, max_epochs=40, patience=5))
    stack = Stack(0, (probe,) * 4)
    timings = {stack.time_key: TIMING}
    low, middle, high = (stack_seconds(stack, timings, first=False, bound=b) for b in (-1, 0, 1))
    assert low / 0.8 + 17 == pytest.approx(
        high / 1.2
    )  # 40 - 6 epochs of 0.5 seconds, and two standard errors
    assert low < middle < high


def test_kinds_that_were_not_timed_are_separated():
    known, other = make_trial(), make_trial(probe=Probe(1))
    stacks = [Stack(0, (known,)), Stack(1, (other,))]
    assert split_by_timed(stacks, [{stacks[0].time_key: TIMING}]) == (stacks[:1], stacks[1:])


def test_differences_between_workers_increase_the_error():
    slow = StackTiming(**(vars(TIMING) | {"step": 1.0}))
    mean = _mean([TIMING, None, slow])
    assert (mean.step, mean.trials) == (0.75, 4)
    assert mean.error == pytest.approx(0.25 / 0.75 / 2**0.5)
    assert _mean([None, None]) is None


def test_other_programs_are_in_the_expected_time_but_not_in_the_lower_bound():
    stacks = [Stack(0, (make_trial(size=400),) * 4)]
    key = stacks[0].time_key
    exact = dataclasses.replace(TIMING, error=0.0)
    slow = dataclasses.replace(exact, slowdown=3.0)
    quiet, busy = (estimate_time(stacks, [{key: timing}], 0.0) for timing in (exact, slow))
    assert quiet.high / quiet.low < 2
    assert busy.expected == pytest.approx(3 * quiet.expected)
    assert (busy.low, busy.high) == (pytest.approx(quiet.low), pytest.approx(3 * quiet.high))


def test_plan_names_the_time_without_other_programs_if_they_make_a_difference():
    busy = TimeRange(80.0, 300.0, 400.0)
    text = "other programs are using this machine: without them about 1 min 40 s"
    assert describe_slowdown(busy, 100.0) == text
    assert describe_slowdown(busy, 290.0) is None
    assert describe_slowdown(busy, None) is None


def test_all_kinds_of_stacks_share_the_slowdown():
    timings = {n: dataclasses.replace(TIMING, slowdown=float(n)) for n in (1, 2, 6)}
    shared = _share_slowdown(timings)
    assert {timing.slowdown for timing in shared.values()} == {3.0}
    assert _share_slowdown({}) == {}


def test_a_scaled_step_keeps_its_fixed_part():
    """Twice the batch size is twice the tokens, but not twice the time."""
    data = SimpleNamespace(train=SplitOfOne(), evals={})
    trial = make_trial()
    double = dataclasses.replace(
        trial, training=dataclasses.replace(trial.training, batch_size=2 * trial.training.batch_size)
    )
    assets = SimpleNamespace(data=lambda trial: data)
    timing = dataclasses.replace(TIMING, fixed_step=0.2)
    assert HANDLERS["finetune"].scale_timing(timing, trial, double, assets).step == pytest.approx(0.8)


class SplitOfOne:
    """One example of 4 tokens."""

    offsets = (0, 4)

    def __len__(self) -> int:
        return 1


def test_gpus_are_a_number_or_their_speeds():
    assert gpu_speeds(None, on_cuda=False) == []
    assert gpu_speeds("3", on_cuda=True) == [1.0, 1.0, 1.0]
    assert gpu_speeds("1,1,0.5", on_cuda=True) == [1.0, 1.0, 0.5]
    for bad in ("0", "two", "1,-1", ""):
        with pytest.raises(WhichlayersError, match="give a number of GPUs"):
            gpu_speeds(bad, on_cuda=True)
    with pytest.raises(WhichlayersError, match="there is no GPU to measure on"):
        gpu_speeds("8", on_cuda=False)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> whichlayers.Study:
    """Large enough for training to take longer than loading."""
    return small_study(
        tmp_path_factory.mktemp("model"),
        experiments=["incremental", {"kind": "probing", "trials": 2}],
        train_sizes=[240],
        trials=3,
        training={"epochs": 3, "max_length": 32},
    )


def test_the_estimate_is_close_to_a_real_run(study, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    assets = Assets(tmp_path / "cache")
    points = expand(study, assets)
    trials = list({p.trial.id: p.trial for p in points}.values())
    assets.check(trials)
    resources = choose_resources(["cpu"], workers=0, max_stack=4)
    resources = fit_memory(resources, trials, HANDLERS, assets, tmp_path / "logs", fewer_workers=False)
    stacks = make_stacks(trials, stack_key_fn(HANDLERS, assets), resources.stack_size)
    timing = time_stacks(stacks, resources, HANDLERS, assets, tmp_path / "logs", seconds=10)
    assert {stack.time_key for stack in stacks} <= set(timing.timings[0])
    time_range = estimate_time(stacks, timing.timings, timing.start)
    results = whichlayers.run(study, tmp_path / "study", device="cpu", workers=0, max_stack=4, progress=False)
    assert results.last_run.done == len(trials)
    with ResultsDB.open_readonly(tmp_path / "study" / "results.db") as db:
        took = db.connection.execute("SELECT SUM(seconds) FROM trials").fetchone()[0]
    assert time_range.low < time_range.expected < time_range.high
    # other work on the machine may come and go between the two
    assert took / 4 < time_range.expected - timing.start < 4 * took, (time_range, took)

    disk = estimate_disk(stacks, len(points), 1, assets, 0)
    real = (tmp_path / "study" / "results.db").stat().st_size
    assert real / 2 < disk.results < 2 * real
