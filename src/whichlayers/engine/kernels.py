"""Triton kernels: attention with per-trial dropout, squared gradient norms, AdamW on split floats.

Attention uses one program per (row, head), with all scores in one block. The dropout mask is that of
dropout.StackedDropout for (T*B, heads, L, L) probabilities: the same hash of row key, dropout id, head and position.
The backward pass recomputes scores and mask instead of storing them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = {16: 1, 32: 2, 64: 4, 128: 8}  # by block size
HEAD_STRIDE, POSITION_STRIDE = 40503, 4096  # as in dropout.StackedDropout


@triton.jit
def _scramble(x):
    """rng.scramble on int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 4294967296)
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def _probabilities(q, k, mask_ptr, row, length, scale, BLOCK: tl.constexpr):
    """Attention probabilities, softmax(q k^T * scale + mask): (BLOCK, BLOCK) float32, 0 beyond the last key."""
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    s = tl.dot(q, tl.trans(k)) * scale
    inside = (i < length) & (j < length)
    mask = tl.load(mask_ptr + row * length * length + i * length + j, mask=inside, other=0.0)
    s = tl.where(j < length, s + mask.to(tl.float32), float("-inf"))
    e = tl.exp(s - tl.max(s, 1)[:, None])
    return e / tl.sum(e, 1)[:, None]


@triton.jit
def _kept(
    keys_ptr,
    dropout_id_ptr,
    row,
    head,
    threshold,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Which probabilities dropout keeps: (BLOCK, BLOCK) bool."""
    key = _scramble(tl.load(keys_ptr + row) + tl.load(dropout_id_ptr) * 65537)
    key = _scramble(key + head * HEAD)
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    return (_scramble((i * STRIDE + j) ^ key) & 0xFFFFFF) >= threshold


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, mask_ptr, keys_ptr, dropout_id_ptr, out_ptr,
    length, heads, scale, threshold, keep_scale,
    BLOCK: tl.constexpr, D: tl.constexpr, DROP: tl.constexpr, HEAD: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """One program per (row, head): q, k, v (length, D) -> out (length, D)."""
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    token = tl.arange(0, BLOCK)[:, None]
    at = (row * length + token) * heads * D + head * D + tl.arange(0, D)[None, :]
    real = token < length
    q = tl.load(q_ptr + at, mask=real, other=0.0)
    k = tl.load(k_ptr + at, mask=real, other=0.0)
    v = tl.load(v_ptr + at, mask=real, other=0.0)
    p = _probabilities(q, k, mask_ptr, row, length, scale, BLOCK)
    if DROP:
        p = tl.where(
            _kept(keys_ptr, dropout_id_ptr, row, head, threshold, BLOCK, HEAD, STRIDE), p * keep_scale, 0.0
        )
    tl.store(out_ptr + at, tl.dot(p.to(v.dtype), v).to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    q_ptr, k_ptr, v_ptr, mask_ptr, keys_ptr, dropout_id_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr,
    length, heads, scale, threshold, keep_scale,
    BLOCK: tl.constexpr, D: tl.constexpr, DROP: tl.constexpr, HEAD: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """One program per (row, head): gradients of q, k and v (length, D), with recomputed scores and dropout mask."""
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    token = tl.arange(0, BLOCK)[:, None]
    at = (row * length + token) * heads * D + head * D + tl.arange(0, D)[None, :]
    real = token < length
    q = tl.load(q_ptr + at, mask=real, other=0.0)
    k = tl.load(k_ptr + at, mask=real, other=0.0)
    v = tl.load(v_ptr + at, mask=real, other=0.0)
    grad = tl.load(grad_ptr + at, mask=real, other=0.0)
    p = _probabilities(q, k, mask_ptr, row, length, scale, BLOCK)
    dp = tl.dot(grad, tl.trans(v))
    dropped = p
    if DROP:
        kept = _kept(keys_ptr, dropout_id_ptr, row, head, threshold, BLOCK, HEAD, STRIDE)
        dropped = tl.where(kept, p * keep_scale, 0.0)
        dp = tl.where(kept, dp * keep_scale, 0.0)
    dv = tl.dot(tl.trans(dropped.to(grad.dtype)), grad)
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
    tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=real)
    tl.store(dq_ptr + at, tl.dot(ds, k).to(dq_ptr.dtype.element_ty), mask=real)
    tl.store(dk_ptr + at, tl.dot(tl.trans(ds), q).to(dk_ptr.dtype.element_ty), mask=real)


def _launch(kernel, tensors, q: Tensor, scaling: float, dropout_p: float) -> None:
    """Run `_forward` or `_backward` on `tensors`; q (T*B, L, heads, d)."""
    rows, length, heads, width = q.shape
    block = max(16, triton.next_power_of_2(length))
    kernel[(rows * heads,)](
        *tensors,
        length, heads, scaling, round(dropout_p * (1 << 24)), 1.0 / (1.0 - dropout_p),
        BLOCK=block, D=width, DROP=dropout_p > 0, HEAD=HEAD_STRIDE, STRIDE=POSITION_STRIDE,
        num_warps=WARPS[block],
    )  # fmt: skip


@torch.library.custom_op("whichlayers::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    keys: Tensor,
    dropout_id: Tensor,
    scaling: float,
    dropout_p: float,
) -> Tensor:
    """Attention: q, k, v (T*B, L, heads, d) -> (T*B, L, heads, d).

    Args:
        mask: (T*B, 1, L, L), added to the scores.
        keys: (T*B,) int32 dropout keys of the rows.
        dropout_id: () int32 number of the dropout module.
        scaling: Factor for the scores.
        dropout_p: Dropout probability.
    """
    q, k, v, mask = (x.contiguous() for x in (q, k, v, mask))
    out = torch.empty_like(q)
    _launch(_forward, (q, k, v, mask, keys, dropout_id, out), q, scaling, dropout_p)
    return out


@torch.library.custom_op("whichlayers::attention_backward", mutates_args=())
def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    keys: Tensor,
    dropout_id: Tensor,
    grad: Tensor,
    scaling: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, given the gradient of the output (T*B, L, heads, d)."""
    q, k, v, mask, grad = (x.contiguous() for x in (q, k, v, mask, grad))
    dq, dk, dv = torch.empty_like(q), torch.empty_like(q), torch.empty_like(q)
    _launch(_backward, (q, k, v, mask, keys, dropout_id, grad, dq, dk, dv), q, scaling, dropout_p)
    return dq, dk, dv


@attention.register_fake
def _(q, k, v, mask, keys, dropout_id, scaling, dropout_p):
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@attention_backward.register_fake
def _(q, k, v, mask, keys, dropout_id, grad, scaling, dropout_p):
    return tuple(torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.scaling, ctx.dropout_p = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad: Tensor):
    q, k, v, mask, keys, dropout_id = ctx.saved_tensors
    dq, dk, dv = torch.ops.whichlayers.attention_backward(
        q, k, v, mask, keys, dropout_id, grad, ctx.scaling, ctx.dropout_p
    )
    return dq, dk, dv, None, None, None, None, None


attention.register_autograd(_differentiate, setup_context=_setup_context)


# ----------------------------------------------------------------------------------------------- optimizer

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
