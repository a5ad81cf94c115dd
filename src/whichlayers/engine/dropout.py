"""Dropout whose masks belong to a trial: a hash of (trial, step, row, site, position), no stream of numbers.

The same masks on every device: the CPU computes the same hash in place, in fewer passes over memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whichlayers.engine.stacked_modules import StackContext
from whichlayers.rng import scramble

KEY_STRIDE = 4096  # widest attention row or channel that a position is counted in, doubled when exceeded
HEAD_STRIDE = 40503


class StackedDropout(nn.Module):
    """Dropout whose mask is a hash of (trial, step, row, site, position): the same in any stack, at any slot.

    A position is counted in (token, channel), never in a flat index over a padded batch, so that padding to a
    neighbour's length changes nothing.
    """

    site: Tensor

    def __init__(self, p: float, site: int, context: StackContext):
        super().__init__()
        self.p, self.context = float(p), context
        self.register_buffer("site", torch.tensor(site, dtype=torch.int32), persistent=False)

    @property
    def active(self) -> bool:
        return self.training and self.p > 0.0

    def forward(self, x: Tensor, origin: int = 0) -> Tensor:
        if not self.active:
            return x
        return x * self.scale_mask(x, origin).to(x.dtype)

    def scale_mask(self, x: Tensor, origin: int = 0) -> Tensor:
        """0 where dropped, 1 / (1 - p) where kept, in the shape of `x`; tokens are counted from `origin`."""
        packing = self.context.packing
        if packing is not None:  # (1, N, C): real tokens only
            keys, stride = self._keys(3, x.shape[-1]), _stride(x.shape[-1])
            keys = keys.index_select(0, packing.rows)[:, None]
            place = (packing.positions * stride)[:, None] + _count(x.shape[-1], x)
            return self._scale(place, keys)[None]
        keys = self._keys(x.dim(), x.shape[-1])
        if x.dim() == 2:  # (T*B, C)
            return self._scale(_count(x.shape[1], x), keys[:, None])
        last, stride = _count(x.shape[-1], x), _stride(x.shape[-1])
        if x.dim() == 4:  # (T*B, heads, L, L)
            keys = scramble(keys[:, None] + _count(x.shape[1], x) * HEAD_STRIDE)[..., None, None]
            token = _count(x.shape[2], x)[:, None] * stride
        elif self.context.rows_dim == 0:  # (T*B, L, C)
            keys = keys[:, None, None]
            token = _count(x.shape[1], x)[:, None] * stride
        else:  # (L, T*B, C)
            keys = keys[None, :, None]
            token = (_count(x.shape[0], x) - origin)[:, None, None] * stride
        return self._scale(token + last, keys)

    def attention_mask(self, rows: Tensor, heads: int, length: int) -> Tensor:
        """The mask of the attention of some rows of the batch, (R * heads, length, length)."""
        keys = self._keys(4, length).index_select(0, rows)  # (R,)
        keys = scramble_(keys[:, None] + _count(heads, keys) * HEAD_STRIDE).view(-1, 1, 1)
        last = _count(length, keys)
        return self._scale(last[:, None] * _stride(length) + last, keys)

    def _keys(self, axes: int, channels: int) -> Tensor:
        """(T*B,): this step's keys of the rows, for this site."""
        keys = self.context.row_keys
        assert keys is not None, "dropout needs the row keys of this step"
        # the number of axes and of channels tell apart several uses of one dropout module in one layer
        use = 0 if axes == 4 else axes * 8192 + channels
        return scramble(keys + (self.site * 65537 + use))

    def _scale(self, place: Tensor, keys: Tensor) -> Tensor:
        limit, scale = round(self.p * (1 << 24)), 1.0 / (1.0 - self.p)
        if place.is_cuda or torch.compiler.is_compiling():
            kept = (scramble(place ^ keys) & 0xFFFFFF) >= limit
            return kept * scale
        bits = scramble_(place ^ keys).bitwise_and_(_LOW_24)
        kept = torch.sub(_word(limit - 1), bits, out=bits).bitwise_right_shift_(_31)  # all bits set, or none
        return kept.bitwise_and_(torch.tensor(scale).view(torch.int32)).view(torch.float32)


def _count(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, dtype=torch.int32, device=like.device)


def _stride(channels: int) -> int:
    return max(KEY_STRIDE, 1 << (channels - 1).bit_length())


def _word(value: int) -> Tensor:
    """A number as a tensor: an operation with a plain number would convert it anew each time."""
    return torch.tensor(value, dtype=torch.int32)


_15, _16, _31 = _word(15), _word(16), _word(31)
_LOW_16, _LOW_17, _LOW_24 = _word(0xFFFF), _word(0x1FFFF), _word(0xFFFFFF)
_FIRST, _SECOND = _word(0x7FEB352D), _word(0x846CA68B - (1 << 32))


def scramble_(x: Tensor) -> Tensor:
    """rng.scramble in place, for the CPU."""
    spare = x >> _16
    x.bitwise_xor_(spare.bitwise_and_(_LOW_16)).mul_(_FIRST)
    torch.bitwise_right_shift(x, _15, out=spare)
    x.bitwise_xor_(spare.bitwise_and_(_LOW_17)).mul_(_SECOND)
    torch.bitwise_right_shift(x, _16, out=spare)
    return x.bitwise_xor_(spare.bitwise_and_(_LOW_16))
