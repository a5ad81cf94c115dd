"""Dropout masks: their share, their independence, and that they depend on trial, step and place alone."""

import pytest
import torch

from whichlayers.engine.dropout import StackedDropout, scramble_
from whichlayers.engine.stacked_modules import StackContext
from whichlayers.engine.stacking import GOLDEN
from whichlayers.rng import scramble


def row_keys(trials, step: int, batch: int) -> torch.Tensor:
    """As Stack.set_keys makes them."""
    keys = scramble(torch.tensor(trials, dtype=torch.int32) + step * GOLDEN)
    return scramble(keys[:, None] + torch.arange(batch, dtype=torch.int32) * 83492791).flatten()


def dropped(shape, p=0.5, site=3, trials=(11, 22), step=5, batch=20) -> torch.Tensor:
    context = StackContext(len(trials))
    context.row_keys = row_keys(list(trials), step, batch)
    return StackedDropout(p, site, context).train()(torch.ones(shape)) == 0


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of two fields of zeros and ones, in units of its standard error."""
    a, b = a.double().flatten(), b.double().flatten()
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).mean() / (a.std() * b.std()) * a.numel() ** 0.5)


SHAPES = [(40, 64), (40, 30, 64), (40, 4, 30, 30)]


def test_scrambling_in_place_is_scrambling():
    x = torch.randint(-(2**31), 2**31 - 1, (1000,), dtype=torch.int32)
    assert torch.equal(scramble_(x.clone()), scramble(x))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("shape", SHAPES)
def test_masks_are_those_of_the_plain_formula(shape, p):
    context = StackContext(2)
    context.row_keys = row_keys([11, 22], 5, 20)
    site = StackedDropout(p, 3, context).train()
    use = 0 if len(shape) == 4 else len(shape) * 8192 + shape[-1]
    keys = scramble(context.row_keys + (3 * 65537 + use)).view(-1, *[1] * (len(shape) - 1))
    place = torch.arange(shape[-1], dtype=torch.int32)
    if len(shape) > 2:
        place = torch.arange(shape[-2], dtype=torch.int32)[:, None] * 4096 + place
    if len(shape) == 4:
        heads = torch.arange(shape[1], dtype=torch.int32)[:, None, None]
        keys = scramble(keys + heads * 40503)
    kept = (scramble(place ^ keys) & 0xFFFFFF) >= round(p * (1 << 24))
    assert torch.equal(site.scale_mask(torch.ones(shape)), kept * (1.0 / (1.0 - p)))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_share_dropped_overall_and_by_row_token_and_channel(p):
    mask = dropped((400, 60, 128), p, batch=200).double()
    n = mask.numel()
    assert abs(mask.mean() - p) < 4 * (p * (1 - p) / n) ** 0.5
    for axis in range(3):  # chi-square over rows, tokens, channels, in units of its standard deviation
        others = [d for d in range(3) if d != axis]
        shares = mask.mean(others)
        chi = float(((shares - p) ** 2).sum() / (p * (1 - p)) * (n / len(shares)))
        assert abs(chi - len(shares)) < 5 * (2 * len(shares)) ** 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_sites_steps_trials_rows_heads_and_neighbours_are_independent(shape):
    base = dropped(shape)
    pairs = {
        "site": (base, dropped(shape, site=4)),
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


def test_the_same_alone_in_another_slot_and_padded_longer():
    for short, long in [((20, 12, 64), (60, 31, 64)), ((20, 4, 12, 12), (60, 4, 31, 31))]:
        alone = dropped(short, trials=(22,))
        together = dropped(long, trials=(7, 22, 9))[20:40]
        cut = together[:, :12] if len(short) == 3 else together[:, :, :12, :12]
        assert torch.equal(alone, cut)


def test_gradient_is_the_mask():
    context = StackContext(1)
    context.row_keys = row_keys([5], 0, 4)
    site = StackedDropout(0.4, 1, context).train()
    x = torch.randn(4, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(site, (x,))
    y = site(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad == 0, y == 0)
    assert torch.allclose(grad[grad != 0], torch.tensor(1 / 0.6, dtype=torch.float64))
    assert torch.equal(site.eval()(x), x)
