"""Which stack is next: what went wrong before, else the lowest seeds, else the longest, before it is too late.

Low seeds first lets every curve grow a trial at a time. It may leave a long stack for the end, where one
worker trains while all others idle. So the longest stack goes first as soon as it would take longer than half
of an even share of all that waits: soon it would decide when the study ends. The last stacks, two a worker,
are therefore always handed out longest first. One worker alone never idles, and keeps to the seeds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from whichlayers.runs.plan import Stack

Fits = Callable[[Stack], bool]

URGENT_SHARE = 0.5  # of an even share of what waits


def anywhere(stack: Stack) -> bool:
    return True


class Waiting:
    """Stacks that are to be handed out; their numbers tell them apart."""

    def __init__(self, stacks: Iterable[Stack], workers: int = 1) -> None:
        self.workers = workers
        self.again: deque[Stack] = deque()  # they go before all others
        self.fresh: dict[int, Stack] = {}
        self.longest: list[tuple[int, int]] = []  # a heap of (-steps, number); may hold some that have gone
        self.steps = 0
        self._fill(stacks)

    def _fill(self, stacks: Iterable[Stack]) -> None:
        self.fresh = {stack.number: stack for stack in stacks}
        self.longest = [(-stack.steps, stack.number) for stack in self.fresh.values()]
        heapq.heapify(self.longest)
        self.steps = -sum(steps for steps, _ in self.longest)

    def cut(self, pieces: Callable[[Stack], list[Stack]]) -> None:
        """Put these pieces in the place of every stack."""
        self.again = deque(chain.from_iterable(map(pieces, self.again)))
        self._fill(chain.from_iterable(map(pieces, list(self.fresh.values()))))

    def __len__(self) -> int:
        return len(self.again) + len(self.fresh)

    def __iter__(self) -> Iterator[Stack]:
        yield from self.again
        yield from self.fresh.values()

    def first(self, *stacks: Stack) -> None:
        """Put these before all others, in their order."""
        self.again.extendleft(reversed(stacks))

    def take(self, fits: Fits = anywhere) -> Stack | None:
        """The next one that fits; None where none does."""
        for stack in self.again:
            if fits(stack):
                self.again.remove(stack)
                return stack
        if (urgent := self._urgent()) is not None and fits(urgent):
            return self._gone(urgent)
        for stack in self.fresh.values():
            if fits(stack):
                return self._gone(stack)
        return None

    def _urgent(self) -> Stack | None:
        while self.longest and self.longest[0][1] not in self.fresh:
            heapq.heappop(self.longest)
        if not self.longest or self.workers == 1:
            return None
        stack = self.fresh[self.longest[0][1]]
        return stack if stack.steps * self.workers >= self.steps * URGENT_SHARE else None

    def _gone(self, stack: Stack) -> Stack:
        del self.fresh[stack.number]
        self.steps -= stack.steps
        return stack
