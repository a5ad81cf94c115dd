"""Triton kernels for the attention of packed sequences, with per-trial dropout and relative position bias.

Tokens of all sequences lie one after another, (N, heads, d); a sequence is a range of tokens. One program computes one
head of one sequence, with all scores in one block that is chosen by the length of the sequence. The dropout mask is
that of dropout.StackedDropout for (T*B, heads, L, L) probabilities: the same hash of row key, dropout id, head and
position. The backward pass recomputes scores and mask instead of storing them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whichlayers.engine.dropout import HEAD_STRIDE, MIN_POSITION_STRIDE

MAX_LENGTH = 128  # longest sequence whose scores fit into one block
HEAD_SIZES = (16, 32, 64, 128)
WARPS = {16: 1, 32: 2, 64: 4, 128: 8}  # by the block size of the longest sequence


@triton.jit
def _scramble(x):
    """rng.scramble on int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 4294967296)
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def _probabilities(
    q, k, bias_ptr, buckets_ptr, trial, head, heads, length, scale,
    window, CAUSAL: tl.constexpr, BUCKETS: tl.constexpr, ZERO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(BLOCK, BLOCK) float32 attention probabilities, 0 for keys that a query does not see."""
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if BUCKETS > 0:
        bucket = tl.load(buckets_ptr + tl.minimum(tl.maximum(j - i, -ZERO), ZERO) + ZERO)
        s += tl.load(bias_ptr + (trial * BUCKETS + bucket) * heads + head).to(tl.float32)
    visible = tl.abs(j - i) <= window
    if CAUSAL:
        visible = visible & (j <= i)
    # queries beyond the end see all keys, so that their (unused) probabilities are finite
    s = tl.where((j < length) & (visible | (i >= length)), s, float("-inf"))
    e = tl.exp(s - tl.max(s, 1)[:, None])
    return e / tl.sum(e, 1)[:, None]


@triton.jit
def _kept(key, threshold, BLOCK: tl.constexpr, STRIDE: tl.constexpr):
    """Which probabilities dropout keeps: (BLOCK, BLOCK) bool."""
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    return (_scramble((i * STRIDE + j) ^ key) & 0xFFFFFF) >= threshold


@triton.jit
def _forward_block(
    q_ptr, k_ptr, v_ptr, bias_ptr, buckets_ptr, out_ptr,
    start, length, key, trial, head, heads, scale, threshold, keep_scale, window,
    CAUSAL: tl.constexpr, BUCKETS: tl.constexpr, ZERO: tl.constexpr,
    D: tl.constexpr, DROP: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one sequence of at most BLOCK tokens."""
    token = tl.arange(0, BLOCK)[:, None]
    at = (start + token) * heads * D + head * D + tl.arange(0, D)[None, :]
    real = token < length
    q = tl.load(q_ptr + at, mask=real, other=0.0)
    k = tl.load(k_ptr + at, mask=real, other=0.0)
    v = tl.load(v_ptr + at, mask=real, other=0.0)
    p = _probabilities(
        q, k, bias_ptr, buckets_ptr, trial, head, heads, length, scale, window, CAUSAL, BUCKETS, ZERO, BLOCK
    )
    if DROP:
        p = tl.where(_kept(key, threshold, BLOCK, STRIDE), p * keep_scale, 0.0)
    out = tl.dot(p.to(v.dtype), v, input_precision="ieee")
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def _backward_block(
    q_ptr, k_ptr, v_ptr, bias_ptr, buckets_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr,
    start, length, key, trial, row, head, heads, scale, threshold, keep_scale, window,
    CAUSAL: tl.constexpr, BUCKETS: tl.constexpr, ZERO: tl.constexpr,
    D: tl.constexpr, DROP: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of one head of one sequence of at most BLOCK tokens."""
    token = tl.arange(0, BLOCK)[:, None]
    at = (start + token) * heads * D + head * D + tl.arange(0, D)[None, :]
    real = token < length
    q = tl.load(q_ptr + at, mask=real, other=0.0)
    k = tl.load(k_ptr + at, mask=real, other=0.0)
    v = tl.load(v_ptr + at, mask=real, other=0.0)
    grad = tl.load(grad_ptr + at, mask=real, other=0.0)
    p = _probabilities(
        q, k, bias_ptr, buckets_ptr, trial, head, heads, length, scale, window, CAUSAL, BUCKETS, ZERO, BLOCK
    )
    dp = tl.dot(grad, tl.trans(v), input_precision="ieee")
    dropped = p
    if DROP:
        kept = _kept(key, threshold, BLOCK, STRIDE)
        dropped = tl.where(kept, p * keep_scale, 0.0)
        dp = tl.where(kept, dp * keep_scale, 0.0)
    dv = tl.dot(tl.trans(dropped.to(grad.dtype)), grad, input_precision="ieee")
    ds = p * (dp - tl.sum(p * dp, 1)[:, None])
    if BUCKETS > 0:  # the sum of ds over the cells of each bucket, for this sequence
        i = tl.arange(0, BLOCK)[:, None]
        j = tl.arange(0, BLOCK)[None, :]
        bucket = tl.load(buckets_ptr + tl.minimum(tl.maximum(j - i, -ZERO), ZERO) + ZERO)
        used = tl.where((i < length) & (j < length), ds, 0.0)
        for b in range(BUCKETS):
            total = tl.sum(tl.sum(tl.where(bucket == b, used, 0.0), 1), 0)
            tl.store(dbias_ptr + (row * BUCKETS + b) * heads + head, total)
    ds = (ds * scale).to(q.dtype)
    tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=real)
    tl.store(dq_ptr + at, tl.dot(ds, k, input_precision="ieee").to(dq_ptr.dtype.element_ty), mask=real)
    tl.store(
        dk_ptr + at, tl.dot(tl.trans(ds), q, input_precision="ieee").to(dk_ptr.dtype.element_ty), mask=real
    )


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, starts_ptr, lengths_ptr, keys_ptr, dropout_id_ptr, bias_ptr, buckets_ptr, out_ptr,
    heads, batch, scale, threshold, keep_scale, window,
    CAUSAL: tl.constexpr, BUCKETS: tl.constexpr, ZERO: tl.constexpr, D: tl.constexpr, DROP: tl.constexpr,
    HEAD: tl.constexpr, STRIDE: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """One program per (sequence, head); LARGEST is the block size of the longest sequence."""
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    start = tl.load(starts_ptr + row).to(tl.int64)
    length = tl.load(lengths_ptr + row)
    trial = row // batch
    key = _scramble(_scramble(tl.load(keys_ptr + row) + tl.load(dropout_id_ptr) * 65537) + head * HEAD)
    shorter: tl.constexpr = LARGEST // 2 if LARGEST > 16 else 16
    shortest: tl.constexpr = LARGEST // 4 if LARGEST > 32 else 16
    if length > shorter:
        _forward_block(q_ptr, k_ptr, v_ptr, bias_ptr, buckets_ptr, out_ptr,
                       start, length, key, trial, head, heads, scale, threshold, keep_scale, window,
                       CAUSAL, BUCKETS, ZERO, D, DROP, STRIDE, LARGEST)  # fmt: skip
    elif length > shortest:
        _forward_block(q_ptr, k_ptr, v_ptr, bias_ptr, buckets_ptr, out_ptr,
                       start, length, key, trial, head, heads, scale, threshold, keep_scale, window,
                       CAUSAL, BUCKETS, ZERO, D, DROP, STRIDE, shorter)  # fmt: skip
    elif length > 0:
        _forward_block(q_ptr, k_ptr, v_ptr, bias_ptr, buckets_ptr, out_ptr,
                       start, length, key, trial, head, heads, scale, threshold, keep_scale, window,
                       CAUSAL, BUCKETS, ZERO, D, DROP, STRIDE, shortest)  # fmt: skip


@triton.jit
def _backward(
    q_ptr, k_ptr, v_ptr, starts_ptr, lengths_ptr, keys_ptr, dropout_id_ptr, bias_ptr, buckets_ptr,
    grad_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr,
    heads, batch, scale, threshold, keep_scale, window,
    CAUSAL: tl.constexpr, BUCKETS: tl.constexpr, ZERO: tl.constexpr, D: tl.constexpr, DROP: tl.constexpr,
    HEAD: tl.constexpr, STRIDE: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """One program per (sequence, head), as in `_forward`."""
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    start = tl.load(starts_ptr + row).to(tl.int64)
    length = tl.load(lengths_ptr + row)
    trial = row // batch
    key = _scramble(_scramble(tl.load(keys_ptr + row) + tl.load(dropout_id_ptr) * 65537) + head * HEAD)
    shorter: tl.constexpr = LARGEST // 2 if LARGEST > 16 else 16
    shortest: tl.constexpr = LARGEST // 4 if LARGEST > 32 else 16
    if length > shorter:
        _backward_block(q_ptr, k_ptr, v_ptr, bias_ptr, buckets_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr,
                        start, length, key, trial, row, head, heads, scale, threshold, keep_scale, window,
                        CAUSAL, BUCKETS, ZERO, D, DROP, STRIDE, LARGEST)  # fmt: skip
    elif length > shortest:
        _backward_block(q_ptr, k_ptr, v_ptr, bias_ptr, buckets_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr,
                        start, length, key, trial, row, head, heads, scale, threshold, keep_scale, window,
                        CAUSAL, BUCKETS, ZERO, D, DROP, STRIDE, shorter)  # fmt: skip
    elif length > 0:
        _backward_block(q_ptr, k_ptr, v_ptr, bias_ptr, buckets_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr,
                        start, length, key, trial, row, head, heads, scale, threshold, keep_scale, window,
                        CAUSAL, BUCKETS, ZERO, D, DROP, STRIDE, shortest)  # fmt: skip


def _launch(
    kernel, tensors, q: Tensor, rows: int, bias: Tensor | None, buckets: Tensor | None, settings
) -> None:
    """Run `_forward` or `_backward` on `tensors`; q (N, heads, d). `settings`: see `attention`."""
    batch, max_length, scaling, dropout_p, window, causal = settings
    heads, width = q.shape[-2:]
    largest = max(16, triton.next_power_of_2(max_length))
    kernel[(rows * heads,)](
        *tensors,
        heads, batch, scaling, round(dropout_p * (1 << 24)), 1.0 / (1.0 - dropout_p),
        window if window else MAX_LENGTH,
        CAUSAL=causal, BUCKETS=0 if bias is None else bias.shape[1],
        ZERO=0 if buckets is None else len(buckets) // 2, D=width, DROP=dropout_p > 0,
        HEAD=HEAD_STRIDE, STRIDE=MIN_POSITION_STRIDE, LARGEST=largest, num_warps=WARPS[largest],
    )  # fmt: skip


@torch.library.custom_op("whichlayers::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lengths: Tensor,
    keys: Tensor,
    dropout_id: Tensor,
    bias: Tensor | None,
    buckets: Tensor | None,
    batch: int,
    max_length: int,
    scaling: float,
    dropout_p: float,
    window: int,
    causal: bool,
) -> Tensor:
    """Attention within each of R = T*B sequences: q, k, v (..., heads, d) with N tokens -> the same shape.

    Tokens that belong to no sequence get zeros.

    Args:
        starts: (R,) int32 first token of each sequence.
        lengths: (R,) int32 number of tokens of each sequence, at most `max_length`.
        keys: (R,) int32 dropout keys of the sequences.
        dropout_id: () int32 number of the dropout module.
        bias: (T, buckets, heads), added to the scores by the bucket of the relative position; None: no bias.
        buckets: (2L - 1,) int32 bucket of each relative position key - query, from 1 - L on; L >= `max_length`.
        batch: Sequences of one trial (B).
        max_length: Upper bound of the lengths; at most MAX_LENGTH.
        scaling: Factor for the scores.
        dropout_p: Dropout probability.
        window: Largest distance of a key that a query sees; 0: no limit.
        causal: Whether a query sees no later keys.
    """
    q, k, v = (x.contiguous() for x in (q, k, v))
    out = torch.zeros_like(q)
    by_bucket = (
        (q, starts) if bias is None else (bias.contiguous(), buckets)
    )  # without a bias, they are not read
    tensors = (q, k, v, starts, lengths, keys, dropout_id, *by_bucket)
    settings = (batch, max_length, scaling, dropout_p, window, causal)
    _launch(_forward, (*tensors, out), q, len(starts), bias, buckets, settings)
    return out


@torch.library.custom_op("whichlayers::attention_backward", mutates_args=())
def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lengths: Tensor,
    keys: Tensor,
    dropout_id: Tensor,
    bias: Tensor | None,
    buckets: Tensor | None,
    grad: Tensor,
    batch: int,
    max_length: int,
    scaling: float,
    dropout_p: float,
    window: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and bias, given the gradient of the output; that of bias is empty without one."""
    q, k, v, grad = (x.contiguous() for x in (q, k, v, grad))
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(q), torch.zeros_like(q)
    by_bucket = (q, starts) if bias is None else (bias.contiguous(), buckets)
    dbias = q.new_zeros((len(starts), *bias.shape[1:]) if bias is not None else 0, dtype=torch.float32)
    tensors = (q, k, v, starts, lengths, keys, dropout_id, *by_bucket, grad, dq, dk, dv, dbias)
    settings = (batch, max_length, scaling, dropout_p, window, causal)
    _launch(_backward, tensors, q, len(starts), bias, buckets, settings)
    if bias is not None:
        dbias = dbias.view(-1, batch, *bias.shape[1:]).sum(1).to(bias.dtype)
    return dq, dk, dv, dbias


@attention.register_fake
def _(q, k, v, *args):
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@attention_backward.register_fake
def _(q, k, v, starts, lengths, keys, dropout_id, bias, buckets, grad, *args):
    dbias = q.new_empty(0, dtype=torch.float32) if bias is None else torch.empty_like(bias)
    return *(torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3)), dbias


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:9])
    ctx.settings = inputs[9:]


def _differentiate(ctx, grad: Tensor):
    tensors = ctx.saved_tensors
    dq, dk, dv, dbias = torch.ops.whichlayers.attention_backward(*tensors, grad, *ctx.settings)
    return dq, dk, dv, None, None, None, None, None if tensors[7] is None else dbias, *[None] * 7


attention.register_autograd(_differentiate, setup_context=_setup_context)
