"""The Triton kernels of the engine: attention with keyed dropout, gradient norms, AdamW on split floats.

Attention: one program a (row, head), all its scores in one block. The dropout mask is that of
dropout.StackedDropout for (T*B, heads, L, L) probabilities: the same hash of row key, site, head and position.
The backward pass computes scores and mask again instead of storing them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = {16: 1, 32: 2, 64: 4, 128: 8}  # by the size of a block of scores
HEAD_STEP, POSITION_STRIDE = 40503, 4096  # as in dropout.StackedDropout


@triton.jit
def _scramble(x):
    """rng.scramble on int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 4294967296)
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def _scores(q, k, mask_ptr, row, length, scale, BLOCK: tl.constexpr):
    """Softmax of the scaled scores plus mask: (BLOCK, BLOCK) float32, 0 beyond the keys."""
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
    keys_ptr, site_ptr, row, head, threshold, BLOCK: tl.constexpr, HEAD: tl.constexpr, STRIDE: tl.constexpr
):
    """Which probabilities dropout keeps: (BLOCK, BLOCK) bool."""
    key = _scramble(tl.load(keys_ptr + row) + tl.load(site_ptr) * 65537)
    key = _scramble(key + head * HEAD)
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    return (_scramble((i * STRIDE + j) ^ key) & 0xFFFFFF) >= threshold


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, mask_ptr, keys_ptr, site_ptr, out_ptr,
    length, heads, scale, threshold, keep_scale,
    BLOCK: tl.constexpr, D: tl.constexpr, DROP: tl.constexpr, HEAD: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    token = tl.arange(0, BLOCK)[:, None]
    at = (row * length + token) * heads * D + head * D + tl.arange(0, D)[None, :]
    real = token < length
    q = tl.load(q_ptr + at, mask=real, other=0.0)
    k = tl.load(k_ptr + at, mask=real, other=0.0)
    v = tl.load(v_ptr + at, mask=real, other=0.0)
    p = _scores(q, k, mask_ptr, row, length, scale, BLOCK)
    if DROP:
        p = tl.where(
            _kept(keys_ptr, site_ptr, row, head, threshold, BLOCK, HEAD, STRIDE), p * keep_scale, 0.0
        )
    tl.store(out_ptr + at, tl.dot(p.to(v.dtype), v).to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    q_ptr, k_ptr, v_ptr, mask_ptr, keys_ptr, site_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr,
    length, heads, scale, threshold, keep_scale,
    BLOCK: tl.constexpr, D: tl.constexpr, DROP: tl.constexpr, HEAD: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    token = tl.arange(0, BLOCK)[:, None]
    at = (row * length + token) * heads * D + head * D + tl.arange(0, D)[None, :]
    real = token < length
    q = tl.load(q_ptr + at, mask=real, other=0.0)
    k = tl.load(k_ptr + at, mask=real, other=0.0)
    v = tl.load(v_ptr + at, mask=real, other=0.0)
    grad = tl.load(grad_ptr + at, mask=real, other=0.0)
    p = _scores(q, k, mask_ptr, row, length, scale, BLOCK)
    dp = tl.dot(grad, tl.trans(v))
    dropped = p
    if DROP:
        kept = _kept(keys_ptr, site_ptr, row, head, threshold, BLOCK, HEAD, STRIDE)
        dropped = tl.where(kept, p * keep_scale, 0.0)
        dp = tl.where(kept, dp * keep_scale, 0.0)
    dv = tl.dot(tl.trans(dropped.to(grad.dtype)), grad)
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
    tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=real)
    tl.store(dq_ptr + at, tl.dot(ds, k).to(dq_ptr.dtype.element_ty), mask=real)
    tl.store(dk_ptr + at, tl.dot(tl.trans(ds), q).to(dk_ptr.dtype.element_ty), mask=real)


def _launch(kernel, tensors, q: Tensor, scaling: float, drops: float) -> None:
    rows, length, heads, width = q.shape
    block = max(16, triton.next_power_of_2(length))
    kernel[(rows * heads,)](
        *tensors,
        length, heads, scaling, round(drops * (1 << 24)), 1.0 / (1.0 - drops),
        BLOCK=block, D=width, DROP=drops > 0, HEAD=HEAD_STEP, STRIDE=POSITION_STRIDE,
        num_warps=WARPS[block],
    )  # fmt: skip


@torch.library.custom_op("whichlayers::attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, keys: Tensor, site: Tensor, scaling: float, drops: float
) -> Tensor:
    """q, k, v (T*B, L, heads, d), mask (T*B, 1, L, L), keys (T*B,) -> (T*B, L, heads, d)."""
    q, k, v, mask = (x.contiguous() for x in (q, k, v, mask))
    out = torch.empty_like(q)
    _launch(_forward, (q, k, v, mask, keys, site, out), q, scaling, drops)
    return out


