"""Triton kernels of the optimizer: squared gradient norms, AdamW on split floats."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 8192  # elements of a parameter that one program processes


@triton.jit
def _sum_of_squares(grad_ptr, out_ptr, size, chunks, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of squares of one chunk of one trial."""
    trial = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + start + tl.arange(0, BLOCK)
        g = tl.load(grad_ptr + trial * size + at, mask=at < size, other=0.0).to(tl.float32)
        total += g * g
    tl.store(out_ptr + trial * chunks + chunk, tl.sum(total, 0))


def sum_of_squares(grad: Tensor) -> Tensor:
    """(T, n) contiguous -> (T, chunks) float32 partial sums of squares."""
    trials, size = grad.shape
    chunks = triton.cdiv(size, CHUNK)
    out = torch.empty(trials, chunks, dtype=torch.float32, device=grad.device)
    _sum_of_squares[(chunks, trials)](grad, out, size, chunks, CHUNK=CHUNK, BLOCK=2048, num_warps=4)
    return out


@triton.jit
def _adam(
    param_ptr, low_ptr, m_ptr, v_ptr, grad_ptr, clip_ptr, lr_ptr, decay_ptr, scalars_ptr, size,
    PER_ELEMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """optimizer.split_step; PER_ELEMENT: lr and weight decay are given per element and not per trial."""
    trial = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    here = trial * size + at
    beta1 = tl.load(scalars_ptr)
    beta2 = tl.load(scalars_ptr + 1)
    eps = tl.load(scalars_ptr + 2)
    correction1 = tl.load(scalars_ptr + 3)
    correction2 = tl.load(scalars_ptr + 4)
    if PER_ELEMENT:
        lr = tl.load(lr_ptr + here, mask=inside, other=0.0)
        weight_decay = tl.load(decay_ptr + here, mask=inside, other=0.0)
    else:
        lr = tl.load(lr_ptr + trial)
        weight_decay = tl.load(decay_ptr + trial)
    g = tl.load(grad_ptr + here, mask=inside, other=0.0).to(tl.float32) * tl.load(clip_ptr + trial)
    high = tl.load(param_ptr + here, mask=inside, other=0.0).to(tl.int16, bitcast=True).to(tl.int32)
    low = tl.load(low_ptr + here, mask=inside, other=0).to(tl.int32)
    weight = ((high << 16) + low).to(tl.float32, bitcast=True)
    m = tl.load(m_ptr + here, mask=inside, other=0.0)
    v = tl.load(v_ptr + here, mask=inside, other=0.0)
    m = m + (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    weight = weight - weight * (lr * weight_decay)
    weight = weight - lr * (m / correction1) / (tl.sqrt(v) / correction2 + eps)
    bits = weight.to(tl.int32, bitcast=True)
    high = (bits + 0x8000) >> 16
    tl.store(param_ptr + here, high.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=inside)
    tl.store(low_ptr + here, (bits - (high << 16)).to(tl.int16), mask=inside)
    tl.store(m_ptr + here, m, mask=inside)
    tl.store(v_ptr + here, v, mask=inside)


def adam(
    param: Tensor, low: Tensor, m: Tensor, v: Tensor, grad: Tensor,
    clip: Tensor, lr: Tensor, weight_decay: Tensor, scalars: Tensor,
) -> None:  # fmt: skip
    """optimizer.split_step on contiguous (T, n) tensors; lr and weight_decay are (T, 1) or (T, n)."""
    trials, size = param.shape
    per_element = lr.shape[1] > 1
    _adam[(triton.cdiv(size, 1024), trials)](
        param,
        low,
        m,
        v,
        grad,
        clip,
        lr,
        weight_decay,
        scalars,
        size,
        PER_ELEMENT=per_element,
        BLOCK=1024,
        num_warps=4,
    )
