"""Activation checkpointing: activations inside a layer are computed again in the backward pass, which saves memory.

Results do not change: dropout masks are a function of trial and step, and a packed batch is computed as packed again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from whichlayers.engine.stacked_modules import StackContext
from whichlayers.engine.stacking import StackedModel
from whichlayers.models.structure import ModelStructure

MIN_PARAMETERS = 400_000_000  # of the layers of one trial: smaller models are trained without


def is_large(encoder: PreTrainedModel) -> bool:
    """Whether the layers of a model have so many parameters that it is trained with activation checkpointing."""
    return (
        sum(p.numel() for layer in ModelStructure(encoder).layers for p in layer.parameters())
        > MIN_PARAMETERS
    )


def recompute_layers(model: StackedModel) -> None:
    """Keep only the inputs of layers for the backward pass, in place; after the layers were compiled, if they are."""
    encoder = next(m for m in model.modules() if isinstance(m, PreTrainedModel))
    for layer in ModelStructure(encoder).layers:
        layer.forward = _recomputed(layer, layer.forward, model.context)  # type: ignore[method-assign]


def _recomputed(layer: nn.Module, forward: Any, context: StackContext) -> Any:
    """A forward that keeps its inputs only, in training."""

    def run(packing: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # in the backward pass, activations are packed as they were in the forward pass
        before, context.packing = context.packing, packing
        try:
            return forward(*args, **kwargs)
        finally:
            context.packing = before

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not (layer.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return checkpoint(run, context.packing, args, kwargs, use_reentrant=False, preserve_rng_state=False)

    return recomputed
