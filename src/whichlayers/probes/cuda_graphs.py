"""Runs the training steps of small probes from a CUDA graph.

With few examples or few neurons per step the GPU waits for the host to launch some twenty kernels. A captured step
takes one launch. Everything that changes between steps is stored on the device: the offset of the batch and the step
number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MIN_STEPS_TO_CAPTURE = 256
WARMUP_STEPS = 3

Step = Callable[[Tensor, Tensor], None]  # (offset of the batch, step number from 1): both 0-d, on the device


class GraphedStep:
    """Runs a step over consecutive batches of equal size, as a CUDA graph where that is faster.

    Args:
        step: Called with the offset of the batch and the step number. It must read and write the same tensors each
            time.
        batch_size: Distance between the offsets of two batches.
        device: Where the step runs. Only steps on a CUDA device are captured.
        total_steps: Number of steps that will be run; the step is captured if there are enough of them.
        steps_done: Number of steps that were run before.
    """

    def __init__(
        self, step: Step, batch_size: int, device: torch.device, total_steps: int, steps_done: int = 0
    ):
        self.step, self.batch_size, self.device = step, batch_size, device
        self.use_graph = device.type == "cuda" and total_steps >= MIN_STEPS_TO_CAPTURE
        self.offset = torch.zeros((), dtype=torch.int64, device=device)
        self.number = torch.full((), float(steps_done), dtype=torch.float64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, steps: int) -> None:
        """Run this many steps, starting with the batch at offset 0."""
        self.offset.zero_()
        left = steps
        if self.use_graph and self.graph is None and left > WARMUP_STEPS:
            self._capture()
            left -= WARMUP_STEPS
        for _ in range(left):
            if self.graph is None:
                self._run_one()
            else:
                self.graph.replay()

    def _run_one(self) -> None:
        self.number.add_(1)
        self.step(self.offset, self.number)
        self.offset.add_(self.batch_size)

    def _capture(self) -> None:
        """Run WARMUP_STEPS steps on a side stream, as capturing requires, then record the next without running it."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_STEPS):
                self._run_one()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._run_one()
