"""Sentence-level linear probes, trained together: every layer and seed is one slice of a batched (P, H, C) problem.

    fitted = fit(SentenceStates(states, device), labels, jobs, n_outputs=2)

Each probe is a softmax (or least squares) regression with its own training subset, order of examples, initial weights,
learning rate and early stopping: the loss on a held-out part of its subset decides when it stops and which epoch's
weights are used. All randomness depends only on the probe's seed, so the result of a probe does not depend on the
other probes, except for rounding. Probes that have stopped are removed from the batch.

By default hidden states are used unchanged. With `standardize` each feature is scaled to mean 0 and standard deviation
1 on the probe's training part. This helps with features of very different scale, which plain Adam learns slowly, but
the papers do not do it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whichlayers import rng
from whichlayers.data.batches import epoch_order
from whichlayers.data.tasks import Kind
from whichlayers.errors import WhichlayersError
from whichlayers.models.head import CLASSIFIER_STD
from whichlayers.probes.cuda_graphs import GraphedStep
from whichlayers.probes.steps import OnProgress
from whichlayers.trial import Probe

BETAS, EPS = (0.9, 0.999), 1e-8
BLOCK_BYTES = 1 << 26  # of states that are evaluated at once
MAX_DEVICE_FRACTION = 0.5  # of a GPU's free memory, for the states of a split; larger ones stay on the host


@dataclass(frozen=True, eq=False)
class ProbeJob:
    """One probe to train, and the rows of its training subset."""

    probe: Probe
    seed: int
    rows: np.ndarray  # (size,) int64


@dataclass(frozen=True, eq=False)
class FittedSentenceProbe:
    """A trained probe at its best epoch. The weights apply to hidden states that are not standardized."""

    weight: Tensor  # (H, C)
    bias: Tensor  # (C,)
    epoch: int  # from 1
    epochs_run: int
    train_loss: float  # mean over the epoch's steps
    held_out_loss: float  # NaN if nothing was held out
    error: str | None = None


class SentenceStates:
    """Pooled hidden states (n, layers, H) of the examples of a split, on the device if they fit."""

    def __init__(self, states: np.ndarray | Tensor, device: str | torch.device = "cpu"):
        whole = torch.from_numpy(states) if isinstance(states, np.ndarray) else states
        self.n_examples, self.n_layers, self.hidden_size = whole.shape
        self.device = torch.device(device)
        flat = whole.reshape(-1, self.hidden_size)
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            if flat.numel() * flat.element_size() < MAX_DEVICE_FRACTION * free:
                flat = flat.to(self.device)
        self.flat = flat  # (n * layers, H)

    def take(self, rows: Tensor, layers: Tensor) -> Tensor:
        """Rows (P, B) of layers (P,) as (P, B, H) float32 on the device."""
        index = (rows * self.n_layers + layers[:, None]).to(self.flat.device)
        found = self.flat.index_select(0, index.flatten())
        return found.to(self.device, torch.float32).view(*rows.shape, self.hidden_size)


def held_out_count(size: int, fraction: float) -> int:
    """Number of held-out examples of a subset: at least 1 unless the fraction is 0."""
    return max(1, round(fraction * size)) if fraction else 0


def fit(
    states: SentenceStates,
    labels: np.ndarray,
    jobs: Sequence[ProbeJob],
    n_outputs: int,
    kind: Kind = "classification",
    on_progress: OnProgress | None = None,
) -> list[FittedSentenceProbe]:
    """Train all probes together.

    Args:
        states: Hidden states of n examples.
        labels: (n,) class indices, or targets of a regression.
        jobs: The probes to train. They must agree in size, batch_size and held_out.
        n_outputs: Number of classes, C; 1 for regression.
        kind: Type of the task, which determines the loss.
        on_progress: Called with the number of probe epochs that were run, or skipped because a probe stopped early.

    Returns:
        One fitted probe per job, in the same order.
    """
    batch_size, held_out = _shared_settings(jobs)
    trainer = _SentenceProbeTrainer(states, labels, jobs, n_outputs, kind, held_out)
    max_epochs = max(job.probe.max_epochs for job in jobs)
    for epoch in range(1, max_epochs + 1):
        trainer.train(epoch, batch_size)
        trainer.update_best(epoch)
        trained = len(trainer.active)
        trainer.remove_finished(epoch)
        if on_progress is not None:
            skipped = sum(jobs[p].probe.max_epochs - epoch for p in trainer.finished)
            on_progress(trained + skipped)
        if not trainer.active:
            break
    return [trainer.results[p] for p in range(len(jobs))]


def predict(states: SentenceStates, fitted: Sequence[FittedSentenceProbe], layers: Sequence[int]) -> Tensor:
    """Outputs of every probe for every example, (P, n, C), on the host; `layers`: the layer of each probe."""
    theta = torch.stack([torch.cat([f.weight, f.bias[None]]) for f in fitted]).to(states.device)
    layer_of = torch.tensor(layers, device=states.device)
    rows = torch.arange(states.n_examples, device=states.device).expand(len(fitted), -1)
    return torch.cat(
        [_outputs(theta, states.take(block, layer_of)).cpu() for block in _row_blocks(rows, states)], 1
    )


def losses(outputs: Tensor, labels: Tensor, kind: Kind) -> Tensor:
    """Loss of each example: outputs (..., n, C) and labels (..., n) -> (..., n)."""
    if kind == "regression":
        return (outputs.squeeze(-1) - labels) ** 2
    flat = F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


class _SentenceProbeTrainer:
    """Trains P probes; `theta` (P, H + 1, C) holds the weights of the active ones, with the bias as the last row."""

    def __init__(
        self,
        states: SentenceStates,
        labels: np.ndarray,
        jobs: Sequence[ProbeJob],
        n_outputs: int,
        kind: Kind,
        n_held_out: int,
    ):
        self.states, self.jobs, self.kind, self.n_held_out = states, jobs, kind, n_held_out
        self.active, self.finished = list(range(len(jobs))), list[int]()
        self.results: dict[int, FittedSentenceProbe] = {}
        device = states.device
        dtype = np.float32 if kind == "regression" else np.int64
        self.labels = torch.from_numpy(labels.astype(dtype)).to(device)
        self.held_out_rows, self.train_rows = zip(*map(self._split_rows, jobs), strict=True)
        initial = [_initial_parameters(job.seed, states.hidden_size, n_outputs) for job in jobs]
        self.theta = torch.stack(initial).to(device)
        self.exp_avg = torch.zeros_like(self.theta)  # Adam's moments
        self.exp_avg_sq = torch.zeros_like(self.theta)
        self.steps = 0

        def per_probe(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device).view(-1, 1, 1)

        self.lr = per_probe([job.probe.lr for job in jobs])
        self.decay = per_probe([job.probe.lr * job.probe.weight_decay for job in jobs])
        self.layers = torch.tensor([job.probe.layer for job in jobs], device=device)
        scale = [self._scale(p) for p in range(len(jobs))]
        self.mean = torch.stack([mean for mean, _ in scale])[:, None].to(device)  # (P, 1, H)
        self.std = torch.stack([std for _, std in scale])[:, None].to(device)
        self.standardized = any(job.probe.standardize for job in jobs)
        self.best = self.theta.clone()
        self.best_loss = torch.full((len(jobs),), math.inf)
        self.best_train = torch.full((len(jobs),), math.nan)
        self.best_epoch = torch.zeros(len(jobs), dtype=torch.long)
        self.diverged = torch.zeros(len(jobs), dtype=torch.bool)

    def _split_rows(self, job: ProbeJob) -> tuple[np.ndarray, np.ndarray]:
        """(held-out rows, training rows), determined by the job's seed."""
        if not self.n_held_out:
            return job.rows[:0], job.rows
        order = rng.permutation(job.seed, "held out", len(job.rows))
        return job.rows[order[: self.n_held_out]], job.rows[np.sort(order[self.n_held_out :])]

    def _scale(self, p: int) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (H,) of the features on the probe's training rows; 0 and 1 if unscaled."""
        if not self.jobs[p].probe.standardize:
            return torch.zeros(self.states.hidden_size), torch.ones(self.states.hidden_size)
        rows = torch.from_numpy(self.train_rows[p]).to(self.states.device)[None]
        total, squares = torch.zeros(2, self.states.hidden_size, dtype=torch.float64)
        blocks = list(_row_blocks(rows, self.states))
        for block in blocks:
            total += self._states_of(block, p).sum(0).cpu()
        mean = total / rows.shape[1]
        for block in blocks:
            squares += (self._states_of(block, p) - mean.to(self.states.device)).square().sum(0).cpu()
        std = (squares / rows.shape[1]).sqrt()
        return mean.float(), torch.where(std > 0, std, 1.0).float()

    def _states_of(self, rows: Tensor, p: int) -> Tensor:
        """Rows (1, B) of the layer of probe p, as (B, H) float64."""
        return self.states.take(rows, self.layers[p : p + 1])[0].double()

    def _take(self, rows: Tensor) -> Tensor:
        """Inputs (P, B, H) of the active probes for rows (P, B), standardized if any probe has `standardize`."""
        states = self.states.take(rows, self.layers)
        return (states - self.mean) / self.std if self.standardized else states

    def train(self, epoch: int, batch_size: int) -> None:
        """Train every active probe for one epoch."""
        orders: dict[tuple[int, int], np.ndarray] = {}  # shared by probes of the same seed and subset
        for p in self.active:
            key = (self.jobs[p].seed, id(self.jobs[p].rows))
            if key not in orders:
                rows = self.train_rows[p]
                orders[key] = rows[epoch_order(len(rows), self.jobs[p].seed, epoch - 1)]
        index = {key: i for i, key in enumerate(orders)}
        device = self.states.device
        order_of = torch.tensor(
            [index[self.jobs[p].seed, id(self.jobs[p].rows)] for p in self.active], device=device
        )
        order = torch.from_numpy(np.stack(list(orders.values()))).to(device)  # (seeds, n)
        total = torch.zeros(len(self.active), device=device)
        start = self._run_full_batches(order, order_of, total, batch_size) if self.states.flat.is_cuda else 0
        for first in range(start, order.shape[1], batch_size):
            rows = order[:, first : first + batch_size][order_of]  # (P, B)
            self.steps += 1
            corrections = 1 - BETAS[0] ** self.steps, math.sqrt(1 - BETAS[1] ** self.steps)
            total += self._step(self._take(rows), self.labels[rows], *corrections)
        self.train_loss = (total / math.ceil(order.shape[1] / batch_size)).cpu()  # (P,)

    def _run_full_batches(self, order: Tensor, order_of: Tensor, total: Tensor, batch_size: int) -> int:
        """Run the steps of all full batches of the epoch with a CUDA graph; returns the index of the next row.

        Losses are added to `total` (P,).
        """
        steps, offsets = order.shape[1] // batch_size, torch.arange(batch_size, device=order.device)

        def step(offset: Tensor, number: Tensor) -> None:
            rows = order.index_select(1, offset + offsets)[order_of]
            corrections = (1 - BETAS[0] ** number).float(), (1 - BETAS[1] ** number).sqrt().float()
            total.add_(self._step(self._take(rows), self.labels[rows], *corrections))

        GraphedStep(step, batch_size, order.device, total_steps=steps, steps_done=self.steps).run(steps)
        self.steps += steps
        return steps * batch_size

    def _step(
        self,
        states: Tensor,
        labels: Tensor,
        first_correction: float | Tensor,
        second_correction: float | Tensor,
    ) -> Tensor:
        """One AdamW step on states (P, B, H) and labels (P, B); returns the mean loss of each probe, (P,).

        The corrections are Adam's bias corrections: 1 - beta1^t, and the square root of 1 - beta2^t.
        """
        outputs = _outputs(self.theta, states)  # (P, B, C)
        batch_losses = losses(outputs, labels, self.kind).mean(1)
        if self.kind == "regression":
            output_grad = 2 * (outputs - labels[..., None])
        else:
            output_grad = outputs.softmax(-1) - F.one_hot(labels, outputs.shape[-1])
        output_grad = output_grad / labels.shape[1]
        weight_grad, bias_grad = states.transpose(1, 2) @ output_grad, output_grad.sum(1, keepdim=True)
        gradient = torch.cat([weight_grad, bias_grad], 1)  # (P, H + 1, C)
        self.exp_avg.lerp_(gradient, 1 - BETAS[0])
        self.exp_avg_sq.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        denominator = self.exp_avg_sq.sqrt().div_(second_correction).add_(EPS)
        self.theta[:, :-1].mul_(1 - self.decay)  # no weight decay for the bias
        self.theta.sub_(self.exp_avg.div(denominator).mul_(self.lr / first_correction))
        return batch_losses

    def update_best(self, epoch: int) -> None:
        """Keep the weights of every active probe whose held-out loss is its lowest so far."""
        held_out = self._held_out_losses() if self.n_held_out else None
        monitored = self.train_loss if held_out is None else held_out
        active = torch.tensor(self.active)
        better = torch.isfinite(monitored) if held_out is None else monitored < self.best_loss[active]
        self.diverged[active] = ~(torch.isfinite(self.train_loss) & torch.isfinite(monitored))
        improved = active[better]
        self.best[improved.to(self.best.device)] = self.theta[better.to(self.theta.device)]
        self.best_train[improved], self.best_epoch[improved] = self.train_loss[better], epoch
        if held_out is not None:
            self.best_loss[improved] = held_out[better]

    def _held_out_losses(self) -> Tensor:
        """Mean held-out loss of every active probe, (P,), on the host."""
        rows = torch.from_numpy(np.stack([self.held_out_rows[p] for p in self.active])).to(self.states.device)
        total = torch.zeros(len(self.active), device=self.states.device)
        for block in _row_blocks(rows, self.states):
            outputs = _outputs(self.theta, self._take(block))
            total += losses(outputs, self.labels[block], self.kind).sum(1)
        return (total / rows.shape[1]).cpu()

    def remove_finished(self, epoch: int) -> None:
        """Store the results of probes that ran all epochs, stopped early or diverged, and remove them."""
        ended = []
        for p in self.active:
            probe, best = self.jobs[p].probe, int(self.best_epoch[p])
            stops_early = bool(self.n_held_out) and epoch - best >= probe.patience
            ended.append(epoch == probe.max_epochs or stops_early or bool(self.diverged[p]))
        self.finished = [p for p, ends in zip(self.active, ended, strict=True) if ends]
        for p in self.finished:
            self.results[p] = self._result(p, epoch)
        if not self.finished:
            return
        stays = torch.tensor([not ends for ends in ended], device=self.theta.device)
        self.active = [p for p, ends in zip(self.active, ended, strict=True) if not ends]
        for name in ("theta", "exp_avg", "exp_avg_sq", "lr", "decay", "layers", "mean", "std"):
            setattr(self, name, getattr(self, name)[stays])

    def _result(self, p: int, epoch: int) -> FittedSentenceProbe:
        index = self.active.index(p)
        std, mean = self.std[index, 0], self.mean[index, 0]  # (H,)
        weight = self.best[p, :-1] / std[:, None]
        bias = self.best[p, -1] - mean @ weight
        error = None
        if self.diverged[p]:
            error = (
                f"the loss was not a finite number in epoch {epoch}: try a smaller lr "
                f"(now {self.jobs[p].probe.lr:g}), or standardize"
            )
        held_out = float(self.best_loss[p]) if self.n_held_out else math.nan
        best = int(self.best_epoch[p])
        return FittedSentenceProbe(
            weight.cpu(), bias.cpu(), best, epoch, float(self.best_train[p]), held_out, error
        )


