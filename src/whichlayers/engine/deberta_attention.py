"""DeBERTa-v2's disentangled attention in a stack of T trials.

Relative embeddings have no row axis: they are projected once per trial and expanded to the trial's rows. Where the
batch is packed, queries, keys and values are unpacked; everything else computes on packed tokens.
"""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.stacked_modules import StackContext


def patch_deberta_attention(module: Any, context: StackContext) -> None:
    """Replace the computation of a `DisentangledSelfAttention` whose modules are stacked, in place."""
    module.stack_context = context
    module.forward = MethodType(_attention, module)
    if module.relative_attention:
        module.pos_dropout = _RelativeEmbeddingDropout(module.pos_dropout)


def _attention(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Forward of the module: hidden_states (T*B, L, H) or packed, attention_mask (T*B, 1, L, L) -> hidden states."""
    heads, packing = self.num_attention_heads, self.stack_context.packing
    projected = [linear(hidden_states) for linear in (self.query_proj, self.key_proj, self.value_proj)]
    if packing is not None:
        projected = [packing.unpack(x) for x in projected]  # (T*B, L, H)
    query, key, value = (self.transpose_for_scores(x, heads) for x in projected)  # (T*B*heads, L, d)
    scale_factor = 1 + sum(kind in self.pos_att_type for kind in ("c2p", "p2c"))
    scores = torch.bmm(query, key.mT) / math.sqrt(query.shape[-1] * scale_factor)
    if self.relative_attention:
        distances = self.pos_dropout(rel_embeddings)
        scores = scores + _relative_scores(self, query, key, relative_pos, distances, scale_factor)
    scores = scores.view(-1, heads, *scores.shape[1:])  # (T*B, heads, L, L)
    scores = scores.masked_fill(~attention_mask.bool(), torch.finfo(scores.dtype).min)
    probabilities = self.dropout(F.softmax(scores, dim=-1))
    mixed = torch.bmm(probabilities.flatten(0, 1), value)
    mixed = mixed.view(-1, heads, *mixed.shape[1:]).transpose(1, 2).flatten(2)  # (T*B, L, H)
    return (mixed if packing is None else packing.pack(mixed)), None


def _relative_scores(
    module: Any, query: Tensor, key: Tensor, relative_pos: Any, rel_embeddings: Tensor, scale_factor: int
) -> Tensor:
    """Scores of contents and relative positions, (T*B*heads, L, L).

    Args:
        module: The attention module.
        query, key: (T*B*heads, L, d).
        relative_pos: (1, L, L) distance of each key from each query.
        rel_embeddings: (T, distances, H).
        scale_factor: Number of kinds of scores that are added.
    """
    span, length = module.pos_ebd_size, query.shape[1]
    distances = rel_embeddings[:, : span * 2]
    share = module.share_att_key
    scale = math.sqrt(query.shape[-1] * scale_factor)
    relative = relative_pos.to(query.device).long().view(1, length, length).expand(query.shape[0], -1, -1)
    score = torch.zeros((), device=query.device, dtype=query.dtype)
    if "c2p" in module.pos_att_type:
        linear = module.key_proj if share else module.pos_key_proj
        by_distance = torch.bmm(query, _project_distances(module, linear, distances, len(query)).mT)
        score = score + by_distance.gather(-1, (relative + span).clamp(0, span * 2 - 1)) / scale
    if "p2c" in module.pos_att_type:
        linear = module.query_proj if share else module.pos_query_proj
        by_distance = torch.bmm(key, _project_distances(module, linear, distances, len(key)).mT)
        score = score + by_distance.gather(-1, (span - relative).clamp(0, span * 2 - 1)).mT / scale
    return score


def _project_distances(module: Any, linear: nn.Module, distances: Tensor, rows: int) -> Tensor:
    """(T, distances, H) -> (rows, distances, d) with rows = T*B*heads, the same for every row of a trial."""
    context, heads = module.stack_context, module.num_attention_heads
    with context.one_row_per_trial():  # an adapter may have dropout
        y = linear(distances)
    y = y.view(context.trials, 1, distances.shape[1], heads, -1).transpose(2, 3)
    batch = rows // (context.trials * heads)
    return y.expand(-1, batch, -1, -1, -1).reshape(rows, distances.shape[1], -1)


class _RelativeEmbeddingDropout(nn.Module):
    """Dropout on (T, distances, H) relative embeddings, whose leading axis is trials and not rows."""

    def __init__(self, dropout: StackedDropout):
        super().__init__()
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.dropout.p == 0.0:
            return x
        with self.dropout.context.one_row_per_trial():
            return self.dropout(x)
