"""What `plan` says a study takes: makespans against a plain simulation, and seconds against a real run."""

from __future__ import annotations

import itertools
import random

import pytest
from fakes import make_trial, stack_key
from small_subject import small_study

import whichlayers
from whichlayers.cli.plan import gpu_speeds
from whichlayers.engine.cost import Pace
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import Store
from whichlayers.runs import machine
from whichlayers.runs.assets import Subjects
from whichlayers.runs.cost_model import at_speed, disk_of, makespan, stack_seconds, time_of, told_apart
from whichlayers.runs.executors.worker import DEFAULT_ENGINE
from whichlayers.runs.plan import Stack, make_stacks, time_key
from whichlayers.runs.profiling import _mean, fit_memory, time_stacks
from whichlayers.runs.queue import Waiting
from whichlayers.runs.resources import choose_means
from whichlayers.study.expand import expand
from whichlayers.trial import Probe

PACE = Pace(trials=4, build=1, compiling=10, capturing=2, step=0.5, error=0.1, evaluation=3, ending=0.25)


def test_a_stacks_seconds_are_its_parts():
    assert PACE.of(4, steps=10, epochs=2, first=True) == 10 + 2 + (1 + 5 + 6 + 0.25)
    assert PACE.of(4, steps=10, epochs=2, first=False) == 2 + 12.25
    twice = PACE.of(8, steps=10, epochs=2, first=False) - 2
    assert 1.5 * 12.25 < twice < 2 * 12.25  # not all of it grows with the trials


def test_the_makespan_is_that_of_handing_out_one_after_another():
    draw = random.Random(0)
    stacks = [
        Stack(i, tuple(make_trial(seed, size=draw.randint(8, 800)) for seed in range(3))) for i in range(20)
    ]
    paces = {time_key(stacks[0].trials[0]): PACE}
    fast = at_speed(paces, 2.0)
    workers = [paces, fast, paces]
    busy = [5.0, 5.0, 5.0]
    seen = [False, False, False]
    for stack in iter(Waiting(stacks, 3).take, None):
        place = busy.index(min(busy))
        seconds = stack_seconds(stack, workers[place], first=not seen[place])
        busy[place] += seconds
        seen[place] = True
    assert makespan(stacks, workers, start=5.0) == pytest.approx(max(busy))
    span = time_of(stacks, workers, start=5.0, before=7.0)
    assert span.expected == pytest.approx(max(busy) + 7)
    assert span.low < span.expected < span.high
    assert makespan([], workers, 5.0) == 0


def test_more_and_faster_gpus_take_less_time():
    stacks = make_stacks([make_trial(seed, size=400) for seed in range(64)], stack_key, 4)
    paces = {time_key(stacks[0].trials[0]): PACE}
    times = [makespan(stacks, [paces] * n, 0) for n in (1, 2, 4, 8)]
    assert all(slow / fast == pytest.approx(2, rel=0.05) for slow, fast in itertools.pairwise(times))
    assert makespan(stacks, [at_speed(paces, 2.0)], 0) == pytest.approx(times[0] / 2)


def test_probes_stop_between_their_patience_and_their_last_epoch():
    probe = make_trial(probe=Probe(1, max_epochs=40, patience=5))
    stack = Stack(0, (probe,) * 4)
    paces = {time_key(probe): PACE}
    low, middle, high = (stack_seconds(stack, paces, first=False, bound=b) for b in (-1, 0, 1))
    assert (high - low) / 0.5 == pytest.approx(40 - 6)
    assert low < middle < high


def test_kinds_that_nobody_timed_are_told_apart():
    known, other = make_trial(), make_trial(probe=Probe(1))
    stacks = [Stack(0, (known,)), Stack(1, (other,))]
    assert told_apart(stacks, [{time_key(known): PACE}]) == (stacks[:1], stacks[1:])


def test_workers_that_differ_widen_the_range():
    slow = Pace(**(vars(PACE) | {"step": 1.0}))
    mean = _mean([PACE, None, slow])
    assert (mean.step, mean.trials) == (0.75, 4)
    assert mean.error == pytest.approx(0.25 / 0.75)
    assert _mean([None, None]) is None


def test_gpus_are_a_number_or_their_speeds():
    assert gpu_speeds(None, on_cuda=False) == []
    assert gpu_speeds("3", on_cuda=True) == [1.0, 1.0, 1.0]
    assert gpu_speeds("1,1,0.5", on_cuda=True) == [1.0, 1.0, 0.5]
    for bad in ("0", "two", "1,-1", ""):
        with pytest.raises(WhichlayersError, match="give a number of GPUs"):
            gpu_speeds(bad, on_cuda=True)
    with pytest.raises(WhichlayersError, match="no GPU here to measure on"):
        gpu_speeds("8", on_cuda=False)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> whichlayers.Study:
    """Large enough for its training to outweigh what comes before."""
    return small_study(
        tmp_path_factory.mktemp("subject"),
        experiments=["incremental", {"kind": "probing", "trials": 2}],
        train_sizes=[240],
        trials=3,
        training={"epochs": 3, "max_length": 32},
    )


def test_the_forecast_is_near_a_real_run(study, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    subjects = Subjects(tmp_path / "cache")
    points = expand(study, subjects)
    trials = list({p.trial.id: p.trial for p in points}.values())
    subjects.check(trials)
    means = choose_means(["cpu"], workers=0, max_stack=4)
    means = fit_memory(means, trials, DEFAULT_ENGINE, subjects, tmp_path / "logs", fewer_workers=False)
    stacks = make_stacks(trials, subjects.stack_key, means.size_for)
    timed = time_stacks(stacks, means, DEFAULT_ENGINE, subjects, tmp_path / "logs", seconds=10)
    assert {time_key(stack.trials[0]) for stack in stacks} <= set(timed.paces[0])
    span = time_of(stacks, timed.paces, timed.start)
    results = whichlayers.run(study, tmp_path / "study", device="cpu", workers=0, max_stack=4, progress=False)
    assert results.last_run.done == len(trials)
    with Store.read(tmp_path / "study" / "results.db") as store:
        took = store.connection.execute("SELECT SUM(seconds) FROM trials").fetchone()[0]
    assert span.low < span.expected < span.high
    # other work on the machine may come and go between the two
    assert took / 4 < span.expected - timed.start < 4 * took, (span, took)

    depths = {trials[0].model_fingerprint: 3}
    disk = disk_of(stacks, len(points), 1, subjects.weights_bytes, 0, depths)
    real = (tmp_path / "study" / "results.db").stat().st_size
    assert real / 2 < disk.results < 2 * real
