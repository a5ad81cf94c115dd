"""A table of words x neurons that probes are trained on.

A neuron is one unit of one layer, numbered layer * hidden + unit; layer 0 is the embeddings. So a model with 12
layers of 768 has 13 * 768 = 9,984 of them. The table lies on the device where it fits; a larger one stays with
the host, in its file, and its rows travel in blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whichlayers.errors import WhichlayersError

SHARE_OF_DEVICE = 0.5  # of a GPU's free memory that a table may take
CHUNK_BYTES = 1 << 26  # read at once where some columns of all rows are copied


@dataclass(frozen=True, eq=False)
class Scale:
    """Of every neuron, (D,) in float32."""

    mean: Tensor
    deviation: Tensor  # 1 for a neuron that is the same for all words

    def of(self, neurons: Tensor) -> Scale:
        at = neurons.to(self.mean.device)
        return Scale(self.mean[at], self.deviation[at])


class WordTable:
    """States (n, layers, H) as `extract_words` gives them, or (n, D) for features that have no layers.

    `scale`: rows are given less its mean, by its deviation; what lies in memory stays as it is.
    """

    def __init__(
        self, states: np.ndarray | Tensor, device: str | torch.device = "cpu", scale: Scale | None = None
    ):
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
        self.scale = scale

    @property
    def neurons(self) -> int:
        return self.layers * self.hidden

    def everything(self) -> np.ndarray:
        """All neurons."""
        return np.arange(self.neurons)

    def layer(self, layer: int) -> np.ndarray:
        """The neurons of a layer; 0 is the embeddings."""
        if not 0 <= layer < self.layers:
            raise WhichlayersError(
                f"layer = {layer} cannot be probed: the layers are 1 to {self.layers - 1}, 0 is the embeddings"
            )
        return np.arange(layer * self.hidden, (layer + 1) * self.hidden)

    def checked(self, neurons: np.ndarray) -> np.ndarray:
        """The same neurons, once they are known to be the model's, each named once."""
        found = np.ascontiguousarray(neurons, np.int64)
        if found.ndim != 1 or len(found) == 0:
            raise WhichlayersError("a probe needs at least one neuron, in a list of their numbers")
        if found.min() < 0 or found.max() >= self.neurons:
            wrong = found.min() if found.min() < 0 else found.max()
            raise WhichlayersError(
                f"there is no neuron {wrong}: this model has {self.neurons:,} ({self.layers} layers, embeddings "
                f"included, of {self.hidden}), numbered from 0"
            )
        if len(np.unique(found)) < len(found):
            raise WhichlayersError("a neuron is named twice in the same set")
        return found

    def measured(self) -> Scale:
        """Mean and standard deviation of every neuron over all words."""
        total = torch.zeros(self.neurons, dtype=torch.float64, device=self.device)
        squares = torch.zeros_like(total)
        first = self.rows(slice(1)).double()[0]  # less this, sums of squares lose nothing
        for start in range(0, self.n, self._rows_at_once):
            block = self.rows(slice(start, start + self._rows_at_once)).double() - first
            total += block.sum(0)
            squares += block.square().sum(0)
        away = total / self.n
        mean, deviation = first + away, (squares / self.n - away.square()).clamp_min(0).sqrt()
        same = deviation <= 1e-6 * mean.abs()
        return Scale(mean.float(), torch.where(same, 1.0, deviation).float())

    def scaled(self, scale: Scale) -> WordTable:
        """The same words in the same memory, every neuron less its mean, by its deviation."""
        return WordTable(self.flat.view(-1, self.layers, self.hidden), self.device, scale)

    @property
    def _rows_at_once(self) -> int:
        return max(1, CHUNK_BYTES // (self.neurons * self.flat.element_size()))

    def rows(self, which: Tensor | slice) -> Tensor:
        """(b, D) on the device, in the precision of the table, or float32 where they are scaled."""
        found = (
            self.flat[which]
            if isinstance(which, slice)
            else self.flat.index_select(0, which.to(self.flat.device))
        )
        if self.device.type == "cuda" and not found.is_cuda:
            found = found.pin_memory()
        found = found.to(self.device, non_blocking=True)
        return found if self.scale is None else (found.float() - self.scale.mean) / self.scale.deviation

    def part(self, rows: slice) -> WordTable:
        """A table of some rows, in the same memory."""
        return WordTable(self.flat[rows].view(-1, self.layers, self.hidden), self.device, self.scale)

    def narrowed(self, neurons: np.ndarray) -> WordTable:
        """A table of these neurons alone, in this order, numbered anew from 0."""
        at = torch.from_numpy(self.checked(neurons)).to(self.flat.device)
        few = torch.empty(self.n, len(at), dtype=self.flat.dtype, device=self.flat.device)
        size = self._rows_at_once
        for start in range(0, self.n, size):
            few[start : start + size] = self.flat[start : start + size].index_select(1, at)
        return WordTable(few, self.device, self.scale and self.scale.of(at))


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
