"""The order of stacks: low seeds first, long stacks before it is too late."""

from __future__ import annotations

import json
import random
import time

import pytest
from fakes import MODELS, RUN, TASKS, make_trial

from whichlayers.engine.cost import TrialWork
from whichlayers.results.db import ResultsDB
from whichlayers.runs.events import StepsDone
from whichlayers.runs.plan import Stack
from whichlayers.runs.scheduler import Scheduler, StackQueue
from whichlayers.runs.time_left import TimeLeft
from whichlayers.trial import Point


def stack(number: int, seed: int, steps: int) -> Stack:
    return Stack(number, (make_trial(seed, size=8 * steps, epochs=1),))


def pop_all(queue: StackQueue) -> list[int]:
    return [found.number for found in iter(queue.pop, None)]


def makespan(stacks: list[Stack], order: list[int], workers: int) -> int:
    steps = {stack.number: stack.steps for stack in stacks}
    busy = [0] * workers
    for number in order:
        worker = busy.index(min(busy))
        busy[worker] += steps[number]
    return max(busy)


def test_one_worker_follows_the_seeds():
    stacks = [stack(n, n, steps) for n, steps in enumerate([1, 9, 2, 50])]
    assert pop_all(StackQueue(stacks, workers=1)) == [0, 1, 2, 3]


def test_a_long_stack_is_next_when_it_takes_half_of_an_even_share_of_the_rest():
    stacks = [stack(n, n, 2) for n in range(8)] + [stack(8, 8, 6)]
    # 22 pending steps for two workers, 11 each; the long one is urgent when 24 or fewer are pending
    assert pop_all(StackQueue(stacks, workers=2))[0] == 8
    more = [stack(n, n, 2) for n in range(11)] + [stack(11, 11, 6)]  # 28 steps: two go before it
    assert pop_all(StackQueue(more, workers=2))[:4] == [0, 1, 11, 2]


def test_retried_stacks_come_first_and_stacks_that_do_not_fit_wait():
    stacks = [stack(n, n, 2) for n in range(4)]
    queue = StackQueue(stacks, workers=1)
    queue.push_front(stack(10, 0, 1), stack(11, 0, 1))
    assert len(queue) == 6
    assert queue.pop(lambda found: found.number != 10).number == 11
    assert queue.pop(lambda found: found.number == 2).number == 2
    assert queue.pop(lambda found: False) is None
    assert pop_all(queue) == [10, 0, 1, 3]
    assert not queue


def test_the_parts_of_a_stack_keep_its_other_properties(tmp_path):
    with ResultsDB.create(tmp_path / "results.db", "s") as db:
        scheduler = Scheduler(db, 1, [], lambda event: None)
    whole = Stack(5, tuple(make_trial(seed) for seed in range(4)), 6, lost_workers=1, similar_stacks=9)
    parts = scheduler._split(whole, 2)
    assert [part.trials for part in parts] == [whole.trials[:2], whole.trials[2:]]
    assert {(part.slots, part.lost_workers, part.similar_stacks) for part in parts} == {(2, 1, 9)}


def test_the_steps_that_are_left_are_stored_with_the_time_left(tmp_path):
    stacks = [stack(n, n, 10) for n in range(3)]
    points = [Point("incremental", "", n, one.trials[0]) for n, one in enumerate(stacks)]
    with ResultsDB.create(tmp_path / "results.db", "s") as db:
        db.set_points(points, TASKS, MODELS)
        run_id = db.begin_run(RUN)
        scheduler = Scheduler(db, run_id, stacks, lambda event: None, time_left=HourLeft())
        scheduler._mark_started(stacks[0])
        scheduler.handle(StepsDone(0, 4, 0))
        assert json.loads(db.meta("time_left"))["steps"] == 26
        assert db.time_left(run_id, time.time()) == pytest.approx(3600, abs=5)


class HourLeft(TimeLeft):
    """Always estimates an hour."""

    def __init__(self) -> None:
        super().__init__(1, lambda stack: TrialWork())

    def estimate(self, waiting, now):
        return 3600.0


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_no_worker_idles_long_at_the_end(workers):
    rng = random.Random(workers)
    for _ in range(20):
        sizes = [rng.choice([2, 3, 5, 20, 60]) for _ in range(60)]
        stacks = [stack(n, n, steps) for n, steps in enumerate(sizes)]
        order = pop_all(StackQueue(stacks, workers))
        assert sorted(order) == list(range(60))
        longest_first = sorted(order, key=lambda n: -stacks[n].steps)
        best = max(sum(sizes) / workers, max(sizes))
        assert makespan(stacks, order, workers) <= 1.15 * max(best, makespan(stacks, longest_first, workers))
        if workers == 2:
            first = [stacks[n].trials[0].seed for n in order[:30]]
            assert first == sorted(first)  # low seeds first, while many stacks are left
