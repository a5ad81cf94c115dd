"""Random numbers that depend on a key and a position alone: no state, no order, any device, any neighbour.

A trial's re-initialised weights, its head and its dropout masks all come from here. The key is made of the
trial's seed and a name; the value at position i is a hash of (key, i). So a trial draws the same numbers
alone, in a stack of eight, in any slot, and again after a crash.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

INT32_SPAN = 1 << 32


def key_of(seed: int, name: str) -> tuple[int, int]:
    """Two signed 32-bit words that stand for (seed, name)."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
    low, high = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
    return _signed(low), _signed(high)


def scramble(x: Tensor) -> Tensor:
    """A 32-bit finaliser (Wellons' lowbias32) on int32 tensors; products wrap, shifts are made logical."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _signed(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def uniform(seed: int, name: str, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """float32 in (0, 1), never 0 or 1: 23 bits and a half step, all that float32 holds unrounded."""
    low, high = key_of(seed, name)
    position = torch.arange(math.prod(shape), dtype=torch.int32, device=device)
    bits = scramble(scramble(position ^ low) + high)
    return (((bits >> 9) & 0x7FFFFF).float() + 0.5).mul_(1 / (1 << 23)).view(*shape)


def truncated_normal(
    seed: int, name: str, shape: Sequence[int], sd: float, cut: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Normal(0, sd) conditioned on lying within +-cut (in the same unit as sd), by the inverse of its CDF."""
    half = math.erf(cut / sd / math.sqrt(2))  # CDF mass between 0 and the cut, doubled
    u = uniform(seed, name, shape, device)
    z = torch.erfinv(u.mul_(2).sub_(1).mul_(half)).mul_(math.sqrt(2) * sd)
    return z.clamp_(-cut, cut)


def normal(
    seed: int, name: str, shape: Sequence[int], sd: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Normal(0, sd)."""
    return torch.erfinv(uniform(seed, name, shape, device).mul_(2).sub_(1)).mul_(math.sqrt(2) * sd)


def permutation(seed: int, name: str, n: int):
    """A random order of 0..n-1 as a numpy array (for subsets and epoch orders)."""
    import numpy as np

    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest, "little"))).permutation(n)


def _signed(word: int) -> int:
    word %= INT32_SPAN
    return word - INT32_SPAN if word >= INT32_SPAN // 2 else word
