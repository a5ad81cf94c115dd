"""Times calls, and separates what they cost from what other programs on the machine add.

On a CPU that other programs use as well, the same call takes longer at one moment than at the next. The CPU time of
the calling thread does not change much. Costs are therefore measured in CPU time, and `Timer.slowdown` is how much
longer all calls took by the clock. On a GPU, costs are seconds by the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class Timer:
    """Measures the seconds that calls take, including the work that they start on the device.

    Args:
        device: Where the calls compute.
        clock: Seconds by the clock; for tests.
        cpu_clock: CPU seconds of the calling thread; for tests.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.device, self.clock, self.cpu_clock = device, clock, cpu_clock
        self.elapsed = self.cost = 0.0  # of all calls: by the clock, and as returned

    def __call__(self, call: Callable[[], object]) -> float:
        """Call a function and return what it costs: CPU seconds on a CPU, seconds by the clock elsewhere."""
        began, cpu_began = self.clock(), self.cpu_clock()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elapsed, cpu = self.clock() - began, self.cpu_clock() - cpu_began
        cost = min(cpu, elapsed) if self.device.type == "cpu" else elapsed
        self.elapsed += elapsed
        self.cost += cost
        return cost

    @property
    def slowdown(self) -> float:
        """Seconds by the clock, divided by the costs, of all calls so far: 1 on a machine without other work."""
        return self.elapsed / self.cost if self.cost else 1.0
