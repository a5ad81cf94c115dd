"""Patches for model families that need more than stacked modules.

They handle parameters that are not applied per row of the batch, parameters that are not in a Linear, LayerNorm or
Embedding module, and dropout outside of Dropout modules. Families not listed in `patch_family` need no patch. A patched
forward computes the same as the Hugging Face original, with the weights of each trial.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from whichlayers.engine.attention import PositionBias
from whichlayers.engine.deberta_attention import patch_deberta_attention
from whichlayers.engine.decoder_modules import add_opt_dropout, opt_layer_forward
from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.stacked_modules import StackContext
from whichlayers.engine.xlnet_attention import StackedXLNetAttention
from whichlayers.errors import WhichlayersError

SEQUENCE_FIRST_FAMILIES = {"xlnet"}  # activations are (L, T*B, H)


def patch_family(encoder: nn.Module, model_type: str, context: StackContext, counter: DropoutCounter) -> None:
    """Patch an encoder of the given model type, in place, after its modules were replaced by stacked ones."""
    patch = {
        "mpnet": _patch_mpnet,
        "xlnet": _patch_xlnet,
        "deberta-v2": _patch_deberta_v2,
        "modernbert": _patch_modernbert,
        "gemma3_text": _patch_gemma3,
        "opt": _patch_opt,
    }.get(model_type)
    if patch is not None:
        patch(encoder, context, counter)


class DropoutCounter:
    """Numbers the dropout modules of a stacked model, from 1 on."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


# ---------------------------------------------------------------------------------------------------- MPNet