@torch.library.custom_op("whichlayers::attention_backward", mutates_args=())
def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    keys: Tensor,
    site: Tensor,
    grad: Tensor,
    scaling: float,
    drops: float,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, mask, grad = (x.contiguous() for x in (q, k, v, mask, grad))
    dq, dk, dv = torch.empty_like(q), torch.empty_like(q), torch.empty_like(q)
    _launch(_backward, (q, k, v, mask, keys, site, grad, dq, dk, dv), q, scaling, drops)
    return dq, dk, dv


@attention.register_fake
def _(q, k, v, mask, keys, site, scaling, drops):
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@attention_backward.register_fake
def _(q, k, v, mask, keys, site, grad, scaling, drops):
    return tuple(torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.scaling, ctx.drops = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad: Tensor):
    q, k, v, mask, keys, site = ctx.saved_tensors
    dq, dk, dv = torch.ops.whichlayers.attention_backward(
        q, k, v, mask, keys, site, grad, ctx.scaling, ctx.drops
    )
    return dq, dk, dv, None, None, None, None, None


attention.register_autograd(_differentiate, setup_context=_save)


# ----------------------------------------------------------------------------------------------- optimiser

CHUNK = 8192  # elements of one parameter that one program walks through


@triton.jit
def _squares(grad_ptr, out_ptr, size, chunks, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    trial = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + start + tl.arange(0, BLOCK)
        g = tl.load(grad_ptr + trial * size + at, mask=at < size, other=0.0).to(tl.float32)
        total += g * g
    tl.store(out_ptr + trial * chunks + chunk, tl.sum(total, 0))


def squares(grad: Tensor) -> Tensor:
    """(T, n) contiguous -> (T, chunks) float32: squares added up chunk by chunk, at the speed of memory."""
    trials, size = grad.shape
    chunks = triton.cdiv(size, CHUNK)
    out = torch.empty(trials, chunks, dtype=torch.float32, device=grad.device)
    _squares[(chunks, trials)](grad, out, size, chunks, CHUNK=CHUNK, BLOCK=2048, num_warps=4)
    return out


@triton.jit
def _adam(
    work_ptr, low_ptr, m_ptr, v_ptr, grad_ptr, clip_ptr, rate_ptr, decay_ptr, scalars_ptr, size,
    EACH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """optimiser.split_step: EACH says that rate and decay are given for each element, not for each trial."""
    trial = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    here = trial * size + at
    beta1 = tl.load(scalars_ptr)
    beta2 = tl.load(scalars_ptr + 1)
    eps = tl.load(scalars_ptr + 2)
    correction1 = tl.load(scalars_ptr + 3)
    correction2 = tl.load(scalars_ptr + 4)
    if EACH:
        rate = tl.load(rate_ptr + here, mask=inside, other=0.0)
        decay = tl.load(decay_ptr + here, mask=inside, other=0.0)
    else:
        rate = tl.load(rate_ptr + trial)
        decay = tl.load(decay_ptr + trial)
    g = tl.load(grad_ptr + here, mask=inside, other=0.0).to(tl.float32) * tl.load(clip_ptr + trial)
    high = tl.load(work_ptr + here, mask=inside, other=0.0).to(tl.int16, bitcast=True).to(tl.int32)
    low = tl.load(low_ptr + here, mask=inside, other=0).to(tl.int32)
    weight = ((high << 16) + low).to(tl.float32, bitcast=True)
    m = tl.load(m_ptr + here, mask=inside, other=0.0)
    v = tl.load(v_ptr + here, mask=inside, other=0.0)
    m = m + (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    weight = weight - weight * (rate * decay)
    weight = weight - rate * (m / correction1) / (tl.sqrt(v) / correction2 + eps)
    bits = weight.to(tl.int32, bitcast=True)
    high = (bits + 0x8000) >> 16
    tl.store(work_ptr + here, high.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=inside)
    tl.store(low_ptr + here, (bits - (high << 16)).to(tl.int16), mask=inside)
    tl.store(m_ptr + here, m, mask=inside)
    tl.store(v_ptr + here, v, mask=inside)


def adam(
    work: Tensor, low: Tensor, m: Tensor, v: Tensor, grad: Tensor,
    clip: Tensor, rate: Tensor, decay: Tensor, scalars: Tensor,
) -> None:  # fmt: skip
    """optimiser.split_step, argument for argument: (T, n) contiguous, rate and decay (T, 1) or (T, n)."""
    trials, size = work.shape
    each = rate.shape[1] > 1
    _adam[(triton.cdiv(size, 1024), trials)](
        work, low, m, v, grad, clip, rate, decay, scalars, size, EACH=each, BLOCK=1024, num_warps=4
    )
