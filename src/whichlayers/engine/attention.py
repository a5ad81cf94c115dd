"""Attention with per-trial dropout, for Hugging Face's attention interface.

`plain_attention` is the reference implementation, for padded batches. On a GPU, packed batches of short sequences use
one Triton kernel per direction, `sequence_attention`: it reads queries, keys and values in the layout of the
projections, and keeps scores and dropout masks in registers.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from whichlayers.engine.dropout import StackedDropout
    from whichlayers.engine.packing import FixedSizePacking

try:
    from whichlayers.engine import attention_kernels as kernels
except ImportError:  # no Triton: a machine without a GPU
    kernels = None  # type: ignore[assignment]


class PositionBias(NamedTuple):
    """A relative position bias: a value for each trial, head and bucket of relative positions."""

    table: Tensor  # (T, buckets, heads)
    buckets: Tensor  # (2L - 1,) int32 bucket of each relative position key - query, from 1 - L on

    def between(self, length: int) -> Tensor:
        """(T, heads, length, length) bias for each query and key."""
        token = torch.arange(length, device=self.buckets.device)
        zero = len(self.buckets) // 2  # index of relative position 0
        bucket = self.buckets[token[None] - token[:, None] + zero]  # (length, length)
        values = self.table.index_select(1, bucket.flatten()).view(len(self.table), length, length, -1)
        return values.permute(0, 3, 1, 2)


class AttentionOptions(NamedTuple):
    """How the attention of a packed batch is computed from its queries, keys and values."""

    scaling: float  # factor for the scores
    dropout: StackedDropout  # applied to the probabilities
    position_bias: Any = None  # added to the scores: the result of `position_bias` of the packing, or None
    window: int = 0  # largest distance of a key that a query sees; 0: no limit
    causal: bool = False  # whether a query sees no later keys
    softcap: float | None = None  # scores are limited to +-softcap by a tanh; None: no limit


def stacked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of all trials on a padded batch: query, key, value (T*B, heads, L, d) -> (T*B, L, heads, d).

    Keys and values may have fewer heads (grouped-query attention).

    Args:
        module: The attention module, whose `stacked_dropout` is applied to the probabilities; the argument
            `dropout` is ignored.
        attention_mask: (T*B, 1, L, L), added to the scores.
        scaling: Factor for the scores; default: d ** -0.5.
        position_bias: (T*B, heads, L, L), added to the scores.
        softcap: Scores are limited to +-softcap by a tanh; None: no limit.
    """
    scaling = query.size(-1) ** -0.5 if scaling is None else scaling
    if position_bias is not None:
        attention_mask = position_bias if attention_mask is None else attention_mask + position_bias
    stacked_dropout: Any = module.stacked_dropout
    return plain_attention(query, key, value, attention_mask, scaling, stacked_dropout, softcap), None


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    dropout: nn.Module,
    softcap: float | None = None,
) -> Tensor:
    """Reference implementation: query, key, value (T*B, heads, L, d), additive mask -> (T*B, L, heads, d)."""
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # (T*B, heads, L, L)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    probabilities = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = torch.matmul(dropout(probabilities), value)  # (T*B, heads, L, d)
    return mixed.transpose(1, 2).contiguous()


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """(n, kv_heads, L, d) -> (n, heads, L, d): each head of keys or values serves a group of query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


@functools.cache
def max_block_bytes(device: torch.device) -> int:
    """Largest block of queries, in bytes, with which the Triton kernels fit into the shared memory of a device."""
    if kernels is None:
        return 0
    if device.type != "cuda":  # the interpreter
        return kernels.MAX_BLOCK_BYTES
    properties: Any = torch.cuda.get_device_properties(device)  # the stubs lack an attribute
    shared = properties.shared_memory_per_block_optin
    return min(kernels.MAX_BLOCK_BYTES, shared // kernels.BLOCKS_IN_SHARED_MEMORY)


def sequence_attention(
    packing: FixedSizePacking, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> Tensor | None:
    """Attention of a packed batch with the Triton kernel; None if it does not support these inputs or options.

    Args:
        packing: The packing of the batch.
        query, key, value: (T, heads, M, d); keys and values may have fewer heads.
        options: Everything else; the kernel does not support a `softcap`.

    Returns:
        (T, M, heads, d)
    """
    fits = (
        kernels is not None
        and (query.is_cuda or kernels.INTERPRETED)
        and packing.max_length <= kernels.MAX_LENGTH
        and query.shape[3] in kernels.HEAD_SIZES
        and kernels.block_size(packing.max_length) * query.shape[3] * query.element_size()
        <= packing.max_block_bytes
        and options.softcap is None
    )
    if not fits:
        return None
    # the kernel reads keys and values with the layout of queries
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    dropout, keys = options.dropout, options.dropout.context.row_keys
    assert keys is not None
    table, buckets = (None, None) if options.position_bias is None else options.position_bias
    return torch.ops.whichlayers.attention(
        *(x.transpose(1, 2) for x in (query, key, value)),  # (T, M, heads, d), as projected
        packing.starts,
        packing.lengths,
        keys,
        dropout.dropout_id,
        table,
        buckets,
        packing.max_length,
        options.scaling,
        dropout.p if dropout.training else 0.0,
        options.window,
        options.causal,
    )
