"""Training without padding: the encoder layers of a stack compute on packed tokens.

A batch is padded to its longest sequence, and a stack to the longest of all its batches, so that two thirds of the
positions can be padding. The first layer therefore receives packed tokens, and the output of the last layer is unpacked
to (T*B, L, H). In between, linear layers, layer norms and activations see one token at a time; dropout uses the row and
position of each token, and attention the start and the length of each sequence. There are two forms of packing:

- `FixedSizePacking`, on a GPU: the sequences of each trial one after another, (T, M, H), where M is the same for all
  trials and steps of a shape; the remaining tokens of a trial belong to no sequence and are zero.
- `packing_cpu.RaggedPacking`, on the CPU: (1, N, H), where each trial has as many tokens as it needs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from whichlayers.engine.attention import (
    AttentionOptions,
    PositionBias,
    max_block_bytes,
    plain_attention,
    sequence_attention,
    stacked_attention,
)
from whichlayers.engine.packing_cpu import RaggedPacking
from whichlayers.engine.stacked_modules import StackContext
from whichlayers.engine.stacking import ATTENTION, StackedModel
from whichlayers.models.families import FAMILIES
from whichlayers.models.structure import ModelStructure

PACKED_ATTENTION = "whichlayers_packed"
# families whose layers compute each token on its own, except in attention, which is patched or replaced
PACKABLE_FAMILIES = {"bert", "roberta", "distilbert", "electra", "mpnet", "modernbert", "deberta-v2"} | {
    name for name, family in FAMILIES.items() if family.causal
}


class _Rearrange(torch.autograd.Function):
    """Move rows of x (n, H) to (m, H): row i becomes x[index[i]], or 0 where not `kept[i]`.

    `inverse` and `inverse_kept` describe the way back, so that the backward pass is a gather as well.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, index: Tensor, kept: Tensor, inverse: Tensor, inverse_kept: Tensor
    ) -> Tensor:
        ctx.save_for_backward(inverse, inverse_kept)
        return x.index_select(0, index) * kept[:, None].to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inverse, inverse_kept = ctx.saved_tensors
        return grad.index_select(0, inverse) * inverse_kept[:, None].to(grad.dtype), None, None, None, None


