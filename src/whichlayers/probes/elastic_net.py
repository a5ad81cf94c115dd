"""Linear softmax probes with an elastic net, trained all at once: layers x lambdas x seeds x label sets.

    table = WordTable(features.states, "cuda")
    problems = layer_problems(table, seeds=(0, 1, 2), l1=(0, 1e-4), l2=(0, 1e-4))
    probes = fit_probes(table, labels, n_tags, problems)
    accuracies(dev_table, dev_labels, probes)

The loss of a probe is the mean cross-entropy of a batch + l1 * sum |W| + l2 * sum W^2; `norm = "plain"` takes
the square root of the second sum, as NeuroX does. Biases go free. Adam, shuffled batches of 512, 10 epochs.

Problems of one seed read the same batches. Those that read the same neurons of it are the columns of one matrix
product, and all neurons and seeds are a leading axis, so that a step of all is one `baddbmm` and one product for
the gradient, which is written down: no autograd. Groups of problems are as large as memory allows.
Starting values and order depend on the seed alone, so that a probe's result does not depend on its neighbours,
beyond rounding. Nothing in a step waits for the device; on a GPU the steps are replayed from a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.probes.cuda_graphs import Replay
from whichlayers.probes.evaluation import accuracies, code_lengths, tag_accuracies
from whichlayers.probes.probe_batching import (
    Bundle,
    FittedProbe,
    ProbeTraining,
    Problem,
    bundled,
    layer_problems,
)
from whichlayers.probes.word_table import WordTable, gathered, matrix_precision

__all__ = [
    "FittedProbe",
    "ProbeTraining",
    "Problem",
    "accuracies",
    "code_lengths",
    "fit_probes",
    "layer_problems",
    "tag_accuracies",
]

BLOCK_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}  # of states that are gathered at once
REPLAYED_ON = {"cuda"}  # kinds of device whose steps wait for the host that launches them
OnStep = Callable[[int], None]  # how many probes went through one more epoch


def fit_probes(
    table: WordTable,
    labels: np.ndarray,
    n_tags: int,
    problems: Sequence[Problem],
    training: ProbeTraining | None = None,
    on_step: OnStep | None = None,
    rows: np.ndarray | Mapping[int, np.ndarray] | None = None,
) -> list[FittedProbe]:
    """Train all problems; `labels` is (n,) or (tasks, n), each 0 to n_tags - 1; `rows`: train on these alone, or on
    those of a problem's seed, as many for each."""
    training = training or ProbeTraining()
    which = _rows_by_seed(rows, table, problems)
    marked = _training_labels(labels, table, n_tags, problems, which)
    table, problems, originals = _narrowed(table, problems)
    results: dict[int, FittedProbe] = {}
    for group in bundled(problems, n_tags, training.batch_size, table.device, by_seed=True):
        run = _Run(table, marked, which, n_tags, group, problems, training)
        for epoch in range(training.epochs):
            run.train(epoch)
            if on_step is not None:
                on_step(sum(len(bundle.places) for bundle in group))
        results |= run.results(originals)
    return [results[p] for p in range(len(problems))]


