"""XLNet's relative attention in a stack of T trials. Activations are (L, T*B, H)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whichlayers.engine.stacked_modules import StackContext, StackedModule


class StackedXLNetAttention(StackedModule):
    """XLNet's relative attention: q, k, v, o, r (T, H, heads, d), biases (T, heads, d), seg_embed (T, 2, heads, d).

    If all of them are frozen and the same in all trials, they have no trial axis.

    Activations are (L, T*B, H); inside, rows are split into (T, B): l, t, b, h.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    r: Tensor
    r_w_bias: Tensor
    r_r_bias: Tensor
    r_s_bias: Tensor
    seg_embed: Tensor

    def __init__(self, plain: Any, context: StackContext):
        own = dict(plain.named_parameters(recurse=False))
        frozen = not any(p.requires_grad for p in own.values())
        super().__init__(plain, context, frozenset(own) if frozen else frozenset())
        self.layer_norm, self.dropout = plain.layer_norm, plain.dropout  # stacked already
        self.scale = plain.scale

    def forward(
        self,
        h: Tensor,
        g: Tensor | None,
        attn_mask_h: Tensor | None,
        attn_mask_g: Tensor | None,
        r: Tensor,
        seg_mat: Tensor | None,
        mems: Tensor | None = None,
        target_mapping: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, None]:
        """h (L, T*B, H), position encodings r (2L, T*B, H) -> (L, T*B, H); `g` and `mems` are ignored."""
        trials, batch = self.context.trials, h.shape[1] // self.context.trials
        split = h.view(h.shape[0], trials, batch, -1)  # (L, T, B, H)
        query = torch.einsum("ltbh,thnd->tblnd", split, self._per_trial("q"))
        key = torch.einsum("ltbh,thnd->tblnd", split, self._per_trial("k"))
        value = torch.einsum("ltbh,thnd->tblnd", split, self._per_trial("v"))
        positions = r.to(self.r.dtype).view(r.shape[0], trials, batch, -1)  # (2L, T, B, H)
        position_key = torch.einsum("ltbh,thnd->tblnd", positions, self._per_trial("r"))

        content = torch.einsum("tbind,tbjnd->tbnij", query + self._head_bias("r_w_bias"), key)
        position = torch.einsum("tbind,tbjnd->tbnij", query + self._head_bias("r_r_bias"), position_key)
        scores = content + _relative_shift(position, h.shape[0])
        if seg_mat is not None:  # (L, L, T*B, 2)
            segment = torch.einsum(
                "tbind,tsnd->tbnis", query + self._head_bias("r_s_bias"), self._per_trial("seg_embed")
            )
            same = seg_mat.view(*seg_mat.shape[:2], trials, batch, 2)
            scores = scores + torch.einsum("ijtbs,tbnis->tbnij", same, segment)
        scores = scores * self.scale
        if attn_mask_h is not None:  # (L, L, T*B, 1)
            mask = attn_mask_h.squeeze(-1).permute(2, 0, 1).view(trials, batch, 1, *attn_mask_h.shape[:2])
            scores = scores - 1e30 * mask
        probabilities = F.softmax(scores, dim=-1).flatten(0, 1)  # (T*B, heads, L, L)
        probabilities = self.dropout(probabilities).view_as(scores)
        mixed = torch.einsum("tbnij,tbjnd->itbnd", probabilities, value)
        out = torch.einsum("itbnd,thnd->itbh", mixed, self._per_trial("o")).reshape(h.shape)
        return self.layer_norm(self.dropout(out) + h), None

    def _per_trial(self, name: str) -> Tensor:
        """A parameter with its trial axis, of size 1 if all trials share it."""
        parameter: Tensor = getattr(self, name)
        return parameter[None] if name in self.shared_names else parameter

    def _head_bias(self, name: str) -> Tensor:
        """A bias (T, heads, d) as (T, 1, 1, heads, d), to broadcast against (T, B, L, heads, d)."""
        return self._per_trial(name)[:, None, None]


def _relative_shift(x: Tensor, keys: int) -> Tensor:
    """Index scores by key instead of by distance: (T, B, heads, L, 2L) -> (T, B, heads, L, keys)."""
    *lead, queries, distances = x.shape
    x = x.reshape(*lead, distances, queries)[..., 1:, :]
    return x.reshape(*lead, queries, distances - 1)[..., :keys]
