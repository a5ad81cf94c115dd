"""Packed batches on the CPU: the tokens of all trials one after another, (1, N, H), without any padding.

Linear layers and layer norms use each trial's number of tokens (stacked_modules.py), and attention pads rows of similar
length to a common grid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whichlayers.engine.attention import AttentionOptions, PositionBias, repeat_heads

FIRST_BIAS = 8  # index of the first bias among the arguments of _GroupedAttention
ROWS_PER_GROUP = 8  # rows of similar length that attention computes together


@dataclass(frozen=True)
class AttentionGroup:
    """Rows of similar length, padded to a common grid of (rows, length) cells."""

    rows: Tensor  # (R,) rows of the batch
    length: int
    mask: Tensor  # (R, 1, 1, length) additive attention mask: 0 for a token, the lowest float for padding
    start: int  # number of cells in all previous groups


@dataclass
class RaggedPacking:
    """Indices to pack a right-padded batch, and to arrange packed tokens in the grids of attention.

    N is the number of tokens and M the number of cells in the grids of all groups.
    """

    trial_tokens: list[int]  # (T,) number of tokens of each trial
    flat_index: Tensor  # (N,) index of each token in the flattened batch, row * L + position
    rows: Tensor  # (N,) row of each token
    positions: Tensor  # (N,) int32 position of each token in its row
    shape: tuple[int, int]  # T*B, L
    groups: list[AttentionGroup]
    to_grid: Tensor  # (M,) token of each cell; for padding, the first token of the row
    from_grid: Tensor  # (N,) cell of each token
    is_token: Tensor  # (M,) float: 1 for a token, 0 for padding
    by_heads: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    visibility: dict[tuple[int, bool], list[Tensor]] = field(default_factory=dict)

    ragged = True  # trials have different numbers of tokens

    @staticmethod
    def from_mask(attention_mask: Tensor, trials: int) -> RaggedPacking | None:
        """The packing of a batch with this (T*B, L) mask; None if it is not right-padded or has an empty row."""
        mask = attention_mask.numpy() > 0  # (T*B, L)
        rows, width = mask.shape
        lengths = mask.sum(1)
        if not (mask == (np.arange(width) < lengths[:, None])).all() or not lengths.all():
            return None
        flat_index = np.flatnonzero(mask)
        row, position = np.divmod(flat_index, width)
        first_token = np.concatenate([[0], lengths.cumsum()])  # of each row among the packed tokens
        groups, to_grid, is_token, start = [], [], [], 0
        from_grid = np.empty(len(flat_index), np.int64)
        for chosen in _group_by_length(lengths):
            length = int(lengths[chosen].max())
            first = first_token[chosen][:, None]  # (R, 1)
            real = np.arange(length) < lengths[chosen][:, None]  # (R, length)
            token = np.where(real, first + np.arange(length), first)
            from_grid[token[real]] = start + np.flatnonzero(real)
            additive = np.where(real, np.float32(0), np.finfo(np.float32).min)[:, None, None]
            groups.append(AttentionGroup(torch.from_numpy(chosen), length, torch.from_numpy(additive), start))
            to_grid.append(token.ravel())
            is_token.append(real.ravel())
            start += token.size
        return RaggedPacking(
            lengths.reshape(trials, -1).sum(1).tolist(),
            torch.from_numpy(flat_index),
            torch.from_numpy(row),
            torch.from_numpy(position.astype(np.int32)),
            (rows, width),
            groups,
            torch.from_numpy(np.concatenate(to_grid)),
            torch.from_numpy(from_grid),
            torch.from_numpy(np.concatenate(is_token).astype(np.float32)),
        )

    def per_head(self, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """`to_grid`, `from_grid` and `is_token` for N * heads vectors; a group has cells (R, heads, length)."""
        if heads not in self.by_heads:
            head = torch.arange(heads)
            from_grid = torch.empty(len(self.flat_index), heads, dtype=torch.int64)
            to_grid, is_token = [], []
            for g in self.groups:
                stop = g.start + len(g.rows) * g.length
                token = self.to_grid[g.start : stop].view(-1, 1, g.length)
                real = self.is_token[g.start : stop].view(-1, 1, g.length).expand(-1, heads, -1)
                to_grid.append((token * heads + head[:, None]).flatten())
                cell = torch.arange(g.start * heads, stop * heads).view(-1, heads, g.length).transpose(1, 2)
                chosen = real[:, 0] > 0
                from_grid[token[:, 0][chosen]] = cell[chosen]
                is_token.append(real.reshape(-1, 1))
            self.by_heads[heads] = (torch.cat(to_grid), from_grid.flatten(), torch.cat(is_token))
        return self.by_heads[heads]

    def pack(self, x: Tensor) -> Tensor:
        """(T*B, L, H) -> (1, N, H)."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self.flat_index)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """(1, N, H) -> (T*B, L, H), with zeros for padding."""
        rows, width = self.shape
        padded = x.new_zeros(rows * width, x.shape[-1])
        return padded.index_copy(0, self.flat_index, x[0]).view(rows, width, -1)

    def position_bias(self, bias: PositionBias) -> list[Tensor]:
        """The relative position bias of each group, (R * heads, length, length)."""
        batch = self.shape[0] // len(self.trial_tokens)
        biases = []
        for g in self.groups:
            by_trial = bias.between(g.length)  # (T, heads, length, length)
            biases.append(by_trial.index_select(0, g.rows // batch).flatten(0, 1))
        return biases

    def visibility_bias(self, window: int, causal: bool) -> list[Tensor]:
        """(1, length, length) for each group: the lowest float for keys that a query does not see, else 0.

        These are keys farther away than `window`, unless that is 0, and later keys if `causal`.
        """
        if (window, causal) not in self.visibility:
            lowest, biases = torch.finfo(torch.float32).min, list[Tensor]()
            for g in self.groups:
                token = torch.arange(g.length)
                distance = token[None] - token[:, None]  # of each key from each query
                hidden = distance.abs() > (window or g.length)
                if causal:
                    hidden = hidden | (distance > 0)
                biases.append(torch.zeros(hidden.shape).masked_fill(hidden, lowest)[None])
            self.visibility[window, causal] = biases
        return self.visibility[window, causal]

    def attention(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """query, key, value (1, heads, N, d) -> (1, N, heads, d); keys and values may have fewer heads."""
        _, heads, tokens, width = query.shape
        key, value = repeat_heads(key, heads), repeat_heads(value, heads)
        flat = [x.transpose(1, 2).reshape(tokens, heads * width) for x in (query, key, value)]
        masks = []
        if options.dropout.active:
            masks = [options.dropout.attention_mask(g.rows, heads, g.length) for g in self.groups]
        biases, window = options.position_bias or [], options.window
        if window and max(g.length for g in self.groups) <= window + 1:
            window = 0
        if window or options.causal:
            biases = [*biases, *self.visibility_bias(window, options.causal)]
        scores = options.scaling, options.softcap
        mixed = _GroupedAttention.apply(*flat, self, heads, *scores, masks, *biases)
        return mixed.view(1, tokens, heads, width)


def _group_by_length(lengths: np.ndarray) -> list[np.ndarray]:
    """Row numbers sorted by length, in groups of about ROWS_PER_GROUP."""
    order = np.argsort(lengths, kind="stable")
    return np.array_split(order, max(1, round(len(order) / ROWS_PER_GROUP)))


class _GroupedAttention(torch.autograd.Function):
    """query, key, value (N, heads * d) -> (N, heads * d).

    `masks`: dropout mask of each group, or none. `biases`: tensors that are added to the scores, one for each group,
    or two for each (those of the first kind, then those of the second), or none.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        packing: RaggedPacking,
        heads: int,
        scaling: float,
        softcap: float | None,
        masks: list[Tensor],
        *biases: Tensor,
    ) -> Tensor:
        to_grid, from_grid, _ = packing.per_head(heads)
        width = query.shape[1] // heads
        grids = [x.reshape(-1, width).index_select(0, to_grid) for x in (query, key, value)]
        mixed = torch.empty_like(grids[0])  # (M * heads, d)
        ctx.packing, ctx.heads, ctx.scaling, ctx.masks = packing, heads, scaling, masks
        ctx.probabilities, ctx.slopes = [], []  # slopes: derivatives of capped scores
        for i, g in enumerate(packing.groups):
            q, k, v, out = (_group_cells(x, g, heads) for x in (*grids, mixed))
            mask = g.mask.expand(-1, heads, 1, -1).reshape(-1, 1, g.length)
            if softcap is None:
                scores = torch.baddbmm(mask, q, k.mT, alpha=scaling)  # (R * heads, l, l)
            else:
                capped = torch.tanh(torch.bmm(q, k.mT) * (scaling / softcap))
                ctx.slopes.append(1 - capped * capped)
                scores = mask + capped * softcap
            for bias in biases[i :: len(packing.groups)]:
                scores += bias
            probabilities = torch.softmax(scores, -1)
            ctx.probabilities.append(probabilities)
            torch.bmm(probabilities * masks[i] if masks else probabilities, v, out=out)
        ctx.save_for_backward(*grids)
        return mixed.index_select(0, from_grid).view(-1, heads * width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grids, heads, masks = ctx.saved_tensors, ctx.heads, ctx.masks
        to_grid, from_grid, is_token = ctx.packing.per_head(heads)
        width = grad.shape[1] // heads
        grad_mixed = grad.reshape(-1, width).index_select(0, to_grid).mul_(is_token)
        grads = [torch.empty_like(x) for x in grids]
        bias_grads: list[Tensor | None] = [None] * (len(ctx.needs_input_grad) - FIRST_BIAS)
        for i, g in enumerate(ctx.packing.groups):
            q, k, v, out, grad_q, grad_k, grad_v = (
                _group_cells(x, g, heads) for x in (*grids, grad_mixed, *grads)
            )
            probabilities = ctx.probabilities[i]
            kept = probabilities * masks[i] if masks else probabilities
            torch.bmm(kept.mT, out, out=grad_v)
            grad_scores = torch.bmm(out, v.mT)
            if masks:
                grad_scores.mul_(masks[i])
            grad_scores = torch._softmax_backward_data(grad_scores, probabilities, -1, torch.float32)
            for b in range(i, len(bias_grads), len(ctx.packing.groups)):
                if ctx.needs_input_grad[FIRST_BIAS + b]:
                    bias_grads[b] = grad_scores.clone()
            if ctx.slopes:
                grad_scores.mul_(ctx.slopes[i])
            grad_scores.mul_(ctx.scaling)
            torch.bmm(grad_scores, k, out=grad_q)
            torch.bmm(grad_scores.mT, q, out=grad_k)
        packed = [x.index_select(0, from_grid).view(-1, heads * width) for x in grads]
        return *packed, *[None] * (FIRST_BIAS - 3), *bias_grads


def _group_cells(x: Tensor, group: AttentionGroup, heads: int) -> Tensor:
    """The cells of one group as (R * heads, length, d), a view of x (M * heads, d)."""
    cells = len(group.rows) * group.length
    return x[group.start * heads : (group.start + cells) * heads].view(-1, group.length, x.shape[-1])