def _patch_mpnet(encoder: Any, context: StackContext, counter: DropoutCounter) -> None:
    """Use each trial's own relative position bias, and an attention function that supports packed batches."""

    def compute_position_bias(self: Any, x: Tensor, position_ids: Any = None, num_buckets: int = 32) -> Any:
        length = x.shape[1]
        position = torch.arange(1 - length, length, device=x.device)
        buckets = self.relative_position_bucket(position, num_buckets=num_buckets).int()
        bias = PositionBias(self.relative_attention_bias.weight, buckets)
        if context.next_packing is not None:
            return context.next_packing.position_bias(bias)
        return bias.between(length).repeat_interleave(x.shape[0] // context.trials, 0)  # (T*B, heads, L, L)

    def attention(
        self: Any, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, **_: Any
    ) -> tuple[Tensor]:
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        projected = [linear(hidden_states).view(shape).transpose(1, 2) for linear in (self.q, self.k, self.v)]
        function = ALL_ATTENTION_FUNCTIONS[encoder.config._attn_implementation]
        mixed, _ = function(self, *projected, attention_mask, position_bias=position_bias)
        return (self.o(mixed.flatten(2)),)

    encoder.encoder.compute_position_bias = MethodType(compute_position_bias, encoder.encoder)
    for layer in encoder.encoder.layer:
        layer.attention.attn.stacked_dropout = layer.attention.attn.dropout
        layer.attention.attn.forward = MethodType(attention, layer.attention.attn)


class _TensorCache:
    """Caches tensors that depend on sequence lengths only.

    Computing them copies from the host, which a CUDA graph cannot capture.
    """

    def __init__(self) -> None:
        self.tensors: dict[Any, Tensor] = {}

    def get(self, key: Any, compute: Callable[[], Tensor]) -> Tensor:
        if key not in self.tensors:
            self.tensors[key] = compute()
        return self.tensors[key]


# ---------------------------------------------------------------------------------------------------- XLNet


class _SequentialDropout(nn.Module):
    """Three dropout modules for the one that XLNet calls on word embeddings, position encodings and output, in turn."""

    def __init__(self, p: float, context: StackContext, counter: DropoutCounter):
        super().__init__()
        self.dropouts = nn.ModuleList(StackedDropout(p, counter.next(), context) for _ in range(3))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        dropout = self.dropouts[self.calls % len(self.dropouts)]
        # (2L, T*B, H) with distances L to 1 - L; counted from distance 0, positions do not depend on padding
        is_positions = self.calls == 1
        self.calls += 1
        return dropout(x, origin=x.shape[0] // 2 if is_positions else 0)


def _patch_xlnet(encoder: Any, context: StackContext, counter: DropoutCounter) -> None:
    """Replace the attention modules and the shared dropout, and cache the relative position encodings."""
    if encoder.attn_type != "bi" or encoder.bi_data:
        raise WhichlayersError(
            f"cannot stack this XLNet (attn_type {encoder.attn_type!r}, bi_data {encoder.bi_data}): only"
            " attn_type 'bi' without bi_data is supported"
        )
    for layer in encoder.layer:
        layer.rel_attn = StackedXLNetAttention(layer.rel_attn, context)
    dropout = _SequentialDropout(encoder.dropout.p, context, counter)
    encoder.dropout = dropout
    encoder.register_forward_pre_hook(lambda *_: setattr(dropout, "calls", 0))
    encode, cache = encoder.relative_positional_encoding, _TensorCache()

    def relative_positional_encoding(qlen: int, klen: int, bsz: int, **_: Any) -> Tensor:
        positions = cache.get((qlen, klen), lambda: encode(qlen, klen).to(encoder.device))  # (2L, 1, H)
        return positions.expand(-1, bsz, -1)

    encoder.relative_positional_encoding = relative_positional_encoding
    forward = encoder.forward

    def forward_on_device(*args: Any, **kwargs: Any) -> Any:
        with torch.device(encoder.device):  # some releases create intermediate tensors on the CPU
            return forward(*args, **kwargs)

    encoder.forward = forward_on_device
    encoder.mask_emb.requires_grad_(False)  # used in pretraining only; never receives a gradient


# ------------------------------------------------------------------------------------------------ DeBERTa-v2


def _patch_deberta_v2(encoder: Any, context: StackContext, counter: DropoutCounter) -> None:
    """Use an attention that knows of trials and of packed batches, and cache the relative positions."""
    if getattr(encoder.encoder, "conv", None) is not None:
        raise WhichlayersError(
            "cannot stack this DeBERTa-v2: convolution layers (conv_kernel_size > 0) are not supported"
        )
    relative_positions, cache = encoder.encoder.get_rel_pos, _TensorCache()

    def get_rel_pos(hidden: Tensor, query: Any = None, relative_pos: Any = None) -> Tensor:
        key = (hidden.shape[1], hidden.device)
        return cache.get(key, lambda: relative_positions(hidden, query, relative_pos))

    encoder.encoder.get_rel_pos = get_rel_pos
    for layer in encoder.encoder.layer:
        patch_deberta_attention(layer.attention.self, context)


# ------------------------------------------------------------------------------------------------ ModernBERT


def _patch_modernbert(encoder: Any, context: StackContext, counter: DropoutCounter) -> None:
    """Its attention has a dropout probability instead of a dropout module: add a module."""
    for layer in encoder.layers:
        layer.attn.stacked_dropout = StackedDropout(layer.attn.attention_dropout, counter.next(), context)


# -------------------------------------------------------------------------------------------------- decoders


def add_attention_dropout(encoder: nn.Module, context: StackContext, counter: DropoutCounter) -> None:
    """Give attention modules that hold a dropout module under another name, or a probability, a `stacked_dropout`."""
    for module in list(encoder.modules()):
        if not hasattr(module, "is_causal") or hasattr(module, "stacked_dropout"):
            continue
        dropout = getattr(module, "attn_dropout", None)  # GPT-2
        if not isinstance(dropout, StackedDropout):
            p = getattr(module, "attention_dropout", getattr(module, "dropout", 0.0))
            dropout = StackedDropout(float(p), counter.next(), context)
        module.stacked_dropout = dropout


def _patch_gemma3(encoder: Any, context: StackContext, counter: DropoutCounter) -> None:
    """Its norms of queries and keys see (rows, heads, tokens, d)."""
    for layer in encoder.layers:
        layer.self_attn.q_norm.token_axis = layer.self_attn.k_norm.token_axis = 2


def _patch_opt(encoder: Any, context: StackContext, counter: DropoutCounter) -> None:
    """Its layers call torch's dropout, and the decoder skips layers at random (layerdrop): use keyed dropout."""
    decoder = encoder.decoder
    for layer in decoder.layers:
        add_opt_dropout(layer, decoder.layerdrop, counter, context)
        layer.forward = MethodType(opt_layer_forward, layer)
    decoder.layerdrop = 0.0
