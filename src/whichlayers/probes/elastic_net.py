"""Linear softmax probes with an elastic net penalty, trained together: layers x lambdas x seeds x label sets.

    states = WordStates(activations.states, "cuda")
    specs = layer_specs(states, seeds=(0, 1, 2), l1=(0, 1e-4), l2=(0, 1e-4))
    probes = fit_probes(states, labels, n_tags, specs)
    accuracies(dev_states, dev_labels, probes)

The loss of a probe is the mean cross-entropy of a batch + l1 * sum |W| + l2 * sum W^2; `norm = "plain"` takes the
square root of the second sum, as NeuroX does. Biases are not penalized. The optimizer is Adam with shuffled batches of
512 for 10 epochs.

Probes of one seed read the same batches. Those that read the same neurons of a batch are the columns of one matrix
product, and different neurons and seeds are a leading axis: a step of all probes is one `baddbmm` and one product for
the gradient, which is computed in closed form, without autograd. As many probes as fit into memory are trained at
once. Initial weights and the order of examples depend only on the seed, so the result of a probe does not depend on
the other probes, except for rounding. A step never synchronizes with the device; on a GPU the steps are replayed from
a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.probes.cuda_graphs import GraphedStep
from whichlayers.probes.evaluation import accuracies, code_lengths, tag_accuracies
from whichlayers.probes.probe_batching import (
    FittedProbe,
    ProbeGroup,
    ProbeSpec,
    ProbeTraining,
    group_probes,
    layer_specs,
)
from whichlayers.probes.steps import OnProgress
from whichlayers.probes.word_states import WordStates, gather_neurons, matmul_precision
from whichlayers.text import counted

__all__ = [
    "FittedProbe",
    "ProbeSpec",
    "ProbeTraining",
    "accuracies",
    "code_lengths",
    "fit_probes",
    "layer_specs",
    "tag_accuracies",
]

BLOCK_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}  # of states that are gathered at once
GRAPHED_DEVICES = {"cuda"}  # device types on which kernel launches limit the speed of a step


def fit_probes(
    states: WordStates,
    labels: np.ndarray,
    n_tags: int,
    specs: Sequence[ProbeSpec],
    training: ProbeTraining | None = None,
    on_progress: OnProgress | None = None,
    rows: np.ndarray | Mapping[int, np.ndarray] | None = None,
) -> list[FittedProbe]:
    """Train all probes together.

    Args:
        states: Hidden states of n words.
        labels: (n,) or (tasks, n), each 0 to n_tags - 1.
        n_tags: Number of tags, C.
        specs: The probes to train.
        training: Settings shared by all probes.
        on_progress: Called with the number of probes that finished another epoch.
        rows: Words to train on, or a mapping from each seed to its words, equally many for every seed. Default: all.

    Returns:
        One fitted probe per spec, in the same order.
    """
    training = training or ProbeTraining()
    rows_of_seed = _rows_by_seed(rows, states, specs)
    label_matrix = _check_training_labels(labels, states, n_tags, specs, rows_of_seed)
    states, specs, originals = _keep_used_neurons(states, specs)
    results: dict[int, FittedProbe] = {}
    for groups in group_probes(specs, n_tags, training.batch_size, states.device, by_seed=True):
        trainer = _WordProbeTrainer(states, label_matrix, rows_of_seed, n_tags, groups, specs, training)
        for epoch in range(training.epochs):
            trainer.train(epoch)
            if on_progress is not None:
                on_progress(sum(len(group.indices) for group in groups))
        results |= trainer.results(originals)
    return [results[p] for p in range(len(specs))]


class _WordProbeTrainer:
    """Trains U groups of G probes each on S seeds, with d neurons and C tags; K = G * C columns.

    Args:
        states: Hidden states of n words.
        labels: (tasks, n), on the device.
        rows: The words that each seed trains on, equally many for every seed.
        n_tags: Number of tags, C.
        groups: Groups of equal shape, from `group_probes`.
        specs: The probes that the groups refer to.
        training: Settings shared by all probes.
    """

    def __init__(
        self,
        states: WordStates,
        labels: Tensor,
        rows: Mapping[int, np.ndarray],
        n_tags: int,
        groups: list[ProbeGroup],
        specs: Sequence[ProbeSpec],
        training: ProbeTraining,
    ):
        self.states, self.labels, self.rows = states, labels, rows
        self.groups, self.training = groups, training
        self.n_rows = len(rows[groups[0].seed])
        self.specs, self.n_tags, self.width = specs, n_tags, len(groups[0].indices)
        device = states.device
        self.seeds = sorted({group.seed for group in groups})
        self.seed_of = torch.tensor([self.seeds.index(g.seed) for g in groups], device=device)  # (U,)
        tasks = [[specs[p].task for p in g.indices] for g in groups]
        self.task_of = torch.tensor(tasks, device=device)  # (U, G)
        initial = {seed: _initial_parameters(seed, len(groups[0].neurons), n_tags) for seed in self.seeds}
        repeated = [initial[g.seed].repeat(1, self.width) for g in groups]  # (d + 1, K)
        theta = torch.stack(repeated).to(device)
        self.weight = theta[:, :-1].contiguous()  # (U, d, K)
        self.bias = theta[:, -1:].contiguous()  # (U, 1, K)
        self.adam = torch.optim.Adam(
            [self.weight, self.bias], lr=training.lr, fused=True, capturable=device.type == "cuda"
        )
        self.weight.grad, self.bias.grad = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        self.l1, self.l2 = (
            self._penalty([[value(specs[p]) for p in g.indices] for g in groups]) for value in _PENALTIES
        )
        batch_size = training.batch_size
        row_bytes = 4 * (len(self.seeds) * states.n_neurons + len(groups) * len(groups[0].neurons))
        size = min(max(1, BLOCK_BYTES[device.type] // (row_bytes * batch_size)) * batch_size, self.n_rows)
        # the next block of examples, at most `size` of them
        self.block_states = torch.empty(len(groups), size, len(groups[0].neurons), device=device)
        self.block_labels = torch.empty(len(groups), size, self.width, dtype=torch.int64, device=device)
        self.loss = torch.zeros(len(groups), self.width, device=device)
        self.offsets = torch.arange(batch_size, device=device)
        steps = training.epochs * (self.n_rows // batch_size)
        graphed = device.type in GRAPHED_DEVICES
        self.graphed_step = (
            GraphedStep(self._step_at, batch_size, device, total_steps=steps) if graphed else None
        )

    def _penalty(self, values: list[list[float]]) -> Tensor | None:
        """Penalty weights (U, G) repeated for every tag, (U, 1, K); None if all are 0."""
        weights = torch.tensor(values, device=self.states.device)
        return weights.repeat_interleave(self.n_tags, 1)[:, None] if bool(weights.any()) else None

    def train(self, epoch: int) -> None:
        """Train all probes for one epoch."""
        orders = np.stack(
            [self.rows[s][rng.permutation(s, f"order/{epoch}", self.n_rows)] for s in self.seeds]
        )
        self.loss.zero_()
        batch_size = self.training.batch_size
        with torch.no_grad(), matmul_precision(self.training.precision, self.states.device):
            on_device = torch.from_numpy(orders).to(self.states.flat.device)  # (S, n_rows)
            for rows in on_device.split(self.block_states.shape[1], 1):
                self._load_block(rows)
                done = 0
                if self.graphed_step is not None:
                    done = rows.shape[1] // batch_size
                    self.graphed_step.run(done)
                for start in range(done * batch_size, rows.shape[1], batch_size):
                    batch = slice(start, min(start + batch_size, rows.shape[1]))
                    self._step(self.block_states[:, batch], self.block_labels[:, batch])

    def _load_block(self, rows: Tensor) -> None:
        """Load the next rows (S, b) of every seed into `block_states` (U, b, d) and `block_labels` (U, b, G)."""
        count = rows.shape[1]
        by_seed = [self.states.rows(seed_rows) for seed_rows in rows]
        by_group = [by_seed[self.seeds.index(group.seed)] for group in self.groups]
        gather_neurons(by_group, [group.neurons for group in self.groups], self.block_states)
        labels = self.labels[:, rows.to(self.states.device)]  # (tasks, S, b)
        self.block_labels[:, :count] = labels[self.task_of, self.seed_of[:, None]].transpose(1, 2)

    def _step_at(self, offset: Tensor, _: Tensor) -> None:
        """One step on the batch that starts at this offset (0-d, on the device) of the loaded block."""
        index = offset + self.offsets
        self._step(self.block_states.index_select(1, index), self.block_labels.index_select(1, index))

    def _step(self, states: Tensor, labels: Tensor) -> None:
        """One optimizer step on states (U, B, d) and labels (U, B, G)."""
        groups, rows = labels.shape[:2]
        outputs = torch.baddbmm(self.bias, states, self.weight)  # (U, B, K)
        log_probs = torch.log_softmax(outputs.view(groups, rows, self.width, self.n_tags), -1)
        self.loss -= log_probs.gather(-1, labels[..., None]).sum((1, 3))
        output_grad = log_probs.exp_()
        output_grad.scatter_add_(-1, labels[..., None], torch.full_like(output_grad[..., :1], -1.0))
        output_grad = output_grad.view(groups, rows, -1).div_(rows)
        weight, gradient = self.weight, self.weight.grad
        assert gradient is not None
        assert self.bias.grad is not None
        torch.bmm(states.transpose(1, 2), output_grad, out=gradient)
        torch.sum(output_grad, 1, keepdim=True, out=self.bias.grad)
        if self.l1 is not None:
            gradient.addcmul_(weight.sign(), self.l1)
        if self.l2 is not None and self.training.norm == "squared":
            gradient.addcmul_(weight, self.l2, value=2)
        elif self.l2 is not None:
            gradient.addcmul_(weight, self.l2 / self._weight_norms())
        self.adam.step()

    def _weight_norms(self) -> Tensor:
        """The L2 norm of the weights of each column's probe, (U, 1, K)."""
        squares = self.weight.square().sum(1).view(len(self.groups), self.width, self.n_tags).sum(-1)
        return squares.sqrt().clamp_(min=1e-12).repeat_interleave(self.n_tags, 1)[:, None]

    def results(self, originals: Sequence[ProbeSpec]) -> dict[int, FittedProbe]:
        """The trained probes by index; `originals`: their specs as the caller gave them."""
        self.graphed_step = None  # breaks a reference cycle, so that memory is freed at once
        losses = (self.loss / self.n_rows).tolist()
        weight = self.weight.cpu().unflatten(-1, (self.width, self.n_tags))  # (U, d, G, C)
        bias = self.bias.cpu().view(len(self.groups), self.width, self.n_tags)
        found = {}
        for u, group in enumerate(self.groups):
            for g, p in enumerate(group.indices):
                error = None
                if not math.isfinite(losses[u][g]):
                    error = f"the loss was not a finite number: try a smaller lr (now {self.training.lr:g})"
                found[p] = FittedProbe(
                    originals[p], weight[u, :, g].clone(), bias[u, g].clone(), losses[u][g], error
                )
        return found


