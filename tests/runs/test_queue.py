"""Which stack is handed out next: low seeds first, the longest before it is too late."""

from __future__ import annotations

import random

import pytest
from fakes import make_trial

from whichlayers.runs.plan import Stack
from whichlayers.runs.queue import Waiting


def stack(number: int, seed: int, steps: int) -> Stack:
    return Stack(number, (make_trial(seed, size=8 * steps, epochs=1),))


def taken(waiting: Waiting) -> list[int]:
    return [found.number for found in iter(waiting.take, None)]


def makespan(stacks: list[Stack], order: list[int], workers: int) -> int:
    steps = {stack.number: stack.steps for stack in stacks}
    busy = [0] * workers
    for number in order:
        place = busy.index(min(busy))
        busy[place] += steps[number]
    return max(busy)


def test_one_worker_takes_them_as_they_come():
    stacks = [stack(n, n, steps) for n, steps in enumerate([1, 9, 2, 50])]
    assert taken(Waiting(stacks, workers=1)) == [0, 1, 2, 3]


def test_a_long_one_goes_when_it_is_more_than_half_of_an_even_share_of_the_rest():
    stacks = [stack(n, n, 2) for n in range(8)] + [stack(8, 8, 6)]
    # 22 steps wait for two workers, 11 each; the long one is half of an even share when 24 or fewer wait
    assert taken(Waiting(stacks, workers=2))[0] == 8
    more = [stack(n, n, 2) for n in range(11)] + [stack(11, 11, 6)]  # 28 steps: two go before it
    assert taken(Waiting(more, workers=2))[:4] == [0, 1, 11, 2]


def test_what_went_wrong_goes_first_and_what_does_not_fit_waits():
    stacks = [stack(n, n, 2) for n in range(4)]
    waiting = Waiting(stacks, workers=1)
    waiting.first(stack(10, 0, 1), stack(11, 0, 1))
    assert len(waiting) == 6
    assert waiting.take(lambda found: found.number != 10).number == 11
    assert waiting.take(lambda found: found.number == 2).number == 2
    assert waiting.take(lambda found: False) is None
    assert taken(waiting) == [10, 0, 1, 3]
    assert not waiting


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_no_worker_idles_long_at_the_end(workers):
    draw = random.Random(workers)
    for _ in range(20):
        sizes = [draw.choice([2, 3, 5, 20, 60]) for _ in range(60)]
        stacks = [stack(n, n, steps) for n, steps in enumerate(sizes)]
        order = taken(Waiting(stacks, workers))
        assert sorted(order) == list(range(60))
        longest_first = sorted(order, key=lambda n: -stacks[n].steps)
        best = max(sum(sizes) / workers, max(sizes))
        assert makespan(stacks, order, workers) <= 1.15 * max(best, makespan(stacks, longest_first, workers))
        if workers == 2:
            first = [stacks[n].trials[0].seed for n in order[:30]]
            assert first == sorted(first)  # low seeds, while there is enough left to do
