"""Counter-based random numbers: a function of a key and a position, without state.

Re-initialized weights, heads and dropout masks of a trial come from here. The key is made of the trial's seed and a
name; the value at position i is a hash of (key, i). A trial therefore gets the same numbers alone or in a stack, on any
device, and after a restart.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

INT32_SPAN = 1 << 32


def key_of(seed: int, name: str) -> tuple[int, int]:
    """Key of (seed, name) as two signed 32-bit integers."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
    low, high = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
    return _signed(low), _signed(high)


def scramble(x: Tensor) -> Tensor:
    """Hash int32 values elementwise with a 32-bit finalizer (Wellons' lowbias32)."""
    x = x ^ ((x >> 16) & 0xFFFF)  # the masks make the shifts logical; products wrap around
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _signed(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def uniform(seed: int, name: str, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Uniform float32 values in the open interval (0, 1), on a grid of 2**23 points that float32 holds exactly."""
    low, high = key_of(seed, name)
    position = torch.arange(math.prod(shape), dtype=torch.int32, device=device)
    bits = scramble(scramble(position ^ low) + high)
    return (((bits >> 9) & 0x7FFFFF).float() + 0.5).mul_(1 / (1 << 23)).view(*shape)


def truncated_normal(
    seed: int, name: str, shape: Sequence[int], std: float, cutoff: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Normal(0, std) truncated to [-cutoff, cutoff], by inversion of its CDF; float32."""
    mass = math.erf(cutoff / std / math.sqrt(2))  # probability of the interval before truncation
    u = uniform(seed, name, shape, device)
    z = torch.erfinv(u.mul_(2).sub_(1).mul_(mass)).mul_(math.sqrt(2) * std)
    return z.clamp_(-cutoff, cutoff)


def normal(
    seed: int, name: str, shape: Sequence[int], std: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Normal(0, std), by inversion of its CDF; float32."""
    return torch.erfinv(uniform(seed, name, shape, device).mul_(2).sub_(1)).mul_(math.sqrt(2) * std)


def shuffled(seed: int, name: str, values: Tensor) -> Tensor:
    """The values of a tensor in random order, in its shape; the order is the same on all devices."""
    low, high = key_of(seed, name)
    position = torch.arange(values.numel(), dtype=torch.int32, device=values.device)
    bits = scramble(scramble(position ^ low) + high)
    # unique keys: ties cannot be broken differently
    order = ((bits.long() << 32) | position.long()).argsort()
    return values.flatten()[order].view(values.shape)


def permutation(seed: int, name: str, n: int) -> np.ndarray:
    """A random permutation of 0..n-1, (n,)."""
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest, "little"))).permutation(n)


def _signed(value: int) -> int:
    """The signed 32-bit integer with the same bits."""
    value %= INT32_SPAN
    return value - INT32_SPAN if value >= INT32_SPAN // 2 else value
