"""How much rankings of neurons agree: the fraction of the top neurons that two of them share.

    neurons = load_top_neurons(folder)
    neuron_overlap(neurons)    # one row per model, corpus, ranking, size of the sets and comparison

Two sets of m neurons with c in common have an overlap of c / m. Sets of random neurons have one of m / D on average,
the share of all D neurons that is in a set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from whichlayers.analysis.intervals import t_interval
from whichlayers.results.frame_utils import each_group, each_row

SEEDS, FINETUNING, RANKINGS = "seeds", "finetuning", "rankings"
COLUMNS = [
    "model", "task", "finetuned_on", "train_size", "ranking", "share", "comparison",
    "mean", "low", "high", "min", "max", "n", "chance",
]  # fmt: skip
OF_MODEL = ["model", "task", "finetuned_on", "train_size"]  # a model, pretrained or finetuned, and a corpus


def neuron_overlap(neurons: pd.DataFrame) -> pd.DataFrame:
    """Overlap of top neurons between seeds, with the pretrained model, and between ranking methods.

    Args:
        neurons: Rows of `whichlayers.results.frames.load_top_neurons`. Sets without a share are left out: the smallest
            sets have different sizes.

    Returns:
        One row per model (pretrained or finetuned), corpus, ranking, share and comparison:

        - seeds: trials of the same model with different seeds, all pairs. Pairs have trials in common, so there is no
          interval (`low` and `high` are NaN).
        - finetuning: the finetuned model with the pretrained one, paired by seed.
        - rankings: each further ranking (`ranking`) with LCA in the same model, paired by seed.

        `mean`, 95% t interval (`low`, `high`), smallest and largest (`min`, `max`) and number (`n`) of the overlaps;
        `chance` is what random sets have on average.
    """
    sets = neurons[neurons["share"].notna()].drop_duplicates("trial_id")
    rows = [*_between_seeds(sets), *_with_pretrained(sets), *_with_lca(sets)]
    return pd.DataFrame(rows, columns=COLUMNS)


def shared_neurons(neurons: pd.DataFrame) -> dict[tuple[Any, ...], list[tuple[int, int]]]:
    """The (layer, neuron) pairs in the top neurons of every seed, by their mean rank, ties by layer and neuron.

    Returns:
        By (task, model, finetuned_on, train_size, ranking, share).
    """
    found = {}
    sets = neurons[neurons["share"].notna()].drop_duplicates("trial_id")
    for key, group in each_group(sets, ["task", "model", "finetuned_on", "train_size", "ranking", "share"]):
        ranks = [{neuron: rank for rank, neuron in enumerate(chosen)} for chosen in group["neurons"]]
        common = set.intersection(*(set(rank) for rank in ranks))
        found[key] = sorted(common, key=lambda neuron: (sum(rank[neuron] for rank in ranks), neuron))
    return found


def overlap(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Fraction of the elements of the smaller set that the other one has, too."""
    return len(set(one) & set(other)) / min(len(one), len(other))


def _between_seeds(sets: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for key, group in each_group(sets, [*OF_MODEL, "ranking", "share"]):
        # the probeless ranking of a model that is not finetuned is the same with every seed
        if key[-2] != "lca" and key[2] == "":
            continue
        by_seed = _by_seed(group)
        pairs = [overlap(by_seed[a], by_seed[b]) for a, b in combinations(by_seed, 2)]
        if pairs:
            yield _row(key, SEEDS, pairs, interval=False)


def _with_pretrained(sets: pd.DataFrame) -> Iterator[dict[str, Any]]:
    pretrained = {
        key: _by_seed(group)
        for key, group in each_group(sets[sets["finetuned_on"] == ""], ["model", "task", "ranking", "share"])
    }
    for key, group in each_group(sets[sets["finetuned_on"] != ""], [*OF_MODEL, "ranking", "share"]):
        before = pretrained.get((key[0], key[1], key[4], key[5]), {})
        yield from _paired(key, FINETUNING, _by_seed(group), before)


def _with_lca(sets: pd.DataFrame) -> Iterator[dict[str, Any]]:
    lca = {
        key: _by_seed(group)
        for key, group in each_group(sets[sets["ranking"] == "lca"], [*OF_MODEL, "share"])
    }
    for key, group in each_group(sets[sets["ranking"] != "lca"], [*OF_MODEL, "ranking", "share"]):
        yield from _paired(key, RANKINGS, _by_seed(group), lca.get((*key[:4], key[5]), {}))


def _paired(
    key: tuple[Any, ...], comparison: str, sets: dict[int, Any], others: dict[int, Any]
) -> Iterator[dict[str, Any]]:
    """The row that compares two models or rankings over the seeds that both have, if there are any."""
    found = [overlap(chosen, others[seed]) for seed, chosen in sets.items() if seed in others]
    if found:
        yield _row(key, comparison, found, interval=True)


def _row(key: tuple[Any, ...], comparison: str, values: Sequence[float], interval: bool) -> dict[str, Any]:
    found = t_interval(values)
    low, high = (found.low, found.high) if interval else (np.nan, np.nan)
    row = dict(zip([*OF_MODEL, "ranking", "share"], key, strict=True))
    row |= {"comparison": comparison, "mean": found.mean, "low": low, "high": high}
    return row | {"min": min(values), "max": max(values), "n": len(values), "chance": row["share"]}


def _by_seed(rows: pd.DataFrame) -> dict[int, tuple[tuple[int, int], ...]]:
    return {row.seed: row.neurons for row in each_row(rows)}
