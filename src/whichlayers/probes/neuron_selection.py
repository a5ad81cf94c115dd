"""From a ranking to a set of neurons: the search for l1 and l2, the smallest set that suffices, sets retrained.

[grid] = search_lambdas(train, train_tags, dev, dev_tags, n_tags)
order = grid.ranking.order
sets = [Problem(top(order, 499), seed=s) for s in (0, 1, 2)]
retrained(train, train_tags, test, test_tags, n_tags, sets)    # (3,) accuracies
for found in minimal_sets(train, train_tags, dev, dev_tags, n_tags, [Candidate(order, grid.best.l1, grid.best.l2)]):
    found[0].count    # of neurons
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
from whichlayers.probes.elastic_net import FittedProbe, OnStep, ProbeTraining, Problem, accuracies, fit_probes
from whichlayers.probes.neuron_ranking import Ranking, count_of, rank_by_weight, top
from whichlayers.probes.word_table import WordTable

LAMBDAS = (0.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
SHARES = tuple(percent / 100 for percent in range(1, 101))


@dataclass(frozen=True)
class GridPoint:
    l1: float
    l2: float
    accuracy: float  # with all neurons
    top: float  # with all but the most salient masked, without training again: what pairs are chosen by


@dataclass(frozen=True, eq=False)
class Grid:
    points: list[GridPoint]
    best: GridPoint
    probe: FittedProbe  # the best one
    ranking: Ranking  # by its weights


def search_lambdas(
    train: WordTable,
    train_labels: np.ndarray,
    dev: WordTable,
    dev_labels: np.ndarray,
    n_tags: int,
    *,
    l1: Sequence[float] = LAMBDAS,
    l2: Sequence[float] = LAMBDAS,
    share: float = 0.2,
    seeds: Sequence[int] = (0,),
    training: ProbeTraining | None = None,
    on_step: OnStep | None = None,
) -> list[Grid]:
    """Probes on all neurons for every pair of l1 and l2, trained together; for each seed the best pair.

    That is the pair whose most salient neurons (`share` of all) are the most accurate by themselves: too small a
    penalty spreads what is known over all neurons, too large a one costs accuracy. Of equal pairs the one named
    first is taken. A pair whose probe diverges is not chosen.

    What the least salient neurons reach by themselves has no say. It is chance, masked as they are and not trained
    again: a score that rewards pairs for a low one took l1 = 0.01 for semantic tags in a small BERT, at a cost of
    14 points of accuracy, where l1 = 1e-4 gives the better ranking for 0.4.
    """
    pairs = [(one, two) for one in l1 for two in l2]
    if not pairs:
        raise WhichlayersError("the search needs at least one value of l1 and one of l2")
    everything = train.everything()
    problems = [Problem(everything, *pair, seed) for seed in seeds for pair in pairs]
    probes = fit_probes(train, train_labels, n_tags, problems, training, on_step)
    by_seed = [probes[first : first + len(pairs)] for first in range(0, len(probes), len(pairs))]
    return [_best_of(mine, dev, dev_labels, share) for mine in by_seed]


def _best_of(probes: Sequence[FittedProbe], dev: WordTable, dev_labels: np.ndarray, share: float) -> Grid:
    everything = probes[0].problem.neurons
    count = count_of(share, len(everything))
    with ThreadPoolExecutor() as pool:  # sorting leaves Python's lock alone
        rankings = list(pool.map(lambda p: None if p.error else rank_by_weight(p.weight), probes))
    masked = [
        keep_only(probe, top(ranking.order if ranking else everything, count))
        for probe, ranking in zip(probes, rankings, strict=True)
    ]
    found = accuracies(dev, dev_labels, [*probes, *masked]).reshape(2, -1)  # all neurons, the most salient
    if np.isnan(found[1]).all():
        raise WhichlayersError("no probe of the search gave finite numbers: try a smaller lr")
    points = [
        GridPoint(probe.problem.l1, probe.problem.l2, float(whole), float(alone))
        for probe, whole, alone in zip(probes, *found, strict=True)
    ]
    best = int(np.nanargmax(found[1]))
    ranking = rankings[best]
    assert ranking is not None  # only a probe that failed has none, and its accuracy is NaN
    return Grid(points, points[best], probes[best], ranking)


def keep_only(probe: FittedProbe, places: np.ndarray) -> FittedProbe:
    """The same probe with the weights of all other neurons at 0; places in the list of neurons it reads."""
    weight = torch.zeros_like(probe.weight)
    weight[places] = probe.weight[places]
    return dataclasses.replace(probe, weight=weight)


def retrained(
    train: WordTable,
    train_labels: np.ndarray,
    test: WordTable,
    test_labels: np.ndarray,
    n_tags: int,
    problems: Sequence[Problem],
    training: ProbeTraining | None = None,
    on_step: OnStep | None = None,
) -> np.ndarray:
    """(P,): the accuracy of probes that are trained on their neurons alone, all together; NaN for one that failed."""
    if not problems:
        return np.zeros(0)
    return accuracies(test, test_labels, fit_probes(train, train_labels, n_tags, problems, training, on_step))


@dataclass(frozen=True, eq=False)
class Candidate:
    """An order of neurons whose smallest sufficient set is looked for."""

    order: np.ndarray  # names neurons of the table, the most salient first
    l1: float = 0.0
    l2: float = 0.0
    seed: int = 0
    delta: float = 0.005
    oracle: float | None = None  # the accuracy with all neurons, if it is known

    def problem(self, neurons: np.ndarray) -> Problem:
        return Problem(neurons, self.l1, self.l2, self.seed)


@dataclass(frozen=True, eq=False)
class MinimalSet:
    oracle: float  # accuracy with all neurons
    accuracy: float  # with the set
    count: int
    share: float
    neurons: np.ndarray  # (count,)
    tried: tuple[tuple[int, float], ...]  # (count, accuracy) of every set that was tried, in order


def minimal_sets(
    train: WordTable,
    train_labels: np.ndarray,
    dev: WordTable,
    dev_labels: np.ndarray,
    n_tags: int,
    candidates: Sequence[Candidate],
    *,
    shares: Sequence[float] = SHARES,
    training: ProbeTraining | None = None,
    on_step: OnStep | None = None,
) -> Iterator[dict[int, MinimalSet]]:
    """For each candidate the smallest of the sets at the top of its order whose probe, trained on it alone, comes
    within delta of the accuracy of a probe on all neurons.

    All candidates try a share together, then those that are left the next one; what they come to is given as it
    is found, by the candidate's place.
    """
    if not shares or list(shares) != sorted(set(shares)):
        raise WhichlayersError(f"shares of neurons must rise, got {list(shares)}")

    def accuracies_of(problems: Sequence[Problem]) -> list[float]:
        data = (train, train_labels, dev, dev_labels, n_tags)
        return retrained(*data, problems, training, on_step).tolist()

    oracles = {c: candidate.oracle for c, candidate in enumerate(candidates) if candidate.oracle is not None}
    unknown = [c for c in range(len(candidates)) if c not in oracles]
    whole = accuracies_of([candidates[c].problem(np.sort(candidates[c].order)) for c in unknown])
    oracles |= dict(zip(unknown, whole, strict=True))
    failed = [c for c, oracle in oracles.items() if math.isnan(oracle)]
    if failed:
        yield {c: MinimalSet(math.nan, math.nan, 0, math.nan, np.zeros(0, np.int64), ()) for c in failed}
    left = [c for c in range(len(candidates)) if c not in failed]
    tried: dict[int, list[tuple[int, float]]] = {c: [] for c in left}
    for share in shares:
        sets = {c: top(candidates[c].order, count_of(share, len(candidates[c].order))) for c in left}
        done = {}
        found = accuracies_of([candidates[c].problem(sets[c]) for c in left])
        for c, accuracy in zip(left, found, strict=True):
            neurons, order = sets[c], candidates[c].order
            tried[c].append((len(neurons), accuracy))
            if accuracy >= oracles[c] - candidates[c].delta or share == shares[-1]:
                part = len(neurons) / len(order)
                done[c] = MinimalSet(oracles[c], accuracy, len(neurons), part, neurons, tuple(tried[c]))
        if done:
            yield done
        left = [c for c in left if c not in done]
        if not left:
            return
