"""Overlap of top neurons against numbers by hand and against the hypergeometric distribution of random sets."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from whichlayers.analysis.neuron_overlap import COLUMNS, neuron_overlap, overlap, shared_neurons
from whichlayers.results.frames import TOP_NEURON_COLUMNS

ONE = ((1, 0), (1, 1), (2, 5), (0, 3))


def sets(*rows) -> pd.DataFrame:
    """Rows of `load_top_neurons`; each of `rows` is (finetuned_on, seed, ranking, share, neurons)."""
    records = [
        {
            "experiment": "neurons", "condition": "", "trial_id": str(i), "model": "m", "model_fingerprint": "m",
            "family": "bert", "task": "pos", "finetuned_on": finetuned_on, "train_size": 100 if finetuned_on else 0,
            "seed": seed, "ranking": ranking, "share": share, "neurons": neurons,
        }
        for i, (finetuned_on, seed, ranking, share, neurons) in enumerate(rows)
    ]  # fmt: skip
    return pd.DataFrame(records, columns=TOP_NEURON_COLUMNS)


def test_overlap_is_the_fraction_of_common_neurons():
    assert overlap(ONE, ONE) == 1
    assert overlap(ONE, ((1, 0), (1, 1), (2, 5), (5, 1))) == 0.75
    assert overlap(ONE, ((1, 3), (0, 0), (0, 1), (5, 2))) == 0, "a neuron is a layer and an index in it"


def test_comparisons_by_hand():
    frame = sets(
        ("", 0, "lca", 0.1, ONE),
        ("", 1, "lca", 0.1, ((1, 0), (1, 1), (2, 5), (9, 9))),
        ("", 2, "lca", 0.1, ((1, 0), (1, 1), (8, 8), (9, 9))),
        ("SST-2", 0, "lca", 0.1, ((1, 0), (7, 7), (7, 8), (7, 9))),
        ("SST-2", 1, "lca", 0.1, ((1, 0), (1, 1), (7, 8), (7, 9))),
        ("", 0, "probeless", 0.1, ((1, 0), (3, 3), (3, 4), (3, 5))),
        ("", 1, "probeless", 0.1, ((1, 0), (3, 3), (3, 4), (3, 5))),
        ("", 0, "lca", math.nan, ((4, 4),)),  # a smallest set
    )
    found = neuron_overlap(frame).set_index(["finetuned_on", "ranking", "comparison"])
    assert list(found.reset_index()[COLUMNS]) == COLUMNS
    assert set(found.index) == {
        ("", "lca", "seeds"), ("SST-2", "lca", "seeds"), ("SST-2", "lca", "finetuning"),
        ("", "probeless", "rankings"),
    }  # fmt: skip
    seeds = found.loc[("", "lca", "seeds")]
    assert seeds["mean"] == pytest.approx((0.75 + 0.5 + 0.75) / 3)
    assert (seeds["min"], seeds["max"], seeds["n"], seeds["chance"]) == (0.5, 0.75, 3, 0.1)
    assert math.isnan(seeds["low"]), "pairs of trials are not independent"
    assert found.loc[("SST-2", "lca", "seeds"), "mean"] == 0.75
    tuned = found.loc[("SST-2", "lca", "finetuning")]
    expected = stats.t.interval(0.95, 1, 0.375, stats.sem([0.25, 0.5]))
    assert (tuned["mean"], tuned["n"]) == (0.375, 2)
    assert (tuned["low"], tuned["high"]) == pytest.approx(expected)
    assert found.loc[("", "probeless", "rankings"), "mean"] == 0.25


def test_random_sets_overlap_by_chance():
    generator, total, size = np.random.default_rng(0), 400, 40
    rows = [
        ("", seed, "lca", size / total, tuple((0, int(n)) for n in generator.permutation(total)[:size]))
        for seed in range(60)
    ]
    (row,) = neuron_overlap(sets(*rows)).to_dict("records")
    assert row["n"] == 60 * 59 / 2
    standard_error = stats.hypergeom(total, size, size).std() / size / math.sqrt(row["n"])
    assert abs(row["mean"] - row["chance"]) < 4 * standard_error


def test_sets_of_other_models_corpora_and_sizes_are_not_compared():
    frame = sets(("", 0, "lca", 0.1, ONE), ("", 1, "lca", 0.2, ONE), ("", 2, "lca", 0.3, ONE))
    assert neuron_overlap(frame).empty
    other = sets(("", 1, "lca", 0.1, ONE)).assign(trial_id="x")
    both = pd.concat([frame.head(1), other])
    assert len(neuron_overlap(both)) == 1
    for column in ("model", "task"):
        assert neuron_overlap(pd.concat([frame.head(1), other.assign(**{column: "other"})])).empty


def test_a_trial_of_several_points_counts_once():
    frame = sets(("", 0, "lca", 0.1, ONE), ("", 1, "lca", 0.1, ONE))
    pd.testing.assert_frame_equal(neuron_overlap(pd.concat([frame, frame])), neuron_overlap(frame))


def test_without_sets_there_is_nothing_to_compare():
    assert neuron_overlap(sets()).empty
    assert list(neuron_overlap(sets())) == COLUMNS
    assert shared_neurons(sets()) == {}


def test_shared_neurons_are_in_all_sets_and_ordered_by_mean_rank():
    chosen = [
        ((1, 1), (0, 0), (2, 2), (5, 5)),
        ((0, 0), (1, 1), (2, 2), (6, 6)),
        ((0, 0), (2, 2), (1, 1), (7, 7)),
    ]
    frame = sets(*(("", seed, "lca", 0.1, one) for seed, one in enumerate(chosen)))
    ((key, found),) = shared_neurons(frame).items()
    assert key == ("pos", "m", "", 0, "lca", 0.1)
    assert found == [(0, 0), (1, 1), (2, 2)]
    by_hand = {n: np.mean([one.index(n) for one in chosen]) for n in found}
    assert [by_hand[n] for n in found] == sorted(by_hand.values())
    assert all(len(set(a) & set(b)) >= len(found) for a, b in combinations(chosen, 2))