class FixedSizePacking:
    """The sequences of each trial one after another, (T, M, H). Computed on the device, without synchronization.

    Args:
        attention_mask: (T*B, L), 1 for tokens; sequences are padded on the right.
        trials: Number of trials (T).
        tokens: Tokens of each trial (M); at least as many as the sequences of any trial have.

    Attributes:
        starts: (T*B,) int32 first token of each sequence among all T*M tokens.
        lengths: (T*B,) int32 number of tokens of each sequence.
        rows: (T, M) row of the batch that each token belongs to.
        positions: (T, M) int32 position of each token in its sequence.
        max_block_bytes: See attention.max_block_bytes.
    """

    ragged = False

    def __init__(self, attention_mask: Tensor, trials: int, tokens: int):
        rows, self.max_length = attention_mask.shape
        self.trials, self.batch, self.tokens = trials, rows // trials, tokens
        device = attention_mask.device
        self.max_block_bytes = max_block_bytes(device)
        self.lengths = attention_mask.sum(1, dtype=torch.int32)  # (T*B,)
        by_trial = self.lengths.view(trials, -1).long()
        ends = by_trial.cumsum(1)  # (T, B)
        firsts = ends - by_trial
        trial = torch.arange(trials, device=device)[:, None]
        self.starts = (firsts + trial * tokens).flatten().int()
        token = torch.arange(tokens, device=device)
        # (T, M): sequences that end at or before a token; B beyond the last one
        row = torch.searchsorted(ends, token.repeat(trials, 1), right=True)
        is_token = row < self.batch
        row = row.clamp(max=self.batch - 1)
        position = torch.where(is_token, token - firsts.gather(1, row), 0)
        self.rows, self.positions = row + trial * self.batch, position.int()
        # for every token its cell in the padded batch, and for every cell its token
        self._cell, self._is_token = (self.rows * self.max_length + position).flatten(), is_token.flatten()
        cell_position = torch.arange(self.max_length, device=device)
        cell_token = self.starts[:, None].long() + cell_position
        self._token = cell_token.clamp(max=trials * tokens - 1).flatten()
        self._is_cell = (cell_position < self.lengths[:, None]).flatten()

    def position_bias(self, bias: PositionBias) -> PositionBias:
        """The relative position bias in the form that `attention` takes: unchanged."""
        return bias

    def pack(self, x: Tensor) -> Tensor:
        """(T*B, L, H) -> (T, M, H)."""
        packed = _Rearrange.apply(x.flatten(0, 1), self._cell, self._is_token, self._token, self._is_cell)
        return packed.view(self.trials, self.tokens, x.shape[-1])

    def unpack(self, x: Tensor) -> Tensor:
        """(T, M, H) -> (T*B, L, H), with zeros for padding."""
        padded = _Rearrange.apply(x.flatten(0, 1), self._token, self._is_cell, self._cell, self._is_token)
        return padded.view(self.trials * self.batch, self.max_length, x.shape[-1])

    def attention(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """query, key, value (T, heads, M, d) -> (T, M, heads, d); keys and values may have fewer heads."""
        mixed = sequence_attention(self, query, key, value, options)
        return self.reference_attention(query, key, value, options) if mixed is None else mixed

    def reference_attention(
        self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
    ) -> Tensor:
        """`attention` as `plain_attention` of the padded batch."""
        masked = ~self._is_cell.view(-1, 1, 1, self.max_length)  # keys that are padding
        token = torch.arange(self.max_length, device=masked.device)
        distance = token[None] - token[:, None]  # of each key from each query
        if options.window:
            masked = masked | (distance.abs() > options.window)
        if options.causal:
            masked = masked | (distance > 0)
        # probabilities are computed in float32, where the lowest float64 would be -inf
        lowest = max(torch.finfo(query.dtype).min, torch.finfo(torch.float32).min)
        mask = torch.zeros(masked.shape, dtype=query.dtype, device=masked.device).masked_fill(masked, lowest)
        if options.position_bias is not None:
            mask = mask + options.position_bias.between(self.max_length).repeat_interleave(self.batch, 0)
        q, k, v = (self._unpack_heads(x) for x in (query, key, value))
        scaling, dropout, softcap = options.scaling, options.dropout, options.softcap
        mixed = plain_attention(q, k, v, mask, scaling, dropout, softcap)  # (T*B, L, heads, d)
        packed = self.pack(mixed.flatten(2))
        return packed.view(self.trials, self.tokens, *mixed.shape[2:])

    def _unpack_heads(self, x: Tensor) -> Tensor:
        """(T, heads, M, d) -> (T*B, heads, L, d)."""
        cells = self.unpack(x.transpose(1, 2).flatten(2))  # (T*B, L, heads * d)
        return cells.unflatten(2, (-1, x.shape[-1])).transpose(1, 2)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Any = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of a packed batch, see `FixedSizePacking.attention`; of other batches, `stacked_attention`."""
    dropout: Any = module.stacked_dropout
    packing = dropout.context.packing
    if packing is None:
        return stacked_attention(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling,
            position_bias=position_bias,
            softcap=softcap,
            **kwargs,
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = bool(getattr(module, "is_causal", False))
    if causal:  # a window of n tokens contains the query
        window = 0 if sliding_window is None else sliding_window - 1
    else:
        # the attribute of the module is that of its config + 1, for another attention function
        config: Any = module.config if getattr(module, "sliding_window", None) else None
        window = 0 if config is None else config.sliding_window
    options = AttentionOptions(scaling, dropout, position_bias, window, causal, softcap)
    return packing.attention(query, key, value, options), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, AttentionMaskInterface()[ATTENTION])


def is_packable(config: Any) -> bool:
    """Whether models with this config can be packed."""
    one_token_window = getattr(config, "sliding_window", None) == 1  # would be read as no window
    return config.model_type in PACKABLE_FAMILIES and not one_token_window


def pack_layers(model: StackedModel) -> bool:
    """Make the layers of a stacked model compute on packed tokens, in place.

    On the CPU every batch that is padded on the right is packed. On a GPU, batches are packed while
    `context.packed_tokens` is set.

    Returns:
        Whether the model can be packed; if not, the model is unchanged.
    """
    encoder = next(m for m in model.modules() if isinstance(m, PreTrainedModel))
    if not is_packable(encoder.config):
        return False
    context, layers = model.context, ModelStructure(encoder).layers
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == ATTENTION:
            config._attn_implementation = PACKED_ATTENTION
    layers[0].register_forward_pre_hook(_pack_hook(context))
    for layer in layers:
        layer.register_forward_pre_hook(_rotary_hook(context), with_kwargs=True)
    layers[-1].register_forward_hook(_unpack_hook(context))
    model.register_forward_pre_hook(_prepare_hook(context), with_kwargs=True)
    return True


def _prepare_hook(context: StackContext) -> Any:
    """Forward pre-hook of the model: compute the packing, which is used from the first layer on."""

    def hook(_: nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        mask = inputs.get("attention_mask")
        context.packing = context.next_packing = None
        if mask is not None and context.packed_tokens is not None:
            context.next_packing = FixedSizePacking(mask, context.trials, context.packed_tokens)
        elif mask is not None and not mask.is_cuda:
            context.next_packing = RaggedPacking.from_mask(mask, context.trials)

    return hook


def _pack_hook(context: StackContext) -> Any:
    """Forward pre-hook of the first layer: pack its input."""

    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        context.packing = context.next_packing
        return None if context.packing is None else (context.packing.pack(args[0]), *args[1:])

    return hook


def _rotary_hook(context: StackContext) -> Any:
    """Forward pre-hook of a layer with rotary embeddings: those of each token, from those of each position."""

    def hook(_: nn.Module, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if context.packing is None or "position_embeddings" not in inputs:
            return None
        positions = context.packing.positions
        if context.packing.ragged:
            positions = positions[None]
        rotary = tuple(x[0][positions] for x in inputs["position_embeddings"])  # (1, L, d) -> (T, M, d)
        return args, {**inputs, "position_embeddings": rotary}

    return hook


def _unpack_hook(context: StackContext) -> Any:
    """Forward hook of the last layer: unpack its output."""

    def hook(_: nn.Module, args: Any, output: Any) -> Any:
        packing, context.packing, context.next_packing = context.packing, None, None
        if packing is None:
            return None
        if isinstance(output, tuple):
            return (packing.unpack(output[0]), *output[1:])
        return packing.unpack(output)

    return hook
