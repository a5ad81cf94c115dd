"""Which neurons matter: rankings, the sets taken from them, and where in the model they lie.

Linguistic Correlation Analysis (Dalvi et al. 2019) ranks the neurons by a probe's weights. Of every tag, take
the smallest set of neurons, largest |w| first, that holds a share p of the sum of |w| over the tag's weights. As
p rises step by step from 0 to 1, a neuron comes in at the step at which the first tag takes it.

What the papers leave open is settled here by weight: of the neurons that come in at the same step, the one with
the larger share of any tag's sum goes first, and of equal ones that with the lower number. So a ranking has no
arbitrary part, and a set of any size can be cut from it.

Two rankings to compare with: by the differences between the means of the tags (probeless, Antverg & Belinkov
2022), and at random.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.probes.word_table import WordTable

STEPS = 100  # of the mass p, from 0 to 1
ROWS = 8192  # of a table that are read at once


@dataclass(frozen=True, eq=False)
class Ranking:
    order: np.ndarray  # (d,) the most salient first: places in the list of neurons that the probe reads
    step: np.ndarray  # (d,) the step of mass, from 1, at which order[i] came in


def rank_by_weight(weight: Tensor | np.ndarray, steps: int = STEPS) -> Ranking:
    """Over all tags together; weight is (d, C)."""
    size = _sizes(weight)
    share = _shares(size)
    before = np.take_along_axis(_mass_before(share), np.argsort(_by_tag(size), 1).T, 0)  # (d, C), as `share`
    # a neuron is in the smallest set that reaches p if those before it do not reach p: before < p = s / steps
    step = np.floor(np.minimum(before, 1) * steps).astype(np.int64) + 1
    step = np.where(share > 0, np.minimum(step, steps), steps + 1).min(1)  # (d,); without weight: after all
    order = np.lexsort((np.arange(len(step)), -share.max(1), step))
    return Ranking(order, step[order])


def rank_by_tag(weight: Tensor | np.ndarray) -> np.ndarray:
    """(C, d): for each tag the neurons by |w|, largest first, equal ones by number."""
    return _by_tag(_sizes(weight))


def tag_sets(weight: Tensor | np.ndarray, mass: float) -> list[np.ndarray]:
    """For each tag, the smallest set of neurons whose |w| add up to this share of the tag's sum."""
    if not 0 < mass <= 1:
        raise WhichlayersError(f"mass = {mass:g} must lie above 0 and not above 1")
    share = _shares(_sizes(weight))
    counts = (_mass_before(share) < mass).sum(0)
    return [order[:count] for order, count in zip(rank_by_tag(weight), counts, strict=True)]


def rank_by_means(
    table: WordTable, labels: np.ndarray, n_tags: int, rows: np.ndarray | None = None
) -> np.ndarray:
    """(D,): by the sum, over all pairs of tags, of the distance between the tags' means; no probe is trained."""
    means = np.sort(_tag_means(table, labels, n_tags, rows), 0)  # (tags that occur, D)
    place = np.arange(len(means))[:, None]
    distance = ((2 * place - len(means) + 1) * means).sum(0)  # = sum over pairs of |a - b|, once sorted
    return np.argsort(-distance, kind="stable")


def rank_by_means_per_tag(
    table: WordTable, labels: np.ndarray, n_tags: int, rows: np.ndarray | None = None
) -> np.ndarray:
    """(C, D): for each tag by the sum of the distances between its mean and those of the other tags."""
    means = _tag_means(table, labels, n_tags, rows, keep_all=True)
    distance = np.stack([np.nansum(np.abs(means - mine), 0) for mine in means])
    return np.argsort(-distance, 1, kind="stable")


def rank_at_random(n: int, seed: int) -> np.ndarray:
    return rng.permutation(seed, "neurons", n)


# --- sets ---


def count_of(share: float, total: int) -> int:
    """How many neurons a share of them is: at least one."""
    if not 0 < share <= 1:
        raise WhichlayersError(f"a share of neurons must lie above 0 and not above 1, got {share:g}")
    return max(1, round(share * total))


def top(order: np.ndarray, count: int) -> np.ndarray:
    return order[: _checked_count(order, count)]


def bottom(order: np.ndarray, count: int) -> np.ndarray:
    """The least salient, the very last one first."""
    return order[::-1][: _checked_count(order, count)].copy()


def random_set(order: np.ndarray, count: int, seed: int) -> np.ndarray:
    return order[rank_at_random(len(order), seed)[: _checked_count(order, count)]]


def spread(neurons: np.ndarray, layers: int, hidden: int) -> np.ndarray:
    """(layers,): how many of the neurons lie in each layer; place 0 is the embeddings."""
    if len(neurons) and not 0 <= neurons.min() <= neurons.max() < layers * hidden:
        raise WhichlayersError(
            f"neuron {neurons.max()} is beyond what the model has: {layers} layers (embeddings included) of {hidden}"
        )
    return np.bincount(neurons // hidden, minlength=layers)


def _checked_count(order: np.ndarray, count: int) -> int:
    if not 1 <= count <= len(order):
        raise WhichlayersError(
            f"{count:,} neurons were asked for, and there are {len(order):,}: ask for 1 to {len(order):,}"
        )
    return count


def _sizes(weight: Tensor | np.ndarray) -> np.ndarray:
    """(d, C): |w| in float64."""
    values = weight.detach().cpu().numpy() if isinstance(weight, Tensor) else weight
    size = np.abs(np.asarray(values, np.float64))
    if not np.isfinite(size).all():
        raise WhichlayersError("the probe's weights are not finite numbers, so its neurons cannot be ranked")
    return size


def _by_tag(size: np.ndarray) -> np.ndarray:
    """(C, d)."""
    return np.argsort(-size, 0, kind="stable").T


def _shares(size: np.ndarray) -> np.ndarray:
    """(d, C): of the tag's sum; 0 for a tag all of whose weights are 0."""
    total = size.sum(0)
    return size / np.where(total > 0, total, 1)


def _mass_before(share: np.ndarray) -> np.ndarray:
    """(d, C): of the neuron in each place of each tag's order, the mass of those before it."""
    ordered = -np.sort(-share, 0)
    before = np.cumsum(ordered, 0) - ordered
    return np.where(ordered > 0, before, np.inf)  # what has no weight is in no smallest set


def _tag_means(
    table: WordTable, labels: np.ndarray, n_tags: int, rows: np.ndarray | None, keep_all: bool = False
) -> np.ndarray:
    """(tags, D) float64; tags without a word are left out, or NaN with `keep_all`."""
    which = np.arange(table.n) if rows is None else rows
    total = torch.zeros(n_tags, table.neurons, dtype=torch.float64, device=table.device)
    for start in range(0, len(which), ROWS):
        part = which[start : start + ROWS]
        mine = torch.from_numpy(labels[part]).to(table.device)
        kept = mine >= 0
        states = table.rows(torch.from_numpy(part)).double()
        total.index_add_(0, mine.clamp(min=0), states * kept[:, None])
    counts = np.bincount(labels[which][labels[which] >= 0], minlength=n_tags)
    with np.errstate(invalid="ignore"):
        means = total.cpu().numpy() / counts[:, None]
    return means if keep_all else means[counts > 0]
