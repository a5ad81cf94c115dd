"""Counter-based random numbers: distributions against scipy, and dependence on key and position only."""

import numpy as np
import pytest
import torch
from scipy import stats

from whichlayers import rng

N = 1 << 18


def sample(name="a", seed=0) -> np.ndarray:
    return rng.uniform(seed, name, (N,)).double().numpy()


@pytest.mark.parametrize("seed", [0, 1, 2**40, -3])
def test_uniform_is_uniform(seed):
    u = sample(seed=seed)
    assert stats.kstest(u, "uniform").pvalue > 0.001
    counts, _ = np.histogram(u, bins=256, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("bit", range(23))
def test_every_bit_is_fair_and_independent_of_its_neighbors(bit):
    bits = (sample() * (1 << 23)).astype(np.int64) >> bit & 1
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / N**0.5
    for lag in (1, 2, 64, 768):
        assert abs(np.mean(bits[lag:] ^ bits[:-lag]) - 0.5) < 5 * 0.5 / (N - lag) ** 0.5


def test_uniform_is_never_0_or_1_even_at_the_ends(monkeypatch):
    for value in (0, -1, 0x7FFFFFFF, -(1 << 31)):  # all extremes of the hash
        monkeypatch.setattr(rng, "scramble", lambda x, value=value: torch.full_like(x, value))
        u = rng.uniform(0, "a", (4,))
        assert ((u > 0) & (u < 1)).all()
        assert rng.normal(0, "a", (4,), 1.0).isfinite().all()


def test_uniform_is_symmetric_around_a_half(monkeypatch):
    monkeypatch.setattr(rng, "scramble", lambda x: torch.full_like(x, 0))
    low = rng.uniform(0, "a", (1,))
    monkeypatch.setattr(rng, "scramble", lambda x: torch.full_like(x, -1))
    assert 1 - rng.uniform(0, "a", (1,)) == low


def test_names_and_seeds_are_independent():
    streams = [
        sample(name, seed) for name, seed in [("a", 0), ("b", 0), ("a", 1), ("layer.1", 0), ("layer.11", 0)]
    ]
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlations).max() < 5 / N**0.5
    for one in range(len(streams)):
        for other in range(one):
            joint, _, _ = np.histogram2d(streams[one], streams[other], bins=16, range=[(0, 1), (0, 1)])
            assert stats.chisquare(joint.ravel()).pvalue > 0.0001


def test_neighboring_positions_fill_the_square():
    u = sample()
    joint, _, _ = np.histogram2d(u[:-1:2], u[1::2], bins=32, range=[(0, 1), (0, 1)])
    assert stats.chisquare(joint.ravel()).pvalue > 0.001


def test_seed_and_name_are_kept_apart_in_the_key():
    keys = {rng.key_of(seed, name) for seed in range(100) for name in ("", "1", "11", "a", "a\0")}
    assert len(keys) == 500
    assert all(-(1 << 31) <= half < 1 << 31 for key in keys for half in key)


def test_the_value_at_a_position_does_not_depend_on_the_shape():
    long = rng.uniform(3, "w", (100,))
    assert torch.equal(long[:60], rng.uniform(3, "w", (60,)))
    assert torch.equal(long, rng.uniform(3, "w", (10, 10)).flatten())
    assert rng.uniform(3, "w", (0,)).shape == (0,)


def test_values_never_change():
    """Trials are repeated after crashes and on other machines: these numbers must not change."""
    assert rng.key_of(7, "encoder.layer.0.output.dense.weight") == (-1259808943, 1436038219)
    values = rng.uniform(7, "encoder.layer.0.output.dense.weight", (4,))
    assert values.mul(1 << 23).sub(0.5).tolist() == [3699345, 5245801, 5379911, 692306]


def scramble_integer(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % (1 << 32)
    x ^= x >> 15
    x = x * 0x846CA68B % (1 << 32)
    return x ^ x >> 16


def test_scramble_is_the_32_bit_hash_in_plain_integers():
    values = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 123456789]
    signed = torch.tensor([w - (1 << 32) if w >= 1 << 31 else w for w in values], dtype=torch.int32)
    assert [v % (1 << 32) for v in rng.scramble(signed).tolist()] == [scramble_integer(w) for w in values]


@pytest.mark.parametrize(("std", "cutoff"), [(0.02, 0.04), (0.02, 0.0008), (1.0, 0.5), (3.0, 12.0)])
def test_truncated_normal_follows_scipys(std, cutoff):
    expected = stats.truncnorm(-cutoff / std, cutoff / std, scale=std)
    values = rng.truncated_normal(1, "w", (N,), std, cutoff)
    assert values.abs().max() <= cutoff
    assert values.dtype == torch.float32
    assert float(values.std()) == pytest.approx(expected.std(), rel=0.005)
    assert stats.kstest(values.double().numpy(), expected.cdf).pvalue > 0.001


def test_normal_follows_scipys():
    values = rng.normal(1, "w", (N,), 0.02).double().numpy()
    assert stats.kstest(values, stats.norm(scale=0.02).cdf).pvalue > 0.001
    assert 4 * 0.02 < np.abs(values).max() < 6 * 0.02
    assert stats.kurtosis(values) == pytest.approx(0, abs=0.05)


def test_permutation_is_a_permutation_and_depends_on_seed_and_name():
    first = rng.permutation(4, "order/1", 1000)
    assert sorted(first) == list(range(1000))
    assert (first == rng.permutation(4, "order/1", 1000)).all()
    assert (first != rng.permutation(4, "order/2", 1000)).any()
    assert (first != rng.permutation(5, "order/1", 1000)).any()


def test_shuffled_values_are_in_uniformly_random_order():
    places = np.array([rng.shuffled(seed, "w", torch.arange(6.0)).numpy() for seed in range(6000)])
    for value in range(6):
        counts = np.bincount(np.nonzero(places == value)[1], minlength=6)
        assert stats.chisquare(counts).pvalue > 1e-4
    assert len({tuple(order) for order in places}) == 720


def test_permutation_is_fair():
    firsts = [rng.permutation(seed, "subset", 10)[0] for seed in range(2000)]
    assert stats.chisquare(np.bincount(firsts, minlength=10)).pvalue > 0.001


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_values_are_the_same_on_every_device():
    for draw in (
        lambda d: rng.uniform(1, "w", (N,), d),
        lambda d: rng.truncated_normal(1, "w", (N,), 0.02, 0.04, d),
    ):
        torch.testing.assert_close(draw("cuda").cpu(), draw("cpu"), rtol=1e-5, atol=1e-8)
