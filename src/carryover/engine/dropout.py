"""Dropout whose masks belong to a trial: a hash of (trial, step, row, site, position), never a stream of numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from carryover.draws import scramble
from carryover.engine.leaves import StackContext

KEY_STRIDE = 4096  # widest attention row or channel that a position is counted in, doubled when exceeded


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

    def forward(self, x: Tensor, origin: int = 0) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        return x * self.scale_mask(x, origin).to(x.dtype)

    def scale_mask(self, x: Tensor, origin: int = 0) -> Tensor:
        """0 where dropped, 1 / (1 - p) where kept, in the shape of `x`; tokens are counted from `origin`."""
        keys = self.context.row_keys
        assert keys is not None, "dropout needs the row keys of this step"
        rows_first = self.context.rows_dim == 0 or x.dim() != 3
        # the number of axes and of channels tell apart several uses of one dropout module in one layer
        use = 0 if x.dim() == 4 else x.dim() * 8192 + x.shape[-1]
        keys = scramble(keys + (self.site * 65537 + use))
        if x.dim() == 2:  # (T*B, C)
            position = torch.arange(x.shape[1], dtype=torch.int32, device=x.device)
            bits = scramble(position ^ keys[:, None])
        else:
            stride = max(KEY_STRIDE, 1 << (x.shape[-1] - 1).bit_length())
            last = torch.arange(x.shape[-1], dtype=torch.int32, device=x.device)
            if x.dim() == 4:  # (T*B, heads, L, L)
                heads = torch.arange(x.shape[1], dtype=torch.int32, device=x.device)
                keys = scramble(keys[:, None] + heads * 40503)[..., None, None]
                token = torch.arange(x.shape[2], dtype=torch.int32, device=x.device)[:, None] * stride
            elif rows_first:  # (T*B, L, C)
                keys = keys[:, None, None]
                token = torch.arange(x.shape[1], dtype=torch.int32, device=x.device)[:, None] * stride
            else:  # (L, T*B, C)
                keys = keys[None, :, None]
                token = torch.arange(x.shape[0], dtype=torch.int32, device=x.device) - origin
                token = token[:, None, None] * stride
            bits = scramble((token + last) ^ keys)
        kept = (bits & 0xFFFFFF) >= round(self.p * (1 << 24))
        return kept * (1.0 / (1.0 - self.p))
