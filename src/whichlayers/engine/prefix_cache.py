"""Cache of the lowest layers' output, where it is the same in all trials and at every step.

If the embeddings and the lowest layers are frozen and have no dropout, their output depends on the example alone. It is
computed once for all training examples of a stack and looked up by the training steps, which skip these layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from whichlayers.engine.dataloader import TrainDataLoader
from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.free_memory import free_memory
from whichlayers.engine.freezing import lr_factor
from whichlayers.engine.init_weights import InitialWeights
from whichlayers.engine.stacking import StackedModel
from whichlayers.models.structure import ModelStructure
from whichlayers.trial import Trial

MAX_FRACTION = 0.25  # of the free memory that a cache may take


def constant_prefix(model: StackedModel, initial: InitialWeights, trials: Sequence[Trial]) -> int:
    """Number of lowest layers whose output is the same in all trials and at every step.

    They and the embeddings are frozen, without dropout, and start from the same weights in all trials.
    """
    depth = initial.depth_of(trials[0])
    changing: set[int | None] = {0} if model.context.batch_dim else set()  # XLNet is not cached
    for name, _ in model.module.named_parameters():
        inner, layer = name.removeprefix("encoder."), initial.layer_of(name)
        for_all_layers = initial.structure.is_for_all_layers(inner)
        if layer is None and not for_all_layers:
            continue
        trained = any(lr_factor(initial, trial, name) > 0 for trial in trials)
        if trained or initial.common_source(name) is None:
            changing.add(0 if for_all_layers else layer)
    for name, module in model.module.named_modules():
        if isinstance(module, StackedDropout) and module.p > 0:
            changing.add(initial.layer_of(name))
    lowest = min((n for n in changing if n is not None), default=depth + 1)
    return max(0, lowest - 1)


class PrefixCache:
    """The output of the lowest layers for all training examples of a stack.

    Attributes:
        hidden: (N, longest, H) hidden states; the values at padding are not used.
    """

    def __init__(self, hidden: Tensor):
        self.hidden = hidden

    @staticmethod
    def build(model: StackedModel, loader: TrainDataLoader, layers: int) -> PrefixCache | None:
        """Compute the cache, and make the lowest `layers` of the model use it while `context.prefix` is set.

        Returns:
            The cache; None if it would take too much memory, which leaves the model as it was.
        """
        encoder = next(m for m in model.modules() if isinstance(m, PreTrainedModel))
        rows, width = loader.input_ids.shape
        dtype = next(p.dtype for p in encoder.parameters() if p.is_floating_point())
        size = rows * width * encoder.config.hidden_size * dtype.itemsize
        free = free_memory(loader.input_ids.device)
        if free is not None and size > MAX_FRACTION * free:
            return None
        hidden, extra = _hidden_states(model, loader, ModelStructure(encoder).layers[layers - 1])
        for number, layer in enumerate(ModelStructure(encoder).layers[:layers], 1):
            _skip_if_cached(layer, model, extra, is_last=number == layers)
        return PrefixCache(hidden)

    def states(self, rows: Tensor, length: int) -> Tensor:
        """(n, length, H) hidden states of (n,) rows of the data loader."""
        found = self.hidden[rows, :length]
        missing = length - found.shape[1]
        return F.pad(found, (0, 0, 0, missing)) if missing > 0 else found


class _Stop(Exception):
    """Ends a forward pass when the hidden states are known."""


@torch.no_grad()
def _hidden_states(model: StackedModel, loader: TrainDataLoader, layer: nn.Module) -> tuple[Tensor, Any]:
    """(N, longest, H) output of a layer for all training examples, and what follows in the tuple that it returns.

    The latter is None if the layer returns a tensor.
    """
    found: list[Tensor] = []
    extra: Any = None

    def keep(_: nn.Module, args: Any, output: Any) -> None:
        nonlocal extra
        states, extra = (output[0], output[1:]) if isinstance(output, tuple) else (output, None)
        packing = model.context.packing
        found.append(states if packing is None else packing.unpack(states))
        raise _Stop

    was_training, trials = model.training, model.trials
    rows, width = loader.input_ids.shape
    handle = layer.register_forward_hook(keep)
    model.eval()
    model.context.packed_tokens = None
    chunk = trials * loader.batch_size  # the rows of a training step, so that it takes no more memory
    try:
        for start in range(0, rows, chunk):
            index = torch.arange(start, start + chunk, device=loader.input_ids.device).clamp(max=rows - 1)
            model.context.row_keys = None
            with contextlib.suppress(_Stop):
                model(**loader.inputs(index, width))
    finally:
        handle.remove()
        model.train(was_training)
        model.context.packing = model.context.next_packing = model.context.row_keys = None
    return torch.cat(found)[:rows].contiguous(), extra


def _skip_if_cached(layer: nn.Module, model: StackedModel, extra: Any, is_last: bool) -> None:
    """Replace the forward of a layer: while `context.prefix` is set, it returns its input, or the cached states."""
    forward, context = layer.forward, model.context

    def forward_or_skip(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if context.prefix is None:
            return forward(hidden_states, *args, **kwargs)
        states = hidden_states
        if is_last:
            states = context.prefix if context.packing is None else context.packing.pack(context.prefix)
        return states if extra is None else (states, *extra)

    layer.forward = forward_or_skip  # type: ignore[assignment, method-assign]
    layer.uses_prefix_cache = True  # type: ignore[assignment]
