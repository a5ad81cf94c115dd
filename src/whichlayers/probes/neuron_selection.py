"""Neuron selection: grid search for l1 and l2, minimal sets of neurons, and probes retrained on a set.

[grid] = search_lambdas(train, train_labels, dev, dev_labels, n_tags)
order = grid.ranking.order
specs = [ProbeSpec(top_neurons(order, 499), seed=s) for s in (0, 1, 2)]
retrained_accuracies(train, train_labels, test, test_labels, n_tags, specs)    # (3,)
search = MinimalSetSearch(order, grid.best.l1, grid.best.l2)
for results in minimal_sets(train, train_labels, dev, dev_labels, n_tags, [search]):
    results[0].count    # number of neurons
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from whichlayers.errors import WhichlayersError
from whichlayers.probes.evaluation import accuracies
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.neuron_ranking import NeuronRanking, neuron_count, rank_by_weight, top_neurons
from whichlayers.probes.probe_specs import FittedProbe, ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.steps import OnProgress

LAMBDAS = (0.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
FRACTIONS = tuple(percent / 100 for percent in range(1, 101))


@dataclass(frozen=True)
class GridPoint:
    """One pair of l1 and l2, and its dev accuracies."""

    l1: float
    l2: float
    accuracy: float  # with all neurons
    top_accuracy: float  # with all but the top neurons ablated, without retraining: the selection criterion


@dataclass(frozen=True, eq=False)
class LambdaGrid:
    """Result of a grid search for one seed."""

    points: list[GridPoint]
    best: GridPoint
    probe: FittedProbe  # of the best point
    ranking: NeuronRanking  # by its weights


def search_lambdas(
    train: HiddenStates,
    train_labels: np.ndarray,
    dev: HiddenStates,
    dev_labels: np.ndarray,
    n_tags: int,
    *,
    l1: Sequence[float] = LAMBDAS,
    l2: Sequence[float] = LAMBDAS,
    fraction: float = 0.2,
    seeds: Sequence[int] = (0,),
    training: ProbeTraining | None = None,
    on_progress: OnProgress | None = None,
) -> list[LambdaGrid]:
    """Grid search: train a probe on all neurons for every pair of l1 and l2, and select the best pair of each seed.

    The best pair has the highest dev accuracy with only its top neurons (`fraction` of all): too small a penalty
    spreads the information over all neurons, too large a one costs accuracy. Of equal pairs the first is selected. A
    pair whose probe diverges is never selected.

    The accuracy with only the bottom neurons plays no part. Ablated and not retrained they are at chance level: a score
    that rewards a low bottom accuracy selected l1 = 0.01 for semantic tags in a small BERT, which cost 14 points of
    accuracy, where l1 = 1e-4 gives the better ranking at a cost of 0.4 points.
    """
    pairs = [(l1_value, l2_value) for l1_value in l1 for l2_value in l2]
    if not pairs:
        raise WhichlayersError("the search needs at least one value of l1 and one of l2")
    neurons = train.all_neurons()
    specs = [ProbeSpec(neurons, *pair, seed) for seed in seeds for pair in pairs]
    probes = fit_probes(train, train_labels, n_tags, specs, training, on_progress)
    by_seed = [probes[first : first + len(pairs)] for first in range(0, len(probes), len(pairs))]
    return [_evaluate_grid(seed_probes, dev, dev_labels, fraction) for seed_probes in by_seed]


def _evaluate_grid(
    probes: Sequence[FittedProbe], dev: HiddenStates, dev_labels: np.ndarray, fraction: float
) -> LambdaGrid:
    """Score the probes of one seed, with all neurons and with the top `fraction` of them, and select the best."""
    neurons = probes[0].spec.neurons
    count = neuron_count(fraction, len(neurons))
    with ThreadPoolExecutor() as pool:  # sorting releases the GIL
        rankings = list(pool.map(lambda p: None if p.error else rank_by_weight(p.weight), probes))
    ablated = [
        keep_neurons(probe, top_neurons(ranking.order if ranking else neurons, count))
        for probe, ranking in zip(probes, rankings, strict=True)
    ]
    full, top = accuracies(dev, dev_labels, [*probes, *ablated]).reshape(2, -1)  # all neurons, top neurons
    if np.isnan(top).all():
        raise WhichlayersError("all probes of the grid search diverged: try a smaller lr")
    points = [
        GridPoint(probe.spec.l1, probe.spec.l2, float(accuracy), float(top_accuracy))
        for probe, accuracy, top_accuracy in zip(probes, full, top, strict=True)
    ]
    best = int(np.nanargmax(top))
    ranking = rankings[best]
    assert ranking is not None  # only a diverged probe has no ranking, and its accuracy is NaN
    return LambdaGrid(points, points[best], probes[best], ranking)


def keep_neurons(probe: FittedProbe, indices: np.ndarray) -> FittedProbe:
    """Ablate all other neurons: the same probe with their weights set to 0. `indices` are into the probe's neurons."""
    weight = torch.zeros_like(probe.weight)
    weight[indices] = probe.weight[indices]
    return dataclasses.replace(probe, weight=weight)


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
