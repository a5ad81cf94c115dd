"""Dropout for stacked models: masks are a hash of (trial, step, row, dropout module, position).

A trial gets the same masks in any stack and on any device. On the CPU the same hash is computed in place, with fewer
passes over memory. The masks of attention probabilities are computed again in attention_kernels.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whichlayers.engine.stacked_modules import StackContext
from whichlayers.rng import scramble

MIN_POSITION_STRIDE = 4096  # positions are token * stride + channel; the stride grows with the channels
HEAD_STRIDE, ID_STRIDE = 40503, 65537


class StackedDropout(nn.Module):
    """Dropout whose mask depends on trial, step, row of the batch, dropout module and position only.

    A position is (token, channel) and not a flat index into the padded batch, so that padding does not change the mask.

    Args:
        p: Probability of dropping a value.
        dropout_id: Number of this module among the dropout modules of the model.
        context: Shared state of the stack.
    """

    dropout_id: Tensor

    def __init__(self, p: float, dropout_id: int, context: StackContext):
        super().__init__()
        self.p, self.context = float(p), context
        self.register_buffer("dropout_id", torch.tensor(dropout_id, dtype=torch.int32), persistent=False)

    @property
    def active(self) -> bool:
        return self.training and self.p > 0.0

    def forward(self, x: Tensor, origin: int = 0) -> Tensor:
        """Drop values of `x`; see `scale_mask` for its shapes and `origin`."""
        if not self.active:
            return x
        return x * self.scale_mask(x, origin).to(x.dtype)

    def scale_mask(self, x: Tensor, origin: int = 0) -> Tensor:
        """Factors in the shape of `x`: 0 for dropped values, 1 / (1 - p) for kept ones.

        Args:
            x: (T*B, C), (T*B, L, C), (L, T*B, C) if the batch is the second axis, (T*B, heads, L, L), or
                (1, N, C) or (T, M, C) if the batch is packed.
            origin: Token that has position 0, for (L, T*B, C) inputs.
        """
        packing = self.context.packing
        if packing is not None and x.dim() == 3:  # (1, N, C) or (T, M, C)
            keys, stride = self._keys(3, x.shape[-1]), _position_stride(x.shape[-1])
            keys = keys[packing.rows][..., None]
            position = (packing.positions * stride)[..., None] + _arange(x.shape[-1], x)
            return self._scale(position, keys).view(x.shape)
        keys = self._keys(x.dim(), x.shape[-1])
        if x.dim() == 2:  # (T*B, C)
            return self._scale(_arange(x.shape[1], x), keys[:, None])
        channel, stride = _arange(x.shape[-1], x), _position_stride(x.shape[-1])
        if x.dim() == 4:  # (T*B, heads, L, L)
            keys = scramble(keys[:, None] + _arange(x.shape[1], x) * HEAD_STRIDE)[..., None, None]
            token = _arange(x.shape[2], x)[:, None] * stride
        elif self.context.batch_dim == 0:  # (T*B, L, C)
            keys = keys[:, None, None]
            token = _arange(x.shape[1], x)[:, None] * stride
        else:  # (L, T*B, C)
            keys = keys[None, :, None]
            token = (_arange(x.shape[0], x) - origin)[:, None, None] * stride
        return self._scale(token + channel, keys)

    def attention_mask(self, rows: Tensor, heads: int, length: int) -> Tensor:
        """Factors for the attention probabilities of some rows of the batch: (R,) -> (R * heads, length, length)."""
        keys = self._keys(4, length).index_select(0, rows)  # (R,)
        keys = scramble_(keys[:, None] + _arange(heads, keys) * HEAD_STRIDE).view(-1, 1, 1)
        key_token = _arange(length, keys)
        return self._scale(key_token[:, None] * _position_stride(length) + key_token, keys)

    def _keys(self, axes: int, channels: int) -> Tensor:
        """(T*B,) keys of the rows for this step and this module."""
        keys = self.context.row_keys
        assert keys is not None, "dropout needs the row keys of this step"
        # the numbers of axes and of channels distinguish several uses of one dropout module in a layer
        use = 0 if axes == 4 else axes * 8192 + channels
        return scramble(keys + (self.dropout_id * ID_STRIDE + use))

    def _scale(self, position: Tensor, keys: Tensor) -> Tensor:
        """0 or 1 / (1 - p) by the hash of position and key, which are broadcast."""
        threshold, scale = round(self.p * (1 << 24)), 1.0 / (1.0 - self.p)
        if not position.is_cpu or torch.compiler.is_compiling():
            kept = (scramble(position ^ keys) & 0xFFFFFF) >= threshold
            return kept * scale
        bits = scramble_(position ^ keys).bitwise_and_(_LOW_24)
        kept = torch.sub(_int32(threshold - 1), bits, out=bits)
        kept.bitwise_right_shift_(_31)  # all bits set, or none
        return kept.bitwise_and_(torch.tensor(scale).view(torch.int32)).view(torch.float32)


def _arange(n: int, like: Tensor) -> Tensor:
    """0..n-1 as int32 on the device of `like`."""
    return torch.arange(n, dtype=torch.int32, device=like.device)


def _position_stride(channels: int) -> int:
    return max(MIN_POSITION_STRIDE, 1 << (channels - 1).bit_length())


def _int32(value: int) -> Tensor:
    """A constant as a tensor; in operations, a Python number would be converted every time."""
    return torch.tensor(value, dtype=torch.int32)


_15, _16, _31 = _int32(15), _int32(16), _int32(31)
_LOW_16, _LOW_17, _LOW_24 = _int32(0xFFFF), _int32(0x1FFFF), _int32(0xFFFFFF)
_FIRST, _SECOND = _int32(0x7FEB352D), _int32(0x846CA68B - (1 << 32))


def scramble_(x: Tensor) -> Tensor:
    """In-place version of rng.scramble for the CPU."""
    shifted = x >> _16
    x.bitwise_xor_(shifted.bitwise_and_(_LOW_16)).mul_(_FIRST)
    torch.bitwise_right_shift(x, _15, out=shifted)
    x.bitwise_xor_(shifted.bitwise_and_(_LOW_17)).mul_(_SECOND)
    torch.bitwise_right_shift(x, _16, out=shifted)
    return x.bitwise_xor_(shifted.bitwise_and_(_LOW_16))
