"""Attention with keyed dropout, as Hugging Face's attention interface calls it.

Short sequences on a GPU go through one Triton kernel a direction, which reads queries, keys and values where
the projections wrote them and keeps scores and masks in registers. All else takes the plain path, which says
what the kernel computes.
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

LONGEST = 128  # tokens whose scores fit in one block of the kernel
HEAD_WIDTHS = (16, 32, 64, 128)


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
    """query, key, value (T*B, heads, L, d), mask (T*B, 1, L, L) additive -> (T*B, L, heads, d)."""
    scaling = query.size(-1) ** -0.5 if scaling is None else scaling
    site: StackedDropout = module.attention_dropout_site  # type: ignore[assignment]
    if kernel_fits(query, attention_mask):
        keys = site.context.row_keys
        assert keys is not None
        drops = site.p if site.training else 0.0
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # (T*B, L, heads, d), as projected
        return torch.ops.whichlayers.attention(q, k, v, attention_mask, keys, site.site, scaling, drops), None
    return plain_attention(query, key, value, attention_mask, scaling, site), None


def kernel_fits(query: Tensor, mask: Tensor | None) -> bool:
    return (
        kernels is not None
        and query.is_cuda
        and query.dtype == torch.bfloat16
        and query.shape[2] <= LONGEST
        and query.shape[3] in HEAD_WIDTHS
        and mask is not None
    )


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, site: nn.Module
) -> Tensor:
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # (T*B, heads, L, L)
    if mask is not None:
        scores = scores + mask
    probabilities = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = torch.matmul(site(probabilities), value)  # (T*B, heads, L, d)
    return mixed.transpose(1, 2).contiguous()
