"""Measure how much memory a stack takes.

A training step and a part of the evaluation are run with one trial and with two. This counts weights, optimizer
moments, gradients, activations of the longest possible batch, and one chunk of evaluation. On a GPU, torch counts
the allocated bytes; elsewhere `_AllocationTracker` does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from whichlayers.data.tokenize import TokenizedTask
from whichlayers.engine.cost import BYTES_PER_PARAMETER, MemoryCost
from whichlayers.engine.dataloader import EvalChunk, most_batch_tokens, round_up
from whichlayers.engine.freezing import lr_factor
from whichlayers.engine.init_weights import InitialWeights
from whichlayers.engine.out_of_memory import is_out_of_memory, release_memory
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.trial import Trial

CPU_OVERHEAD = 1.5  # factor for the allocator and for buffers inside kernels
MEASURED_STEPS = 2  # number of training steps to measure: the first one allocates the moments
EVAL_ROWS_DIVISOR = 16  # an evaluation chunk is measured on 1/16 of its rows
CUDA_BYTES_PER_WEIGHT = 12  # float32 weight and two moments; where memory runs out, torch raises an error


def measure_memory(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    data: TokenizedTask,
    device: str | torch.device,
    settings: EngineSettings | None = None,
    free: float | None = None,
    limit: int = 64,
) -> MemoryCost:
    """Memory that stacks of these trials take on the device, not counting the pretrained encoder itself.

    If one trial already shows that none or `limit` of them fit into `free` bytes, a stack of two is not tried.
    """
    device, settings = torch.device(device), settings or EngineSettings()
    encoder = encoder.to(device)  # type: ignore[arg-type]
    largest = max(trials, key=lambda trial: trial.train_size)  # uses the most rows of the word embeddings
    if free is not None and (bound := _lower_bound(largest, encoder, device)) > free:
        return MemoryCost(bound, bound)
    first = _peak_memory([largest], encoder, data, device, settings)
    decided = free is not None and (
        MemoryCost(first, first).max_trials(free, limit) == limit or 2 * first > free
    )
    if limit == 1 or decided:
        return MemoryCost(first, first)
    try:
        both = _peak_memory([largest, largest], encoder, data, device, settings)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return MemoryCost(first, first)
    return MemoryCost(first, max(1, both - first))


def _lower_bound(trial: Trial, encoder: PreTrainedModel, device: torch.device) -> int:
    """Bytes of the trained weights in layers and their moments, the least that a trial can take.

    On the CPU also of their gradients, with the allocator's overhead: as much as `_peak_memory` would find. Trying
    could fill the memory of the machine, and the system would end the process without an error.
    """
    initial = InitialWeights(encoder, [trial])
    structure = initial.structure
    on_cuda = device.type == "cuda"
    per_weight = CUDA_BYTES_PER_WEIGHT if on_cuda else int(BYTES_PER_PARAMETER * CPU_OVERHEAD)
    return per_weight * sum(
        p.numel()
        for position in range(1, initial.depth_of(trial) + 1)
        for name, p in structure.layer_parameters(position).items()
        if lr_factor(initial, trial, f"encoder.{name}") > 0
    )


def _peak_memory(
    trials: list[Trial],
    encoder: PreTrainedModel,
    data: TokenizedTask,
    device: torch.device,
    settings: EngineSettings,
) -> int:
    """Peak bytes of a stack of these trials while it trains and evaluates."""
    graphs = settings.uses_graphs(device.type == "cuda")
    eager = replace(settings, compiled=False, graphs=False, slots=None, checkpoint_folder=None)
    with _track_memory(device) as memory:
        trainer = StackTrainer(trials, encoder, data, device, eager)
        size = _largest_step(trainer, data)
        for _ in range(MEASURED_STEPS):
            memory.restart()
            trainer.step_on_device.zero_()  # there may be a single step
            trainer.train_step(size)
        kept = memory.now()
        training = memory.peak() - kept
        evaluation = _evaluation_memory(trainer, memory)
        del trainer
    # CUDA graphs have their own memory pool, in addition to that of eager steps
    total = kept + training * graphs + max(training, evaluation)
    return int(total * (1 if device.type == "cuda" else CPU_OVERHEAD))


def _largest_step(trainer: StackTrainer, data: TokenizedTask) -> int:
    """Pad the trainer's batches to the longest sequence in the training set; returns the size of the largest step."""
    lengths = np.diff(data.train.offsets)
    longest = int(lengths.max())
    loader = trainer.train_loader
    longest = loader.padded_length(longest) if trainer.device.type == "cuda" else longest
    missing = longest - loader.input_ids.shape[1]
    if missing > 0:
        loader.input_ids = F.pad(loader.input_ids, (0, missing))
        if loader.token_type_ids is not None:
            loader.token_type_ids = F.pad(loader.token_type_ids, (0, missing))
    if trainer.size_in_tokens:
        # a batch that is larger than the training set repeats examples
        return max(most_batch_tokens(lengths, loader.batch_size), round_up(int(loader.step_tokens.max())))
    loader.row_lengths.fill_(longest)  # no padding: the most expensive batch of this shape
    return longest


