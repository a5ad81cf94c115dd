"""Run training steps eagerly, with compiled layers, or as replays of captured CUDA graphs.

`GraphedStep` captures and replays any step. `StepRunner` runs the steps of a stack with it: each size of a step is
captured once. `BatchSteps` runs those of small probes. One encoder layer is compiled, and its code serves all layers.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from whichlayers.engine.dataloader import LENGTH_STEP
from whichlayers.engine.out_of_memory import is_out_of_memory
from whichlayers.engine.settings import EngineSettings
from whichlayers.models.families import Anatomy

if TYPE_CHECKING:
    from whichlayers.engine.dataloader import TrainDataLoader
    from whichlayers.engine.stack_trainer import StackTrainer

log = logging.getLogger(__name__)

WARMUP_STEPS = 2  # eager steps of a size before it is captured
BATCH_WARMUP_STEPS = 3  # eager steps of BatchSteps before they are captured
MIN_STEPS_TO_CAPTURE = 256  # of BatchSteps
COMPILE_SECONDS, CAPTURE_SECONDS = 18.0, 0.5  # for a size that is new in this process, for any size
FLOP_PER_WEIGHT = 6  # per token: forward, and the two matrix products of backward
FLOP_PER_SECOND = 250e12  # of a large GPU in a training step
# Time that element-wise operations of a step take longer without torch.compile, per token, hidden unit and layer. An
# upper bound for an H200, where the compiled ones take 7e-11 s: a stack for which compiling might pay is compiled.
EAGER_SECONDS = 2.4e-10


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


def plan_sizes(
    loader: TrainDataLoader,
    trials: int,
    layer_weights: int,
    size_in_tokens: bool,
    compiled: bool,
    similar_stacks: int,
) -> tuple[np.ndarray, set[int]]:
    """The sizes that the steps of a stack are padded to, and the sizes that this process has compiled already.

    Args:
        loader: The training batches of the stack.
        trials: Number of trials.
        layer_weights: Number of trained weights in the layers of all trials.
        size_in_tokens: Whether sizes are tokens of a trial, see `StackTrainer`.
        compiled: Whether its layers are compiled.
        similar_stacks: Number of stacks of the same shape.

    Returns:
        (steps,) sizes, and the known sizes of this shape, a set that the caller may add to.
    """
    key = (layer_weights, trials, loader.batch_size, size_in_tokens)
    known = _compiled_sizes.setdefault(key, set())
    tokens = 1 if size_in_tokens else loader.batch_size  # of a trial, for each unit of size
    seconds = FLOP_PER_WEIGHT * layer_weights * tokens / FLOP_PER_SECOND
    compile_seconds = COMPILE_SECONDS / similar_stacks if compiled else 0.0
    chosen = choose_sizes(loader.step_sizes(size_in_tokens), seconds, known, compile_seconds)
    return chosen if size_in_tokens else chosen.clip(max=loader.width), known


# sizes of steps for which compiled code exists, by (weights in layers, trials, batch size, size_in_tokens)
_compiled_sizes: dict[tuple[int, int, int, bool], set[int]] = {}


def choose_sizes(
    sizes: np.ndarray,
    seconds_per_unit: float,
    known: Collection[int] = (),
    compile_seconds: float = COMPILE_SECONDS,
) -> np.ndarray:
    """Choose the sizes to pad to such that padding, compilation and capture take the least time in total.

    Args:
        sizes: (steps,) size of each step: tokens of a trial, or the longest sequence.
        seconds_per_unit: Time that a step takes longer if its size grows by 1.
        known: Sizes that are compiled already.
        compile_seconds: Time to compile a size that is not known; 0 if nothing is compiled.

    Returns:
        (steps,) size to pad each step to, a multiple of LENGTH_STEP.
    """
    rounded = -(-sizes // LENGTH_STEP) * LENGTH_STEP
    counts = Counter(rounded.tolist())
    candidates = sorted(counts)
    # dynamic program; cost[j]: all steps up to the j-th size, if that is the largest of the chosen sizes
    cost, previous = [0.0], [0]
    for j, largest in enumerate(candidates, 1):
        fixed = CAPTURE_SECONDS + (0 if largest in known else compile_seconds)
        options = [
            cost[i] + fixed + seconds_per_unit * sum(counts[n] * (largest - n) for n in candidates[i:j])
            for i in range(j)
        ]
        cost.append(min(options))
        previous.append(options.index(min(options)))
    chosen, j = list[int](), len(candidates)
    while j:
        chosen.append(candidates[j - 1])
        j = previous[j]
    return np.array(chosen[::-1])[np.searchsorted(chosen[::-1], rounded)]


def is_worth_compiling(tokens: int, hidden_size: int, depth: int, similar_stacks: int = 1) -> bool:
    """Whether compiled layers save more time than it takes to compile them.

    Steps are captured either way, so that the time to launch kernels does not matter. Short training of a small model
    is over before its code would be compiled.

    Args:
        tokens: Number of tokens of all steps and trials of the stack.
        hidden_size, depth: Of the model.
        similar_stacks: Number of stacks of the same shape, which share the compiled code.
    """
    return similar_stacks * tokens * hidden_size * depth * EAGER_SECONDS > COMPILE_SECONDS


def should_compile(
    settings: EngineSettings, loader: TrainDataLoader, trials: int, encoder: PreTrainedModel, on_cuda: bool
) -> bool:
    """Whether the layers of a stack are compiled: as the settings say, else on a GPU if it saves time.

    Args:
        settings: How the stack is run.
        loader: Its training batches.
        trials: Number of trials.
        encoder: The pretrained encoder.
        on_cuda: Whether the stack trains on a GPU.
    """
    if settings.compiled is not None:
        return settings.compiled
    tokens, depth = int(loader.step_tokens.sum()) * trials, Anatomy(encoder).depth
    return on_cuda and is_worth_compiling(tokens, encoder.config.hidden_size, depth, settings.similar_stacks)


def keep_compiled_code() -> Path | None:
    """Let torch keep compiled code between runs in the user's own cache folder.

    The files are read with pickle, so only a private folder is used, never one inside a study. A folder that is set in
    TORCHINDUCTOR_CACHE_DIR is left as it is.

    Returns:
        The folder; None if torch's default is used.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch itself sets the variable to a folder in /tmp
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", default_cache_dir()) != default_cache_dir():
        return None
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whichlayers" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} does not belong to this user")
        folder.chmod(stat.S_IRWXU)
    except OSError as error:
        log.warning("compiled code is not kept between runs: %s", error)
        return None
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return folder


