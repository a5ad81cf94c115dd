"""The optimizer's Triton kernels against their reference implementations: on a GPU, or with TRITON_INTERPRET=1."""

import os

import pytest
import torch

from whichlayers.engine.optimizer import SplitFloat, kernels, split_step

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
pytestmark = pytest.mark.skipif(
    kernels is None or (DEVICE == "cuda" and not torch.cuda.is_available()),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


@pytest.mark.parametrize("size", [100, 5000, 20000])
@pytest.mark.parametrize("rates", ["by trial", "by element"])
def test_the_adam_kernel_is_split_step(size, rates):
    g = torch.Generator().manual_seed(size)
    high, low = SplitFloat.split(torch.randn(3, size, generator=g))
    m, v = torch.randn(3, size, generator=g) * 0.1, torch.rand(3, size, generator=g)
    grad = (torch.randn(3, size, generator=g) * 2).bfloat16()
    width = size if rates == "by element" else 1
    lr, weight_decay = torch.rand(3, width, generator=g) * 1e-2, torch.rand(3, width, generator=g)
    clip, scalars = torch.rand(3, 1, generator=g), torch.tensor([0.9, 0.999, 1e-8, 0.3, 0.2])
    plain = [x.clone() for x in (high, low, m, v)]
    split_step(*plain, grad, clip, lr, weight_decay, scalars)
    fast = [x.to(DEVICE, copy=True) for x in (high, low, m, v)]
    kernels.adam(*fast, *(x.to(DEVICE, copy=True) for x in (grad, clip, lr, weight_decay, scalars)))
    expected, found = SplitFloat.join(*plain[:2]), SplitFloat.join(fast[0].cpu(), fast[1].cpu())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast[2].cpu(), plain[2], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast[3].cpu(), plain[3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [7, 8192, 100_000])
def test_the_partial_sums_of_squares_add_up(size):
    grad = torch.randn(4, size).bfloat16()
    torch.testing.assert_close(
        kernels.sum_of_squares(grad.to(DEVICE, copy=True)).sum(1).cpu(),
        grad.float().square().sum(1),
        rtol=1e-4,
        atol=0,
    )
