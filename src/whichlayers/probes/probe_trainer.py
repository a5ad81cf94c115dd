"""Linear probes on hidden states of sentences or words, trained together: layers x seeds x penalties x label sets.

    states = HiddenStates(hidden_states, "cuda")
    specs = layer_specs(states, seeds=(0, 1, 2), l1=(0, 1e-4), l2=(0, 1e-4))
    probes = fit_probes(states, labels, n_tags, specs)
    accuracies(dev_states, dev_labels, probes)

A probe is a softmax or least squares regression. Its loss is the mean over a batch + l1 * sum |W| + l2 * sum W^2;
`norm = "plain"` takes the square root of the second sum, as NeuroX does. Biases are not penalized. The optimizer is
Adam. With held-out examples, the loss on them decides when a probe stops and which epoch's weights are used.

Probes of one seed read the same batches. Those that read the same neurons of a batch are the columns of one matrix
product, and different neurons and seeds are a leading axis: a step of all probes is one `baddbmm` and one product for
the gradient, which is computed in closed form, without autograd. As many probes as fit into memory are trained at
once. Initial weights, the order of examples and the held-out examples depend only on the seed, so the result of a probe
does not depend on the other probes, except for rounding. A step never synchronizes with the device; on a GPU the steps
are replayed from a CUDA graph.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from whichlayers import rng
from whichlayers.data.batches import epoch_order
from whichlayers.engine.cuda_graphs import BatchSteps
from whichlayers.models.head import CLASSIFIER_STD
from whichlayers.probes.column_adam import ColumnAdam
from whichlayers.probes.hidden_states import HiddenStates, gather_neurons, matmul_precision
from whichlayers.probes.probe_specs import (
    FittedProbe,
    ProbeGroup,
    ProbeSpec,
    ProbeTraining,
    check_training_labels,
    group_probes,
    keep_used_neurons,
    rows_by_seed,
    split_held_out,
)
from whichlayers.probes.progress import OnProgress

# of states that are gathered at once: on a CPU they should stay in its cache
BLOCK_BYTES = {"cpu": 1 << 24, "cuda": 1 << 30}
GRAPHED_DEVICES = {"cuda"}  # device types on which kernel launches limit the speed of a step


def fit_probes(
    states: HiddenStates,
    labels: np.ndarray,
    n_outputs: int,
    specs: Sequence[ProbeSpec],
    training: ProbeTraining | None = None,
    on_progress: OnProgress | None = None,
    rows: np.ndarray | Mapping[int, np.ndarray] | None = None,
) -> list[FittedProbe]:
    """Train all probes together.

    Args:
        states: Hidden states of n examples.
        labels: (n,) or (tasks, n): classes from 0 to n_outputs - 1, or targets of a regression.
        n_outputs: Number of classes, C; 1 for regression.
        specs: The probes to train.
        training: Settings shared by all probes.
        on_progress: Called with the number of probe epochs that were run, or skipped because a probe stopped early.
        rows: Examples to train on, or a mapping from each seed to its examples, equally many for every seed. Default:
            all.

    Returns:
        One fitted probe per spec, in the same order.
    """
    training = training or ProbeTraining()
    rows_of_seed = rows_by_seed(rows, states, specs)
    label_matrix = check_training_labels(labels, states, n_outputs, specs, rows_of_seed, training.kind)
    held_out, trained = split_held_out(rows_of_seed, training.held_out)
    states, specs, originals = keep_used_neurons(states, specs)
    results: dict[int, FittedProbe] = {}
    for groups in group_probes(specs, n_outputs, training.batch_size, states.device, for_training=True):
        trainer = _ProbeTrainer(states, label_matrix, trained, held_out, n_outputs, groups, specs, training)
        epoch = 0
        while trainer.groups:
            epoch += 1
            with torch.no_grad(), matmul_precision(training.precision, states.device):
                trainer.train(epoch)
                epochs = trainer.finish_epoch(epoch)
            if on_progress is not None:
                on_progress(epochs)
        results |= trainer.results
    return [dataclasses.replace(results[p], spec=originals[p]) for p in range(len(specs))]


class _ProbeTrainer:
    """Trains U groups of G probes each on S seeds, with d neurons and C outputs; K = G * C columns.

    Args:
        states: Hidden states of n examples.
        labels: (tasks, n), on the device.
        rows: The examples that each seed trains on, equally many for every seed.
        held_out: The held-out examples of each seed.
        n_outputs: Number of classes, C.
        groups: Groups of equal shape, from `group_probes`.
        specs: The probes that the groups refer to.
        training: Settings shared by all probes.

    Attributes:
        groups: Those with a probe that is not finished.
        results: The finished probes, by index.
    """

    def __init__(
        self,
        states: HiddenStates,
        labels: Tensor,
        rows: Mapping[int, np.ndarray],
        held_out: Mapping[int, np.ndarray],
        n_outputs: int,
        groups: list[ProbeGroup],
        specs: Sequence[ProbeSpec],
        training: ProbeTraining,
    ):
        self.states, self.labels, self.rows, self.held_out = states, labels, rows, held_out
        self.groups, self.specs, self.training, self.n_outputs = groups, specs, training, n_outputs
        self.results: dict[int, FittedProbe] = {}
        self.n_rows, self.n_held_out = (len(of_seed[groups[0].seeds.rows]) for of_seed in (rows, held_out))
        self.width, self.d = len(groups[0].indices), len(groups[0].neurons)
        self.n_steps = math.ceil(self.n_rows / training.batch_size)
        device = states.device
        initial_parameters = _classifier_parameters if training.like_finetuning else _linear_parameters
        seeds = {group.seeds.weights for group in groups}
        initial = {seed: initial_parameters(seed, self.d, n_outputs) for seed in seeds}
        theta = torch.stack([initial[g.seeds.weights].repeat(1, self.width) for g in groups]).to(device)
        self.weight = theta[:, :-1].contiguous()  # (U, d, K)
        self.bias = theta[:, -1:].contiguous()  # (U, 1, K)
        l1, l2 = self._per_column(lambda spec: spec.l1), self._per_column(lambda spec: spec.l2)
        self.l1, self.l2 = (penalty if bool(penalty.any()) else None for penalty in (l1, l2))
        self.mean, self.std = self._scales()  # (U, 1, d); None if no probe is standardized
        self.optimizer = self._make_optimizer()
        # the best epoch so far; (U, d, K), (U, 1, K) and three times (U, G) on the host
        self.best_weight, self.best_bias = (
            (self.weight.clone(), self.bias.clone()) if self.n_held_out else (self.weight, self.bias)
        )
        shape = (len(groups), self.width)
        self.best_loss, self.best_train = torch.full(shape, math.inf), torch.full(shape, math.nan)
        self.best_epoch = torch.zeros(shape, dtype=torch.long)
        self._allocate()

    def _per_column(self, setting: Callable[[ProbeSpec], float]) -> Tensor:
        """A setting of every probe, repeated for every output: (U, 1, K)."""
        values = [[setting(self.specs[p]) for p in group.indices] for group in self.groups]
        return torch.tensor(values, device=self.states.device).repeat_interleave(self.n_outputs, 1)[:, None]

    def _scales(self) -> tuple[Tensor | None, Tensor | None]:
        """Mean and standard deviation of the inputs of every group, each (U, 1, d); 0 and 1 if not standardized."""
        standardized = [self.specs[group.indices[0]].standardize for group in self.groups]
        if not any(standardized):
            return None, None
        seeds = {group.seeds.rows for group in self.groups}
        scales = {seed: self.states.compute_scale(self.rows[seed]) for seed in seeds}
        found = torch.zeros(2, len(self.groups), 1, self.d, device=self.states.device)
        found[1] = 1
        for u, group in enumerate(self.groups):
            if standardized[u]:
                scale = scales[group.seeds.rows].select(torch.from_numpy(group.neurons))
                found[:, u, 0] = torch.stack([scale.mean, scale.std])
        return found[0], found[1]

    def _make_optimizer(self) -> torch.optim.Adam | ColumnAdam:
        """torch's fused Adam, which is faster, if all probes share a learning rate and end together."""
        specs = [self.specs[p] for group in self.groups for p in group.indices]
        graphed = self.states.device.type in GRAPHED_DEVICES
        self.weight.grad, self.bias.grad = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        own_settings = any(s.lr is not None or s.weight_decay or s.max_epochs is not None for s in specs)
        if own_settings or self.n_held_out:
            lr = self._per_column(self._lr)
            decay = self._per_column(lambda spec: self._lr(spec) * spec.weight_decay)
            return ColumnAdam(self.weight, self.bias, lr, decay, graphed)
        on_cuda = self.states.device.type == "cuda"
        return torch.optim.Adam([self.weight, self.bias], lr=self.training.lr, fused=True, capturable=on_cuda)

    def _lr(self, spec: ProbeSpec) -> float:
        return self.training.lr if spec.lr is None else spec.lr

    def _max_epochs(self, spec: ProbeSpec) -> int:
        return self.training.epochs if spec.max_epochs is None else spec.max_epochs

    def _allocate(self) -> None:
        """Set up what depends on which groups are left: indices, and memory for the next block of examples."""
        groups, device, batch_size = self.groups, self.states.device, self.training.batch_size
        self.seeds = sorted({group.seeds for group in groups})
        self.seed_of = torch.tensor([self.seeds.index(g.seeds) for g in groups], device=device)  # (U,)
        tasks = [[self.specs[p].task for p in g.indices] for g in groups]
        self.task_of = torch.tensor(tasks, device=device)  # (U, G)
        layers = [self.states.layer_of(group.neurons) for group in groups]
        # (U,) if every group reads a whole layer
        self.layers = None if None in layers else torch.tensor(layers, device=device)
        row_bytes = 4 * (len(self.seeds) * self.states.n_neurons + len(groups) * self.d)
        size = min(max(1, BLOCK_BYTES[device.type] // (row_bytes * batch_size)) * batch_size, self.n_rows)
        self.block_states = torch.empty(len(groups), size, self.d, device=device)
        self.block_labels = torch.empty(len(groups), size, self.width, dtype=self.labels.dtype, device=device)
        self.offsets = torch.arange(batch_size, device=device)
        self.loss = torch.zeros(len(groups), self.width, device=device)
        self.steps: BatchSteps | None = None
        if device.type in GRAPHED_DEVICES:
            # with early stopping, groups are removed after almost every epoch, and the step is captured again
            epochs = 1 if self.n_held_out else self.training.epochs
            total_steps = epochs * (self.n_rows // batch_size)
            self.steps = BatchSteps(self._step_at, batch_size, device, total_steps)

    # --- training ---

    def train(self, epoch: int) -> None:
        """Train all probes for one epoch; epochs are numbered from 1."""
        orders = [self.rows[s.rows][epoch_order(self.n_rows, s.order, epoch - 1)] for s in self.seeds]
        self.loss.zero_()
        batch_size = self.training.batch_size
        for rows in self._blocks(orders):
            self._load_block(rows)
            done = 0
            if self.steps is not None:
                done = rows.shape[1] // batch_size
                self.steps.run(done)
            for start in range(done * batch_size, rows.shape[1], batch_size):
                batch = slice(start, min(start + batch_size, rows.shape[1]))
                self._step(self.block_states[:, batch], self.block_labels[:, batch])

    def _blocks(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
        """Rows of every seed, (S, n), in blocks (S, b) that can be loaded."""
        return torch.from_numpy(np.stack(rows)).to(self.states.device).split(self.block_states.shape[1], 1)

    def _load_block(self, rows: Tensor) -> None:
        """Load the next rows (S, b) of every seed into `block_states` (U, b, d) and `block_labels` (U, b, G)."""
        loaded = self.block_states[:, : rows.shape[1]]
        if self.layers is not None:
            self.states.layer_rows(rows[self.seed_of], self.layers, self.block_states)
        else:
            by_seed = [self.states.rows(seed_rows) for seed_rows in rows]
            by_group = [by_seed[self.seeds.index(group.seeds)] for group in self.groups]
            gather_neurons(by_group, [group.neurons for group in self.groups], self.block_states)
        if self.mean is not None and self.std is not None:
            loaded.sub_(self.mean).div_(self.std)
        labels = self.labels[:, rows]  # (tasks, S, b)
        self.block_labels[:, : rows.shape[1]] = labels[self.task_of, self.seed_of[:, None]].transpose(1, 2)

    def _step_at(self, offset: Tensor) -> None:
        """One step on the batch that starts at this offset (0-d, on the device) of the loaded block."""
        index = offset + self.offsets
        self._step(self.block_states.index_select(1, index), self.block_labels.index_select(1, index))

    def _step(self, states: Tensor, labels: Tensor) -> None:
        """One optimizer step on states (U, B, d) and labels (U, B, G)."""
        rows = states.shape[1]
        losses, output_grad = self._losses(states, labels)
        self.loss.add_(
            losses, alpha=1 / (self.n_steps * rows if self.training.like_finetuning else self.n_rows)
        )
        output_grad = output_grad.div_(rows)
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
        self.optimizer.step()

    def _losses(self, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the losses over a batch, (U, G), and its gradient with respect to the outputs, (U, B, K)."""
        outputs = torch.baddbmm(self.bias, states, self.weight)  # (U, B, K)
        if self.training.kind == "regression":
            error = outputs.sub_(labels)
            return error.square().sum(1), error.mul_(2)
        log_probs = torch.log_softmax(outputs.unflatten(-1, (self.width, self.n_outputs)), -1)
        labels = labels[..., None]  # (U, B, G, 1)
        losses = -log_probs.gather(-1, labels).sum((1, 3))
        gradient = log_probs.exp_()
        gradient.scatter_add_(-1, labels, torch.full_like(gradient[..., :1], -1.0))
        return losses, gradient.flatten(2)

    def _weight_norms(self) -> Tensor:
        """The L2 norm of the weights of each column's probe, (U, 1, K)."""
        squares = self.weight.square().sum(1).view(len(self.groups), self.width, self.n_outputs).sum(-1)
        return squares.sqrt().clamp_(min=1e-12).repeat_interleave(self.n_outputs, 1)[:, None]

    # --- early stopping ---

    def finish_epoch(self, epoch: int) -> int:
        """Keep the best weights, and store and remove the probes that ran all epochs, stopped early or diverged.

        Returns:
            The number of probe epochs that were run, or are skipped by probes that finish before their last epoch.
        """
        train_loss = self.loss.cpu()  # (U, G)
        monitored = self._held_out_losses() if self.n_held_out else train_loss
        better = monitored < self.best_loss if self.n_held_out else torch.isfinite(monitored)
        diverged = ~(torch.isfinite(train_loss) & torch.isfinite(monitored))
        self.best_train[better], self.best_epoch[better] = train_loss[better], epoch
        if self.n_held_out:
            self.best_loss[better] = monitored[better]
            columns = better.to(self.weight.device).repeat_interleave(self.n_outputs, 1)[:, None]
            self.best_weight = torch.where(columns, self.weight, self.best_weight)
            self.best_bias = torch.where(columns, self.bias, self.best_bias)
        epochs, finished = 0, list[tuple[int, int, int]]()  # (group, column, probe)
        for u, group in enumerate(self.groups):
            for g, p in enumerate(group.indices):
                if p in self.results:
                    continue
                spec = self.specs[p]
                stops = spec.patience is not None and epoch - int(self.best_epoch[u, g]) >= spec.patience
                ends = epoch == self._max_epochs(spec) or bool(diverged[u, g])
                epochs += 1
                if ends or (stops and self.n_held_out):
                    epochs += self._max_epochs(spec) - epoch
                    finished.append((u, g, p))
        if finished:
            self._store(finished, epoch, diverged)
            self._remove_finished()
        return epochs

    def _held_out_losses(self) -> Tensor:
        """Mean held-out loss of every probe, (U, G), on the host."""
        total = torch.zeros_like(self.loss)
        for rows in self._blocks([self.held_out[s.rows] for s in self.seeds]):
            self._load_block(rows)
            loaded = self.block_states[:, : rows.shape[1]], self.block_labels[:, : rows.shape[1]]
            total += self._losses(*loaded)[0]
        return (total / self.n_held_out).cpu()

    def _store(self, finished: Sequence[tuple[int, int, int]], epoch: int, diverged: Tensor) -> None:
        """Add finished probes, given as (group, column, probe), to the results."""
        weights = self.best_weight.cpu().unflatten(-1, (self.width, self.n_outputs))  # (U, d, G, C)
        biases = self.best_bias.cpu().view(len(self.groups), self.width, self.n_outputs)
        for u, g, p in finished:
            spec, weight, bias, error = self.specs[p], weights[u, :, g].clone(), biases[u, g].clone(), None
            if spec.standardize and self.mean is not None and self.std is not None:
                weight /= self.std[u, 0].cpu()[:, None]
                bias -= self.mean[u, 0].cpu() @ weight
            if diverged[u, g]:
                error = (
                    f"the loss was not a finite number in epoch {epoch}: try a smaller lr (now {self._lr(spec):g}), "
                    "or standardize"
                )
            self.results[p] = FittedProbe(
                spec,
                weight,
                bias,
                train_loss=float(self.best_train[u, g]),
                held_out_loss=float(self.best_loss[u, g]) if self.n_held_out else math.nan,
                epoch=int(self.best_epoch[u, g]),
                epochs_run=epoch,
                error=error,
            )

    def _remove_finished(self) -> None:
        """Remove groups of which all probes are finished; with a fused optimizer, only if these are all groups."""
        stays = [any(p not in self.results for p in group.indices) for group in self.groups]
        if not any(stays):
            self.groups = []
            self.steps = None  # breaks a reference cycle, so that memory is freed at once
        if all(stays) or not any(stays) or not isinstance(self.optimizer, ColumnAdam):
            return
        left = torch.tensor([u for u, stay in enumerate(stays) if stay])
        self.groups, index = [self.groups[u] for u in left], left.to(self.weight.device)
        self.weight, self.bias = self.optimizer.keep(index)
        for name in ("l1", "l2", "mean", "std"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name)[index])
        if self.n_held_out:
            self.best_weight, self.best_bias = self.best_weight[index], self.best_bias[index]
        else:
            self.best_weight, self.best_bias = self.weight, self.bias
        for name in ("best_loss", "best_train", "best_epoch"):
            setattr(self, name, getattr(self, name)[left])
        self._allocate()


def _linear_parameters(seed: int, d: int, n_outputs: int) -> Tensor:
    """(d + 1, C), uniform in +-1/sqrt(d), the initialization of torch.nn.Linear; the last row is the bias."""
    return rng.uniform(seed, "probe", (d + 1, n_outputs)).mul_(2).sub_(1).div_(math.sqrt(d))


def _classifier_parameters(seed: int, d: int, n_outputs: int) -> Tensor:
    """(d + 1, C): the initial weights of the classifier of a finetuned model with this seed; the bias is 0."""
    weight = rng.normal(seed, "classifier.weight", (n_outputs, d), CLASSIFIER_STD)
    return torch.cat([weight.T, torch.zeros(1, n_outputs)])
