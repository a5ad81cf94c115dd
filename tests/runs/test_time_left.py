"""The time left of a run: simulated runs whose end is known."""

from __future__ import annotations

import dataclasses
import heapq

import pytest
from fakes import make_trial

from whichlayers.engine.cost import TrialWork
from whichlayers.runs.plan import Stack
from whichlayers.runs.time_left import TimeLeft

STEPS = 60  # of a trial: 3 epochs of 20


def make_stack(number: int, task: str = "short", trials: int = 2) -> Stack:
    trial = dataclasses.replace(make_trial(number), task=task, task_fingerprint=task, train_size=160)
    trial = dataclasses.replace(trial, training=dataclasses.replace(trial.training, epochs=3))
    assert trial.steps == STEPS
    return Stack(number, tuple(dataclasses.replace(trial, seed=100 * number + i) for i in range(trials)))


def simulate(stacks, workers, work, seconds_per_work, compile_seconds=0.0, setup=0.0, ahead=False):
    """Run stacks in order. Returns (time, estimate) pairs and the time at which the last stack ended.

    Every stack reports each of its steps; evaluations take time and are not reported. With `ahead`, stacks after the
    first of a worker are compiled while the one before trains, which takes longer than compiling.
    """
    time_left = TimeLeft(workers, lambda stack: work[stack.trials[0].task], lambda stack: ahead)
    waiting, compiled, pairs = list(stacks), set(), []
    events = [(0.0, worker, None, 0) for worker in range(workers)]  # (time, worker, stack, steps of a trial)
    heapq.heapify(events)
    now = 0.0
    while events:
        now, worker, stack, steps = heapq.heappop(events)
        if stack is not None and steps > STEPS:
            time_left.end(stack.number, now, finished=True)
            stack = None
        if stack is None:
            if not waiting:
                continue
            stack = waiting.pop(0)
            time_left.start(stack, now)
            hidden = 0.8 if ahead and stack.number >= workers else 0.0
            now += setup + (0 if stack.time_key in compiled else compile_seconds * (1 - hidden))
            compiled.add(stack.time_key)
            heapq.heappush(events, (now, worker, stack, 1))
            continue
        time_left.update(stack.number, steps * len(stack.trials), 0, now)
        pairs.append((now, time_left.estimate(waiting, now)))
        task = stack.trials[0].task
        trial_work = work[task].step + (work[task].evaluation if steps % 20 == 0 else 0)
        after = now + len(stack.trials) * trial_work * seconds_per_work[task]
        heapq.heappush(events, (after, worker, stack, steps + 1))
    return pairs, now


def assert_within(pairs, end, tolerance, after=0.1):
    """All estimates after a fraction of the run are within a relative tolerance of the total time."""
    late = [(now, left) for now, left in pairs if now >= after * end]
    assert late
    for now, left in late:
        assert left is not None
        assert abs(now + left - end) <= tolerance * end, (now, left, end)


WORK = {"short": TrialWork(1.0, 15.0, 20), "long": TrialWork(4.0, 200.0, 20)}


@pytest.mark.parametrize("workers", [1, 2])
def test_evaluation_counts(workers):
    """A tenth of the steps and none of the evaluations done: steps alone would promise half of the time."""
    pairs, end = simulate([make_stack(n) for n in range(8)], workers, WORK, {"short": 0.01})
    assert_within(pairs, end, 0.1)


def test_a_task_of_long_texts_that_has_not_run_yet_is_not_taken_for_a_short_one():
    stacks = [make_stack(n, "short") for n in range(6)] + [make_stack(n, "long") for n in range(6, 12)]
    pairs, end = simulate(stacks, 1, WORK, {"short": 0.01, "long": 0.01})
    assert_within(pairs, end, 0.1, after=0.02)


def test_a_task_that_turns_out_slower_than_its_work_corrects_the_estimate():
    stacks = [make_stack(n, "long" if n % 2 else "short") for n in range(12)]
    pairs, end = simulate(stacks, 1, WORK, {"short": 0.01, "long": 0.02})
    assert_within(pairs, end, 0.15, after=0.3)