class _Run:
    """One group: U bundles of G problems each, d neurons, C tags; K = G * C."""

    def __init__(
        self,
        table: WordTable,
        labels: Tensor,
        rows: Mapping[int, np.ndarray],
        n_tags: int,
        group: list[Bundle],
        problems: Sequence[Problem],
        training: ProbeTraining,
    ):
        self.table, self.labels, self.rows, self.group, self.training = table, labels, rows, group, training
        self.n_rows = len(rows[group[0].seed])
        self.problems, self.n_tags, self.width = problems, n_tags, len(group[0].places)
        device = table.device
        self.seeds = sorted({bundle.seed for bundle in group})
        self.seed_of = torch.tensor([self.seeds.index(b.seed) for b in group], device=device)  # (U,)
        self.task_of = torch.tensor([[problems[p].task for p in b.places] for b in group], device=device)
        starts = {seed: _starting_values(seed, len(group[0].neurons), n_tags) for seed in self.seeds}
        repeated = [starts[b.seed].repeat(1, self.width) for b in group]  # (d + 1, K)
        theta = torch.stack(repeated).to(device)
        self.weight, self.bias = (
            theta[:, :-1].contiguous(),
            theta[:, -1:].contiguous(),
        )  # (U, d, K), (U, 1, K)
        self.adam = torch.optim.Adam(
            [self.weight, self.bias], lr=training.lr, fused=True, capturable=device.type == "cuda"
        )
        self.weight.grad, self.bias.grad = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        self.l1, self.l2 = (
            self._penalty([[value(problems[p]) for p in b.places] for b in group]) for value in _LAMBDAS
        )
        batch = training.batch_size
        row_bytes = 4 * (len(self.seeds) * table.neurons + len(group) * len(group[0].neurons))
        size = min(max(1, BLOCK_BYTES[device.type] // (row_bytes * batch)) * batch, self.n_rows)
        self.states = torch.empty(len(group), size, len(group[0].neurons), device=device)  # of the next rows
        self.marks = torch.empty(len(group), size, self.width, dtype=torch.int64, device=device)
        self.loss = torch.zeros(len(group), self.width, device=device)
        self.offsets = torch.arange(batch, device=device)
        steps = training.epochs * (self.n_rows // batch)
        replayed = device.type in REPLAYED_ON
        self.replay = Replay(self._batch_at, batch, device, of=steps) if replayed else None

    def _penalty(self, values: list[list[float]]) -> Tensor | None:
        """(U, 1, K), or None where no problem has any."""
        found = torch.tensor(values, device=self.table.device)
        return found.repeat_interleave(self.n_tags, 1)[:, None] if bool(found.any()) else None

    def train(self, epoch: int) -> None:
        orders = np.stack(
            [self.rows[s][rng.permutation(s, f"order/{epoch}", self.n_rows)] for s in self.seeds]
        )
        self.loss.zero_()
        batch = self.training.batch_size
        with torch.no_grad(), matrix_precision(self.training.precision, self.table.device):
            for rows in torch.from_numpy(orders).to(self.table.flat.device).split(self.states.shape[1], 1):
                self._load(rows)
                done = 0
                if self.replay is not None:
                    done = rows.shape[1] // batch
                    self.replay.run(done)
                for start in range(done * batch, rows.shape[1], batch):
                    here = slice(start, min(start + batch, rows.shape[1]))
                    self._step(self.states[:, here], self.marks[:, here])

    def _load(self, rows: Tensor) -> None:
        """`states` (U, b, d) and `marks` (U, b, G) of the next rows (S, b) of every seed's order: some batches."""
        count = rows.shape[1]
        found = [self.table.rows(mine) for mine in rows]
        mine = [found[self.seeds.index(bundle.seed)] for bundle in self.group]
        gathered(mine, [bundle.neurons for bundle in self.group], self.states)
        marks = self.labels[:, rows.to(self.table.device)]  # (tasks, S, b)
        self.marks[:, :count] = marks[self.task_of, self.seed_of[:, None]].transpose(1, 2)

    def _batch_at(self, place: Tensor, _: Tensor) -> None:
        """A step on the batch that begins at this place of what is loaded; the place is a number on the device."""
        at = place + self.offsets
        self._step(self.states.index_select(1, at), self.marks.index_select(1, at))

    def _step(self, states: Tensor, labels: Tensor) -> None:
        bundles, rows = labels.shape[:2]
        outputs = torch.baddbmm(self.bias, states, self.weight)  # (U, B, K)
        log = torch.log_softmax(outputs.view(bundles, rows, self.width, self.n_tags), -1)
        self.loss -= log.gather(-1, labels[..., None]).sum((1, 3))
        slope = log.exp_()
        slope.scatter_add_(-1, labels[..., None], torch.full_like(slope[..., :1], -1.0))
        slope = slope.view(bundles, rows, -1).div_(rows)
        weight, gradient = self.weight, self.weight.grad
        assert gradient is not None
        assert self.bias.grad is not None
        torch.bmm(states.transpose(1, 2), slope, out=gradient)
        torch.sum(slope, 1, keepdim=True, out=self.bias.grad)
        if self.l1 is not None:
            gradient.addcmul_(weight.sign(), self.l1)
        if self.l2 is not None and self.training.norm == "squared":
            gradient.addcmul_(weight, self.l2, value=2)
        elif self.l2 is not None:
            gradient.addcmul_(weight, self.l2 / self._norms())
        self.adam.step()

    def _norms(self) -> Tensor:
        """(U, 1, K): the norm of the weights of each column's problem."""
        squares = self.weight.square().sum(1).view(len(self.group), self.width, self.n_tags).sum(-1)
        return squares.sqrt().clamp_(min=1e-12).repeat_interleave(self.n_tags, 1)[:, None]

    def results(self, originals: Sequence[Problem]) -> dict[int, FittedProbe]:
        self.replay = None  # it holds this run in turn: so its memory is free at once
        losses = (self.loss / self.n_rows).tolist()
        weight = self.weight.cpu().unflatten(-1, (self.width, self.n_tags))  # (U, d, G, C)
        bias = self.bias.cpu().view(len(self.group), self.width, self.n_tags)
        found = {}
        for u, bundle in enumerate(self.group):
            for g, p in enumerate(bundle.places):
                error = None
                if not math.isfinite(losses[u][g]):
                    error = f"the loss was not a finite number: try a smaller lr (now {self.training.lr:g})"
                found[p] = FittedProbe(
                    originals[p], weight[u, :, g].clone(), bias[u, g].clone(), losses[u][g], error
                )
        return found


_LAMBDAS = (lambda problem: problem.l1, lambda problem: problem.l2)


def _starting_values(seed: int, d: int, n_tags: int) -> Tensor:
    """(d + 1, C), uniform in +-1/sqrt(d), as a Linear of torch starts; the last row is the bias."""
    return rng.uniform(seed, "probe", (d + 1, n_tags)).mul_(2).sub_(1).div_(math.sqrt(d))


def _narrowed(
    table: WordTable, problems: Sequence[Problem]
) -> tuple[WordTable, list[Problem], list[Problem]]:
    """Where all problems together read few of the neurons, a table of these alone; and the problems on it."""
    originals = [Problem(table.checked(p.neurons), p.l1, p.l2, p.seed, p.task) for p in problems]
    used = np.unique(np.concatenate([p.neurons for p in originals]))
    if len(used) > table.neurons / 2:
        return table, originals, originals
    moved = [Problem(np.searchsorted(used, p.neurons), p.l1, p.l2, p.seed, p.task) for p in originals]
    return table.narrowed(used), moved, originals


def _rows_by_seed(
    rows: np.ndarray | Mapping[int, np.ndarray] | None, table: WordTable, problems: Sequence[Problem]
) -> dict[int, np.ndarray]:
    if not problems:
        raise WhichlayersError("there must be at least one probe to train, got none")
    if rows is None:
        rows = np.arange(table.n)
    of = rows if isinstance(rows, Mapping) else dict.fromkeys((p.seed for p in problems), rows)
    found = {p.seed: np.asarray(of[p.seed], np.int64) for p in problems}
    for mine in found.values():
        if len(mine) == 0 or mine.min() < 0 or mine.max() >= table.n:
            raise WhichlayersError(f"rows to train on must be some of 0 to {table.n - 1}")
    if len({len(mine) for mine in found.values()}) > 1:
        raise WhichlayersError("each seed must train on as many rows as the others")
    return found


def _training_labels(
    labels: np.ndarray,
    table: WordTable,
    n_tags: int,
    problems: Sequence[Problem],
    rows: Mapping[int, np.ndarray],
) -> Tensor:
    """(tasks, n) on the device."""
    marked = np.atleast_2d(np.asarray(labels, np.int64))
    if marked.shape[1] != table.n:
        raise WhichlayersError(
            f"there are {table.n:,} words and {marked.shape[1]:,} tags; every word needs one"
        )
    wrong = sorted({p.task for p in problems if not 0 <= p.task < len(marked)})
    if wrong:
        raise WhichlayersError(f"task {wrong[0]}: there are {len(marked)} sets of labels, numbered from 0")
    used = marked[:, np.unique(np.concatenate(list(rows.values())))]
    if used.min() < 0 or used.max() >= n_tags:
        found = used.min() if used.min() < 0 else used.max()
        raise WhichlayersError(f"label {found} in training: labels are 0 to {n_tags - 1}")
    return torch.from_numpy(marked).to(table.device)
