"""Linear probes trained all at once: every layer, every seed, one batched problem of shape (P, H, C).

    fitted = fit(Table(features, device), labels, jobs, n_outputs=2)

Each probe is a softmax (or least squares) regression with its own subset, order, starting values, learning
rate and end: the part of its subset that is held out decides at which epoch it stops and which it keeps. All
it draws depends on its seed alone, so its result does not depend on its neighbours, beyond rounding. Probes
that have stopped leave the batch.

The states are read as they are unless `standardize` asks for each feature to have mean 0 and sd 1 on the
probe's training part: that suits features of unequal scale, which plain Adam learns slowly, but is not what
the papers describe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whichlayers import rng
from whichlayers.data.batches import epoch_order
from whichlayers.data.tasks import Kind
from whichlayers.errors import WhichlayersError
from whichlayers.models.head import CLASSIFIER_SD
from whichlayers.probes.cuda_graphs import Replay
from whichlayers.trial import Probe

BETAS, EPS = (0.9, 0.999), 1e-8
GATHERED_BYTES = 1 << 26  # of states that are evaluated at once
SHARE_OF_DEVICE = 0.5  # of a GPU's free memory that a table may take; a larger one stays with the host

OnEpoch = Callable[[int], None]  # how many probes went through one more epoch, or will not need it


@dataclass(frozen=True, eq=False)
class Job:
    """One probe to train, and the rows of the table that are its training subset."""

    probe: Probe
    seed: int
    rows: np.ndarray  # (size,) int64


@dataclass(frozen=True, eq=False)
class Fitted:
    """A probe at the epoch that is kept. The weights are for states as they are in the table."""

    weight: Tensor  # (H, C)
    bias: Tensor  # (C,)
    epoch: int  # from 1
    epochs_run: int
    train_loss: float  # mean over the epoch's steps
    held_loss: float  # NaN where nothing was held out
    error: str | None = None


class Table:
    """States (n, layers, H) that rows are taken from, on the device if they fit there."""

    def __init__(self, states: np.ndarray | Tensor, device: str | torch.device = "cpu"):
        whole = torch.from_numpy(states) if isinstance(states, np.ndarray) else states
        self.n, self.layers, self.hidden = whole.shape
        self.device = torch.device(device)
        flat = whole.reshape(-1, self.hidden)
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            if flat.numel() * flat.element_size() < SHARE_OF_DEVICE * free:
                flat = flat.to(self.device)
        self.flat = flat  # (n * layers, H)

    def take(self, rows: Tensor, layers: Tensor) -> Tensor:
        """(P, B) rows and (P,) layers -> (P, B, H) float32 on the device."""
        index = (rows * self.layers + layers[:, None]).to(self.flat.device)
        found = self.flat.index_select(0, index.flatten())
        return found.to(self.device, torch.float32).view(*rows.shape, self.hidden)


def held_out_count(size: int, share: float) -> int:
    """How many of a subset's examples are held out: at least one where any are wanted."""
    return max(1, round(share * size)) if share else 0


def fit(
    table: Table,
    labels: np.ndarray,
    jobs: Sequence[Job],
    n_outputs: int,
    kind: Kind = "classification",
    on_epoch: OnEpoch | None = None,
) -> list[Fitted]:
    """Train all jobs, which must agree in size, batch_size and held_out."""
    batch, held = _shared(jobs)
    run = _Batch(table, labels, jobs, n_outputs, kind, held)
    longest = max(job.probe.max_epochs for job in jobs)
    for epoch in range(1, longest + 1):
        run.train(epoch, batch)
        run.judge(epoch)
        alive = len(run.alive)
        run.dismiss(epoch)
        if on_epoch is not None:
            left = sum(jobs[p].probe.max_epochs - epoch for p in run.dismissed)
            on_epoch(alive + left)
        if not run.alive:
            break
    return [run.results[p] for p in range(len(jobs))]


