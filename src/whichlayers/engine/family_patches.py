"""What a family needs beyond the leaves: parameters used without a row axis, raw tensors, sites of dropout.

BERT, RoBERTa, DistilBERT and ELECTRA need nothing. The forward of a patched module does what its Hugging Face
original does, with each weight taken per trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.stacked_modules import StackContext, StackedLeaf
from whichlayers.errors import WhichlayersError

ROWS_SECOND = {"xlnet"}  # families whose activations are (L, T*B, H)


def patch_family(encoder: nn.Module, model_type: str, context: StackContext, sites: SiteCounter) -> None:
    """Adapt an encoder whose leaves are stacked already."""
    patch = {
        "mpnet": _patch_mpnet,
        "xlnet": _patch_xlnet,
        "deberta-v2": _patch_deberta_v2,
        "modernbert": _patch_modernbert,
    }.get(model_type)
    if patch is not None:
        patch(encoder, context, sites)


class SiteCounter:
    """Hands each dropout site of a stack its own number, in the order in which modules stand in the model."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


# ---------------------------------------------------------------------------------------------------- MPNet


def _patch_mpnet(encoder: Any, context: StackContext, sites: SiteCounter) -> None:
    """The relative position bias is one table for all layers: each trial has its own."""

    def compute_position_bias(
        self: Any, x: Tensor, position_ids: Any = None, num_buckets: int = 32
    ) -> Tensor:
        length = x.shape[1]
        place = torch.arange(length, device=x.device)
        bucket = self.relative_position_bucket(place[None, :] - place[:, None], num_buckets=num_buckets)
        table = self.relative_attention_bias.weight  # (T, buckets, heads)
        bias = table.index_select(1, bucket.flatten()).view(context.trials, length, length, -1)
        bias = bias.permute(0, 3, 1, 2)[:, None]  # (T, 1, heads, L, L)
        batch = x.shape[0] // context.trials
        return bias.expand(-1, batch, -1, -1, -1).reshape(x.shape[0], -1, length, length)

    encoder.encoder.compute_position_bias = MethodType(compute_position_bias, encoder.encoder)


