"""Triton kernels for the attention of packed sequences, with per-trial dropout and relative position bias.

Tokens of all sequences lie one after another, (N, heads, d); a sequence is a range of tokens. One program computes one
head of one sequence, with all scores in one block. A kernel is launched for each block size, and computes the sequences
that need a block of this size. The dropout mask is that of dropout.StackedDropout for (T*B, heads, L, L) probabilities:
the same hash of row key, dropout id, head and position. The backward pass recomputes scores and mask instead of storing
them.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from whichlayers.engine.dropout import HEAD_STRIDE, ID_STRIDE, MIN_POSITION_STRIDE

MAX_LENGTH = 128  # longest sequence whose scores fit into one block
HEAD_SIZES = (16, 32, 64, 128)
# of q: kernels for larger blocks take minutes to compile, or exceed the shared memory
MAX_BLOCK_BYTES = 1 << 15
BLOCKS_IN_SHARED_MEMORY = 5  # the backward pass holds up to as many blocks of the size of q
WARPS = {16: 1, 32: 2, 64: 4, 128: 8}  # by block size
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton runs kernels on the CPU, for tests


def block_size(length: int) -> int:
    """Size of the block that a sequence of at most MAX_LENGTH tokens needs."""
    return next(block for block in WARPS if length <= block)


@triton.jit
def _scramble(x):
    """rng.scramble on int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 4294967296)
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def _softmax(
    q, k, bias_ptr, buckets_ptr, trial, head, heads, length, scale, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BUCKETS: tl.constexpr, ZERO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Attention probabilities, not normalized: (BLOCK, BLOCK) float32, 0 for keys that a query does not see.

    Returns them and their sum over the keys, (BLOCK,). To normalize a row of a product costs less than to normalize
    every probability.
    """
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    # exp(x) = exp2(x log2 e)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
    if BUCKETS > 0:
        bucket = tl.load(buckets_ptr + tl.minimum(tl.maximum(j - i, -ZERO), ZERO) + ZERO)
        bias = tl.load(bias_ptr + (trial * BUCKETS + bucket) * heads + head)
        s += bias.to(tl.float32) * 1.4426950408889634
    visible = j < length
    if CAUSAL:
        visible = visible & (j <= i)
    if WINDOW:  # queries beyond the end see all keys, so that their (unused) probabilities are finite
        visible = visible & ((tl.abs(j - i) <= window) | (i >= length))
    s = tl.where(visible, s, float("-inf"))
    e = tl.exp2(s - tl.max(s, 1)[:, None])
    return e, tl.sum(e, 1)


@triton.jit
def _kept(
    keys_ptr, dropout_id_ptr, row, head, threshold,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, ID: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Which probabilities dropout keeps: (BLOCK, BLOCK) bool."""
    key = _scramble(tl.load(keys_ptr + row) + tl.load(dropout_id_ptr) * ID)
    key = _scramble(key + head * HEAD)
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    return (_scramble((i * STRIDE + j) ^ key) & 0xFFFFFF) >= threshold


@triton.jit
def _clear(ptr, first, last, head, heads, D: tl.constexpr, BLOCK: tl.constexpr):
    """Write zeros to one head of the tokens from `first` to before `last`."""
    column = head * D + tl.arange(0, D)[None, :]
    while first < last:
        at = first + tl.arange(0, BLOCK)[:, None]
        tl.store(ptr + at * heads * D + column, tl.zeros((BLOCK, D), ptr.dtype.element_ty), mask=at < last)
        first += BLOCK


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, starts_ptr, lengths_ptr, keys_ptr, dropout_id_ptr, bias_ptr, buckets_ptr, out_ptr,
    heads, batch, tokens, scale, threshold, keep_scale, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BUCKETS: tl.constexpr, ZERO: tl.constexpr, D: tl.constexpr,
    DROP: tl.constexpr, HEAD: tl.constexpr, ID: tl.constexpr, STRIDE: tl.constexpr, SHORTER: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per (sequence, head), for sequences of more than SHORTER and at most BLOCK tokens."""
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    start = tl.load(starts_ptr + row).to(tl.int64)
    length = tl.load(lengths_ptr + row)
    trial = row // batch
    if SHORTER == 0 and row % batch == batch - 1:  # the tokens of this trial that belong to no sequence
        _clear(out_ptr, start + length, (trial + 1).to(tl.int64) * tokens, head, heads, D, BLOCK)
    if length > SHORTER and length <= BLOCK:
        token = tl.arange(0, BLOCK)[:, None]
        at = (start + token) * heads * D + head * D + tl.arange(0, D)[None, :]
        real = token < length
        q = tl.load(q_ptr + at, mask=real, other=0.0)
        k = tl.load(k_ptr + at, mask=real, other=0.0)
        v = tl.load(v_ptr + at, mask=real, other=0.0)
        e, total = _softmax(
            q, k, bias_ptr, buckets_ptr, trial, head, heads, length, scale, window,
            CAUSAL, WINDOW, BUCKETS, ZERO, BLOCK,
        )  # fmt: skip
        if DROP:
            kept = _kept(keys_ptr, dropout_id_ptr, row, head, threshold, BLOCK, HEAD, ID, STRIDE)
            e = tl.where(kept, e, 0.0)
        out = tl.dot(e.to(v.dtype), v, input_precision="ieee") * (keep_scale / total)[:, None]
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    q_ptr, k_ptr, v_ptr, starts_ptr, lengths_ptr, keys_ptr, dropout_id_ptr, bias_ptr, buckets_ptr,
    grad_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr,
    heads, batch, tokens, scale, threshold, keep_scale, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BUCKETS: tl.constexpr, ZERO: tl.constexpr, D: tl.constexpr,
    DROP: tl.constexpr, HEAD: tl.constexpr, ID: tl.constexpr, STRIDE: tl.constexpr, SHORTER: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per (sequence, head), as in `_forward`, with recomputed scores and dropout mask."""
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    start = tl.load(starts_ptr + row).to(tl.int64)
    length = tl.load(lengths_ptr + row)
    trial = row // batch
    if SHORTER == 0 and row % batch == batch - 1:
        end = (trial + 1).to(tl.int64) * tokens
        _clear(dq_ptr, start + length, end, head, heads, D, BLOCK)
        _clear(dk_ptr, start + length, end, head, heads, D, BLOCK)
        _clear(dv_ptr, start + length, end, head, heads, D, BLOCK)
    if length > SHORTER and length <= BLOCK:
        token = tl.arange(0, BLOCK)[:, None]
        at = (start + token) * heads * D + head * D + tl.arange(0, D)[None, :]
        real = token < length
        q = tl.load(q_ptr + at, mask=real, other=0.0)
        k = tl.load(k_ptr + at, mask=real, other=0.0)
        v = tl.load(v_ptr + at, mask=real, other=0.0)
        grad = tl.load(grad_ptr + at, mask=real, other=0.0)
        e, total = _softmax(
            q, k, bias_ptr, buckets_ptr, trial, head, heads, length, scale, window,
            CAUSAL, WINDOW, BUCKETS, ZERO, BLOCK,
        )  # fmt: skip
        p = e * (1.0 / total)[:, None]
        # with respect to the dropped probabilities, and so to `p`; both lack the factor keep_scale
        dp = tl.dot(grad, tl.trans(v), input_precision="ieee")
        dropped = p
        if DROP:
            kept = _kept(keys_ptr, dropout_id_ptr, row, head, threshold, BLOCK, HEAD, ID, STRIDE)
            dropped = tl.where(kept, p, 0.0)
            dp = tl.where(kept, dp, 0.0)
        dv = tl.dot(tl.trans(dropped.to(grad.dtype)), grad, input_precision="ieee") * keep_scale
        tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=real)
        ds = p * (dp - tl.sum(p * dp, 1)[:, None])  # of the scores; lacks keep_scale, too
        if BUCKETS > 0:  # the sum of ds over the cells of each bucket, for this sequence
            i = tl.arange(0, BLOCK)[:, None]
            j = tl.arange(0, BLOCK)[None, :]
            bucket = tl.load(buckets_ptr + tl.minimum(tl.maximum(j - i, -ZERO), ZERO) + ZERO)
            used = tl.where((i < length) & (j < length), ds, 0.0)
            for b in range(BUCKETS):
                bucket_sum = tl.sum(tl.sum(tl.where(bucket == b, used, 0.0), 1), 0)
                tl.store(dbias_ptr + (row * BUCKETS + b) * heads + head, bucket_sum * keep_scale)
        ds, factor = ds.to(q.dtype), scale * keep_scale
        dq = tl.dot(ds, k, input_precision="ieee") * factor
        tl.store(dq_ptr + at, dq.to(dq_ptr.dtype.element_ty), mask=real)
        dk = tl.dot(tl.trans(ds), q, input_precision="ieee") * factor
        tl.store(dk_ptr + at, dk.to(dk_ptr.dtype.element_ty), mask=real)


