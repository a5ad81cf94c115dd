"""How well trained probes do: on all words, on the words of each tag, and as a code.

The table goes by once, in blocks; probes that read the same neurons are columns of one matrix product. Counts
stay on the device until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from whichlayers.errors import WhichlayersError
from whichlayers.probes.probe_batching import Bundle, FittedProbe, bundled
from whichlayers.probes.word_table import WordTable, gathered, matrix_precision

ROWS = 4096  # that are scored at once
OUTPUT_BYTES = 1 << 27  # of their outputs, at most

# (outputs (U, b, G, C), labels (U, b, G)) -> what is added up over all rows, (U, G) or (U, G, C)
Tally = Callable[[Tensor, Tensor], Tensor]


def accuracies(
    table: WordTable, labels: np.ndarray, probes: Sequence[FittedProbe], rows: np.ndarray | None = None
) -> np.ndarray:
    """(P,) shares of words that get their tag; a tag training never saw (-1) counts as an error.

    `labels`: (n,) or (tasks, n). A probe that failed to train has NaN.
    """

    def right(outputs: Tensor, marks: Tensor) -> Tensor:
        return (outputs.argmax(-1) == marks).sum(1)

    n = table.n if rows is None else len(rows)
    return _added_up(table, labels, probes, rows, right) / n


def tag_accuracies(
    table: WordTable,
    labels: np.ndarray,
    probes: Sequence[FittedProbe],
    n_tags: int,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """(P, n_tags): the share of each tag's words that get it; NaN where a tag does not occur."""

    def right(outputs: Tensor, marks: Tensor) -> Tensor:
        hits = (outputs.argmax(-1) == marks).double()  # (U, b, G)
        counts = hits.new_zeros(len(hits), marks.shape[-1], n_tags + 1)  # the last place for unseen tags
        return counts.scatter_add_(-1, (marks % (n_tags + 1)).transpose(1, 2), hits.transpose(1, 2))[..., :-1]

    marked = np.atleast_2d(labels)
    used = marked if rows is None else marked[:, rows]
    totals = np.stack([np.bincount(mine[mine >= 0], minlength=n_tags) for mine in used])
    found = _added_up(table, labels, probes, rows, right)
    with np.errstate(invalid="ignore"):
        return found / totals[[probe.problem.task for probe in probes]]


def code_lengths(
    table: WordTable, labels: np.ndarray, probes: Sequence[FittedProbe], rows: np.ndarray | None = None
) -> np.ndarray:
    """(P,): the sum of -ln p(tag) over the words, in nats; infinite where a tag was never seen in training."""

    def nats(outputs: Tensor, marks: Tensor) -> Tensor:
        log = torch.log_softmax(outputs, -1).gather(-1, marks.clamp(min=0)[..., None])[..., 0]
        return -log.masked_fill(marks < 0, -torch.inf).double().sum(1)

    return _added_up(table, labels, probes, rows, nats)


def _added_up(
    table: WordTable,
    labels: np.ndarray,
    probes: Sequence[FittedProbe],
    rows: np.ndarray | None,
    tally: Tally,
) -> np.ndarray:
    if not probes:
        return np.zeros(0)
    marked = np.atleast_2d(np.asarray(labels, np.int64))
    n_tags = probes[0].weight.shape[1]
    if marked.shape[1] != table.n:
        raise WhichlayersError(
            f"there are {table.n:,} words and {marked.shape[1]:,} tags; every word needs one"
        )
    if marked.max() >= n_tags:
        raise WhichlayersError(
            f"label {marked.max()}: the probes give 0 to {n_tags - 1}, and -1 stands for unseen"
        )
    on_device = torch.from_numpy(marked).to(table.device)
    problems = [probe.problem for probe in probes]
    for problem in problems:
        table.checked(problem.neurons)
    totals: dict[int, Tensor] = {}
    with torch.no_grad():
        for group in bundled(problems, n_tags, ROWS, table.device, by_seed=False):
            found = _group_total(table, on_device, probes, group, rows, tally).cpu()
            totals |= {p: found[u, g] for u, bundle in enumerate(group) for g, p in enumerate(bundle.places)}
    values = torch.stack([totals[p].double() for p in range(len(probes))]).numpy()
    values[[probe.error is not None for probe in probes]] = np.nan
    return values


def _group_total(
    table: WordTable,
    labels: Tensor,
    probes: Sequence[FittedProbe],
    group: list[Bundle],
    rows: np.ndarray | None,
    tally: Tally,
) -> Tensor:
    device, width = table.device, len(group[0].places)
    weight, bias = (
        torch.stack([torch.cat([part(probes[p]) for p in b.places], -1) for b in group]).to(device)
        for part in (lambda probe: probe.weight, lambda probe: probe.bias[None])
    )  # (U, d, K), (U, 1, K)
    task_of = torch.tensor([[probes[p].problem.task for p in b.places] for b in group], device=device)
    which = None if rows is None else torch.from_numpy(np.asarray(rows, np.int64)).to(device)
    n = table.n if which is None else len(which)
    size = max(1, min(ROWS, OUTPUT_BYTES // (4 * bias.numel())))
    total: Tensor | None = None
    with matrix_precision("float32", device):
        for start in range(0, n, size):
            part = slice(start, start + size) if which is None else which[start : start + size]
            found = table.rows(part)
            states = gathered([found] * len(group), [bundle.neurons for bundle in group])  # (U, b, d)
            outputs = torch.baddbmm(bias, states, weight).unflatten(-1, (width, -1))  # (U, b, G, C)
            marks = labels[:, part][task_of].transpose(1, 2)  # (U, b, G)
            more = tally(outputs, marks)
            total = more if total is None else total + more
    assert total is not None
    return total