class _OncePerLength:
    """Keeps what depends on lengths alone. Making it copies from the host, which a captured step may not."""

    def __init__(self) -> None:
        self.made: dict[Any, Tensor] = {}

    def get(self, key: Any, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


# ---------------------------------------------------------------------------------------------------- XLNet


class _DropoutInTurn(nn.Module):
    """XLNet's model calls one dropout module on words, positions and output in turn: three sites."""

    def __init__(self, p: float, context: StackContext, sites: SiteCounter):
        super().__init__()
        self.turns = nn.ModuleList(StackedDropout(p, sites.next(), context) for _ in range(3))
        self.called = 0

    def forward(self, x: Tensor) -> Tensor:
        turn = self.turns[self.called % len(self.turns)]
        about_distances = self.called == 1  # (2L, T*B, H): distances L to 1 - L, whatever L is padded to
        self.called += 1
        return turn(x, origin=x.shape[0] // 2 if about_distances else 0)


class StackedXLNetAttention(StackedLeaf):
    """XLNet's relative attention: q, k, v, o, r (T, H, heads, d), biases (T, heads, d), seg_embed (T, 2, heads, d).

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
        super().__init__(plain, context)
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
        trials, batch = self.context.trials, h.shape[1] // self.context.trials
        split = h.view(h.shape[0], trials, batch, -1)  # (L, T, B, H)
        query = torch.einsum("ltbh,thnd->tblnd", split, self.q)
        key = torch.einsum("ltbh,thnd->tblnd", split, self.k)
        value = torch.einsum("ltbh,thnd->tblnd", split, self.v)
        places = r.to(self.r.dtype).view(r.shape[0], trials, batch, -1)  # (2L, T, B, H)
        place_key = torch.einsum("ltbh,thnd->tblnd", places, self.r)

        content = torch.einsum("tbind,tbjnd->tbnij", query + self._head_bias(self.r_w_bias), key)
        position = torch.einsum("tbind,tbjnd->tbnij", query + self._head_bias(self.r_r_bias), place_key)
        scores = content + _relative_shift(position, h.shape[0])
        if seg_mat is not None:  # (L, L, T*B, 2)
            segment = torch.einsum(
                "tbind,tsnd->tbnis", query + self._head_bias(self.r_s_bias), self.seg_embed
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
        out = torch.einsum("itbnd,thnd->itbh", mixed, self.o).reshape(h.shape)
        return self.layer_norm(self.dropout(out) + h), None

    def _head_bias(self, bias: Tensor) -> Tensor:
        return bias[:, None, None]  # (T, 1, 1, heads, d) against (T, B, L, heads, d)


def _relative_shift(x: Tensor, keys: int) -> Tensor:
    """(T, B, heads, L, 2L) scores by distance -> (T, B, heads, L, L) scores by key."""
    *lead, queries, distances = x.shape
    x = x.reshape(*lead, distances, queries)[..., 1:, :]
    return x.reshape(*lead, queries, distances - 1)[..., :keys]


def _patch_xlnet(encoder: Any, context: StackContext, sites: SiteCounter) -> None:
    if encoder.attn_type != "bi" or encoder.bi_data:
        raise WhichlayersError(
            "this XLNet reads in one direction (attn_type or bi_data); only attn_type 'bi' is known"
        )
    for layer in encoder.layer:
        layer.rel_attn = StackedXLNetAttention(layer.rel_attn, context)
    in_turn = _DropoutInTurn(encoder.dropout.p, context, sites)
    encoder.dropout = in_turn
    encoder.register_forward_pre_hook(lambda *_: setattr(in_turn, "called", 0))
    encode, made = encoder.relative_positional_encoding, _OncePerLength()

    def relative_positional_encoding(qlen: int, klen: int, bsz: int, **_: Any) -> Tensor:
        places = made.get((qlen, klen), lambda: encode(qlen, klen).to(encoder.device))  # (2L, 1, H)
        return places.expand(-1, bsz, -1)

    encoder.relative_positional_encoding = relative_positional_encoding
    forward = encoder.forward

    def forward_on_device(*args: Any, **kwargs: Any) -> Any:
        with torch.device(encoder.device):  # what it makes on the way, some releases would make on the CPU
            return forward(*args, **kwargs)

    encoder.forward = forward_on_device
    encoder.mask_emb.requires_grad_(False)  # used in pretraining only; never receives a gradient


# ------------------------------------------------------------------------------------------------ DeBERTa-v2


def _patch_deberta_v2(encoder: Any, context: StackContext, sites: SiteCounter) -> None:
    """Relative embeddings have no row axis: each trial projects its own and lends them to its rows."""
    if getattr(encoder.encoder, "conv", None) is not None:
        raise WhichlayersError(
            "this DeBERTa-v2 has a convolution (conv_kernel_size > 0), which cannot be stacked"
        )

    def disentangled_attention_bias(
        self: Any, query: Tensor, key: Tensor, relative_pos: Tensor, rel_embeddings: Tensor, scale_factor: int
    ) -> Tensor:
        # query, key (T*B*heads, L, d); rel_embeddings (T, places, H); relative_pos (1, L, L)
        span, length = self.pos_ebd_size, query.shape[1]
        places = rel_embeddings[:, : span * 2]
        heads = self.num_attention_heads
        batch = query.shape[0] // (context.trials * heads)

        def project(
            linear: Any,
        ) -> Tensor:  # -> (T, B, heads, places, d), the same for every row of a trial
            y = linear(places).view(context.trials, 1, span * 2, heads, -1).transpose(2, 3)
            return y.expand(-1, batch, -1, -1, -1).reshape(query.shape[0], span * 2, -1)

        place_key = self.key_proj if self.share_att_key else getattr(self, "pos_key_proj", None)
        place_query = self.query_proj if self.share_att_key else getattr(self, "pos_query_proj", None)
        scale = math.sqrt(query.shape[-1] * scale_factor)
        relative = relative_pos.to(query.device).long().view(1, length, length).expand(query.shape[0], -1, -1)
        score = torch.zeros((), device=query.device, dtype=query.dtype)
        if "c2p" in self.pos_att_type:
            by_place = torch.bmm(query, project(place_key).mT)  # (T*B*heads, L, places)
            score = score + by_place.gather(-1, (relative + span).clamp(0, span * 2 - 1)) / scale
        if "p2c" in self.pos_att_type:
            by_place = torch.bmm(key, project(place_query).mT)
            score = score + by_place.gather(-1, (span - relative).clamp(0, span * 2 - 1)).mT / scale
        return score

    relative, made = encoder.encoder.get_rel_pos, _OncePerLength()

    def get_rel_pos(hidden: Tensor, query: Any = None, given: Any = None) -> Tensor:
        return made.get((hidden.shape[1], hidden.device), lambda: relative(hidden, query, given))

    encoder.encoder.get_rel_pos = get_rel_pos
    for layer in encoder.encoder.layer:
        attention = layer.attention.self
        if not attention.relative_attention:
            continue
        attention.disentangled_attention_bias = MethodType(disentangled_attention_bias, attention)
        attention.pos_dropout = _PlaceDropout(attention.pos_dropout)


class _PlaceDropout(nn.Module):
    """Dropout on (T, places, H) relative embeddings, whose leading axis is trials and not rows."""

    def __init__(self, per_row: StackedDropout):
        super().__init__()
        self.per_row = per_row

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.per_row.p == 0.0:
            return x
        context = self.per_row.context
        keys, context.row_keys = context.row_keys, context.first_rows()
        try:
            return self.per_row(x)
        finally:
            context.row_keys = keys


# ------------------------------------------------------------------------------------------------ ModernBERT


def _patch_modernbert(encoder: Any, context: StackContext, sites: SiteCounter) -> None:
    """Its attention keeps the dropout rate as a number: give it a site."""
    for layer in encoder.layers:
        layer.attn.attention_dropout_site = StackedDropout(
            layer.attn.attention_dropout, sites.next(), context
        )