def predict(table: Table, fitted: Sequence[Fitted], layers: Sequence[int]) -> Tensor:
    """(P, n, C) outputs of every probe for every row of a table, on the host."""
    theta = torch.stack([torch.cat([f.weight, f.bias[None]]) for f in fitted]).to(table.device)
    at = torch.tensor(layers, device=table.device)
    rows = torch.arange(table.n, device=table.device).expand(len(fitted), -1)
    return torch.cat([_outputs(theta, table.take(part, at)).cpu() for part in _parts(rows, table)], 1)


def losses(outputs: Tensor, labels: Tensor, kind: Kind) -> Tensor:
    """(..., n, C) outputs and (..., n) labels -> (..., n)."""
    if kind == "regression":
        return (outputs.squeeze(-1) - labels) ** 2
    flat = F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


class _Batch:
    """The probes that still train. `theta` is (P, H + 1, C): weights, and the bias as the last row."""

    def __init__(
        self,
        table: Table,
        labels: np.ndarray,
        jobs: Sequence[Job],
        n_outputs: int,
        kind: Kind,
        held: int,
    ):
        self.table, self.jobs, self.kind, self.held = table, jobs, kind, held
        self.alive, self.dismissed = list(range(len(jobs))), list[int]()
        self.results: dict[int, Fitted] = {}
        device = table.device
        dtype = np.float32 if kind == "regression" else np.int64
        self.labels = torch.from_numpy(labels.astype(dtype)).to(device)
        self.held_rows, self.train_rows = zip(*map(self._parts_of, jobs), strict=True)
        start = [_starting_values(job.seed, table.hidden, n_outputs) for job in jobs]
        self.theta = torch.stack(start).to(device)
        self.first, self.second = torch.zeros_like(self.theta), torch.zeros_like(self.theta)  # Adam's moments
        self.steps = 0

        def each(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device).view(-1, 1, 1)

        self.lr = each([job.probe.lr for job in jobs])
        self.decay = each([job.probe.lr * job.probe.weight_decay for job in jobs])
        self.layers = torch.tensor([job.probe.layer for job in jobs], device=device)
        scale = [self._scale(p) for p in range(len(jobs))]
        self.mean = torch.stack([mean for mean, _ in scale])[:, None].to(device)  # (P, 1, H)
        self.sd = torch.stack([sd for _, sd in scale])[:, None].to(device)
        self.standardized = any(job.probe.standardize for job in jobs)
        self.best = self.theta.clone()
        self.best_loss = torch.full((len(jobs),), math.inf)
        self.best_train = torch.full((len(jobs),), math.nan)
        self.best_epoch = torch.zeros(len(jobs), dtype=torch.long)
        self.broken = torch.zeros(len(jobs), dtype=torch.bool)

    def _parts_of(self, job: Job) -> tuple[np.ndarray, np.ndarray]:
        """(held out, trained on), by the job's seed."""
        if not self.held:
            return job.rows[:0], job.rows
        order = rng.permutation(job.seed, "held out", len(job.rows))
        return job.rows[order[: self.held]], job.rows[np.sort(order[self.held :])]

    def _scale(self, p: int) -> tuple[Tensor, Tensor]:
        """Mean and sd (H,) of the features on the probe's training part."""
        if not self.jobs[p].probe.standardize:
            return torch.zeros(self.table.hidden), torch.ones(self.table.hidden)
        rows = torch.from_numpy(self.train_rows[p]).to(self.table.device)[None]
        total, square = torch.zeros(2, self.table.hidden, dtype=torch.float64)
        parts = list(_parts(rows, self.table))
        for part in parts:
            total += self._states(part, p).sum(0).cpu()
        mean = total / rows.shape[1]
        for part in parts:
            square += (self._states(part, p) - mean.to(self.table.device)).square().sum(0).cpu()
        sd = (square / rows.shape[1]).sqrt()
        return mean.float(), torch.where(sd > 0, sd, 1.0).float()

    def _states(self, rows: Tensor, p: int) -> Tensor:
        return self.table.take(rows, self.layers[p : p + 1])[0].double()  # (B, H)

    def _take(self, rows: Tensor) -> Tensor:
        states = self.table.take(rows, self.layers)
        return (states - self.mean) / self.sd if self.standardized else states

    def train(self, epoch: int, batch: int) -> None:
        """One epoch of every probe that is left."""
        orders: dict[tuple[int, int], np.ndarray] = {}  # probes of one seed and subset share theirs
        for p in self.alive:
            key = (self.jobs[p].seed, id(self.jobs[p].rows))
            if key not in orders:
                rows = self.train_rows[p]
                orders[key] = rows[epoch_order(len(rows), self.jobs[p].seed, epoch - 1)]
        place = {key: i for i, key in enumerate(orders)}
        device = self.table.device
        of_probe = torch.tensor(
            [place[self.jobs[p].seed, id(self.jobs[p].rows)] for p in self.alive], device=device
        )
        order = torch.from_numpy(np.stack(list(orders.values()))).to(device)  # (seeds, n)
        total = torch.zeros(len(self.alive), device=device)
        start = self._replayed(order, of_probe, total, batch) if self.table.flat.is_cuda else 0
        for first in range(start, order.shape[1], batch):
            rows = order[:, first : first + batch][of_probe]  # (P, B)
            self.steps += 1
            parts = 1 - BETAS[0] ** self.steps, math.sqrt(1 - BETAS[1] ** self.steps)
            total += self._step(self._take(rows), self.labels[rows], *parts)
        self.train_loss = (total / math.ceil(order.shape[1] / batch)).cpu()  # (P,)

    def _replayed(self, order: Tensor, of_probe: Tensor, total: Tensor, batch: int) -> int:
        """All full batches of the epoch; returns where they end."""
        steps, offsets = order.shape[1] // batch, torch.arange(batch, device=order.device)

        def step(place: Tensor, number: Tensor) -> None:
            rows = order.index_select(1, place + offsets)[of_probe]
            parts = (1 - BETAS[0] ** number).float(), (1 - BETAS[1] ** number).sqrt().float()
            total.add_(self._step(self._take(rows), self.labels[rows], *parts))

        Replay(step, batch, order.device, of=steps, done=self.steps).run(steps)
        self.steps += steps
        return steps * batch

    def _step(
        self, states: Tensor, labels: Tensor, first_part: float | Tensor, second_part: float | Tensor
    ) -> Tensor:
        """AdamW on the mean loss of each probe's batch; gives those losses (P,).

        The parts are how much of its moments Adam has seen: 1 - beta1^t, and the root of 1 - beta2^t.
        """
        outputs = _outputs(self.theta, states)  # (P, B, C)
        batch_losses = losses(outputs, labels, self.kind).mean(1)
        if self.kind == "regression":
            slope = 2 * (outputs - labels[..., None])
        else:
            slope = outputs.softmax(-1) - F.one_hot(labels, outputs.shape[-1])
        slope = slope / labels.shape[1]
        gradient = torch.cat([states.transpose(1, 2) @ slope, slope.sum(1, keepdim=True)], 1)  # as theta
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        spread = self.second.sqrt().div_(second_part).add_(EPS)
        self.theta[:, :-1].mul_(1 - self.decay)  # the bias is not decayed
        self.theta.sub_(self.first.div(spread).mul_(self.lr / first_part))
        return batch_losses

    def judge(self, epoch: int) -> None:
        """Keep the weights of every probe that did better on its held-out part than ever before."""
        held = self._held_losses() if self.held else None
        watched = self.train_loss if held is None else held
        now = torch.tensor(self.alive)
        better = torch.isfinite(watched) if held is None else watched < self.best_loss[now]
        self.broken[now] = ~(torch.isfinite(self.train_loss) & torch.isfinite(watched))
        chosen = now[better]
        self.best[chosen.to(self.best.device)] = self.theta[better.to(self.theta.device)]
        self.best_train[chosen], self.best_epoch[chosen] = self.train_loss[better], epoch
        if held is not None:
            self.best_loss[chosen] = held[better]

    def _held_losses(self) -> Tensor:
        rows = torch.from_numpy(np.stack([self.held_rows[p] for p in self.alive])).to(self.table.device)
        total = torch.zeros(len(self.alive), device=self.table.device)
        for part in _parts(rows, self.table):
            outputs = _outputs(self.theta, self._take(part))
            total += losses(outputs, self.labels[part], self.kind).sum(1)
        return (total / rows.shape[1]).cpu()

    def dismiss(self, epoch: int) -> None:
        """Probes that are at their end leave the batch."""
        over = []
        for p in self.alive:
            probe, best = self.jobs[p].probe, int(self.best_epoch[p])
            impatient = bool(self.held) and epoch - best >= probe.patience
            over.append(epoch == probe.max_epochs or impatient or bool(self.broken[p]))
        self.dismissed = [p for p, ends in zip(self.alive, over, strict=True) if ends]
        for p in self.dismissed:
            self.results[p] = self._result(p, epoch)
        if not self.dismissed:
            return
        stays = torch.tensor([not ends for ends in over], device=self.theta.device)
        self.alive = [p for p, ends in zip(self.alive, over, strict=True) if not ends]
        for name in ("theta", "first", "second", "lr", "decay", "layers", "mean", "sd"):
            setattr(self, name, getattr(self, name)[stays])

    def _result(self, p: int, epoch: int) -> Fitted:
        place = self.alive.index(p)
        sd, mean = self.sd[place, 0], self.mean[place, 0]  # (H,)
        weight = self.best[p, :-1] / sd[:, None]
        bias = self.best[p, -1] - mean @ weight
        error = None
        if self.broken[p]:
            error = (
                f"the loss was not a finite number in epoch {epoch}: try a smaller lr "
                f"(now {self.jobs[p].probe.lr:g}), or standardize"
            )
        held = float(self.best_loss[p]) if self.held else math.nan
        best = int(self.best_epoch[p])
        return Fitted(weight.cpu(), bias.cpu(), best, epoch, float(self.best_train[p]), held, error)


