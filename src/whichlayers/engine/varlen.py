"""Training without padding on the CPU: inside the encoder's layers a stack holds its real tokens only.

A batch of eight sentences is padded to its longest, a stack of batches to the longest of all: two thirds of a
stack's positions are padding. A GPU hardly notices; a CPU computes every one of them. So the first layer gets
its tokens as (1, N, H), trial by trial, and the last one gives them back as (T*B, L, H). Between them, linear
maps and layer norms know where a trial's tokens end (packed_math.py), dropout knows which token is which, and
attention, the only part that looks from token to token, sets its rows side by side in groups of like length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from whichlayers.engine.attention import stacked_attention
from whichlayers.engine.stacked_modules import StackContext
from whichlayers.engine.stacking import ATTENTION, Stack
from whichlayers.models.anatomy import Anatomy

PACKED_ATTENTION = "whichlayers_packed"
# families whose layers treat tokens one by one outside of an attention function of Hugging Face's interface
PACKABLE = {"bert", "roberta", "distilbert", "electra"}
ROWS_A_GROUP = 8  # rows of like length that attention computes together


@dataclass(frozen=True)
class Group:
    """Rows of like length, side by side in one grid."""

    rows: Tensor  # (R,) which rows of the batch
    length: int
    hidden: Tensor  # (R, 1, 1, length): 0 for a token, lowest number for padding
    start: int  # its first cell among those of all groups


@dataclass
class Packing:
    """Where each real token of a right-padded batch lies, packed and in the grids of attention."""

    sizes: list[int]  # (T,) packed tokens of each trial, which lie one after another
    cells: Tensor  # (N,) the token's place in the batch, row * L + position
    rows: Tensor  # (N,)
    positions: Tensor  # (N,) int32
    shape: tuple[int, int]  # T*B, L
    groups: list[Group]
    from_packed: Tensor  # (M,) which packed token stands in each cell of the groups' grids; any, for padding
    to_packed: Tensor  # (N,) the cell of each packed token
    real: Tensor  # (M,) 1 for a token, 0 for padding
    by_heads: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(attention_mask: Tensor, trials: int) -> Packing | None:
        """None where the batch is not padded on the right, and must be taken as it is."""
        mask = attention_mask.numpy() > 0  # (T*B, L)
        rows, width = mask.shape
        lengths = mask.sum(1)
        if not (mask == (np.arange(width) < lengths[:, None])).all() or not lengths.all():
            return None
        cells = np.flatnonzero(mask)
        row, position = np.divmod(cells, width)
        starts = np.concatenate([[0], lengths.cumsum()])  # of each row among the packed tokens
        groups, sources, real, to_packed, start = [], [], [], np.empty(len(cells), np.int64), 0
        for chosen in _like_length(lengths):
            length = int(lengths[chosen].max())
            there = np.arange(length) < lengths[chosen][:, None]  # (R, length)
            source = np.where(there, starts[chosen][:, None] + np.arange(length), starts[chosen][:, None])
            to_packed[source[there]] = start + np.flatnonzero(there)
            hidden = np.where(there, np.float32(0), np.finfo(np.float32).min)[:, None, None]
            groups.append(Group(torch.from_numpy(chosen), length, torch.from_numpy(hidden), start))
            sources.append(source.ravel())
            real.append(there.ravel())
            start += source.size
        return Packing(
            lengths.reshape(trials, -1).sum(1).tolist(),
            torch.from_numpy(cells),
            torch.from_numpy(row),
            torch.from_numpy(position.astype(np.int32)),
            (rows, width),
            groups,
            torch.from_numpy(np.concatenate(sources)),
            torch.from_numpy(to_packed),
            torch.from_numpy(np.concatenate(real).astype(np.float32)),
        )

    def heads(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """`from_packed`, `to_packed` and `real` for n heads; a group's cells are (R, n, length)."""
        if n not in self.by_heads:
            head = torch.arange(n)
            sources, cells, real = [], torch.empty(len(self.cells), n, dtype=torch.int64), []
            for g in self.groups:
                stop = g.start + len(g.rows) * g.length
                source = self.from_packed[g.start : stop].view(-1, 1, g.length)
                there = self.real[g.start : stop].view(-1, 1, g.length).expand(-1, n, -1)
                sources.append((source * n + head[:, None]).flatten())
                cell = torch.arange(g.start * n, stop * n).view(-1, n, g.length).transpose(1, 2)
                chosen = there[:, 0] > 0
                cells[source[:, 0][chosen]] = cell[chosen]
                real.append(there.reshape(-1, 1))
            self.by_heads[n] = (torch.cat(sources), cells.flatten(), torch.cat(real))
        return self.by_heads[n]

    def pack(self, x: Tensor) -> Tensor:
        """(T*B, L, H) -> (1, N, H)."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self.cells)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """(1, N, H) -> (T*B, L, H), with zeros for padding."""
        rows, width = self.shape
        blank = x.new_zeros(rows * width, x.shape[-1])
        return blank.index_copy(0, self.cells, x[0]).view(rows, width, -1)


def _like_length(lengths: np.ndarray) -> list[np.ndarray]:
    """Row numbers by length, in groups."""
    order = np.argsort(lengths, kind="stable")
    return np.array_split(order, max(1, round(len(order) / ROWS_A_GROUP)))


class _GroupedAttention(torch.autograd.Function):
    """query, key, value (N, heads * d), one dropout mask a group (or none) -> (N, heads * d)."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        packing: Packing,
        heads: int,
        scaling: float,
        masks: list[Tensor],
    ) -> Tensor:
        from_packed, to_packed, _ = packing.heads(heads)
        width = query.shape[1] // heads
        grids = [x.reshape(-1, width).index_select(0, from_packed) for x in (query, key, value)]
        mixed = torch.empty_like(grids[0])  # (M * heads, d)
        ctx.packing, ctx.heads, ctx.scaling, ctx.masks = packing, heads, scaling, masks
        ctx.probabilities = []
        for i, g in enumerate(packing.groups):
            q, k, v, out = (_part(x, g, heads) for x in (*grids, mixed))
            hidden = g.hidden.expand(-1, heads, 1, -1).reshape(-1, 1, g.length)
            scores = torch.baddbmm(hidden, q, k.mT, alpha=scaling)  # (R * heads, l, l)
            probabilities = torch.softmax(scores, -1)
            ctx.probabilities.append(probabilities)
            torch.bmm(probabilities * masks[i] if masks else probabilities, v, out=out)
        ctx.save_for_backward(*grids)
        return mixed.index_select(0, to_packed).view(-1, heads * width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grids, heads, masks = ctx.saved_tensors, ctx.heads, ctx.masks
        from_packed, to_packed, real = ctx.packing.heads(heads)
        width = grad.shape[1] // heads
        grad_mixed = grad.reshape(-1, width).index_select(0, from_packed).mul_(real)
        grads = [torch.empty_like(x) for x in grids]
        for i, g in enumerate(ctx.packing.groups):
            q, k, v, out, grad_q, grad_k, grad_v = (_part(x, g, heads) for x in (*grids, grad_mixed, *grads))
            probabilities = ctx.probabilities[i]
            kept = probabilities * masks[i] if masks else probabilities
            torch.bmm(kept.mT, out, out=grad_v)
            inner = torch.bmm(out, v.mT)
            if masks:
                inner.mul_(masks[i])
            inner = torch._softmax_backward_data(inner, probabilities, -1, torch.float32).mul_(ctx.scaling)
            torch.bmm(inner, k, out=grad_q)
            torch.bmm(inner.mT, q, out=grad_k)
        packed = [x.index_select(0, to_packed).view(-1, heads * width) for x in grads]
        return *packed, None, None, None, None


def _part(x: Tensor, group: Group, heads: int) -> Tensor:
    """A group's cells as (R * heads, length, d)."""
    cells = len(group.rows) * group.length
    return x[group.start * heads : (group.start + cells) * heads].view(-1, group.length, x.shape[-1])


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """query, key, value (1, heads, N, d) of a packed batch -> (1, N, heads, d); else as stacked_attention."""
    site: Any = module.attention_dropout_site
    packing = site.context.packing
    if packing is None:
        return stacked_attention(module, query, key, value, attention_mask, scaling=scaling, **more)
    _, heads, tokens, width = query.shape
    flat = [x.transpose(1, 2).reshape(tokens, heads * width) for x in (query, key, value)]
    masks = []
    if site.active:
        masks = [site.attention_mask(g.rows, heads, g.length) for g in packing.groups]
    mixed = _GroupedAttention.apply(*flat, packing, heads, scaling or width**-0.5, masks)
    return mixed.view(1, tokens, heads, width), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, AttentionMaskInterface()[ATTENTION])


