"""How a step runs: as it is, with its layers compiled, or replayed from a CUDA graph.

One encoder layer is compiled and its code serves all layers. A step is captured once for each length that
occurs, after it has run for real: the runs that warm a length up are training steps like any other.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from whichlayers.engine.cost import is_out_of_memory
from whichlayers.engine.dataloader import LENGTH_STEP
from whichlayers.models.anatomy import Anatomy

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackRun

log = logging.getLogger(__name__)

WARM_RUNS = 2  # a length runs so often before it is captured
COMPILE_SECONDS, CAPTURE_SECONDS = 18.0, 0.5  # of a length that is new in this process, of a known one
FLOP_PER_WEIGHT = 6  # and token: forward, and the two products of backward
FLOP_PER_SECOND = 250e12  # what a large GPU does in a step


class StepRunner:
    """Runs the steps of one stack."""

    def __init__(self, run: StackRun, compiled: bool, graphs: bool, alike: int = 1):
        self.run = run
        self.graphs: dict[int, torch.cuda.CUDAGraph] | None = {} if graphs else None
        self.runs: Counter[int] = Counter()
        self.pool: Any = None
        self.stream: Any = torch.cuda.Stream() if graphs else None
        self.lengths = run.feed.lengths
        if compiled or graphs:
            layers = sum(
                p.work.numel() for p in run.parameters if run.start.layer_of(p.name)
            )  # of all trials
            known = _compiled.setdefault((layers, len(run.trials), run.feed.batch), set())
            seconds = FLOP_PER_WEIGHT * layers * run.feed.batch / FLOP_PER_SECOND
            self.lengths = few_lengths(self.lengths, seconds, known, alike)
            known |= set(self.lengths.tolist())
        if compiled:
            compile_layers(run.stack.model.get_submodule("encoder"))

    def __call__(self, step: int) -> None:
        length = int(self.lengths[step])
        if self.graphs is None:
            self.run.train_step(length)
            return
        if length in self.graphs:
            self.graphs[length].replay()
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.run.train_step(length)
        torch.cuda.current_stream().wait_stream(self.stream)
        self.runs[length] += 1
        if self.runs[length] >= WARM_RUNS:
            self._capture(length)

    def _capture(self, length: int) -> None:
        assert self.graphs is not None
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self.run.train_step(length)
        except RuntimeError as error:  # capturing computes nothing: the run is as it was
            if is_out_of_memory(error):
                raise
            self.graphs = None
            first_line = str(error).strip().splitlines()[0]
            log.warning(
                "this model's step cannot be captured and runs uncaptured, more slowly: %s", first_line
            )
        else:
            self.graphs[length] = graph


_compiled: dict[tuple[int, int, int], set[int]] = {}  # by the shape of a stack: lengths there is code for


def few_lengths(
    lengths: np.ndarray, seconds_per_token: float, known: Collection[int] = (), alike: int = 1
) -> np.ndarray:
    """What to pad each step to: the lengths that cost the least in all, padding and compiling taken together.

    `lengths` (steps,) are the steps' own, `seconds_per_token` what one token more in every row costs a step,
    `known` the lengths that need no compiling any more; what is compiled serves so many stacks `alike`.
    """
    rounded = -(-lengths // LENGTH_STEP) * LENGTH_STEP
    counts = Counter(rounded.tolist())
    ladder = sorted(counts)
    # best[j]: cost of all steps up to the j-th length, padded to lengths of which that one is the last
    best, before = [0.0], [0]
    for j, top in enumerate(ladder, 1):
        own = CAPTURE_SECONDS + (0 if top in known else COMPILE_SECONDS / alike)
        options = [
            best[i] + own + seconds_per_token * sum(counts[n] * (top - n) for n in ladder[i:j])
            for i in range(j)
        ]
        best.append(min(options))
        before.append(options.index(min(options)))
    kept, j = list[int](), len(ladder)
    while j:
        kept.append(ladder[j - 1])
        j = before[j]
    return np.array(kept[::-1])[np.searchsorted(kept[::-1], rounded)]


@functools.cache  # once a process
def start_compiler() -> None:
    """Load torch's compiler and start its worker processes in the background: both take seconds."""

    def load() -> None:
        importlib.import_module("torch._inductor.compile_fx")
        importlib.import_module("torch._inductor.async_compile").AsyncCompile.warm_pool()

    threading.Thread(target=load, daemon=True).start()


def compile_layers(encoder: nn.Module) -> None:
    """Compile the layers' forward for training; evaluation, whose shapes vary, runs as it is."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    parts = [*Anatomy(encoder).layers, encoder.get_submodule(Anatomy(encoder).family.embeddings[0])]  # type: ignore[arg-type]
    for part in parts:
        part.forward = _train_compiled(part, torch.compile(part.forward, dynamic=False), part.forward)


def _train_compiled(layer: nn.Module, training: Any, evaluation: Any) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return training(*args, **kwargs) if layer.training else evaluation(*args, **kwargs)

    return forward