@torch.no_grad()
def _evaluation_memory(trainer: StackTrainer, memory: _CudaMemory | _AllocationTracker) -> int:
    """Additional bytes of the largest evaluation chunk, extrapolated from a fraction of its rows."""
    trainer.model.eval()
    chunks = [chunk for loader in trainer.eval_loaders.values() for chunk in loader.chunks]
    most = 0.0
    for size in (lambda c: c.inputs["input_ids"].shape[1], lambda c: c.inputs["input_ids"].numel()):
        largest = max(chunks, key=size)
        rows = len(largest.inputs["input_ids"])
        few = max(2, rows // EVAL_ROWS_DIVISOR)
        memory.restart()
        kept = memory.now()
        part = {name: v.repeat(2, 1)[:few] for name, v in largest.inputs.items()}
        trainer.compute_logits([EvalChunk(part, int(part["attention_mask"].sum()))])
        most = max(most, (memory.peak() - kept) * max(1, rows / few))
    return int(most)


# --- counting bytes ---


class _CudaMemory:
    """Bytes allocated on a CUDA device since this object was created."""

    def __init__(self, device: torch.device):
        self.device = device
        self.before = torch.cuda.memory_allocated(device)

    def restart(self) -> None:
        """Reset the peak to what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def now(self) -> int:
        return torch.cuda.memory_allocated(self.device) - self.before

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) - self.before


class _AllocationTracker(TorchDispatchMode):
    """Counts the bytes of all tensor storages created while it is active, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}  # bytes by the address of the C++ storage
        self.total = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {
            x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)
        }
        for tensor in tree_leaves(result):
            # a view of a tensor that existed before, such as a pretrained weight, takes no memory
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.live:
            self.live[key] = storage.nbytes()
            self.total += storage.nbytes()
            self.most = max(self.most, self.total)
            weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.total -= self.live.pop(key)

    def restart(self) -> None:
        """Reset the peak to what is allocated now."""
        self.most = self.total

    def now(self) -> int:
        return self.total

    def peak(self) -> int:
        return self.most


@contextmanager
def _track_memory(device: torch.device) -> Iterator[_CudaMemory | _AllocationTracker]:
    """Count the bytes allocated inside the context, and release unused memory on exit."""
    release_memory()
    try:
        if device.type == "cuda":
            yield _CudaMemory(device)
        else:
            with _AllocationTracker() as tracker:
                yield tracker
    finally:
        release_memory()


class TrainingMemory:
    """Peak memory of a stack while it is built and takes its first training steps.

    On the CPU, only what is allocated inside `with` blocks of this object is counted; these are slower.

    Args:
        device: Where the stack trains.
    """

    def __init__(self, device: torch.device):
        self._memory = _CudaMemory(device) if device.type == "cuda" else _AllocationTracker()
        self._memory.restart()

    def __enter__(self) -> TrainingMemory:
        if isinstance(self._memory, _AllocationTracker):
            self._memory.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if isinstance(self._memory, _AllocationTracker):
            self._memory.__exit__(*error)

    def peak(self) -> int:
        """Peak bytes so far."""
        return self._memory.peak()
