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
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from whichlayers.engine.attention import PositionBias
from whichlayers.engine.deberta_attention import patch_attention
from whichlayers.engine.decoder_modules import add_opt_dropout, opt_layer_forward
from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.stacked_modules import StackContext, StackedModule
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
        patch_attention(layer.attention.self, context)


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