def _launch(kernel, tensors, q: Tensor, bias: Tensor | None, buckets: Tensor | None, settings) -> None:
    """Run `_forward` or `_backward` once for each block size.

    Args:
        kernel: The kernel.
        tensors: Its pointers; the fourth are the starts of the R sequences.
        q: (T, M, heads, d).
        bias, buckets, settings: As in `attention`.
    """
    max_length, scaling, dropout_p, window, causal = settings
    trials, tokens, heads, width = q.shape
    rows, shorter = len(tensors[3]), 0
    for block, warps in WARPS.items():
        kernel[(rows * heads,)](
            *tensors,
            heads, rows // trials, tokens, scaling, round(dropout_p * (1 << 24)), 1.0 / (1.0 - dropout_p),
            window, CAUSAL=causal, WINDOW=window > 0, BUCKETS=0 if bias is None else bias.shape[1],
            ZERO=0 if buckets is None else len(buckets) // 2, D=width, DROP=dropout_p > 0,
            HEAD=HEAD_STRIDE, ID=ID_STRIDE, STRIDE=MIN_POSITION_STRIDE, SHORTER=shorter, BLOCK=block, num_warps=warps,
        )  # fmt: skip
        if max_length <= block:
            break
        shorter = block


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
    max_length: int,
    scaling: float,
    dropout_p: float,
    window: int,
    causal: bool,
) -> Tensor:
    """Attention within each of R = T*B sequences: q, k, v (T, M, heads, d) -> (T, M, heads, d).

    Tokens that belong to no sequence get zeros.

    Args:
        starts: (R,) int32 first token of each sequence among all T*M tokens; those of a trial follow each other.
        lengths: (R,) int32 number of tokens of each sequence, at most `max_length`.
        keys: (R,) int32 dropout keys of the sequences.
        dropout_id: () int32 number of the dropout module.
        bias: (T, buckets, heads), added to the scores by the bucket of the relative position; None: no bias.
        buckets: (2L - 1,) int32 bucket of each relative position key - query, from 1 - L on; L >= `max_length`.
        max_length: Upper bound of the lengths; at most MAX_LENGTH.
        scaling: Factor for the scores.
        dropout_p: Dropout probability.
        window: Largest distance of a key that a query sees; 0: no limit.
        causal: Whether a query sees no later keys.
    """
    q, k, v = (x.contiguous() for x in (q, k, v))
    out = torch.empty_like(q)
    # without a bias, they are not read
    by_bucket = (q, starts) if bias is None else (bias.contiguous(), buckets)
    tensors = (q, k, v, starts, lengths, keys, dropout_id, *by_bucket)
    settings = (max_length, scaling, dropout_p, window, causal)
    _launch(_forward, (*tensors, out), q, bias, buckets, settings)
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
    max_length: int,
    scaling: float,
    dropout_p: float,
    window: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and bias, given the gradient of the output; that of bias is empty without one."""
    q, k, v, grad = (x.contiguous() for x in (q, k, v, grad))
    dq, dk, dv = torch.empty_like(q), torch.empty_like(q), torch.empty_like(q)
    by_bucket = (q, starts) if bias is None else (bias.contiguous(), buckets)
    dbias = q.new_zeros((len(starts), *bias.shape[1:]) if bias is not None else 0, dtype=torch.float32)
    tensors = (q, k, v, starts, lengths, keys, dropout_id, *by_bucket, grad, dq, dk, dv, dbias)
    settings = (max_length, scaling, dropout_p, window, causal)
    _launch(_backward, tensors, q, bias, buckets, settings)
    if bias is not None:
        dbias = dbias.view(len(bias), -1, *bias.shape[1:]).sum(1).to(bias.dtype)
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
    return dq, dk, dv, None, None, None, None, None if tensors[7] is None else dbias, *[None] * 6


attention.register_autograd(_differentiate, setup_context=_setup_context)
