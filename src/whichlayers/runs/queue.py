"""The queue of stacks: retried stacks first, then low seeds first, but long stacks before it is too late.

With low seeds first, every curve gains one trial at a time. Followed strictly, this could leave a long stack for the
end, where one worker trains while all others are idle. Therefore the longest stack is next as soon as it would take
longer than URGENT_FRACTION of an even share of all pending steps among the workers. A consequence is that the last
stacks, about two per worker, always run longest first. A single worker is never idle and always follows the seeds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from whichlayers.runs.plan import Stack

URGENT_FRACTION = 0.5


def any_stack(stack: Stack) -> bool:
    """The default of `StackQueue.pop`: every stack fits."""
    return True


class StackQueue:
    """Stacks that wait for a free worker; each has a unique number."""

    def __init__(self, stacks: Iterable[Stack], workers: int = 1) -> None:
        self.workers = workers
        self.front: deque[Stack] = deque()  # stacks to run before all others, such as retries
        self.pending: dict[int, Stack] = {}  # by number, low seeds first
        self.longest: list[tuple[int, int]] = []  # heap of (-steps, number); may contain popped stacks
        self.steps = 0  # of all pending stacks
        self._fill(stacks)

    def _fill(self, stacks: Iterable[Stack]) -> None:
        self.pending = {stack.number: stack for stack in stacks}
        self.longest = [(-stack.steps, stack.number) for stack in self.pending.values()]
        heapq.heapify(self.longest)
        self.steps = -sum(steps for steps, _ in self.longest)

    def split(self, parts_of: Callable[[Stack], list[Stack]]) -> None:
        """Replace every stack by its parts."""
        self.front = deque(chain.from_iterable(map(parts_of, self.front)))
        self._fill(chain.from_iterable(map(parts_of, list(self.pending.values()))))

    def __len__(self) -> int:
        return len(self.front) + len(self.pending)

    def __iter__(self) -> Iterator[Stack]:
        yield from self.front
        yield from self.pending.values()

    def push_front(self, *stacks: Stack) -> None:
        """Put stacks before all others, in the given order."""
        self.front.extendleft(reversed(stacks))

    def pop(self, fits: Callable[[Stack], bool] = any_stack) -> Stack | None:
        """Remove and return the next stack for which `fits` is true; None if there is none."""
        for stack in self.front:
            if fits(stack):
                self.front.remove(stack)
                return stack
        if (urgent := self._urgent()) is not None and fits(urgent):
            return self._remove(urgent)
        for stack in self.pending.values():
            if fits(stack):
                return self._remove(stack)
        return None

    def _urgent(self) -> Stack | None:
        """The longest pending stack if it takes too long to be left for later."""
        while self.longest and self.longest[0][1] not in self.pending:
            heapq.heappop(self.longest)
        if not self.longest or self.workers == 1:
            return None
        stack = self.pending[self.longest[0][1]]
        return stack if stack.steps * self.workers >= self.steps * URGENT_FRACTION else None

    def _remove(self, stack: Stack) -> Stack:
        del self.pending[stack.number]
        self.steps -= stack.steps
        return stack
