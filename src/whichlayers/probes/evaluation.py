"""Scores of trained word probes: accuracy, accuracy per tag and code length.

The hidden states are read once, in blocks; probes that read the same neurons are columns of one matrix product.
Counts stay on the device until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from whichlayers.errors import WhichlayersError
from whichlayers.probes.probe_batching import FittedProbe, ProbeGroup, group_probes
from whichlayers.probes.word_states import WordStates, gather_neurons, matmul_precision
from whichlayers.text import counted

ROWS_PER_BLOCK = 4096
OUTPUT_BYTES = 1 << 27  # maximum size of the outputs of a block

# (outputs (U, b, G, C), labels (U, b, G)) -> statistic of the block (U, G) or (U, G, C), which is summed over blocks
BlockStatistic = Callable[[Tensor, Tensor], Tensor]


def accuracies(
    states: WordStates, labels: np.ndarray, probes: Sequence[FittedProbe], rows: np.ndarray | None = None
) -> np.ndarray:
    """Accuracy of each probe, (P,); NaN for a probe that failed to train.

    Args:
        states: Hidden states of n words.
        labels: (n,) or (tasks, n); a tag that does not occur in training is -1 and counts as an error.
        probes: The probes to score.
        rows: Words to score on. Default: all.
    """

    def count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(-1) == targets).sum(1)

    n = states.n_words if rows is None else len(rows)
    return _sum_over_rows(states, labels, probes, rows, count_correct) / n


def tag_accuracies(
    states: WordStates,
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
    states: WordStates, labels: np.ndarray, probes: Sequence[FittedProbe], rows: np.ndarray | None = None
) -> np.ndarray:
    """Sum of -ln p(tag) over the words for each probe, (P,), in nats; infinite if a tag does not occur in training."""

    def sum_nats(outputs: Tensor, targets: Tensor) -> Tensor:
        log_probs = torch.log_softmax(outputs, -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        return -log_probs.masked_fill(targets < 0, -torch.inf).double().sum(1)

    return _sum_over_rows(states, labels, probes, rows, sum_nats)


def _sum_over_rows(
    states: WordStates,
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
    if label_matrix.shape[1] != states.n_words:
        raise WhichlayersError(
            f"there are {counted(states.n_words, 'word')} but {counted(label_matrix.shape[1], 'label')}; "
            "every word needs exactly one label"
        )
    if label_matrix.max() >= n_tags:
        raise WhichlayersError(
            f"invalid label {label_matrix.max()}: the probes predict 0 to {n_tags - 1}, and -1 is an unseen tag"
        )
    on_device = torch.from_numpy(label_matrix).to(states.device)
    specs = [probe.spec for probe in probes]
    for spec in specs:
        states.check_neurons(spec.neurons)
    totals: dict[int, Tensor] = {}
    with torch.no_grad():
        for groups in group_probes(specs, n_tags, ROWS_PER_BLOCK, states.device, by_seed=False):
            found = _sum_of_groups(states, on_device, probes, groups, rows, statistic).cpu()
            totals |= {p: found[u, g] for u, group in enumerate(groups) for g, p in enumerate(group.indices)}
    values = torch.stack([totals[p].double() for p in range(len(probes))]).numpy()
    values[[probe.error is not None for probe in probes]] = np.nan
    return values


def _sum_of_groups(
    states: WordStates,
    labels: Tensor,
    probes: Sequence[FittedProbe],
    groups: list[ProbeGroup],
    rows: np.ndarray | None,
    statistic: BlockStatistic,
) -> Tensor:
    """The statistic summed over rows for U groups of G probes, (U, G) or (U, G, C); labels are (tasks, n).

    d is the number of neurons that a probe reads, C the number of tags and K = G * C.
    """
    device, width = states.device, len(groups[0].indices)
    weight, bias = (  # (U, d, K), (U, 1, K)
        torch.stack([torch.cat([part(probes[p]) for p in g.indices], -1) for g in groups]).to(device)
        for part in (lambda probe: probe.weight, lambda probe: probe.bias[None])
    )
    task_of = torch.tensor([[probes[p].spec.task for p in g.indices] for g in groups], device=device)
    which = None if rows is None else torch.from_numpy(np.asarray(rows, np.int64)).to(device)
    n = states.n_words if which is None else len(which)
    size = max(1, min(ROWS_PER_BLOCK, OUTPUT_BYTES // (4 * bias.numel())))
    total: Tensor | None = None
    with matmul_precision("float32", device):
        for start in range(0, n, size):
            block = slice(start, start + size) if which is None else which[start : start + size]
            block_rows = [states.rows(block)] * len(groups)
            inputs = gather_neurons(block_rows, [group.neurons for group in groups])  # (U, b, d)
            outputs = torch.baddbmm(bias, inputs, weight).unflatten(-1, (width, -1))  # (U, b, G, C)
            targets = labels[:, block][task_of].transpose(1, 2)  # (U, b, G)
            found = statistic(outputs, targets)
            total = found if total is None else total + found
    assert total is not None
    return total
