"""The steps of an epoch of small probes, replayed from a CUDA graph.

With eight examples a step the device waits for the host, which has some twenty kernels to launch. A captured
step takes one launch. All that changes from step to step lies on the device: where in the epoch it is, and
how many steps were taken.
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


def run_steps(step: Step, steps: int, batch: int, done: int, device: torch.device) -> None:
    """Call `step` for every batch of an epoch, after `done` steps of earlier ones."""
    place = torch.zeros((), dtype=torch.int64, device=device)
    number = torch.full((), float(done), dtype=torch.float64, device=device)

    def one() -> None:
        number.add_(1)
        step(place, number)
        place.add_(batch)

    if device.type != "cuda" or steps < WORTH_CAPTURING:
        for _ in range(steps):
            one()
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_RUNS):  # steps like any other
            one()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    for _ in range(steps - WARM_RUNS):
        graph.replay()
