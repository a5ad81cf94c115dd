"""How far finetuning moved each matrix of each layer from where it started, for all trials of a stack at once.

Nothing is kept for it while training: where a trial started is a function of the trial, and is made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whichlayers.engine.results import WeightChange
from whichlayers.rng import normal

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackRun

DIRECTIONS = 8  # vectors that the iteration for the spectral norm turns at once
ROUNDS, ROUNDS_BETWEEN = 12, 2
EPSILON, TINY = 1e-13, 1e-300  # of squared lengths: what counts as none


@torch.no_grad()
def weight_changes(run: StackRun) -> list[list[WeightChange]]:
    """For every trial, every matrix that lies in a layer. XLNet's (H, heads, d) tensors count as (H, heads * d)."""
    found: list[list[WeightChange]] = [[] for _ in run.trials]
    for i, p in enumerate(run.parameters):
        layer = run.start.layer_of(p.name)
        if not layer or p.work.dim() < 3 or run.start.is_norm_or_bias(p.name):
            continue
        start = run.start.values(p.name, p.work.shape[1:], run.device).flatten(2)  # (T, rows, columns)
        change = run.optimiser.values(i).flatten(2) - start
        norms = [
            torch.linalg.vector_norm(change, dim=(1, 2)),
            spectral_norm(change),
            torch.linalg.vector_norm(start, dim=(1, 2)),
            spectral_norm(start),
        ]
        by_trial = torch.stack(norms, 1).tolist()  # (T, 4)
        for t, values in enumerate(by_trial):
            found[t].append(WeightChange(p.name.removeprefix("encoder."), layer, *values))
    return found


def spectral_norm(matrices: Tensor) -> Tensor:
    """(T, rows, columns) -> (T,): the largest singular value of each, by subspace iteration; NaN of one that diverged.

    A decomposition of every matrix of every trial would take longer than training them.
    """
    length = torch.linalg.vector_norm(matrices, dim=(1, 2))  # (T,)
    finite = length.isfinite()
    scale = torch.where(finite & (length > 0), length, 1.0)
    matrices = torch.where(finite[:, None, None], matrices, 0.0) / scale[:, None, None]
    columns = matrices.shape[2]
    width = min(DIRECTIONS, *matrices.shape[1:])
    basis = normal(0, "spectral", (columns, width), 1.0, matrices.device).expand(len(matrices), -1, -1)
    for done in range(1, ROUNDS + 1):
        basis = torch.bmm(matrices.mT, torch.bmm(matrices, basis))  # (T, columns, width)
        if done % ROUNDS_BETWEEN == 0:  # before the directions fall together
            basis = _orthonormal(basis)
    largest = torch.linalg.eigvalsh(_gram(torch.bmm(matrices, basis)))[:, -1]
    return torch.where(finite, largest.clamp(min=0).sqrt().to(matrices.dtype) * scale, torch.nan)


def _orthonormal(vectors: Tensor) -> Tensor:
    """(T, n, width): the same spaces, spanned by orthonormal columns; directions that have no length become 0.

    By the (width, width) products of the columns, which a GPU decomposes for all trials at once; it would take
    a QR decomposition of each long matrix one after the other.
    """
    lengths, directions = torch.linalg.eigh(_gram(vectors))  # (T, width), (T, width, width), ascending
    real = lengths > lengths[:, -1:] * EPSILON
    scale = torch.where(real, lengths.clamp(min=TINY).rsqrt(), 0.0)
    return torch.bmm(vectors, (directions * scale[:, None]).to(vectors.dtype))


def _gram(vectors: Tensor) -> Tensor:
    wide = vectors.double()
    return torch.bmm(wide.mT, wide)  # (T, width, width)
