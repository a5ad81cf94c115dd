"""plain_attention against torch's own attention; the Triton kernel against plain_attention, on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from whichlayers.engine.attention import kernels, plain_attention
from whichlayers.engine.dropout import StackedDropout
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


needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or kernels is None, reason="needs a CUDA device and Triton"
)


@needs_gpu
@pytest.mark.parametrize("length", [7, 16, 33, 64, 100, 128])
@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_the_kernel_computes_plain_attention(length, width, p):
    check_kernel(length, width, p, torch.bfloat16, "cuda", tolerance=2e-2)


def check_kernel(
    length: int, width: int, p: float, dtype: torch.dtype, device: str, tolerance: float
) -> None:
    rows, heads = 6, 3
    q, k, v, mask, grad = example(rows, length, heads, width, dtype, device)
    dropout = make_dropout(p, rows, device)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    as_heads = [x.transpose(1, 2) for x in wide]
    expected = plain_attention(*as_heads, mask.double(), 0.2, dropout)
    expected.backward(grad.double())
    narrow = [x.clone().requires_grad_() for x in (q, k, v)]
    found = torch.ops.whichlayers.attention(
        *narrow, mask, dropout.context.row_keys, dropout.dropout_id, 0.2, p
    )
    found.backward(grad)
    pairs = [(found, expected), *((a.grad, b.grad) for a, b in zip(narrow, wide, strict=True))]
    for a, b in pairs:
        error = (a.double() - b).norm() / b.norm()
        assert error < tolerance, error
