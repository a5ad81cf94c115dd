"""Measure how far finetuning moved each weight matrix from its initial value, for all trials of a stack at once.

Initial values are not stored: they are a deterministic function of the trial and are computed again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whichlayers.engine.adapters import adapter_deltas
from whichlayers.engine.freezing import ADAPTER
from whichlayers.engine.results import WeightChange
from whichlayers.rng import normal

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackTrainer

BLOCK_SIZE = 8  # vectors in the subspace iteration for the spectral norm
ITERATIONS, ORTHOGONALIZE_EVERY = 12, 2
# a stack of adapters has no copy of the weights that they change: the memory for it is limited
PART_BYTES, COPIES = 1 << 30, 4  # copies: of a change while its norms are computed
EPSILON, TINY = 1e-13, 1e-300  # squared lengths below these count as zero: relative, absolute


@torch.no_grad()
def weight_changes(trainer: StackTrainer, layers: Collection[int] | None = None) -> list[list[WeightChange]]:
    """For every trial, the change of every matrix in a layer; XLNet's (H, heads, d) counts as (H, heads * d).

    Args:
        trainer: The stack.
        layers: Only of these layers, counted from 1. None: of all layers.
    """
    changes: list[list[WeightChange]] = [[] for _ in trainer.trials]
    initial = trainer.initial_weights
    indices = {p.name: i for i, p in enumerate(trainer.parameters)}
    for name, param in trainer.model.module.named_parameters():
        layer, stacked = initial.layer_of(name), trainer.model.has_trial_axis(name)
        if layers is not None and layer not in layers:
            continue
        if not layer or param.dim() < 2 + stacked or initial.is_norm_or_bias(name):
            continue
        if f".{ADAPTER}." in name:  # counted as a change of the adapted weight
            continue
        start = (
            initial.values(name, param.shape[1:], trainer.device) if stacked else initial.common_source(name)
        )
        assert start is not None
        start = start.flatten(2) if stacked else start.flatten(1)[None]  # (T or 1, rows, columns)
        # None: only adapters change it
        end = trainer.optimizer.values(indices[name]).flatten(2) if stacked else None
        start_norms = _norms(start)
        by_trial = list[list[float]]()
        for part in _parts(len(changes), start[0].numel()):
            of_part = start[part] if stacked else start
            change = torch.zeros_like(of_part) if end is None else end[part] - of_part
            if (delta := adapter_deltas(trainer, name, of_part, part)) is not None:
                change = change + delta
            norms = [*_norms(change), *(n[part] if stacked else n for n in start_norms)]
            size = part.stop - part.start
            by_trial += torch.stack([norm.expand(size) for norm in norms], 1).tolist()  # (size, 4)
        for t, values in enumerate(by_trial):
            changes[t].append(WeightChange(name.removeprefix("encoder."), layer, *values))
    return changes


def _parts(trials: int, numel: int) -> list[slice]:
    """Consecutive trials whose float32 matrices of `numel` values, with their copies, fit into PART_BYTES."""
    size = max(1, PART_BYTES // (COPIES * 4 * numel))
    return [slice(first, min(first + size, trials)) for first in range(0, trials, size)]


def _norms(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Frobenius and spectral norm of each matrix: (T, rows, columns) -> (T,), (T,)."""
    return torch.linalg.vector_norm(matrices, dim=(1, 2)), spectral_norm(matrices)


def spectral_norm(matrices: Tensor) -> Tensor:
    """Largest singular value of each matrix, by subspace iteration: (T, rows, columns) -> (T,).

    NaN for a matrix with values that are not finite. Much faster than a singular value decomposition of every matrix.
    """
    length = torch.linalg.vector_norm(matrices, dim=(1, 2))  # (T,)
    finite = length.isfinite()
    scale = torch.where(finite & (length > 0), length, 1.0)
    matrices = torch.where(finite[:, None, None], matrices, 0.0) / scale[:, None, None]
    columns = matrices.shape[2]
    width = min(BLOCK_SIZE, *matrices.shape[1:])
    basis = normal(0, "spectral", (columns, width), 1.0, matrices.device).expand(len(matrices), -1, -1)
    for done in range(1, ITERATIONS + 1):
        basis = torch.bmm(matrices.mT, torch.bmm(matrices, basis))  # (T, columns, width)
        if done % ORTHOGONALIZE_EVERY == 0:  # before the columns become parallel
            basis = _orthonormalize(basis)
    largest = torch.linalg.eigvalsh(_gram(torch.bmm(matrices, basis)))[:, -1]
    return torch.where(finite, largest.clamp(min=0).sqrt().to(matrices.dtype) * scale, torch.nan)


def _orthonormalize(vectors: Tensor) -> Tensor:
    """(T, n, width) orthonormal columns that span the same spaces; columns of length zero become 0.

    Uses the eigendecomposition of the (width, width) Gram matrices, which a GPU computes for all trials at once, unlike
    QR decompositions of the tall matrices.
    """
    lengths, directions = torch.linalg.eigh(_gram(vectors))  # (T, width), (T, width, width), ascending
    nonzero = lengths > lengths[:, -1:] * EPSILON
    scale = torch.where(nonzero, lengths.clamp(min=TINY).rsqrt(), 0.0)
    return torch.bmm(vectors, (directions * scale[:, None]).to(vectors.dtype))


def _gram(vectors: Tensor) -> Tensor:
    """(T, n, width) -> (T, width, width) Gram matrices in float64."""
    wide = vectors.double()
    return torch.bmm(wide.mT, wide)
