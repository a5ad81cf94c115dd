"""Run training steps eagerly, with compiled layers, or as replays of captured CUDA graphs.

`GraphedStep` captures and replays any step. `StepRunner` runs the steps of a stack with it: each size of a step is
captured once. `BatchSteps` runs those of small probes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from whichlayers.engine.compilation import compile_layers
from whichlayers.engine.out_of_memory import is_out_of_memory
from whichlayers.engine.step_sizes import plan_sizes

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackTrainer

log = logging.getLogger(__name__)

WARMUP_STEPS = 2  # eager steps of a size before it is captured
BATCH_WARMUP_STEPS = 3  # eager steps of BatchSteps before they are captured
MIN_STEPS_TO_CAPTURE = 256  # of BatchSteps


class GraphedStep:
    """Runs a step eagerly a few times, then as replays of its CUDA graph.

    The eager runs are ordinary steps, on a side stream as capturing requires; capturing computes nothing. A step that
    cannot be captured keeps running eagerly.

    Args:
        step: Reads and writes the same tensors each time; everything that changes between steps is on the device.
        warmup_steps: Number of eager runs before the step is captured.
        stream: The side stream.
        pool: Memory pool shared with other graphs. Default: a pool of its own.
    """

    def __init__(self, step: Callable[[], None], warmup_steps: int, stream: Any, pool: Any = None):
        self.step, self.warmup_steps, self.stream, self.pool = step, warmup_steps, stream, pool
        self.eager_steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.capture_failed = False

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
            return
        if self.capture_failed:
            self.step()
            return
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self.step()
        current.wait_stream(self.stream)
        self.eager_steps += 1
        if self.eager_steps >= self.warmup_steps:
            self._capture()

    def _capture(self) -> None:
        torch.cuda.synchronize(self.stream.device)
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.stream.device)
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self.step()
        except RuntimeError as error:  # capturing computes nothing: what the step writes to is unchanged
            torch.cuda.set_stream(current)  # a capture that cannot even be ended leaves its stream current
            if is_out_of_memory(error):
                raise
            self.capture_failed = True
            log.warning(
                "a training step cannot be captured as a CUDA graph; it runs eagerly, which is slower: %s",
                str(error).strip().splitlines()[0],
            )
        else:
            self.graph = graph


@functools.cache
def side_stream(device: torch.device) -> Any:
    """The stream on which steps are captured: one for all, because cuBLAS keeps a workspace for every stream."""
    return torch.cuda.Stream(device)


class BatchSteps:
    """Runs a step over consecutive batches of equal size, as a CUDA graph where that is faster.

    With few examples or few neurons per step the GPU waits for the host to launch some twenty kernels; a captured step
    takes one launch.

    Args:
        step: Called with the offset of the batch, 0-d, on the device.
        batch_size: Distance between the offsets of two batches.
        device: Where the step runs. Only steps on a CUDA device are captured.
        total_steps: Number of steps that will be run; the step is captured if there are enough of them.
    """

    def __init__(
        self, step: Callable[[torch.Tensor], None], batch_size: int, device: torch.device, total_steps: int
    ):
        self.offset = offset = torch.zeros((), dtype=torch.int64, device=device)

        def run_one() -> None:
            step(offset)
            offset.add_(batch_size)

        self.run_one: Callable[[], None] = run_one
        if device.type == "cuda" and total_steps >= MIN_STEPS_TO_CAPTURE:
            self.run_one = GraphedStep(run_one, BATCH_WARMUP_STEPS, side_stream(device))

    def run(self, steps: int) -> None:
        """Run this many steps, starting with the batch at offset 0."""
        self.offset.zero_()
        for _ in range(steps):
            self.run_one()


class StepRunner:
    """Runs the training steps of one stack; call it with the step number.

    Args:
        trainer: The stack.
        compiled: Compile the encoder layers with torch.compile.
        graphs: Capture each size of a step as a CUDA graph and replay it.
        similar_stacks: Number of stacks of the same shape, which share the compiled code.
    """

    def __init__(self, trainer: StackTrainer, compiled: bool, graphs: bool, similar_stacks: int = 1):
        self.trainer = trainer
        self.graphs: dict[int, GraphedStep] | None = {} if graphs else None  # by size
        self.stream: Any = side_stream(trainer.device) if graphs else None
        self.pool: Any = torch.cuda.graph_pool_handle() if graphs else None
        loader = trainer.train_loader
        self.sizes = loader.step_sizes(trainer.size_in_tokens)  # (steps,)
        if compiled or graphs:
            # of all trials
            layer_weights = sum(
                p.param.numel() for p in trainer.parameters if trainer.initial_weights.layer_of(p.name)
            )
            self.sizes, known = plan_sizes(
                loader, len(trainer.trials), layer_weights, trainer.size_in_tokens, compiled, similar_stacks
            )
            if compiled:
                known |= set(self.sizes.tolist())
        if compiled:
            compile_layers(trainer.model.module.get_submodule("encoder"))

    def __call__(self, step: int) -> None:
        size = int(self.sizes[step])
        if self.graphs is None:
            self.trainer.train_step(size)
            return
        graphed = self.graphs.get(size)
        if graphed is None:
            train_step = functools.partial(self.trainer.train_step, size)
            graphed = GraphedStep(train_step, WARMUP_STEPS, self.stream, self.pool)
            self.graphs[size] = graphed
        graphed()
        if graphed.capture_failed:  # other sizes would fail as well: run all further steps eagerly
            self.graphs = None

    def release(self) -> None:
        """Free the captured graphs and their memory. Further steps would run eagerly."""
        self.graphs = self.pool = None