def _shared_settings(jobs: Sequence[ProbeJob]) -> tuple[int, int]:
    """(batch size, number of held-out examples) of all jobs."""
    if not jobs:
        raise WhichlayersError("there must be at least one probe to train, got none")
    found = {(len(job.rows), job.probe.batch_size, job.probe.held_out) for job in jobs}
    if len(found) > 1:
        raise WhichlayersError("probes that train together must agree in train_size, batch_size and held_out")
    size, batch_size, fraction = found.pop()
    n_held_out = held_out_count(size, fraction)
    if n_held_out >= size:
        raise WhichlayersError(
            f"train_size = {size} with held_out = {fraction:g} leaves no example to train the probe on:"
            " increase train_size or set held_out = 0"
        )
    return batch_size, n_held_out


def _initial_parameters(seed: int, hidden_size: int, n_outputs: int) -> Tensor:
    """(H + 1, C): the same initial weights as the classifier of a finetuned model with this seed; zero bias."""
    weight = rng.normal(seed, "classifier.weight", (n_outputs, hidden_size), CLASSIFIER_STD)
    return torch.cat([weight.T, torch.zeros(1, n_outputs)])


def _outputs(theta: Tensor, states: Tensor) -> Tensor:
    """Parameters (P, H + 1, C) and states (P, B, H) -> (P, B, C)."""
    return torch.baddbmm(theta[:, -1:], states, theta[:, :-1])


def _row_blocks(rows: Tensor, states: SentenceStates) -> tuple[Tensor, ...]:
    """Split rows (P, n) into blocks whose states fit into BLOCK_BYTES."""
    size = max(1, BLOCK_BYTES // (4 * states.hidden_size * len(rows)))
    return rows.split(size, 1)
