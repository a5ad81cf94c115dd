"""Linear layer and layer norm of packed tokens on the CPU: (N, H), where trial t has trial_tokens[t] of them.

The tokens of a trial follow each other. Both loop over the trials, which costs little on a CPU compared with the matrix
products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RaggedLinear(torch.autograd.Function):
    """x (N, in), weight (T, out, in), bias (T, out) or None -> (N, out); operands are rounded to `dtype`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        trial_tokens: list[int],
        dtype: torch.dtype,
    ) -> Tensor:
        rounded, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(rounded, weight)
        ctx.trial_tokens = trial_tokens
        y = rounded.new_empty(x.shape[0], weight.shape[1])
        fused = bias is not None and bias.dtype == dtype
        biases = bias.unbind() if bias is not None and fused else [None] * len(trial_tokens)
        parts = zip(rounded.split(trial_tokens), weight.mT.unbind(), y.split(trial_tokens), strict=True)
        for (part, w, out), b in zip(parts, biases, strict=True):
            if b is None:
                torch.mm(part, w, out=out)
            else:
                torch.addmm(b, part, w, out=out)
        y = y.to(x.dtype)
        if bias is not None and not fused:
            for out, b in zip(y.split(trial_tokens), bias.unbind(), strict=True):
                out += b
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        trial_tokens = ctx.trial_tokens
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        parts = grad.to(x.dtype).split(trial_tokens)
        if needs_x:
            grad_x = torch.empty_like(x)
            for g, w, out in zip(parts, weight.unbind(), grad_x.split(trial_tokens), strict=True):
                torch.mm(g, w, out=out)
            grad_x = grad_x.to(grad.dtype)
        if needs_weight:
            grad_weight = torch.empty_like(weight)
            for g, part, out in zip(parts, x.split(trial_tokens), grad_weight.unbind(), strict=True):
                torch.mm(g.t(), part, out=out)
            grad_weight = grad_weight.to(grad.dtype)
        if needs_bias:
            grad_bias = torch.stack([g.sum(0) for g in grad.split(trial_tokens)])
        return grad_x, grad_weight, grad_bias, None, None


class RaggedLayerNorm(torch.autograd.Function):
    """x (N, H), weight (T, H), bias (T, H) or None -> (N, H)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, trial_tokens: list[int]
    ) -> Tensor:
        shape, biases = (x.shape[1],), _bias_per_trial(bias, len(trial_tokens))
        outputs = [
            torch.native_layer_norm(part, shape, w, b, eps)
            for part, w, b in zip(x.split(trial_tokens), weight.unbind(), biases, strict=True)
        ]
        ctx.save_for_backward(x, weight, bias)
        ctx.trial_tokens, ctx.statistics = trial_tokens, [o[1:] for o in outputs]
        return torch.cat([o[0] for o in outputs])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, bias = ctx.saved_tensors
        trial_tokens, shape = ctx.trial_tokens, (x.shape[1],)
        needs = [bool(n) for n in ctx.needs_input_grad[:3]]
        biases = _bias_per_trial(bias, len(trial_tokens))
        parts = zip(
            grad.split(trial_tokens),
            x.split(trial_tokens),
            ctx.statistics,
            weight.unbind(),
            biases,
            strict=True,
        )
        outputs = [
            torch.ops.aten.native_layer_norm_backward(g, part, shape, *statistics, w, b, needs)
            for g, part, statistics, w, b in parts
        ]
        grad_x = torch.cat([o[0] for o in outputs]) if needs[0] else None
        grad_weight = torch.stack([o[1] for o in outputs]) if needs[1] else None
        grad_bias = torch.stack([o[2] for o in outputs]) if needs[2] else None
        return grad_x, grad_weight, grad_bias, None, None


def _bias_per_trial(bias: Tensor | None, trials: int) -> tuple[Tensor, ...] | list[None]:
    """The bias of each trial, or None for each."""
    return [None] * trials if bias is None else bias.unbind()
