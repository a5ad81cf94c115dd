"""Linear, LayerNorm and Embedding modules of a stacked model, whose parameters have a leading trial axis.

T trials run as one model. Activations are (T*B, L, H), as unmodified Hugging Face code expects; row r belongs to trial
r // B. Only modules that own parameters, and dropout, are replaced. In XLNet, activations are (L, T*B, H): `batch_dim`
is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whichlayers.engine.ragged_functions import RaggedLayerNorm, RaggedLinear

# embedding tables up to this size use a matrix product, whose backward needs no atomic additions
SMALL_TABLE = 8


class StackContext:
    """State that all stacked modules of a model share.

    Attributes:
        trials: Number of trials (T).
        batch_dim: Axis of the activations that holds the T*B rows: 0, or 1 for (L, T*B, H).
        linear_dtype: Type to which linear layers round their operands, as torch.autocast does; None: they do not.
        row_keys: (T*B,) int32 dropout keys of the current step, a hash of (trial, step, row of the batch).
        packing: The `FixedSizePacking` or `RaggedPacking` (packing.py) while activations are packed, else None.
        next_packing: The packing to use from the first layer of the current forward pass on.
        packed_tokens: Tokens of a trial (M) in the next `FixedSizePacking`; None: the batch is not packed in this way.
        prefix: (T*B, L, H) output of the lowest layers for this batch, which are then skipped; None: compute them.
    """

    def __init__(self, trials: int, batch_dim: int = 0):
        self.trials = trials
        self.batch_dim = batch_dim
        self.linear_dtype: torch.dtype | None = None
        self.row_keys: Tensor | None = None
        self.packing: Any = None
        self.next_packing: Any = None
        self.packed_tokens: int | None = None
        self.prefix: Tensor | None = None

    @property
    def ragged(self) -> bool:
        """Whether activations are packed as (1, N, H), with a different number of tokens for each trial."""
        return self.packing is not None and self.packing.ragged

    def first_row_keys(self) -> Tensor:
        """(T,) dropout key of each trial's first row, for activations that a trial has once and not per row."""
        assert self.row_keys is not None
        return self.row_keys.view(self.trials, -1)[:, 0]

    @contextmanager
    def one_row_per_trial(self) -> Iterator[None]:
        """While active, activations have a leading axis of trials: they are not packed, and dropout uses
        `first_row_keys`."""
        keys, packing = self.row_keys, self.packing
        self.row_keys, self.packing = None if keys is None else self.first_row_keys(), None
        try:
            yield
        finally:
            self.row_keys, self.packing = keys, packing

    def fold(self, x: Tensor) -> Tensor:
        """(T*B, ..., C) -> (T, B*..., C), or (L, T*B, C) -> (T, L*B, C)."""
        if self.batch_dim == 0 or x.dim() < 3:
            return x.reshape(self.trials, -1, x.shape[-1])
        length, _, channels = x.shape
        return x.reshape(length, self.trials, -1, channels).transpose(0, 1).reshape(self.trials, -1, channels)

    def unfold(self, y: Tensor, like: Tensor) -> Tensor:
        """The inverse of `fold` for a tensor of the same leading shape as `like`."""
        if self.batch_dim == 0 or like.dim() < 3:
            return y.reshape(*like.shape[:-1], y.shape[-1])
        length, rows, _ = like.shape
        split = y.reshape(self.trials, length, rows // self.trials, y.shape[-1])
        return split.transpose(0, 1).reshape(length, rows, y.shape[-1])

    def per_row(self, p: Tensor, x: Tensor) -> Tensor:
        """Reshape a vector per trial (T, C) so that it broadcasts against `split_rows(x)`."""
        if self.batch_dim == 0 or x.dim() < 3:
            return p.view(self.trials, 1, p.shape[-1])
        return p.view(1, self.trials, 1, p.shape[-1])

    def split_rows(self, x: Tensor) -> Tensor:
        """Split the rows of `x` into (trial, row): (T*B, ..., C) -> (T, B*..., C), or (L, T*B, C) -> (L, T, B, C)."""
        if self.batch_dim == 0 or x.dim() < 3:
            return x.reshape(self.trials, -1, x.shape[-1])
        return x.reshape(x.shape[0], self.trials, -1, x.shape[-1])

    def add_per_trial(self, y: Tensor, values: Tensor) -> Tensor:
        """Add a vector per trial (T, C) to activations `y` of any layout, with C channels."""
        if self.ragged:  # (1, N, C)
            return y + self._per_token(values)
        return (self.split_rows(y) + self.per_row(values, y)).reshape(y.shape)

    def multiply_per_trial(self, y: Tensor, values: Tensor) -> Tensor:
        """Multiply activations `y` of any layout, with C channels, by a vector per trial (T, C)."""
        if self.ragged:  # (1, N, C)
            return y * self._per_token(values)
        return (self.split_rows(y) * self.per_row(values, y)).reshape(y.shape)

    def _per_token(self, values: Tensor) -> Tensor:
        """(T, C) values of trials as (N, C) values of their packed tokens."""
        return values.repeat_interleave(torch.tensor(self.packing.trial_tokens), 0)


class StackedModule(nn.Module):
    """Base class: has the parameters of the module `plain` under the same names, repeated along a new trial axis.

    Parameters named in `shared` are frozen and the same in all trials: they have no trial axis.
    """

    def __init__(self, plain: nn.Module, context: StackContext, shared: frozenset[str] = frozenset()):
        super().__init__()
        self.context, self.shared_names = context, shared
        for name, p in plain.named_parameters(recurse=False):
            if name in shared:
                self.register_parameter(name, nn.Parameter(p.detach(), requires_grad=False))
                continue
            stacked = p.detach().unsqueeze(0).repeat(context.trials, *([1] * p.dim()))
            self.register_parameter(name, nn.Parameter(stacked))

    weight: nn.Parameter
    bias: nn.Parameter | None


class _BatchedLinear(torch.autograd.Function):
    """x (T, n, in), weight (T, out, in), bias (T, out) -> (T, n, out); operands are rounded to `dtype`.

    The gradient of the weight has the memory layout of the weight, as the optimizer needs. Autograd's backward of
    bmm(x, weight.mT) would return it transposed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        rounded, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(rounded, weight)
        y = torch.bmm(rounded, weight.mT)
        # A conversion to the same type returns `y` itself. In torch 2.11, a compiled function that returns such an
        # alias has gradients of 0 (https://github.com/pytorch/pytorch/issues/180642).
        if y.dtype != x.dtype:
            y = y.to(x.dtype)
        return y if bias is None else y + bias[:, None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        rounded = grad.to(x.dtype)
        grad_x = torch.bmm(rounded, weight).to(grad.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = torch.bmm(rounded.mT, x).to(grad.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = grad.sum(1) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor | None, context: StackContext) -> Tensor:
    """Linear function of each trial, weight (T, out, in): (T*B, ..., in) -> (T*B, ..., out), or packed activations."""
    dtype = context.linear_dtype or x.dtype
    if context.ragged:  # (1, N, in)
        return RaggedLinear.apply(x[0], weight, bias, context.packing.trial_tokens, dtype)[None]
    y = _BatchedLinear.apply(context.fold(x), weight, bias, dtype)  # (T, n, out)
    return context.unfold(y, x)


def rounded_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., in) -> (..., out) without a bias; x is rounded to the type of the weight (out, in)."""
    return F.linear(x.to(weight.dtype), weight).to(x.dtype)


class RoundedLinear(nn.Linear):
    """A frozen linear layer with a weight of lower precision than its input, which is rounded to it."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        y = rounded_linear(x, self.weight)
        return y if self.bias is None else y + self.bias


class StackedLinear(StackedModule):
    """Linear with weight (T, out, in), or (out, in) if it is shared, and bias (T, out) or None."""

    def __init__(self, plain: nn.Linear, context: StackContext, shared: frozenset[str] = frozenset()):
        super().__init__(plain, context, shared & {"weight"})
        if plain.bias is None:
            self.register_parameter("bias", None)
        self.in_features, self.out_features = plain.in_features, plain.out_features

    def forward(self, x: Tensor) -> Tensor:
        """(T*B, ..., in) -> (T*B, ..., out), or (T, M, in) or (1, N, in) with the same leading axes if packed."""
        if "weight" in self.shared_names:
            y = rounded_linear(x, self.weight)
            return y if self.bias is None else self.context.add_per_trial(y, self.bias)
        return batched_linear(x, self.weight, self.bias, self.context)


class StackedLayerNorm(StackedModule):
    """LayerNorm with weight (T, H) and bias (T, H) or None."""

    def __init__(self, plain: nn.LayerNorm, context: StackContext):
        super().__init__(plain, context)
        if plain.bias is None:
            self.register_parameter("bias", None)
        self.normalized_shape, self.eps = plain.normalized_shape, plain.eps

    def forward(self, x: Tensor) -> Tensor:
        """(T*B, ..., H), or (T, M, H) or (1, N, H) if packed -> the same shape."""
        if self.context.ragged:  # (1, N, H)
            trial_tokens = self.context.packing.trial_tokens
            return RaggedLayerNorm.apply(x[0], self.weight, self.bias, self.eps, trial_tokens)[None]
        if self.context.trials == 1:
            bias = None if self.bias is None else self.bias[0]
            return F.layer_norm(x, self.normalized_shape, self.weight[0], bias, self.eps)
        wide = x.float() if x.is_cuda and torch.is_grad_enabled() else x  # torch.compile fuses the casts
        y = self.context.split_rows(F.layer_norm(wide, self.normalized_shape, eps=self.eps))
        weight = self.context.per_row(self.weight, x)
        bias = None if self.bias is None else self.context.per_row(self.bias, x)
        y = y * weight if bias is None else torch.addcmul(bias.to(y.dtype), y, weight.to(y.dtype))
        return y.to(x.dtype).reshape(x.shape)


class StackedEmbedding(StackedModule):
    """Embedding with weight (T, V, H), for (T*B, L) ids, or for (1, L) ids that all rows share (positions).

    If `rows` is given, trial t has its own copy of the rows `rows[t]` only, those of the tokens in its training set.
    All other rows never receive a gradient and stay in one table that the trials share. The weight is then
    (T, R, H), where R is the largest number of rows of a trial, rounded up to a multiple of `row_multiple`.

    Attributes:
        local: (T, V) int32 index of each token's row in `weight`, -1 if it is in `shared`; None without `rows`.
        shared: (V, H) pretrained rows; None without `rows`.
        decay: (T,) factor by which weight decay has shrunk the shared rows; None without `rows`.
        scale: Factor of the result, as in Gemma; None: 1.
        freeze_padding: Whether the row of the padding token gets no gradient, as in torch.nn.Embedding. It matters for
            decoders, whose padding token may occur in texts.
    """

    local: Tensor | None
    shared: Tensor | None
    decay: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        plain: nn.Embedding,
        context: StackContext,
        rows: list[Tensor] | None = None,
        row_multiple: int = 1,
    ):
        if rows is None:
            super().__init__(plain, context)
            local = shared = decay = None
        else:
            nn.Module.__init__(self)
            self.context, self.shared_names = context, frozenset()
            shared, device = plain.weight.detach(), plain.weight.device
            local = torch.full((len(rows), len(shared)), -1, dtype=torch.int32, device=device)
            most = -(-max(len(r) for r in rows) // row_multiple) * row_multiple
            kept = shared.new_zeros(len(rows), most, shared.shape[1])
            for t, r in enumerate(rows):
                local[t, r] = torch.arange(len(r), dtype=torch.int32, device=device)
                kept[t, : len(r)] = shared[r]
            self.weight = nn.Parameter(kept)
            decay = torch.ones(len(rows), device=device)
        self.num_embeddings, self.embedding_dim = plain.num_embeddings, plain.embedding_dim
        self.padding_idx, self.freeze_padding = plain.padding_idx, False
        scale = getattr(plain, "embed_scale", None)
        for name, value in (("local", local), ("shared", shared), ("decay", decay), ("scale", scale)):
            self.register_buffer(name, value, persistent=False)

    def full_weight(self, trial: int) -> Tensor:
        """(V, H) embedding table of one trial, with its own and the shared rows."""
        return self.full_table(trial, self.weight.detach()[trial], self.shared)

    def full_table(self, trial: int, own: Tensor, shared: Tensor | None) -> Tensor:
        """(V, H) table of `own` rows (R, H) of a trial and, with weight decay, all other rows of `shared` (V, H).

        Without `rows`, the trial has all rows of its own.
        """
        if self.local is None or shared is None or self.decay is None:
            return own
        table = (shared.float() * self.decay[trial]).to(shared.dtype)
        trained = self.local[trial] >= 0  # (V,)
        table[trained] = own[self.local[trial][trained].long()].to(table)
        return table

    def forward(self, ids: Tensor) -> Tensor:
        """(T*B, L) or (1, L) ids -> (T*B, L, H); if the batch is the second axis, (L, T*B) -> (L, T*B, H)."""
        rows = self._look_up(ids)
        if self.freeze_padding and self.padding_idx is not None and self.training:
            rows = torch.where((ids == self.padding_idx)[..., None], rows.detach(), rows)
        return rows if self.scale is None else rows * self.scale.to(rows.dtype)

    def _look_up(self, ids: Tensor) -> Tensor:
        """The rows of `ids`, in the shape that `forward` returns."""
        trials, width = self.context.trials, self.weight.shape[-1]
        batch_dim = self.context.batch_dim
        if self.local is None and ids.dim() == 2 and ids.shape[batch_dim] == 1:  # (1, L), shared by all rows
            rows = self.weight.index_select(1, ids.flatten())  # (T, L, H)
            batch = self._batch_rows() // trials
            return rows[:, None].expand(-1, batch, -1, -1).reshape(trials * batch, -1, width)
        if self.local is None and self.num_embeddings <= SMALL_TABLE:
            one_hot = F.one_hot(ids, self.num_embeddings).to(self.weight.dtype)  # (T*B, L, V)
            return self.context.unfold(torch.bmm(self.context.fold(one_hot), self.weight), one_hot)
        trial = torch.arange(trials, device=ids.device).repeat_interleave(ids.shape[batch_dim] // trials)
        trial = trial[:, None] if batch_dim == 0 else trial[None, :]  # broadcasts against ids
        table = self.weight.flatten(0, 1)
        if self.local is None:
            return F.embedding(ids + trial * self.num_embeddings, table)
        local = self.local.flatten()[ids + trial * self.num_embeddings].long()
        own = _lookup(local.clamp(min=0) + trial * self.weight.shape[1], table)
        if self.training or self.shared is None or self.decay is None:
            return own
        shared = F.embedding(ids, self.shared) * self.decay[trial][..., None].to(self.shared.dtype)
        return torch.where((local >= 0)[..., None], own, shared)

    def _batch_rows(self) -> int:
        """T*B, the number of rows in the current batch."""
        if self.context.row_keys is None:
            raise RuntimeError("call a stacked model through StackedModel.forward, which sets the row keys")
        return self.context.row_keys.shape[0]


@torch._dynamo.disable
def _lookup(rows: Tensor, table: Tensor) -> Tensor:
    """F.embedding, excluded from torch.compile, whose backward sums gradients in a nondeterministic order."""
    return F.embedding(rows, table)