_PENALTIES = (lambda spec: spec.l1, lambda spec: spec.l2)


def _initial_parameters(seed: int, d: int, n_tags: int) -> Tensor:
    """(d + 1, C), uniform in +-1/sqrt(d), the initialization of torch.nn.Linear; the last row is the bias."""
    return rng.uniform(seed, "probe", (d + 1, n_tags)).mul_(2).sub_(1).div_(math.sqrt(d))


def _keep_used_neurons(
    states: WordStates, specs: Sequence[ProbeSpec]
) -> tuple[WordStates, list[ProbeSpec], list[ProbeSpec]]:
    """Drop neurons that no probe reads, if that saves at least half of them.

    Returns:
        (states, specs with neuron indices into these states, specs with the original indices)
    """
    originals = [ProbeSpec(states.check_neurons(s.neurons), s.l1, s.l2, s.seed, s.task) for s in specs]
    used = np.unique(np.concatenate([s.neurons for s in originals]))
    if len(used) > states.n_neurons / 2:
        return states, originals, originals
    moved = [ProbeSpec(np.searchsorted(used, s.neurons), s.l1, s.l2, s.seed, s.task) for s in originals]
    return states.select_neurons(used), moved, originals


def _rows_by_seed(
    rows: np.ndarray | Mapping[int, np.ndarray] | None, states: WordStates, specs: Sequence[ProbeSpec]
) -> dict[int, np.ndarray]:
    """The words that each seed trains on, by seed; `rows` as in `fit_probes`."""
    if not specs:
        raise WhichlayersError("there must be at least one probe to train, got none")
    if rows is None:
        rows = np.arange(states.n_words)
    rows_of_seed = rows if isinstance(rows, Mapping) else dict.fromkeys((s.seed for s in specs), rows)
    found = {s.seed: np.asarray(rows_of_seed[s.seed], np.int64) for s in specs}
    for seed_rows in found.values():
        if len(seed_rows) == 0 or seed_rows.min() < 0 or seed_rows.max() >= states.n_words:
            raise WhichlayersError(
                f"rows to train on must be one or more numbers from 0 to {states.n_words - 1}"
            )
    if len({len(seed_rows) for seed_rows in found.values()}) > 1:
        raise WhichlayersError("every seed must train on the same number of rows")
    return found


def _check_training_labels(
    labels: np.ndarray,
    states: WordStates,
    n_tags: int,
    specs: Sequence[ProbeSpec],
    rows: Mapping[int, np.ndarray],
) -> Tensor:
    """Check the labels and return them as (tasks, n) on the device."""
    label_matrix = np.atleast_2d(np.asarray(labels, np.int64))
    if label_matrix.shape[1] != states.n_words:
        raise WhichlayersError(
            f"there are {counted(states.n_words, 'word')} but {counted(label_matrix.shape[1], 'label')}; "
            "every word needs exactly one label"
        )
    wrong = sorted({s.task for s in specs if not 0 <= s.task < len(label_matrix)})
    if wrong:
        raise WhichlayersError(
            f"there is no task {wrong[0]}: the labels have {counted(len(label_matrix), 'task')}, numbered from 0"
        )
    used = label_matrix[:, np.unique(np.concatenate(list(rows.values())))]
    if used.min() < 0 or used.max() >= n_tags:
        found = used.min() if used.min() < 0 else used.max()
        raise WhichlayersError(f"invalid training label {found}: labels are 0 to {n_tags - 1}")
    return torch.from_numpy(label_matrix).to(states.device)