def select_device(device: torch.device) -> None:
    """Make a CUDA device the current one of this thread: Triton launches there, and new events belong to it."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


@functools.cache  # once per process
def warm_up_compiler() -> None:
    """Import torch's compiler and start its worker processes in a background thread; both take seconds."""
    keep_compiled_code()

    def load() -> None:
        importlib.import_module("torch._inductor.compile_fx")
        importlib.import_module("torch._inductor.async_compile").AsyncCompile.warm_pool()

    threading.Thread(target=load, daemon=True).start()


def compile_layers(encoder: nn.Module) -> None:
    """Compile the forward of the embeddings and layers for training; evaluation, whose shapes vary, stays eager."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    modules = [*Anatomy(encoder).layers, encoder.get_submodule(Anatomy(encoder).family.embeddings[0])]  # type: ignore[arg-type]
    for module in modules:
        if getattr(module, "uses_prefix_cache", False):
            continue  # it is skipped in training
        compiled = torch.compile(module.forward, dynamic=False)
        module.forward = _compiled_in_training(module, compiled, module.forward)


def _compiled_in_training(module: nn.Module, compiled: Any, eager: Any) -> Any:
    """A forward that calls `compiled` in training mode and `eager` in evaluation mode."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs) if module.training else eager(*args, **kwargs)

    return forward
