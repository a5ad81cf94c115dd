"""The steps of small probes, replayed from a CUDA graph.

With few examples or few neurons a step the device waits for the host, which has some twenty kernels to launch. A
captured step takes one launch. All that changes from step to step lies on the device: where in the epoch it is,
and how many steps were taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WORTH_CAPTURING = 256  # steps
WARM_RUNS = 3

Step = Callable[
    [Tensor, Tensor], None
]  # (first place of the batch, number of this step): both 0-d, on the device


class Replay:
    """A step over batches of one size. On a CUDA device it is captured once `of` steps make that worthwhile:
    it must read and write the same tensors whenever it is called."""

    def __init__(self, step: Step, batch: int, device: torch.device, of: int, done: int = 0):
        self.step, self.batch, self.device = step, batch, device
        self.captures = device.type == "cuda" and of >= WORTH_CAPTURING
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        self.number = torch.full((), float(done), dtype=torch.float64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, steps: int) -> None:
        """That many batches, from place 0 on."""
        self.place.zero_()
        left = steps
        if self.captures and self.graph is None and left > WARM_RUNS:
            self._capture()
            left -= WARM_RUNS
        for _ in range(left):
            if self.graph is None:
                self._one()
            else:
                self.graph.replay()

    def _one(self) -> None:
        self.number.add_(1)
        self.step(self.place, self.number)
        self.place.add_(self.batch)

    def _capture(self) -> None:
        """Takes WARM_RUNS steps like any other, as a capture wants it, and records the next without taking it."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                self._one()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._one()
