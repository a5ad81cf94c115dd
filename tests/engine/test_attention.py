"""plain_attention against torch's own attention; the Triton kernel against plain_attention.

The kernel needs a GPU, or Triton's interpreter on the CPU: TRITON_INTERPRET=1.
"""

import functools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from whichlayers.engine import attention
from whichlayers.engine.attention import (
    AttentionOptions,
    PositionBias,
    kernels,
    plain_attention,
    sequence_attention,
)
from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.packing import FixedSizePacking
from whichlayers.engine.stacked_modules import StackContext


def example(rows: int, length: int, heads: int, width: int, dtype: torch.dtype, device: str):
    g = torch.Generator().manual_seed(length)
    q, k, v, grad = (torch.randn(rows, length, heads, width, generator=g) for _ in range(4))
    real = torch.arange(length) < torch.randint(1, length + 1, (rows,), generator=g)[:, None]  # (rows, L)
    mask = torch.zeros(rows, 1, length, length).masked_fill(~real[:, None, None], torch.finfo(dtype).min)
    return [x.to(device=device, dtype=dtype) for x in (q, k, v, mask, grad)]


def make_dropout(p: float, rows: int, device: str) -> StackedDropout:
    context = StackContext(2)
    context.row_keys = (torch.arange(rows, dtype=torch.int32) * 7919 + 13).to(device)
    return StackedDropout(p, 5, context).to(device).train()


def test_plain_attention_is_scaled_dot_product_attention():
    q, k, v, mask, _ = example(6, 9, 2, 8, torch.float32, "cpu")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3).transpose(1, 2)
    torch.testing.assert_close(plain_attention(q, k, v, mask, 0.3, nn.Identity()), expected)


INTERPRETED = kernels is not None and kernels.INTERPRETED
DEVICE = "cpu" if INTERPRETED else "cuda"
NARROW = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter computes with numpy's types
needs_kernel = pytest.mark.skipif(
    kernels is None or not (INTERPRETED or torch.cuda.is_available()),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


@needs_kernel
@pytest.mark.parametrize("length", [7, 16, 33, 64, 100, 128])
@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize(("bias", "window"), [(False, 0), (True, 0), (False, 5), (True, 20)])
def test_the_kernel_computes_plain_attention(length, width, p, bias, window):
    check_kernel(length, width, p, bias, window, NARROW, DEVICE, tolerance=2e-2)


@needs_kernel
@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_computes_plain_attention_in_float32(bias):
    check_kernel(60, 64, 0.2, bias, 0, torch.float32, DEVICE, tolerance=1e-5)


@needs_kernel
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize(("heads", "key_heads"), [(3, 1), (3, 3), (4, 2)])
def test_the_kernel_computes_causal_attention_with_fewer_key_heads(window, p, heads, key_heads):
    inputs = (60, 64, p, False, window, torch.float32, DEVICE)
    check_kernel(*inputs, tolerance=1e-5, causal=True, heads=heads, key_heads=key_heads)


@needs_kernel
@pytest.mark.parametrize("length", [7, 33, 128])
@pytest.mark.parametrize("width", [16, 128])
def test_causal_attention_in_every_size_of_block_and_head(length, width):
    inputs = (length, width, 0.2, False, 4, NARROW, DEVICE)
    check_kernel(*inputs, tolerance=2e-2, causal=True, heads=4, key_heads=2)


@needs_kernel
def test_the_kernel_leaves_capped_scores_to_the_reference():
    packing = FixedSizePacking(torch.ones(2, 5, dtype=torch.long, device=DEVICE), 1, 10)
    q = torch.randn(1, 3, 10, 64, device=DEVICE)
    dropout = make_dropout(0.0, 2, DEVICE)
    options = AttentionOptions(0.2, dropout, causal=True, softcap=2.0)
    assert sequence_attention(packing, q, q, q, options) is None


@needs_kernel
@pytest.mark.parametrize(("dtype", "length", "fits"), [(NARROW, 128, True), (torch.float32, 64, True)])
@pytest.mark.parametrize("width", [64, 128])
def test_the_kernel_leaves_blocks_that_are_too_large_to_the_reference(dtype, length, fits, width):
    dropout = make_dropout(0.0, 1, DEVICE)
    for more, expected in ((0, fits), (1, width == 64 or dtype != torch.float32)):
        if length + more > 128:
            continue
        packing = FixedSizePacking(
            torch.ones(1, length + more, dtype=torch.long, device=DEVICE), 1, length + more
        )
        q = torch.randn(1, 1, length + more, width, device=DEVICE).to(dtype)
        found = sequence_attention(packing, q, q, q, AttentionOptions(0.2, dropout, causal=True))
        assert (found is not None) == expected


@pytest.mark.parametrize(
    ("shared", "expected"),
    [(232448, 1 << 15), (166912, 1 << 15), (101376, 101376 // 5)],  # H200, A100, RTX 4090
)
def test_blocks_fit_into_the_shared_memory_of_the_device(shared, expected, monkeypatch):
    kernels = SimpleNamespace(MAX_BLOCK_BYTES=1 << 15, BLOCKS_IN_SHARED_MEMORY=5)
    monkeypatch.setattr(attention, "kernels", kernels)
    properties = SimpleNamespace(shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert attention.max_block_bytes.__wrapped__(torch.device("cuda:1")) == expected


def check_kernel(
    length: int,
    width: int,
    p: float,
    with_bias: bool,
    window: int,
    dtype: torch.dtype,
    device: str,
    tolerance: float,
    causal: bool = False,
    heads: int = 3,
    key_heads: int = 3,
) -> None:
    """Outputs and gradients of the kernel on packed tokens against `plain_attention` on the padded batch."""
    trials, batch = 2, 3
    rows, g = trials * batch, torch.Generator().manual_seed(length)
    lengths = torch.randint(1, length + 1, (rows,), generator=g)
    lengths[1], lengths[4] = length, 0  # a full row and an empty one
    mask = (torch.arange(length) < lengths[:, None]).long().to(device)
    tokens = int(lengths.view(trials, batch).sum(1).max()) + 2
    packing = FixedSizePacking(mask, trials, tokens)
    q, k, v, grad = (
        torch.randn(trials, tokens, n, width, generator=g).to(device, dtype)
        for n in (heads, key_heads, key_heads, heads)
    )
    dropout = make_dropout(p, rows, device)
    table = torch.randn(trials, 6, heads, generator=g).to(device, dtype) if with_bias else None
    buckets = torch.randint(0, 6, (2 * length - 1,), generator=g, dtype=torch.int32).to(device)

    def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
        return [x.to(dtype).clone().requires_grad_() for x in (q, k, v, table) if x is not None]

    def run(function, tensors: list[torch.Tensor]) -> torch.Tensor:
        *qkv, bias = tensors if with_bias else (*tensors, None)
        heads_first = [x.transpose(1, 2) for x in qkv]
        position_bias = None if bias is None else PositionBias(bias, buckets)
        return function(*heads_first, AttentionOptions(0.2, dropout, position_bias, window, causal))

    wide, narrow = inputs(torch.float64), inputs(dtype)
    expected = run(packing.reference_attention, wide)
    found = run(functools.partial(sequence_attention, packing), narrow)
    assert found is not None, "the kernel supports these inputs"
    expected.backward(grad.double())
    found.backward(grad)
    pairs = [(found, expected), *((a.grad, b.grad) for a, b in zip(narrow, wide, strict=True))]
    for a, b in pairs:
        assert torch.isfinite(a).all()
        error = (a.double() - b).norm() / b.norm()
        assert error < tolerance, error
