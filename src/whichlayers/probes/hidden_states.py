"""Hidden states of examples as a matrix (examples, neurons), the input of probes.

An example is a sentence or a word. A neuron is one unit of one layer, with index layer * hidden_size + unit; layer 0 is
the embeddings. A model with 12 layers of hidden size 768 has 13 * 768 = 9,984 neurons. The matrix is on the GPU if it
fits; otherwise it stays on the host, in its file, and rows are copied in blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

MAX_DEVICE_FRACTION = 0.5  # of a GPU's free memory, for one matrix
CHUNK_BYTES = 1 << 26  # read at once by functions that go through all rows


@dataclass(frozen=True, eq=False)
class NeuronScale:
    """Mean and standard deviation of every neuron, (neurons,) float32."""

    mean: Tensor
    std: Tensor  # 1 for a neuron that is constant

    def select(self, neurons: Tensor) -> NeuronScale:
        """The scale of these neurons, in this order."""
        index = neurons.to(self.mean.device)
        return NeuronScale(self.mean[index], self.std[index])


class HiddenStates:
    """Hidden states of n examples as a matrix (n, neurons).

    Args:
        states: (n, layers, H) as `extract` returns them, or (n, D) for features without layers.
        device: Where rows are returned.
        scale: Standardizes rows when they are read, unless None; the stored values are not changed.
    """

    def __init__(
        self,
        states: np.ndarray | Tensor,
        device: str | torch.device = "cpu",
        scale: NeuronScale | None = None,
    ):
        whole = torch.from_numpy(states) if isinstance(states, np.ndarray) else states
        if whole.dim() == 2:
            whole = whole[:, None]
        self.n_examples, self.n_layers, self.hidden_size = whole.shape
        self.device = torch.device(device)
        flat = whole.reshape(self.n_examples, -1)
        if self.device.type == "cuda" and not flat.is_cuda:
            free = torch.cuda.mem_get_info(self.device)[0]
            if flat.numel() * flat.element_size() < MAX_DEVICE_FRACTION * free:
                flat = flat.to(self.device)
        self.flat = flat  # (n, layers * H), in its original dtype
        self.scale = scale

    @property
    def n_neurons(self) -> int:
        """Number of neurons: layers * H."""
        return self.n_layers * self.hidden_size

    def all_neurons(self) -> np.ndarray:
        """The indices of all neurons, (neurons,)."""
        return np.arange(self.n_neurons)

    def layer_neurons(self, layer: int) -> np.ndarray:
        """The indices of the neurons of a layer, (H,); layer 0 is the embeddings."""
        if not 0 <= layer < self.n_layers:
            raise WhichlayersError(
                f"layer = {layer} cannot be probed: the layers are 1 to {self.n_layers - 1}, and 0 is the embeddings"
            )
        return np.arange(layer * self.hidden_size, (layer + 1) * self.hidden_size)

    def layer_of(self, neurons: np.ndarray) -> int | None:
        """The layer whose neurons these are, all of them in order; None if they are any other set."""
        layer = int(neurons[0]) // self.hidden_size
        if len(neurons) == self.hidden_size and np.array_equal(neurons, self.layer_neurons(layer)):
            return layer
        return None

    def check_neurons(self, neurons: np.ndarray) -> np.ndarray:
        """Returns the indices as a contiguous int64 array; raises if any is out of range or occurs twice."""
        found = np.ascontiguousarray(neurons, np.int64)
        if found.ndim != 1 or len(found) == 0:
            raise WhichlayersError("a probe needs a one-dimensional array of at least one neuron")
        if found.min() < 0 or found.max() >= self.n_neurons:
            wrong = found.min() if found.min() < 0 else found.max()
            raise WhichlayersError(
                f"there is no neuron {wrong}: this model has neurons 0 to {self.n_neurons - 1} "
                f"({counted(self.n_layers, 'layer')} of hidden size {self.hidden_size}, including the embeddings)"
            )
        if len(np.unique(found)) < len(found):
            raise WhichlayersError("a set of neurons contains the same neuron twice")
        return found

    def compute_scale(self, rows: np.ndarray | None = None) -> NeuronScale:
        """Mean and standard deviation of every neuron over these examples, by default over all."""
        n = self.n_examples if rows is None else len(rows)
        total = torch.zeros(self.n_neurons, dtype=torch.float64, device=self.device)
        squares = torch.zeros_like(total)
        first = self.rows(slice(1)).double()[0]  # subtracted for numerical stability
        for start in range(0, n, self._rows_per_chunk):
            chunk = slice(start, start + self._rows_per_chunk)
            block = self.rows(chunk if rows is None else torch.from_numpy(rows[chunk])).double() - first
            total += block.sum(0)
            squares += block.square().sum(0)
        shift = total / n
        mean, std = first + shift, (squares / n - shift.square()).clamp_min(0).sqrt()
        constant = std <= 1e-6 * mean.abs()
        return NeuronScale(mean.float(), torch.where(constant, 1.0, std).float())

    def standardize(self, scale: NeuronScale) -> HiddenStates:
        """A view of the same examples whose rows are standardized: (x - mean) / std."""
        return HiddenStates(self.flat.view(-1, self.n_layers, self.hidden_size), self.device, scale)

    @property
    def _rows_per_chunk(self) -> int:
        return max(1, CHUNK_BYTES // (self.n_neurons * self.flat.element_size()))

    def rows(self, which: Tensor | slice) -> Tensor:
        """Rows (b, neurons) on the device, in the stored dtype, or float32 if they are standardized."""
        found = self.flat[which] if isinstance(which, slice) else _select_rows(self.flat, which)
        found = self._to_device(found)
        return found if self.scale is None else (found.float() - self.scale.mean) / self.scale.std

    def layer_rows(self, which: Tensor, layers: Tensor, out: Tensor) -> None:
        """Write rows (U, b) of layers (U,) into the first b rows of `out` (U, >= b, H), float32 on the device."""
        out = out[:, : which.shape[1]]
        index = which * self.n_layers + layers.to(which.device)[:, None]
        matrix = self.flat.view(-1, self.hidden_size)
        if matrix.dtype == out.dtype and matrix.device == out.device and out.is_contiguous():
            torch.index_select(matrix, 0, index.flatten(), out=out.view(-1, self.hidden_size))
        else:
            out.copy_(self._to_device(_select_rows(matrix, index.flatten())).view(out.shape))
        if self.scale is not None:
            shape = (self.n_layers, 1, self.hidden_size)
            out.sub_(self.scale.mean.view(shape)[layers]).div_(self.scale.std.view(shape)[layers])

    def _to_device(self, rows: Tensor) -> Tensor:
        if self.device.type == "cuda" and not rows.is_cuda:
            rows = rows.pin_memory()
        return rows.to(self.device, non_blocking=True)

    def slice_rows(self, rows: slice) -> HiddenStates:
        """A view of some rows."""
        return HiddenStates(
            self.flat[rows].view(-1, self.n_layers, self.hidden_size), self.device, self.scale
        )

    def select_neurons(self, neurons: np.ndarray) -> HiddenStates:
        """A copy with only these neurons, in this order, indexed from 0."""
        index = torch.from_numpy(self.check_neurons(neurons)).to(self.flat.device)
        selected = torch.empty(self.n_examples, len(index), dtype=self.flat.dtype, device=self.flat.device)
        size = self._rows_per_chunk
        for start in range(0, self.n_examples, size):
            selected[start : start + size] = self.flat[start : start + size].index_select(1, index)
        return HiddenStates(selected, self.device, self.scale and self.scale.select(index))


def _select_rows(matrix: Tensor, rows: Tensor) -> Tensor:
    return matrix.index_select(0, rows.to(matrix.device))


@contextlib.contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Set the precision of float32 matrix products on a GPU.

    "tf32" rounds the factors to 11 bits and accumulates in float32; anything else computes in float32.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gather_neurons(
    rows: Sequence[Tensor], neurons: Sequence[np.ndarray], out: Tensor | None = None
) -> Tensor:
    """Select columns: of each of U matrices (b, D) the columns of its neurons (d,).

    Returns:
        (U, b, d) float32, written into the first b rows of `out` (U, >= b, d) if given.
    """
    shape = (len(rows), len(rows[0]), len(neurons[0]))
    result = torch.empty(shape, device=rows[0].device) if out is None else out[:, : shape[1]]
    for target, states, index in zip(result, rows, neurons, strict=True):
        first, last = int(index[0]), int(index[-1])
        if last - first == len(index) - 1 and (np.diff(index) == 1).all():
            target.copy_(states[:, first : last + 1])
        else:
            target.copy_(states.index_select(1, torch.from_numpy(index).to(states.device)))
    return result
