"""The leaves of a stacked model: the modules that own parameters, with a leading trial axis.

T trials run as one model. Activations are (T*B, L, H) everywhere, exactly what unmodified Hugging Face code
sees; row r belongs to trial r // B. Only the modules that own parameters, and dropout, are replaced by those
below. XLNet keeps its rows on the second axis (L, T*B, H): `rows_dim` says which.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whichlayers.engine.varlen_ops import PackedLayerNorm, PackedLinear

FEW_ROWS = 8  # an embedding table this small is read by a matrix product, whose backward has no collisions


class StackContext:
    """What every leaf of one stack knows: how many trials there are, which dropout masks this step uses."""

    def __init__(self, trials: int, rows_dim: int = 0):
        self.trials = trials
        self.rows_dim = rows_dim
        self.row_keys: Tensor | None = None  # (T*B,) int32: hash of (trial, step, row of the batch)
        self.packing: Any = None  # engine.packing.Packing while activations are (1, N, H), real tokens only
        self.next_packing: Any = None

    def first_rows(self) -> Tensor:
        """The key of each trial's first row (T,), for what a trial has once and not per row."""
        assert self.row_keys is not None
        return self.row_keys.view(self.trials, -1)[:, 0]

    def fold(self, x: Tensor) -> Tensor:
        """(T*B, ..., C) -> (T, B*..., C), or (L, T*B, C) -> (T, L*B, C)."""
        if self.rows_dim == 0 or x.dim() < 3:
            return x.reshape(self.trials, -1, x.shape[-1])
        length, _, channels = x.shape
        return x.reshape(length, self.trials, -1, channels).transpose(0, 1).reshape(self.trials, -1, channels)

    def unfold(self, y: Tensor, like: Tensor) -> Tensor:
        """The inverse of `fold` for a tensor of the same leading shape as `like`."""
        if self.rows_dim == 0 or like.dim() < 3:
            return y.reshape(*like.shape[:-1], y.shape[-1])
        length, rows, _ = like.shape
        split = y.reshape(self.trials, length, rows // self.trials, y.shape[-1])
        return split.transpose(0, 1).reshape(length, rows, y.shape[-1])

    def per_row(self, p: Tensor, x: Tensor) -> Tensor:
        """A per-trial vector (T, C), shaped so that it broadcasts against `x` split as `split_rows` does."""
        if self.rows_dim == 0 or x.dim() < 3:
            return p.view(self.trials, 1, p.shape[-1])
        return p.view(1, self.trials, 1, p.shape[-1])

    def split_rows(self, x: Tensor) -> Tensor:
        """A view of `x` in which a per-trial vector from `per_row` broadcasts."""
        if self.rows_dim == 0 or x.dim() < 3:
            return x.reshape(self.trials, -1, x.shape[-1])
        return x.reshape(x.shape[0], self.trials, -1, x.shape[-1])


class StackedLeaf(nn.Module):
    """A leaf whose parameters are those of `plain`, each with a leading trial axis, under the same names."""

    def __init__(self, plain: nn.Module, context: StackContext):
        super().__init__()
        self.context = context
        for name, p in plain.named_parameters(recurse=False):
            stacked = p.detach().unsqueeze(0).repeat(context.trials, *([1] * p.dim()))
            self.register_parameter(name, nn.Parameter(stacked))

    weight: nn.Parameter
    bias: nn.Parameter | None


class _BatchedLinear(torch.autograd.Function):
    """x (T, n, in), weight (T, out, in), bias (T, out) -> (T, n, out).

    Autograd's own backward of bmm(x, weight.mT) gives the weight's gradient transposed, which an optimiser
    over flat memory would have to copy first; here it is laid out like the weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = torch.bmm(x, weight.mT)
        return y if bias is None else y + bias[:, None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        grad_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        grad_weight = torch.bmm(grad.mT, x) if ctx.needs_input_grad[1] else None
        grad_bias = grad.sum(1) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias


class StackedLinear(StackedLeaf):
    """weight (T, out, in), bias (T, out)."""

    def __init__(self, plain: nn.Linear, context: StackContext):
        super().__init__(plain, context)
        if plain.bias is None:
            self.register_parameter("bias", None)
        self.in_features, self.out_features = plain.in_features, plain.out_features

    def forward(self, x: Tensor) -> Tensor:
        if self.context.packing is not None:  # (1, N, in)
            return PackedLinear.apply(x[0], self.weight, self.bias, self.context.packing.sizes)[None]
        y = _BatchedLinear.apply(self.context.fold(x), self.weight, self.bias)  # (T, n, out)
        return self.context.unfold(y, x)


class StackedLayerNorm(StackedLeaf):
    """weight (T, H), bias (T, H) or none."""

    def __init__(self, plain: nn.LayerNorm, context: StackContext):
        super().__init__(plain, context)
        if plain.bias is None:
            self.register_parameter("bias", None)
        self.normalized_shape, self.eps = plain.normalized_shape, plain.eps

    def forward(self, x: Tensor) -> Tensor:
        if self.context.packing is not None:  # (1, N, H)
            sizes = self.context.packing.sizes
            return PackedLayerNorm.apply(x[0], self.weight, self.bias, self.eps, sizes)[None]
        if self.context.trials == 1:
            bias = None if self.bias is None else self.bias[0]
            return F.layer_norm(x, self.normalized_shape, self.weight[0], bias, self.eps)
        wide = x.float() if x.is_cuda and torch.is_grad_enabled() else x  # compiled training fuses the casts
        y = self.context.split_rows(F.layer_norm(wide, self.normalized_shape, eps=self.eps))
        weight = self.context.per_row(self.weight, x)
        bias = None if self.bias is None else self.context.per_row(self.bias, x)
        y = y * weight if bias is None else torch.addcmul(bias.to(y.dtype), y, weight.to(y.dtype))
        return y.to(x.dtype).reshape(x.shape)


class StackedEmbedding(StackedLeaf):
    """weight (T, V, H), read by (T*B, L) ids, or by (1, L) ids that all rows share (positions).

    With `rows`, trial t owns just the rows `rows[t]`, those that its training set touches: no other row ever
    receives a gradient, so the others stay in one table that all trials share, and weight (T, most rows, H).
    """

    local: Tensor | None  # (T, V) int32: where an id's row lies in weight, -1 where it is in `shared`
    shared: Tensor | None  # (V, H): the pretrained rows
    decay: Tensor | None  # (T,): what weight decay has left of the shared rows

    def __init__(self, plain: nn.Embedding, context: StackContext, rows: list[Tensor] | None = None):
        if rows is None:
            super().__init__(plain, context)
            local = shared = decay = None
        else:
            nn.Module.__init__(self)
            self.context = context
            shared, device = plain.weight.detach(), plain.weight.device
            local = torch.full((len(rows), len(shared)), -1, dtype=torch.int32, device=device)
            kept = shared.new_zeros(len(rows), max(len(r) for r in rows), shared.shape[1])
            for t, r in enumerate(rows):
                local[t, r] = torch.arange(len(r), dtype=torch.int32, device=device)
                kept[t, : len(r)] = shared[r]
            self.weight = nn.Parameter(kept)
            decay = torch.ones(len(rows), device=device)
        self.num_embeddings, self.embedding_dim = plain.num_embeddings, plain.embedding_dim
        self.padding_idx = plain.padding_idx
        for name, value in (("local", local), ("shared", shared), ("decay", decay)):
            self.register_buffer(name, value, persistent=False)

    def whole_table(self, trial: int) -> Tensor:
        """The full (V, H) table of one trial."""
        if self.local is None or self.shared is None or self.decay is None:
            return self.weight.detach()[trial]
        table = (self.shared.float() * self.decay[trial]).to(self.shared.dtype)
        touched = self.local[trial] >= 0
        table[touched] = self.weight.detach()[trial, self.local[trial][touched].long()]
        return table

    def forward(self, ids: Tensor) -> Tensor:
        trials, width = self.context.trials, self.weight.shape[-1]
        row_axis = self.context.rows_dim
        if (
            self.local is None and ids.shape[row_axis] == 1 and ids.dim() == 2
        ):  # (1, L): the same for every row
            rows = self.weight.index_select(1, ids.flatten())  # (T, L, H)
            batch = self._rows_of_batch() // trials
            return rows[:, None].expand(-1, batch, -1, -1).reshape(trials * batch, -1, width)
        if self.local is None and self.num_embeddings <= FEW_ROWS:
            chosen = F.one_hot(ids, self.num_embeddings).to(self.weight.dtype)  # (T*B, L, V)
            return self.context.unfold(torch.bmm(self.context.fold(chosen), self.weight), chosen)
        trial = torch.arange(trials, device=ids.device).repeat_interleave(ids.shape[row_axis] // trials)
        trial = trial[:, None] if row_axis == 0 else trial[None, :]  # broadcasts against ids
        table = self.weight.flatten(0, 1)
        if self.local is None:
            return F.embedding(ids + trial * self.num_embeddings, table)
        local = self.local.flatten()[ids + trial * self.num_embeddings].long()
        mine = _lookup(local.clamp(min=0) + trial * self.weight.shape[1], table)
        if self.training or self.shared is None or self.decay is None:
            return mine
        others = F.embedding(ids, self.shared) * self.decay[trial][..., None].to(self.shared.dtype)
        return torch.where((local >= 0)[..., None], mine, others)

    def _rows_of_batch(self) -> int:
        if self.context.row_keys is None:
            raise RuntimeError(
                "a stacked model must be called through Stack.forward, which sets the row keys"
            )
        return self.context.row_keys.shape[0]


@torch._dynamo.disable
def _lookup(rows: Tensor, table: Tensor) -> Tensor:
    """Kept out of compiled code, whose backward adds gradients up in an order that changes from run to run."""
    return F.embedding(rows, table)
