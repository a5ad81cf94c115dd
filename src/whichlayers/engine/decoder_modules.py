"""Stacked modules of decoders: RMSNorm, GPT-2's Conv1D, OPT's positions, OPT's layers with keyed dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.stacked_modules import StackContext, StackedEmbedding, StackedModule, batched_linear
from whichlayers.rng import scramble


class StackedRMSNorm(StackedModule):
    """RMSNorm with weight (T, H), or (T, d) for the norms of queries and keys.

    Args:
        plain: An RMSNorm module of transformers.
        context: Shared state of the stack.
        zero_centered: Multiply by 1 + weight, as Gemma does.
    """

    def __init__(self, plain: Any, context: StackContext, zero_centered: bool = False):
        super().__init__(plain, context)
        self.eps = getattr(plain, "variance_epsilon", None) or plain.eps
        self.zero_centered = zero_centered
        self.token_axis = 1  # of the input, if the batch is packed

    def forward(self, x: Tensor) -> Tensor:
        """(T*B, ..., H), or (T, ..., H) or (1, ..., N, ..., H) if packed -> the same shape."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        weight = 1.0 + self.weight.float() if self.zero_centered else self.weight
        if not self.zero_centered:  # Gemma rounds after the product
            normed = normed.to(x.dtype)
        if self.context.ragged:  # each trial has a range of tokens
            tokens = self.context.packing.trial_tokens
            parts = zip(normed.split(tokens, self.token_axis), weight.unbind(), strict=True)
            return torch.cat([part * w for part, w in parts], self.token_axis).to(x.dtype)
        split = normed.reshape(self.context.trials, -1, x.shape[-1])
        return (split * weight[:, None]).to(x.dtype).reshape(x.shape)


def rounded_conv1d(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., in) -> (..., out) without a bias; x is rounded to the type of the weight (in, out)."""
    return (x.to(weight.dtype) @ weight).to(x.dtype)


class RoundedConv1D(Conv1D):
    """GPT-2's linear layer, frozen, with a weight of lower precision than its input, which is rounded to it."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        return rounded_conv1d(x, self.weight) + self.bias


class StackedConv1D(StackedModule):
    """GPT-2's linear layer: weight (T, in, out), or (in, out) if it is shared, and bias (T, out).

    The weight is the transpose of a Linear's.
    """

    def __init__(self, plain: nn.Module, context: StackContext, shared: frozenset[str] = frozenset()):
        super().__init__(plain, context, shared & {"weight"})

    def forward(self, x: Tensor) -> Tensor:
        """(T*B, ..., in) -> (T*B, ..., out), or (T, M, in) or (1, N, in) with the same leading axes if packed."""
        assert self.bias is not None
        if "weight" in self.shared_names:
            return self.context.add_per_trial(rounded_conv1d(x, self.weight), self.bias)
        if self.context.ragged or self.context.linear_dtype is not None:
            return batched_linear(x, self.weight.mT, self.bias, self.context)
        y = torch.baddbmm(self.bias[:, None], self.context.fold(x), self.weight)  # (T, n, out)
        return self.context.unfold(y, x)


class StackedOPTPositions(StackedEmbedding):
    """OPT's position embeddings, whose first two rows are not positions."""

    OFFSET = 2

    def forward(  # type: ignore[override]
        self, attention_mask: Tensor, past_length: int = 0, position_ids: Tensor | None = None
    ) -> Tensor:
        """(T*B, L) mask -> (T*B, L, H); positions are counted by the mask unless they are given."""
        if position_ids is None:
            position_ids = (attention_mask.cumsum(1) * attention_mask - 1).long()
        return super().forward(position_ids + self.OFFSET)


class LayerDrop(nn.Module):
    """Skips a layer with probability `p`, for all rows of a trial; the choice is a hash of trial, step and layer."""

    dropout_id: Tensor

    def __init__(self, p: float, dropout_id: int, context: StackContext):
        super().__init__()
        self.p, self.context = float(p), context
        self.register_buffer("dropout_id", torch.tensor(dropout_id, dtype=torch.int32), persistent=False)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """The input of the layer for trials that skip it, its output for the others."""
        if not self.training or self.p == 0.0:
            return after
        keys = scramble(self.context.first_row_keys() + self.dropout_id)  # (T,)
        kept = (keys & 0xFFFFFF) >= round(self.p * (1 << 24))
        if self.context.ragged:
            counts = torch.tensor(self.context.packing.trial_tokens)
            rows = kept.repeat_interleave(counts)[None, :, None]
        else:
            rows = kept.repeat_interleave(len(before) // self.context.trials)[:, None, None]
        return torch.where(rows, after, before)


def opt_layer_forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
    """Forward of OPT's decoder layer with stacked dropout; it keeps the shape (rows, tokens, H) throughout."""
    kwargs.pop("use_cache", None)
    layer_input = residual = hidden_states
    if self.do_layer_norm_before:
        hidden_states = self.self_attn_layer_norm(hidden_states)
    hidden_states, _ = self.self_attn(hidden_states=hidden_states, **kwargs)
    hidden_states = residual + self.attention_output_dropout(hidden_states)
    if not self.do_layer_norm_before:  # OPT-350m
        hidden_states = self.self_attn_layer_norm(hidden_states)
    residual = hidden_states
    if self.do_layer_norm_before:
        hidden_states = self.final_layer_norm(hidden_states)
    hidden_states = self.fc2(self.activation_fn(self.fc1(hidden_states)))
    hidden_states = residual + self.output_dropout(hidden_states)
    if not self.do_layer_norm_before:
        hidden_states = self.final_layer_norm(hidden_states)
    return self.layer_drop(layer_input, hidden_states)


def add_opt_dropout(layer: Any, layerdrop: float, counter: Any, context: StackContext) -> None:
    """Give a layer of OPT dropout modules, in place of calls of torch's dropout."""
    layer.attention_output_dropout = StackedDropout(layer.dropout, counter.next(), context)
    layer.output_dropout = StackedDropout(layer.dropout, counter.next(), context)
    layer.layer_drop = LayerDrop(layerdrop, counter.next(), context)