def _shared(jobs: Sequence[Job]) -> tuple[int, int]:
    """(batch size, number held out) of all jobs."""
    if not jobs:
        raise WhichlayersError("there must be at least one probe to train, got none")
    found = {(len(job.rows), job.probe.batch_size, job.probe.held_out) for job in jobs}
    if len(found) > 1:
        raise WhichlayersError("probes that train together must agree in train_size, batch_size and held_out")
    size, batch, share = found.pop()
    held = held_out_count(size, share)
    if held >= size:
        raise WhichlayersError(
            f"train_size = {size} with held_out = {share:g} leaves no example to train the probe on:"
            " give it more examples, or held_out = 0"
        )
    return batch, held


def _starting_values(seed: int, hidden: int, outputs: int) -> Tensor:
    """(H + 1, C): those of the classifier that the same seed is finetuned with."""
    weight = rng.normal(seed, "classifier.weight", (outputs, hidden), CLASSIFIER_SD)
    return torch.cat([weight.T, torch.zeros(1, outputs)])


def _outputs(theta: Tensor, states: Tensor) -> Tensor:
    return torch.baddbmm(theta[:, -1:], states, theta[:, :-1])  # (P, B, C)


def _parts(rows: Tensor, table: Table) -> tuple[Tensor, ...]:
    """(P, n) rows in pieces whose states may be held at once."""
    size = max(1, GATHERED_BYTES // (4 * table.hidden * len(rows)))
    return rows.split(size, 1)
