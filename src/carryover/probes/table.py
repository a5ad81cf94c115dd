"""A table of words x neurons that probes are trained on.

A neuron is one unit of one layer, numbered layer * hidden + unit; layer 0 is the embeddings. So a model with 12
layers of 768 has 13 * 768 = 9,984 of them. The table lies on the device where it fits; a larger one stays with
the host, in its file, and its rows travel in blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from carryover.trial import CarryoverError

SHARE_OF_DEVICE = 0.5  # of a GPU's free memory that a table may take
CHUNK_BYTES = 1 << 26  # read at once where some columns of all rows are copied


class WordTable:
    """States (n, layers, H) as `extract_words` gives them, or (n, D) for features that have no layers."""

    def __init__(self, states: np.ndarray | Tensor, device: str | torch.device = "cpu"):
        whole = torch.from_numpy(states) if isinstance(states, np.ndarray) else states
        if whole.dim() == 2:
            whole = whole[:, None]
        self.n, self.layers, self.hidden = whole.shape
        self.device = torch.device(device)
        flat = whole.reshape(self.n, -1)
        if self.device.type == "cuda" and not flat.is_cuda:
            free = torch.cuda.mem_get_info(self.device)[0]
            if flat.numel() * flat.element_size() < SHARE_OF_DEVICE * free:
                flat = flat.to(self.device)
        self.flat = flat  # (n, layers * H), in the precision it was given in

    @property
    def neurons(self) -> int:
        return self.layers * self.hidden

    def everything(self) -> np.ndarray:
        """All neurons."""
        return np.arange(self.neurons)

    def layer(self, layer: int) -> np.ndarray:
        """The neurons of a layer; 0 is the embeddings."""
        if not 0 <= layer < self.layers:
            raise CarryoverError(
                f"layer = {layer} cannot be probed: the layers are 1 to {self.layers - 1}, 0 is the embeddings"
            )
        return np.arange(layer * self.hidden, (layer + 1) * self.hidden)

    def checked(self, neurons: np.ndarray) -> np.ndarray:
        """The same neurons, once they are known to be the model's, each named once."""
        found = np.ascontiguousarray(neurons, np.int64)
        if found.ndim != 1 or len(found) == 0:
            raise CarryoverError("a probe needs at least one neuron, in a list of their numbers")
        if found.min() < 0 or found.max() >= self.neurons:
            wrong = found.min() if found.min() < 0 else found.max()
            raise CarryoverError(
                f"there is no neuron {wrong}: this model has {self.neurons:,} ({self.layers} layers, embeddings "
                f"included, of {self.hidden}), numbered from 0"
            )
        if len(np.unique(found)) < len(found):
            raise CarryoverError("a neuron is named twice in the same set")
        return found

    def rows(self, which: Tensor | slice) -> Tensor:
        """(b, D) on the device, in the precision of the table."""
        found = (
            self.flat[which]
            if isinstance(which, slice)
            else self.flat.index_select(0, which.to(self.flat.device))
        )
        if self.device.type == "cuda" and not found.is_cuda:
            found = found.pin_memory()
        return found.to(self.device, non_blocking=True)

    def part(self, rows: slice) -> WordTable:
        """A table of some rows, in the same memory."""
        return WordTable(self.flat[rows].view(-1, self.layers, self.hidden), self.device)

    def narrowed(self, neurons: np.ndarray) -> WordTable:
        """A table of these neurons alone, in this order, numbered anew from 0."""
        at = torch.from_numpy(self.checked(neurons)).to(self.flat.device)
        row_bytes = self.neurons * self.flat.element_size()
        few = torch.empty(self.n, len(at), dtype=self.flat.dtype, device=self.flat.device)
        size = max(1, CHUNK_BYTES // row_bytes)
        for start in range(0, self.n, size):
            few[start : start + size] = self.flat[start : start + size].index_select(1, at)
        return WordTable(few, self.device)


@contextlib.contextmanager
def matrix_precision(precision: str, device: torch.device) -> Iterator[None]:
    """tf32: products of float32 matrices on a GPU round their factors to 11 bits, and add in float32."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gathered(rows: Sequence[Tensor], neurons: Sequence[np.ndarray], out: Tensor | None = None) -> Tensor:
    """(U, b, d) float32: of each (b, D) the columns of its neurons; into the memory of `out` where it is given."""
    shape = (len(rows), len(rows[0]), len(neurons[0]))
    room = torch.empty(shape, device=rows[0].device) if out is None else out[:, : shape[1]]
    for place, states, mine in zip(room, rows, neurons, strict=True):
        first, last = int(mine[0]), int(mine[-1])
        if last - first == len(mine) - 1 and (np.diff(mine) == 1).all():
            place.copy_(states[:, first : last + 1])
        else:
            place.copy_(states.index_select(1, torch.from_numpy(mine).to(states.device)))
    return room
