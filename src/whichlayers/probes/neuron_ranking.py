"""Neuron rankings, sets of neurons taken from them, and the smallest set that is as accurate as all neurons.

    order = rank_by_weight(probe.weight).order
    specs = [ProbeSpec(top_neurons(order, 499), seed=s) for s in (0, 1, 2)]
    retrained_accuracies(train, train_labels, test, test_labels, n_tags, specs)    # (3,)
    for results in minimal_sets(train, train_labels, dev, dev_labels, n_tags, [MinimalSetSearch(order)]):
        results[0].count    # number of neurons

Linguistic Correlation Analysis (LCA; Dalvi et al. 2019) ranks neurons by the weights of a probe. For every tag, take
the smallest set of neurons, largest |w| first, that holds a fraction p (the mass) of the sum of |w| over the tag's
weights. As p increases from 0 to 1 in steps, a neuron is added at the step at which it is in the set of any tag.

The papers do not say how to order neurons of the same step. Here the neuron with the larger fraction of any tag's sum
comes first, and ties are broken by index, so that a ranking is deterministic and a set of any size can be taken from
it.

Two further rankings serve as comparison: by the differences between the mean activations of the tags (probeless;
Antverg & Belinkov 2022), and at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.probes.evaluation import accuracies
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.progress import OnProgress
from whichlayers.text import counted

STEPS = 100  # of the mass p, from 0 to 1
FRACTIONS = tuple(percent / 100 for percent in range(1, 101))  # of the neurons, that a minimal set may have
ROWS_PER_BLOCK = 8192


@dataclass(frozen=True, eq=False)
class NeuronRanking:
    """An ordering of the d neurons that a probe reads."""

    order: np.ndarray  # (d,) indices into the probe's neurons, most important first
    step: np.ndarray  # (d,) the step of the mass, from 1, at which order[i] was added


def rank_by_weight(weight: Tensor | np.ndarray, steps: int = STEPS) -> NeuronRanking:
    """LCA ranking over all tags; `weight` is (d, C)."""
    size = _absolute(weight)
    mass = _normalize(size)
    ranks = np.argsort(_order_per_tag(size), 1).T  # (d, C) position of each neuron in the tag's order
    before = np.take_along_axis(_mass_before(mass), ranks, 0)  # (d, C), as `mass`
    # a neuron is in the smallest set of mass p if the neurons before it do not reach p: before < p = s / steps
    step = np.floor(np.minimum(before, 1) * steps).astype(np.int64) + 1
    step = np.where(mass > 0, np.minimum(step, steps), steps + 1)  # neurons of zero weight come last
    step = step.min(1)  # (d,)
    order = np.lexsort((np.arange(len(step)), -mass.max(1), step))
    return NeuronRanking(order, step[order])


def rank_probeless(
    states: HiddenStates, labels: np.ndarray, n_tags: int, rows: np.ndarray | None = None
) -> np.ndarray:
    """Probeless ranking, (neurons,): by the sum over all pairs of tags of the distance between the tags' means."""
    means = np.sort(_tag_means(states, labels, n_tags, rows), 0)  # (tags that occur, D)
    index = np.arange(len(means))[:, None]
    # equals the sum over pairs of |a - b|, as the means are sorted
    distance = ((2 * index - len(means) + 1) * means).sum(0)
    return np.argsort(-distance, kind="stable")


def rank_at_random(n: int, seed: int) -> np.ndarray:
    """A random ordering of n neurons, (n,)."""
    return rng.permutation(seed, "neurons", n)


# --- sets ---


def neuron_count(fraction: float, total: int) -> int:
    """A fraction of all neurons as a number: at least 1."""
    if not 0 < fraction <= 1:
        raise WhichlayersError(f"a fraction of neurons must be above 0 and at most 1, got {fraction:g}")
    return max(1, round(fraction * total))


def top_neurons(order: np.ndarray, count: int) -> np.ndarray:
    """The most important neurons of an ordering, most important first."""
    return order[: _check_count(order, count)]


def bottom_neurons(order: np.ndarray, count: int) -> np.ndarray:
    """The least important neurons of an ordering, least important first."""
    return order[::-1][: _check_count(order, count)].copy()


def random_neurons(order: np.ndarray, count: int, seed: int) -> np.ndarray:
    """A random set of neurons."""
    return order[rank_at_random(len(order), seed)[: _check_count(order, count)]]