def pack_layers(stack: Stack) -> None:
    """Let a stack's layers work on packed tokens from now on, where its family can."""
    encoder = next(m for m in stack.modules() if isinstance(m, PreTrainedModel))
    if encoder.config.model_type not in PACKABLE:
        return
    context, layers = stack.context, Anatomy(encoder).layers
    for module in stack.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == ATTENTION:
            config._attn_implementation = PACKED_ATTENTION
    layers[0].register_forward_pre_hook(_enter(context))
    layers[-1].register_forward_hook(_leave(context))
    stack.register_forward_pre_hook(_prepare(context), with_kwargs=True)


def _prepare(context: StackContext) -> Any:
    def hook(_: nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        mask = inputs.get("attention_mask")
        context.packing = None
        context.next_packing = None if mask is None else Packing.of(mask, context.trials)

    return hook


def _enter(context: StackContext) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        context.packing = context.next_packing
        return None if context.packing is None else (context.packing.pack(args[0]), *args[1:])

    return hook


def _leave(context: StackContext) -> Any:
    def hook(_: nn.Module, args: Any, output: Any) -> Any:
        packing, context.packing, context.next_packing = context.packing, None, None
        if packing is None:
            return None
        if isinstance(output, tuple):
            return (packing.unpack(output[0]), *output[1:])
        return packing.unpack(output)

    return hook
