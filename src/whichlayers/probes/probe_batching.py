"""Specifications of word probes, and how they are grouped into batched matrix products that fit into memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from whichlayers.probes.word_states import WordStates
from whichlayers.trial import Norm

MAX_BYTES = 1 << 30  # memory of one list of groups, on a CPU
MAX_DEVICE_FRACTION = 0.3  # of a GPU's free memory, for one list of groups


@dataclass(frozen=True)
class ProbeTraining:
    """Training settings shared by all probes of a call. The defaults are those of Durrani et al. 2021."""

    epochs: int = 10
    batch_size: int = 512
    lr: float = 1e-3
    norm: Norm = "squared"  # of the L2 penalty
    precision: Literal["tf32", "float32"] = "tf32"  # of matrix products on a GPU; a CPU always uses float32


@dataclass(frozen=True, eq=False)
class ProbeSpec:
    """One probe to train."""

    neurons: np.ndarray  # (d,) int64, its input: columns of WordStates
    l1: float = 0.0
    l2: float = 0.0
    seed: int = 0  # determines initial weights and the order of examples
    task: int = 0  # row of the labels


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """A trained word probe."""

    spec: ProbeSpec
    weight: Tensor = field(repr=False)  # (d, C) float32, on the host
    bias: Tensor = field(repr=False)  # (C,)
    train_loss: float  # mean cross-entropy over the last epoch's batches, without the penalty
    error: str | None = None


def layer_specs(
    states: WordStates,
    seeds: Sequence[int] = (0,),
    l1: Sequence[float] = (0.0,),
    l2: Sequence[float] = (0.0,),
    tasks: Sequence[int] = (0,),
) -> list[ProbeSpec]:
    """A spec for every combination of layer (outermost), l1, l2, seed and task (innermost)."""
    layers = [states.layer_neurons(k) for k in range(states.n_layers)]
    return [
        ProbeSpec(neurons, l1_value, l2_value, seed, task)
        for neurons in layers
        for l1_value in l1
        for l2_value in l2
        for seed in seeds
        for task in tasks
    ]


@dataclass(frozen=True, eq=False)
class ProbeGroup:
    """Probes that read the same neurons of the same batches, as columns of one weight matrix."""

    seed: int
    neurons: np.ndarray  # (d,)
    indices: tuple[int, ...]  # in the list of specs


def group_probes(
    specs: Sequence[ProbeSpec], n_tags: int, batch_size: int, device: torch.device, by_seed: bool
) -> Iterator[list[ProbeGroup]]:
    """Group probes with the same input, and yield lists of equally shaped groups that fit into memory together.

    `by_seed`: probes of different seeds read different batches and cannot share a group.
    """
    limit = MAX_BYTES
    if device.type == "cuda":
        limit = int(MAX_DEVICE_FRACTION * torch.cuda.mem_get_info(device)[0])
    by_input: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for p, spec in enumerate(specs):
        by_input[spec.seed if by_seed else 0, spec.neurons.tobytes()].append(p)
    by_shape: dict[tuple[int, int], list[ProbeGroup]] = defaultdict(list)  # by (d, G)
    for (seed, _), indices in by_input.items():
        neurons = specs[indices[0]].neurons
        most = max(1, limit // _group_bytes(len(neurons), 1, n_tags, batch_size))
        for start in range(0, len(indices), most):
            part = tuple(indices[start : start + most])
            by_shape[len(neurons), len(part)].append(ProbeGroup(seed, neurons, part))
    for (d, width), groups in by_shape.items():
        size = max(1, limit // _group_bytes(d, width, n_tags, batch_size))
        for start in range(0, len(groups), size):
            yield groups[start : start + size]


def _group_bytes(d: int, width: int, n_tags: int, batch_size: int) -> int:
    """Memory of one group of `width` probes on d neurons.

    Counts weights, gradient, Adam's two moments, a sign and the temporaries of a captured step, and the states, outputs
    and output gradients of a batch.
    """
    columns = width * n_tags
    return 4 * (6 * (d + 1) * columns + batch_size * (2 * d + 4 * columns))