def neurons_per_layer(neurons: np.ndarray, n_layers: int, hidden_size: int) -> np.ndarray:
    """Number of these neurons in each layer, (layers,); index 0 is the embeddings."""
    if len(neurons) and not 0 <= neurons.min() <= neurons.max() < n_layers * hidden_size:
        raise WhichlayersError(
            f"there is no neuron {neurons.max()}: the model has {counted(n_layers, 'layer')} of hidden size "
            f"{hidden_size}, including the embeddings"
        )
    return np.bincount(neurons // hidden_size, minlength=n_layers)


def _check_count(order: np.ndarray, count: int) -> int:
    if not 1 <= count <= len(order):
        raise WhichlayersError(
            f"cannot select {count:,} of {counted(len(order), 'neuron')}: select 1 to {len(order):,}"
        )
    return count


def _absolute(weight: Tensor | np.ndarray) -> np.ndarray:
    """|w| in float64, (d, C)."""
    values = weight.detach().cpu().numpy() if isinstance(weight, Tensor) else weight
    size = np.abs(np.asarray(values, np.float64))
    if not np.isfinite(size).all():
        raise WhichlayersError("the probe's weights are not finite numbers, so its neurons cannot be ranked")
    return size


def _order_per_tag(size: np.ndarray) -> np.ndarray:
    """For each tag the neurons by |w|, largest first: (d, C) -> (C, d)."""
    return np.argsort(-size, 0, kind="stable").T


def _normalize(size: np.ndarray) -> np.ndarray:
    """|w| as a fraction of the tag's sum, (d, C); 0 for a tag whose weights are all 0."""
    total = size.sum(0)
    return size / np.where(total > 0, total, 1)


def _mass_before(mass: np.ndarray) -> np.ndarray:
    """(d, C): the mass of all neurons before the i-th in each tag's order; infinite for neurons of zero weight."""
    ordered = -np.sort(-mass, 0)
    before = np.cumsum(ordered, 0) - ordered
    return np.where(ordered > 0, before, np.inf)  # neurons of zero weight are in no smallest set


def _tag_means(states: HiddenStates, labels: np.ndarray, n_tags: int, rows: np.ndarray | None) -> np.ndarray:
    """Mean hidden state of each tag that occurs, (tags, D) float64."""
    which = np.arange(states.n_examples) if rows is None else rows
    total = torch.zeros(n_tags, states.n_neurons, dtype=torch.float64, device=states.device)
    for start in range(0, len(which), ROWS_PER_BLOCK):
        block = which[start : start + ROWS_PER_BLOCK]
        tags = torch.from_numpy(labels[block]).to(states.device)
        seen = tags >= 0
        values = states.rows(torch.from_numpy(block)).double()
        total.index_add_(0, tags.clamp(min=0), values * seen[:, None])
    counts = np.bincount(labels[which][labels[which] >= 0], minlength=n_tags)
    occurs = counts > 0
    return total.cpu().numpy()[occurs] / counts[occurs, None]


# --- minimal sets ---


def retrained_accuracies(
    train: HiddenStates,
    train_labels: np.ndarray,
    test: HiddenStates,
    test_labels: np.ndarray,
    n_tags: int,
    specs: Sequence[ProbeSpec],
    training: ProbeTraining | None = None,
    on_progress: OnProgress | None = None,
) -> np.ndarray:
    """Test accuracies of probes trained only on the neurons of their spec, (P,); NaN for a probe that diverged.

    Labels are (words,) or (tasks, words).
    """
    if not specs:
        return np.zeros(0)
    probes = fit_probes(train, train_labels, n_tags, specs, training, on_progress)
    return accuracies(test, test_labels, probes)


@dataclass(frozen=True, eq=False)
class MinimalSetSearch:
    """Search for the smallest set of top neurons that is about as accurate as all neurons."""

    order: np.ndarray  # neuron ordering, most important first
    l1: float = 0.0
    l2: float = 0.0
    seed: int = 0
    delta: float = 0.005  # accuracy that the set may lose
    oracle: float | None = None  # accuracy with all neurons; None: it is computed

    def spec(self, neurons: np.ndarray) -> ProbeSpec:
        return ProbeSpec(neurons, self.l1, self.l2, self.seed)


@dataclass(frozen=True, eq=False)
class MinimalSet:
    """Result of a MinimalSetSearch."""

    oracle: float  # accuracy with all neurons
    accuracy: float  # with the set
    count: int
    fraction: float
    neurons: np.ndarray  # (count,)
    tried: tuple[tuple[int, float], ...]  # (count, accuracy) of every set that was tried, in order


def minimal_sets(
    train: HiddenStates,
    train_labels: np.ndarray,
    dev: HiddenStates,
    dev_labels: np.ndarray,
    n_tags: int,
    searches: Sequence[MinimalSetSearch],
    *,
    fractions: Sequence[float] = FRACTIONS,
    training: ProbeTraining | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[dict[int, MinimalSet]]:
    """Find the smallest set of top neurons for each search.

    The probe trained only on the set must have a dev accuracy within delta of a probe on all neurons. All searches try
    a fraction together, then those that are left the next one.

    Yields:
        Results by index of the search, as soon as they are found. If no set is accurate enough, the largest is
        returned; if the probe on all neurons diverged, an empty set with a NaN oracle.
    """
    if not fractions or list(fractions) != sorted(set(fractions)):
        raise WhichlayersError(f"fractions of neurons must increase, got {list(fractions)}")

    def accuracies_of(specs: Sequence[ProbeSpec]) -> list[float]:
        data = (train, train_labels, dev, dev_labels, n_tags)
        return retrained_accuracies(*data, specs, training, on_progress).tolist()

    oracles = {i: search.oracle for i, search in enumerate(searches) if search.oracle is not None}
    unknown = [i for i in range(len(searches)) if i not in oracles]
    computed = accuracies_of([searches[i].spec(np.sort(searches[i].order)) for i in unknown])
    oracles |= dict(zip(unknown, computed, strict=True))
    failed = [i for i, oracle in oracles.items() if math.isnan(oracle)]
    if failed:
        yield {i: MinimalSet(math.nan, math.nan, 0, math.nan, np.zeros(0, np.int64), ()) for i in failed}
    left = [i for i in range(len(searches)) if i not in failed]
    tried: dict[int, list[tuple[int, float]]] = {i: [] for i in left}
    for fraction in fractions:
        sets = {
            i: top_neurons(searches[i].order, neuron_count(fraction, len(searches[i].order))) for i in left
        }
        done = {}
        found = accuracies_of([searches[i].spec(sets[i]) for i in left])
        for i, accuracy in zip(left, found, strict=True):
            neurons, order = sets[i], searches[i].order
            tried[i].append((len(neurons), accuracy))
            if accuracy >= oracles[i] - searches[i].delta or fraction == fractions[-1]:
                actual = len(neurons) / len(order)
                done[i] = MinimalSet(oracles[i], accuracy, len(neurons), actual, neurons, tuple(tried[i]))
        if done:
            yield done
        left = [i for i in left if i not in done]
        if not left:
            return
