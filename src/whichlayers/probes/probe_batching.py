"""What there is to train: a probe a problem, and which of them share a matrix product and fit into memory together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from whichlayers.probes.word_table import WordTable
from whichlayers.trial import Norm

MEMORY = 1 << 30  # bytes that one group may take, on a CPU
SHARE_OF_DEVICE = 0.3  # and of a GPU's free memory


@dataclass(frozen=True)
class ProbeTraining:
    """How all probes of a call are trained. The defaults are those of Durrani et al. 2021."""

    epochs: int = 10
    batch_size: int = 512
    lr: float = 1e-3
    norm: Norm = "squared"  # of the L2 term
    precision: Literal["tf32", "float32"] = "tf32"  # of matrix products on a GPU; a CPU has float32 alone


@dataclass(frozen=True, eq=False)
class Problem:
    """One probe to train."""

    neurons: np.ndarray  # (d,) int64, which columns of the table it reads
    l1: float = 0.0
    l2: float = 0.0
    seed: int = 0  # decides starting values and order
    task: int = 0  # which row of the labels


@dataclass(frozen=True, eq=False)
class FittedProbe:
    problem: Problem
    weight: Tensor = field(repr=False)  # (d, C) float32, on the host
    bias: Tensor = field(repr=False)  # (C,)
    train_loss: float  # mean cross-entropy over the last epoch's batches, without the penalty
    error: str | None = None


def layer_problems(
    table: WordTable,
    seeds: Sequence[int] = (0,),
    l1: Sequence[float] = (0.0,),
    l2: Sequence[float] = (0.0,),
    tasks: Sequence[int] = (0,),
) -> list[Problem]:
    """A problem for every layer (outermost), l1, l2, seed and task (innermost)."""
    layers = [table.layer(k) for k in range(table.layers)]
    return [
        Problem(neurons, one, two, seed, task)
        for neurons in layers
        for one in l1
        for two in l2
        for seed in seeds
        for task in tasks
    ]


@dataclass(frozen=True, eq=False)
class Bundle:
    """Problems that read the same neurons of the same batches: columns of one matrix."""

    seed: int
    neurons: np.ndarray  # (d,)
    places: tuple[int, ...]  # in the list of problems


def bundled(
    problems: Sequence[Problem], n_tags: int, batch: int, device: torch.device, by_seed: bool
) -> Iterator[list[Bundle]]:
    """Groups of bundles of one shape. `by_seed`: problems of two seeds read different batches."""
    limit = MEMORY
    if device.type == "cuda":
        limit = int(SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0])
    found: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for p, problem in enumerate(problems):
        found[problem.seed if by_seed else 0, problem.neurons.tobytes()].append(p)
    alike: dict[tuple[int, int], list[Bundle]] = defaultdict(list)  # by (d, G)
    for (seed, _), places in found.items():
        neurons = problems[places[0]].neurons
        most = max(1, limit // _bytes(len(neurons), 1, n_tags, batch))
        for start in range(0, len(places), most):
            part = tuple(places[start : start + most])
            alike[len(neurons), len(part)].append(Bundle(seed, neurons, part))
    for (d, width), bundles in alike.items():
        size = max(1, limit // _bytes(d, width, n_tags, batch))
        for start in range(0, len(bundles), size):
            yield bundles[start : start + size]


def _bytes(d: int, width: int, n_tags: int, batch: int) -> int:
    """Of one bundle: weights, gradient, Adam's two moments and a sign, a captured step's as well; a batch's states,
    outputs and slopes."""
    columns = width * n_tags
    return 4 * (6 * (d + 1) * columns + batch * (2 * d + 4 * columns))
