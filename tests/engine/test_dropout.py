"""Dropout masks: fraction dropped, independence, and dependence on trial, step and position only."""

import pytest
import torch

from whichlayers.engine.dropout import StackedDropout, scramble_
from whichlayers.engine.stacked_modules import StackContext
from whichlayers.engine.stacking import GOLDEN
from whichlayers.rng import scramble


def row_keys(trials, step: int, batch: int) -> torch.Tensor:
    """As StackedModel.set_dropout_keys computes them."""
    keys = scramble(torch.tensor(trials, dtype=torch.int32) + step * GOLDEN)
    return scramble(keys[:, None] + torch.arange(batch, dtype=torch.int32) * 83492791).flatten()


def dropped(shape, p=0.5, dropout_id=3, trials=(11, 22), step=5, batch=20) -> torch.Tensor:
    context = StackContext(len(trials))
    context.row_keys = row_keys(list(trials), step, batch)
    return StackedDropout(p, dropout_id, context).train()(torch.ones(shape)) == 0


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Correlation of two binary tensors, in units of its standard error."""
    a, b = a.double().flatten(), b.double().flatten()
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).mean() / (a.std() * b.std()) * a.numel() ** 0.5)


SHAPES = [(40, 64), (40, 30, 64), (40, 4, 30, 30)]


def test_scramble_in_place_equals_scramble():
    x = torch.randint(-(2**31), 2**31 - 1, (1000,), dtype=torch.int32)
    assert torch.equal(scramble_(x.clone()), scramble(x))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("shape", SHAPES)
def test_masks_are_those_of_the_plain_formula(shape, p):
    context = StackContext(2)
    context.row_keys = row_keys([11, 22], 5, 20)
    dropout = StackedDropout(p, 3, context).train()
    use = 0 if len(shape) == 4 else len(shape) * 8192 + shape[-1]
    keys = scramble(context.row_keys + (3 * 65537 + use)).view(-1, *[1] * (len(shape) - 1))
    position = torch.arange(shape[-1], dtype=torch.int32)
    if len(shape) > 2:
        position = torch.arange(shape[-2], dtype=torch.int32)[:, None] * 4096 + position
    if len(shape) == 4:
        heads = torch.arange(shape[1], dtype=torch.int32)[:, None, None]
        keys = scramble(keys + heads * 40503)
    kept = (scramble(position ^ keys) & 0xFFFFFF) >= round(p * (1 << 24))
    assert torch.equal(dropout.scale_mask(torch.ones(shape)), kept * (1.0 / (1.0 - p)))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_fraction_dropped_overall_and_by_row_token_and_channel(p):
    mask = dropped((400, 60, 128), p, batch=200).double()
    n = mask.numel()
    assert abs(mask.mean() - p) < 4 * (p * (1 - p) / n) ** 0.5
    for axis in range(3):  # chi-square over rows, tokens, channels, in units of its standard deviation
        others = [d for d in range(3) if d != axis]
        fractions = mask.mean(others)
        chi = float(((fractions - p) ** 2).sum() / (p * (1 - p)) * (n / len(fractions)))
        assert abs(chi - len(fractions)) < 5 * (2 * len(fractions)) ** 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_modules_steps_trials_rows_heads_and_neighbors_are_independent(shape):
    base = dropped(shape)
    pairs = {
        "module": (base, dropped(shape, dropout_id=4)),
        "step": (base, dropped(shape, step=6)),
        "trial": (base[:20], base[20:]),
        "row": (base[1:], base[:-1]),
        "last": (base[..., 1:], base[..., :-1]),
        "second last": (base[..., 1:, :], base[..., :-1, :]),
    }
    if len(shape) == 4:
        pairs["head"] = (base[:, 1:], base[:, :-1])
    for name, (a, b) in pairs.items():
        assert abs(correlation(a, b)) < 4.5, name


def test_a_mask_is_the_same_alone_in_another_slot_and_with_more_padding():
    for short, long in [((20, 12, 64), (60, 31, 64)), ((20, 4, 12, 12), (60, 4, 31, 31))]:
        alone = dropped(short, trials=(22,))
        together = dropped(long, trials=(7, 22, 9))[20:40]
        cut = together[:, :12] if len(short) == 3 else together[:, :, :12, :12]
        assert torch.equal(alone, cut)


def test_gradient_is_the_mask():
    context = StackContext(1)
    context.row_keys = row_keys([5], 0, 4)
    dropout = StackedDropout(0.4, 1, context).train()
    x = torch.randn(4, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(dropout, (x,))
    y = dropout(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad == 0, y == 0)
    assert torch.allclose(grad[grad != 0], torch.tensor(1 / 0.6, dtype=torch.float64))
    assert torch.equal(dropout.eval()(x), x)
