"""Linear maps and layer norms of packed tokens (N, H): trial after trial, sizes[t] tokens of trial t.

On a CPU a loop over trials costs little beside the products themselves, and no trial is padded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class PackedLinear(torch.autograd.Function):
    """x (N, in), weight (T, out, in), bias (T, out) or none -> (N, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        y = x.new_empty(x.shape[0], weight.shape[1])
        parts = zip(x.split(sizes), weight.mT.unbind(), y.split(sizes), strict=True)
        if bias is None:
            for own, w, out in parts:
                torch.mm(own, w, out=out)
        else:
            for (own, w, out), b in zip(parts, bias.unbind(), strict=True):
                torch.addmm(b, own, w, out=out)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        sizes = ctx.sizes
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        parts = grad.split(sizes)
        if needs_x:
            grad_x = torch.empty_like(x)
            for g, w, out in zip(parts, weight.unbind(), grad_x.split(sizes), strict=True):
                torch.mm(g, w, out=out)
        if needs_weight:
            grad_weight = torch.empty_like(weight)
            for g, own, out in zip(parts, x.split(sizes), grad_weight.unbind(), strict=True):
                torch.mm(g.t(), own, out=out)
        if needs_bias:
            grad_bias = torch.stack([g.sum(0) for g in parts])
        return grad_x, grad_weight, grad_bias, None


class PackedLayerNorm(torch.autograd.Function):
    """x (N, H), weight (T, H), bias (T, H) or none -> (N, H)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, sizes: list[int]
    ) -> Tensor:
        shape, biases = (x.shape[1],), _per_trial(bias, len(sizes))
        done = [
            torch.native_layer_norm(own, shape, w, b, eps)
            for own, w, b in zip(x.split(sizes), weight.unbind(), biases, strict=True)
        ]
        ctx.save_for_backward(x, weight, bias)
        ctx.sizes, ctx.moments = sizes, [d[1:] for d in done]
        return torch.cat([d[0] for d in done])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, bias = ctx.saved_tensors
        sizes, shape = ctx.sizes, (x.shape[1],)
        needs = [bool(n) for n in ctx.needs_input_grad[:3]]
        biases = _per_trial(bias, len(sizes))
        parts = zip(grad.split(sizes), x.split(sizes), ctx.moments, weight.unbind(), biases, strict=True)
        done = [
            torch.ops.aten.native_layer_norm_backward(g, own, shape, *moments, w, b, needs)
            for g, own, moments, w, b in parts
        ]
        grad_x = torch.cat([d[0] for d in done]) if needs[0] else None
        grad_weight = torch.stack([d[1] for d in done]) if needs[1] else None
        grad_bias = torch.stack([d[2] for d in done]) if needs[2] else None
        return grad_x, grad_weight, grad_bias, None, None


def _per_trial(bias: Tensor | None, trials: int) -> tuple[Tensor, ...] | list[None]:
    return [None] * trials if bias is None else bias.unbind()
