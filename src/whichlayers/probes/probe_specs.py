"""Which probes to train, how and on which examples, and their groups: matrix products that fit into memory."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from whichlayers import rng
from whichlayers.data.tasks import Kind
from whichlayers.errors import WhichlayersError
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.text import counted
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
    kind: Kind = "classification"  # determines the loss
    held_out: float = 0.0  # fraction of the examples that is not trained on, for early stopping
    # as finetuning does it: the initial weights of its classifier instead of those of torch.nn.Linear, and a train loss
    # that is a mean over batches instead of examples
    like_finetuning: bool = False


class ProbeSeeds(NamedTuple):
    """The seeds of a probe."""

    rows: int  # of its examples and which of them are held out
    order: int  # of its examples in an epoch
    weights: int  # its initial weights


@dataclass(frozen=True, eq=False)
class ProbeSpec:
    """One probe to train."""

    neurons: np.ndarray  # (d,) int64, its input: columns of HiddenStates
    l1: float = 0.0
    l2: float = 0.0
    seed: int = 0  # determines the held-out examples, the order of the others and the initial weights
    task: int = 0  # row of the labels
    lr: float | None = None  # None: that of ProbeTraining
    weight_decay: float = 0.0  # decoupled, as in AdamW
    # scale each neuron to mean 0, sd 1 on the examples that the probe is trained on
    standardize: bool = False
    max_epochs: int | None = None  # None: `epochs` of ProbeTraining
    patience: int | None = None  # stop after this many epochs without a lower held-out loss; None: never
    order_seed: int | None = None  # seed of the order of examples; None: `seed`
    weights_seed: int | None = None  # seed of the initial weights; None: `seed`

    @property
    def seeds(self) -> ProbeSeeds:
        order = self.seed if self.order_seed is None else self.order_seed
        return ProbeSeeds(self.seed, order, self.seed if self.weights_seed is None else self.weights_seed)


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """A trained probe: at the epoch of the lowest held-out loss, or the last epoch if nothing was held out.

    The weights apply to hidden states that are not standardized by the probe itself.
    """

    spec: ProbeSpec
    weight: Tensor = field(repr=False)  # (d, C) float32, on the host
    bias: Tensor = field(repr=False)  # (C,)
    train_loss: float  # mean loss of the epoch's batches, without the penalty
    held_out_loss: float = math.nan  # NaN if nothing was held out
    epoch: int = 0  # from 1; 0 if the loss was never finite
    epochs_run: int = 0
    error: str | None = None


def layer_specs(
    states: HiddenStates,
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


# --- examples, labels and neurons ---


def rows_by_seed(
    rows: np.ndarray | Mapping[int, np.ndarray] | None, states: HiddenStates, specs: Sequence[ProbeSpec]
) -> dict[int, np.ndarray]:
    """The examples of each seed, by seed; `rows` as in `fit_probes`."""
    if not specs:
        raise WhichlayersError("there must be at least one probe to train, got none")
    if rows is None:
        rows = np.arange(states.n_examples)
    rows_of_seed = rows if isinstance(rows, Mapping) else dict.fromkeys((s.seed for s in specs), rows)
    found = {s.seed: np.asarray(rows_of_seed[s.seed], np.int64) for s in specs}
    for seed_rows in found.values():
        if len(seed_rows) == 0 or seed_rows.min() < 0 or seed_rows.max() >= states.n_examples:
            raise WhichlayersError(
                f"rows to train on must be one or more numbers from 0 to {states.n_examples - 1}"
            )
    if len({len(seed_rows) for seed_rows in found.values()}) > 1:
        raise WhichlayersError("every seed must train on the same number of rows")
    return found


def held_out_count(size: int, fraction: float) -> int:
    """Number of held-out examples of a subset: at least 1 unless the fraction is 0."""
    return max(1, round(fraction * size)) if fraction else 0


def split_held_out(
    rows: Mapping[int, np.ndarray], fraction: float
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """(held-out rows, training rows) of each seed."""
    held_out, trained = {}, {}
    for seed, seed_rows in rows.items():
        count = held_out_count(len(seed_rows), fraction)
        if count >= len(seed_rows):
            raise WhichlayersError(
                f"train_size = {len(seed_rows)} with held_out = {fraction:g} leaves no example to train the probe on:"
                " increase train_size or set held_out = 0"
            )
        order = rng.permutation(seed, "held out", len(seed_rows)) if count else np.arange(len(seed_rows))
        held_out[seed], trained[seed] = seed_rows[order[:count]], seed_rows[np.sort(order[count:])]
    return held_out, trained


def check_training_labels(
    labels: np.ndarray,
    states: HiddenStates,
    n_outputs: int,
    specs: Sequence[ProbeSpec],
    rows: Mapping[int, np.ndarray],
    kind: Kind,
) -> Tensor:
    """Check the labels and return them as (tasks, n) on the device, int64 or float32."""
    label_matrix = np.atleast_2d(np.asarray(labels, np.int64 if kind == "classification" else np.float32))
    if label_matrix.shape[1] != states.n_examples:
        raise WhichlayersError(
            f"there are {counted(states.n_examples, 'example')} but {counted(label_matrix.shape[1], 'label')}; "
            "every example needs exactly one label"
        )
    wrong = sorted({s.task for s in specs if not 0 <= s.task < len(label_matrix)})
    if wrong:
        raise WhichlayersError(
            f"there is no task {wrong[0]}: the labels have {counted(len(label_matrix), 'task')}, numbered from 0"
        )
    used = label_matrix[:, np.unique(np.concatenate(list(rows.values())))]
    if kind == "classification" and (used.min() < 0 or used.max() >= n_outputs):
        found = used.min() if used.min() < 0 else used.max()
        raise WhichlayersError(f"invalid training label {found}: labels are 0 to {n_outputs - 1}")
    return torch.from_numpy(label_matrix).to(states.device)


def keep_used_neurons(
    states: HiddenStates, specs: Sequence[ProbeSpec]
) -> tuple[HiddenStates, list[ProbeSpec], list[ProbeSpec]]:
    """Drop neurons that no probe reads, if that saves at least half of them and the probes do not read whole layers.

    Returns:
        (states, specs with neuron indices into these states, specs with the original indices)
    """
    originals = [dataclasses.replace(s, neurons=states.check_neurons(s.neurons)) for s in specs]
    used = np.unique(np.concatenate([s.neurons for s in originals]))
    whole_layers = all(states.layer_of(s.neurons) is not None for s in originals)
    if whole_layers or len(used) > states.n_neurons / 2:
        return states, originals, originals
    moved = [dataclasses.replace(s, neurons=np.searchsorted(used, s.neurons)) for s in originals]
    return states.select_neurons(used), moved, originals


# --- groups ---


@dataclass(frozen=True, eq=False)
class ProbeGroup:
    """Probes that read the same neurons of the same batches, as columns of one weight matrix."""

    seeds: ProbeSeeds
    neurons: np.ndarray  # (d,)
    indices: tuple[int, ...]  # in the list of specs


def group_probes(
    specs: Sequence[ProbeSpec], n_outputs: int, batch_size: int, device: torch.device, for_training: bool
) -> Iterator[list[ProbeGroup]]:
    """Group probes with the same input, and yield lists of equally shaped groups that fit into memory together.

    `for_training`: probes of different seeds read different batches, and only some probes standardize their input.
    """
    limit = MAX_BYTES
    if device.type == "cuda":
        limit = int(MAX_DEVICE_FRACTION * torch.cuda.mem_get_info(device)[0])
    by_input: dict[tuple[ProbeSeeds | None, bool, bytes], list[int]] = defaultdict(list)
    for p, spec in enumerate(specs):
        batches = (spec.seeds, spec.standardize) if for_training else (None, False)
        by_input[*batches, spec.neurons.tobytes()].append(p)
    by_shape: dict[tuple[int, int], list[ProbeGroup]] = defaultdict(list)  # by (d, G)
    for indices in by_input.values():
        neurons, seeds = specs[indices[0]].neurons, specs[indices[0]].seeds
        most = max(1, limit // _group_bytes(len(neurons), 1, n_outputs, batch_size))
        for start in range(0, len(indices), most):
            part = tuple(indices[start : start + most])
            by_shape[len(neurons), len(part)].append(ProbeGroup(seeds, neurons, part))
    for (d, width), groups in by_shape.items():
        size = max(1, limit // _group_bytes(d, width, n_outputs, batch_size))
        for start in range(0, len(groups), size):
            yield groups[start : start + size]


def _group_bytes(d: int, width: int, n_outputs: int, batch_size: int) -> int:
    """Memory of one group of `width` probes on d neurons.

    Counts weights, gradient, Adam's two moments, a sign and the temporaries of a captured step, and the states, outputs
    and output gradients of a batch.
    """
    columns = width * n_outputs
    return 4 * (6 * (d + 1) * columns + batch_size * (2 * d + 4 * columns))
