"""Attention with per-trial dropout, for Hugging Face's attention interface.

On a GPU, short sequences use one Triton kernel per direction. It reads queries, keys and values in the layout of the
projections, and keeps scores and dropout masks in registers. All other cases use `plain_attention`, the reference
implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from whichlayers.engine.dropout import StackedDropout

try:
    from whichlayers.engine import kernels
except ImportError:  # no Triton: a machine without a GPU
    kernels = None  # type: ignore[assignment]

MAX_LENGTH = 128  # longest sequence whose scores fit into one block of the kernel
HEAD_SIZES = (16, 32, 64, 128)


def stacked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of all trials: query, key, value (T*B, heads, L, d) -> (T*B, L, heads, d).

    Args:
        module: The attention module, whose `stacked_dropout` is applied to the probabilities; the argument
            `dropout` is ignored.
        attention_mask: (T*B, 1, L, L), added to the scores.
        scaling: Factor for the scores; default: d ** -0.5.
    """
    scaling = query.size(-1) ** -0.5 if scaling is None else scaling
    dropout_module: StackedDropout = module.stacked_dropout  # type: ignore[assignment]
    if kernel_fits(query, attention_mask):
        keys = dropout_module.context.row_keys
        assert keys is not None
        p = dropout_module.p if dropout_module.training else 0.0
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # (T*B, L, heads, d), as projected
        dropout_id = dropout_module.dropout_id
        return torch.ops.whichlayers.attention(q, k, v, attention_mask, keys, dropout_id, scaling, p), None
    return plain_attention(query, key, value, attention_mask, scaling, dropout_module), None


def kernel_fits(query: Tensor, mask: Tensor | None) -> bool:
    """Whether the Triton kernel supports these inputs."""
    return (
        kernels is not None
        and query.is_cuda
        and query.dtype == torch.bfloat16
        and query.shape[2] <= MAX_LENGTH
        and query.shape[3] in HEAD_SIZES
        and mask is not None
    )


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: nn.Module
) -> Tensor:
    """Reference implementation: query, key, value (T*B, heads, L, d), additive mask -> (T*B, L, heads, d)."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # (T*B, heads, L, L)
    if mask is not None:
        scores = scores + mask
    probabilities = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = torch.matmul(dropout(probabilities), value)  # (T*B, heads, L, d)
    return mixed.transpose(1, 2).contiguous()
