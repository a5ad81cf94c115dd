"""From a ranking to a set of neurons: the search for l1 and l2, the smallest set that suffices, sets retrained.

grid = search_lambdas(train, train_tags, dev, dev_tags, n_tags)
least = minimal_set(train, train_tags, dev, dev_tags, n_tags, grid.ranking.order, l1=grid.best.l1, ...)
sets = {"top": top(order, 499), "bottom": bottom(order, 499)}
retrained(train, train_tags, test, test_tags, n_tags, sets, seeds=(0, 1, 2))["bottom"]    # (3,) accuracies
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from carryover.probes.elastic import FittedProbe, OnStep, ProbeTraining, Problem, accuracies, fit_probes
from carryover.probes.ranking import Ranking, bottom, count_of, rank_by_weight, top
from carryover.probes.table import WordTable
from carryover.trial import CarryoverError

LAMBDAS = (0.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
SHARES = tuple(percent / 100 for percent in range(1, 101))


@dataclass(frozen=True)
class GridPoint:
    l1: float
    l2: float
    accuracy: float  # with all neurons
    top: float  # with all but the most salient masked, without training again
    bottom: float  # with all but the least salient masked
    score: float


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
    seed: int = 0,
    training: ProbeTraining | None = None,
    on_step: OnStep | None = None,
) -> Grid:
    """Probes on all neurons for every pair of l1 and l2, trained together; the pair with the best score.

    score = 0.5 * (top - bottom) - 0.5 * (accuracy without a penalty - accuracy), after Dalvi et al. 2019: the
    ranking should part the salient from the others, and the penalty should cost little accuracy. Of pairs with
    the same score the one named first is taken. A pair whose probe diverges is not chosen.
    """
    pairs = [(one, two) for one in l1 for two in l2]
    if not pairs:
        raise CarryoverError("the search needs at least one value of l1 and one of l2")
    free = [(0.0, 0.0)] if (0.0, 0.0) not in pairs else []  # the measure of what a penalty costs
    everything = train.everything()
    problems = [Problem(everything, one, two, seed) for one, two in [*pairs, *free]]
    probes = fit_probes(train, train_labels, n_tags, problems, training, on_step)
    count = count_of(share, len(everything))
    whole = accuracies(dev, dev_labels, probes)
    unpenalised = whole[[*pairs, *free].index((0.0, 0.0))]
    rankings = [None if probe.error else rank_by_weight(probe.weight) for probe in probes]
    orders = [ranking.order if ranking else everything for ranking in rankings]
    masked = [
        keep_only(probe, part(order, count))
        for probe, order in zip(probes, orders, strict=True)
        for part in (top, bottom)
    ]
    parts = accuracies(dev, dev_labels, masked).reshape(-1, 2)
    scores = 0.5 * (parts[:, 0] - parts[:, 1]) - 0.5 * (unpenalised - whole)
    scores = scores[: len(pairs)]
    if np.isnan(scores).all():
        raise CarryoverError("no probe of the search gave finite numbers: try a smaller lr")
    best = int(np.nanargmax(scores))
    points = [
        GridPoint(*pair, float(whole[p]), float(parts[p, 0]), float(parts[p, 1]), float(scores[p]))
        for p, pair in enumerate(pairs)
    ]
    ranking = rankings[best]
    assert ranking is not None  # only a probe that failed has none, and its score is NaN
    return Grid(points, points[best], probes[best], ranking)


def keep_only(probe: FittedProbe, places: np.ndarray) -> FittedProbe:
    """The same probe with the weights of all other neurons at 0; places in the list of neurons it reads."""
    weight = torch.zeros_like(probe.weight)
    weight[places] = probe.weight[places]
    return dataclasses.replace(probe, weight=weight)


@dataclass(frozen=True, eq=False)
class MinimalSet:
    oracle: float  # accuracy with all neurons, the mean over seeds
    accuracy: float  # with the set
    count: int
    share: float
    neurons: np.ndarray  # (count,)
    tried: tuple[tuple[int, float], ...]  # (count, accuracy) of every set that was tried, in order


def minimal_set(
    train: WordTable,
    train_labels: np.ndarray,
    dev: WordTable,
    dev_labels: np.ndarray,
    n_tags: int,
    order: np.ndarray,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    delta: float = 0.005,
    seeds: Sequence[int] = (0,),
    shares: Sequence[float] = SHARES,
    oracle: float | None = None,
    training: ProbeTraining | None = None,
    on_step: OnStep | None = None,
) -> MinimalSet:
    """The smallest of the sets at the top of `order` whose probes, trained on it alone, come within delta of the
    accuracy of probes on all neurons. `order` names neurons of the table; `oracle`: that accuracy, if known."""
    if not shares or list(shares) != sorted(set(shares)):
        raise CarryoverError(f"shares of neurons must rise, got {list(shares)}")
    if oracle is None:
        everything = {"all": np.sort(order)}
        found = retrained(
            train, train_labels, dev, dev_labels, n_tags, everything, l1=l1, l2=l2, seeds=seeds,
            training=training, on_step=on_step,
        )  # fmt: skip
        oracle = float(found["all"].mean())
    if math.isnan(oracle):
        return MinimalSet(oracle, oracle, 0, math.nan, np.zeros(0, np.int64), ())
    tried: list[tuple[int, float]] = []
    for share in shares:
        neurons = top(order, count_of(share, len(order)))
        found = retrained(
            train, train_labels, dev, dev_labels, n_tags, {"top": neurons}, l1=l1, l2=l2, seeds=seeds,
            training=training, on_step=on_step,
        )  # fmt: skip
        accuracy = float(found["top"].mean())
        tried.append((len(neurons), accuracy))
        if accuracy >= oracle - delta:
            break
    return MinimalSet(oracle, accuracy, len(neurons), len(neurons) / len(order), neurons, tuple(tried))


def retrained(
    train: WordTable,
    train_labels: np.ndarray,
    test: WordTable,
    test_labels: np.ndarray,
    n_tags: int,
    sets: Mapping[str, np.ndarray],
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    seeds: Sequence[int] = (0,),
    training: ProbeTraining | None = None,
    on_step: OnStep | None = None,
) -> dict[str, np.ndarray]:
    """For every set of neurons, the accuracy (seeds,) of probes that are trained and read it alone.

    Sets of one size train together. Labels may be (tasks, n): then (tasks, seeds), all trained together.
    """
    tasks = len(np.atleast_2d(train_labels))
    problems = [
        Problem(neurons, l1, l2, seed, task)
        for neurons in sets.values()
        for task in range(tasks)
        for seed in seeds
    ]
    probes = fit_probes(train, train_labels, n_tags, problems, training, on_step)
    found = accuracies(test, test_labels, probes).reshape(len(sets), tasks, len(seeds))
    if np.ndim(train_labels) == 1:
        found = found[:, 0]
    return dict(zip(sets, found, strict=True))
