"""Outputs and scores of trained probes: accuracy, accuracy per tag and code length.

The hidden states are read once, in blocks; probes that read the same neurons are columns of one matrix product.
Counts stay on the device until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from whichlayers.errors import WhichlayersError
from whichlayers.probes.hidden_states import HiddenStates, gather_neurons, matmul_precision
from whichlayers.probes.probe_specs import FittedProbe, ProbeGroup, group_probes
from whichlayers.text import counted

ROWS_PER_BLOCK = 4096
OUTPUT_BYTES = 1 << 27  # maximum size of the outputs of a block

# (outputs (U, b, G, C), labels (U, b, G)) -> statistic of the block (U, G) or (U, G, C), which is summed over blocks
BlockStatistic = Callable[[Tensor, Tensor], Tensor]


def predict(states: HiddenStates, probes: Sequence[FittedProbe]) -> Tensor:
    """Outputs of every probe for every example, (P, n, C), on the host."""
    found = torch.empty(len(probes), states.n_examples, probes[0].weight.shape[1])
    for groups in _group(states, probes):
        for block, outputs in _outputs_by_block(states, probes, groups, None):
            on_host = outputs.cpu()  # (U, b, G, C)
            for u, group in enumerate(groups):
                found[list(group.indices), block] = on_host[u].transpose(0, 1)
    return found


def accuracies(
    states: HiddenStates, labels: np.ndarray, probes: Sequence[FittedProbe], rows: np.ndarray | None = None
) -> np.ndarray:
    """Accuracy of each probe, (P,); NaN for a probe that failed to train.

    Args:
        states: Hidden states of n examples.
        labels: (n,) or (tasks, n); a tag that does not occur in training is -1 and counts as an error.
        probes: The probes to score.
        rows: Examples to score on. Default: all.
    """

    def count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(-1) == targets).sum(1)

    n = states.n_examples if rows is None else len(rows)
    return _sum_over_rows(states, labels, probes, rows, count_correct) / n


def tag_accuracies(
    states: HiddenStates,
    labels: np.ndarray,
    probes: Sequence[FittedProbe],
    n_tags: int,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """Accuracy of each probe on the words of each tag, (P, n_tags); NaN where a tag does not occur."""

    def count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
        correct = (outputs.argmax(-1) == targets).double()  # (U, b, G)
        # the last column is for unseen tags
        counts = correct.new_zeros(len(correct), targets.shape[-1], n_tags + 1)
        index = (targets % (n_tags + 1)).transpose(1, 2)
        return counts.scatter_add_(-1, index, correct.transpose(1, 2))[..., :-1]

    label_matrix = np.atleast_2d(labels)
    used = label_matrix if rows is None else label_matrix[:, rows]
    totals = np.stack([np.bincount(task[task >= 0], minlength=n_tags) for task in used])
    found = _sum_over_rows(states, labels, probes, rows, count_correct)
    with np.errstate(invalid="ignore"):
        return found / totals[[probe.spec.task for probe in probes]]


def code_lengths(
    states: HiddenStates, labels: np.ndarray, probes: Sequence[FittedProbe], rows: np.ndarray | None = None
) -> np.ndarray:
    """Sum of -ln p(tag) over the words for each probe, (P,), in nats; infinite if a tag does not occur in training."""

    def sum_nats(outputs: Tensor, targets: Tensor) -> Tensor:
        log_probs = torch.log_softmax(outputs, -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        return -log_probs.masked_fill(targets < 0, -torch.inf).double().sum(1)

    return _sum_over_rows(states, labels, probes, rows, sum_nats)


def _sum_over_rows(
    states: HiddenStates,
    labels: np.ndarray,
    probes: Sequence[FittedProbe],
    rows: np.ndarray | None,
    statistic: BlockStatistic,
) -> np.ndarray:
    """The statistic of every probe, summed over rows: (P,) or (P, C) float64; NaN for a probe that failed to train."""
    if not probes:
        return np.zeros(0)
    label_matrix = np.atleast_2d(np.asarray(labels, np.int64))
    n_tags = probes[0].weight.shape[1]
    if label_matrix.shape[1] != states.n_examples:
        raise WhichlayersError(
            f"there are {counted(states.n_examples, 'example')} but {counted(label_matrix.shape[1], 'label')}; "
            "every example needs exactly one label"
        )
    if label_matrix.max() >= n_tags:
        raise WhichlayersError(
            f"invalid label {label_matrix.max()}: the probes predict 0 to {n_tags - 1}, and -1 is an unseen tag"
        )
    on_device = torch.from_numpy(label_matrix).to(states.device)
    totals: dict[int, Tensor] = {}
    for groups in _group(states, probes):
        tasks = [[probes[p].spec.task for p in group.indices] for group in groups]
        task_of = torch.tensor(tasks, device=states.device)  # (U, G)
        total: Tensor | float = 0.0
        for block, outputs in _outputs_by_block(states, probes, groups, rows):
            total = statistic(outputs, on_device[:, block][task_of].transpose(1, 2)) + total
        assert isinstance(total, Tensor)
        found = total.cpu()
        totals |= {p: found[u, g] for u, group in enumerate(groups) for g, p in enumerate(group.indices)}
    values = torch.stack([totals[p].double() for p in range(len(probes))]).numpy()
    values[[probe.error is not None for probe in probes]] = np.nan
    return values


def _group(states: HiddenStates, probes: Sequence[FittedProbe]) -> Iterator[list[ProbeGroup]]:
    """Groups of probes that read the same neurons, whatever their seed."""
    specs = [probe.spec for probe in probes]
    for spec in specs:
        states.check_neurons(spec.neurons)
    n_outputs = probes[0].weight.shape[1]
    return group_probes(specs, n_outputs, ROWS_PER_BLOCK, states.device, for_training=False)


def _outputs_by_block(
    states: HiddenStates, probes: Sequence[FittedProbe], groups: list[ProbeGroup], rows: np.ndarray | None
) -> Iterator[tuple[slice | Tensor, Tensor]]:
    """Yields (rows of a block (b,), outputs (U, b, G, C)) of U groups of G probes.

    d is the number of neurons that a probe reads, C the number of outputs and K = G * C.
    """
    device, width = states.device, len(groups[0].indices)
    weight, bias = (  # (U, d, K), (U, 1, K)
        torch.stack([torch.cat([part(probes[p]) for p in g.indices], -1) for g in groups]).to(device)
        for part in (lambda probe: probe.weight, lambda probe: probe.bias[None])
    )
    which = None if rows is None else torch.from_numpy(np.asarray(rows, np.int64)).to(device)
    n = states.n_examples if which is None else len(which)
    size = max(1, min(ROWS_PER_BLOCK, OUTPUT_BYTES // (4 * bias.numel())))
    for start in range(0, n, size):
        block = slice(start, start + size) if which is None else which[start : start + size]
        block_rows = [states.rows(block)] * len(groups)
        inputs = gather_neurons(block_rows, [group.neurons for group in groups])  # (U, b, d)
        with matmul_precision("float32", device):
            outputs = torch.baddbmm(bias, inputs, weight)
        yield block, outputs.unflatten(-1, (width, -1))