def test_compiling_is_expected_once_per_kind_of_stack():
    stacks = [make_stack(n, "short" if n < 6 else "long") for n in range(12)]
    pairs, end = simulate(stacks, 1, WORK, {"short": 0.01, "long": 0.01}, compile_seconds=20.0, setup=1.0)
    assert_within(pairs, end, 0.25, after=0.15)


@pytest.mark.parametrize("workers", [1, 2])
def test_only_the_compilation_that_is_not_hidden_counts(workers):
    """Six kinds of stack: compiling each in full would add a quarter of the time."""
    tasks = [f"task {n}" for n in range(6)]
    work = dict.fromkeys(tasks, WORK["short"])
    stacks = [make_stack(n, tasks[n // 2]) for n in range(12)]
    settings = (stacks, workers, work, dict.fromkeys(tasks, 0.1))
    pairs, end = simulate(*settings, compile_seconds=20.0, setup=1.0, ahead=True)
    assert simulate(*settings, compile_seconds=20.0, setup=1.0)[1] > 1.2 * end
    assert_within(pairs, end, 0.15, after=0.1)


def test_a_short_stack_hides_only_a_part_of_the_compilation_of_the_next():
    time_left = TimeLeft(1, lambda stack: TrialWork(), lambda stack: True)
    time_left.start(make_stack(0, trials=1), 0.0)
    time_left.update(0, 1, 0, 100.0)  # compiled for 100 seconds
    time_left.update(0, 31, 0, 130.0)
    waiting = [make_stack(1, "long", trials=1)]
    assert time_left.estimate(waiting, 130.0) == pytest.approx(29 + (100 - 29) + 60)
    assert TimeLeft(1, lambda stack: TrialWork()).estimate(waiting, 0.0) is None


def test_the_end_of_a_run_is_that_of_its_longest_stack():
    stacks = [make_stack(0, "short", trials=1), make_stack(1, "long", trials=1)]
    pairs, end = simulate(stacks, 2, WORK, {"short": 0.01, "long": 0.01})
    assert_within(pairs, end, 0.1)


def test_restored_steps_are_done_but_do_not_count_for_the_speed():
    time_left = TimeLeft(1, lambda stack: TrialWork())
    stack = make_stack(0, trials=1)
    time_left.start(stack, 0.0)
    time_left.update(0, 40, restored=40, now=1.0)
    assert time_left.estimate([], 1.0) is None
    time_left.update(0, 41, restored=40, now=2.0)
    time_left.update(0, 45, restored=40, now=10.0)  # 4 steps in 8 seconds
    assert time_left.estimate([], 10.0) == pytest.approx(15 * 2.0)


def test_a_failed_stack_says_nothing_about_the_speed():
    time_left = TimeLeft(1, lambda stack: TrialWork())
    first, second = make_stack(0, trials=1), make_stack(1, trials=1)
    time_left.start(first, 0.0)
    for now in (1.0, 2.0):
        time_left.update(0, int(now), 0, now)
    time_left.end(0, 500.0, finished=False)
    time_left.start(second, 500.0)
    assert time_left.estimate([], 500.0) is None


def test_kinds_of_trials_that_have_not_run_are_as_fast_as_the_others():
    time_left = TimeLeft(1, lambda stack: TrialWork())
    time_left.start(make_stack(0, trials=1), 0.0)
    time_left.update(0, 1, 0, 1.0)
    time_left.update(0, 31, 0, 31.0)
    assert time_left.estimate([make_stack(1, "long", trials=1)], 31.0) == pytest.approx(
        29 + 60 + 1
    )  # 1: until the first step


def test_work_of_steps_and_evaluations():
    work = TrialWork(step=2.0, evaluation=10.0, steps_per_evaluation=5)
    assert [work.total(steps) for steps in (0, 4, 5, 9, 10)] == [0, 8, 20, 28, 40]
    assert [work.done(steps) for steps in (0, 4, 5, 6, 10)] == [0, 8, 10, 22, 30]
    assert TrialWork().done(7) == 7
    assert TrialWork().total(7) == 7


def test_first_steps_have_a_cost_of_their_own():
    work = TrialWork(step=1.0, first_steps=4, first_step=10.0)
    assert [work.total(steps) for steps in (0, 3, 4, 6)] == [0, 30, 40, 42]
    assert [work.done(steps) for steps in (0, 3, 4, 6)] == [0, 30, 40, 42]
