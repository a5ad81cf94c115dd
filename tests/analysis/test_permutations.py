"""Permuted layers against a baseline: pairing by seed, standard errors and the power over permutations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_results import permutation, write_results

from whichlayers.analysis.permutations import permutation_difference, permutation_effect
from whichlayers.analysis.power import trials_for
from whichlayers.results.frames import finished, load_points


def read(folder, points, score):
    return finished(load_points(write_results(folder, points, score, depth=4)))


def test_a_permutation_counts_once_however_many_seeds_it_has(tmp_path):
    def score(p):
        return 0.9 + 0.002 * p.trial.seed if p.condition == "all pretrained" else 0.6 + 0.01 * p.x

    points = read(tmp_path, permutation(permutations=5, trials=3, depth=4), score)
    effect = permutation_effect(points)
    permuted, baseline = [0.61, 0.62, 0.63, 0.64, 0.65], [0.9, 0.902, 0.904]
    expected = stats.ttest_ind(permuted, baseline, equal_var=False).confidence_interval()
    assert (effect.n, effect.mean) == (5, pytest.approx(0.63 - 0.902))
    assert (effect.low, effect.high) == pytest.approx((expected.low, expected.high))
    assert permutation_effect(points[points.condition == "permuted"]) is None


def test_a_noisy_baseline_widens_the_interval_of_the_permutation_effect(tmp_path):
    def score(p):
        return (0.62, 0.7, 0.66)[p.trial.seed] if p.condition == "all pretrained" else 0.6 + 0.01 * p.x

    points = read(tmp_path, permutation(permutations=5, trials=3, depth=4), score)
    effect = permutation_effect(points)
    assert effect.mean == pytest.approx(-0.03)
    assert effect.low < 0 < effect.high
    one_trial = points[(points.condition == "permuted") | (points.seed == 0)]
    assert permutation_effect(one_trial) is None


def simulated(rng, permutations, seeds, baseline_seeds, loss=0.0, shared=0.007, noise=0.003, between=0.006):
    """Permuted trials and their baselines; `shared` is the sd of what all trials of a seed have in common."""
    subset = rng.normal(0, shared, baseline_seeds)
    effect = rng.normal(-loss, between, permutations)
    rows = [
        ("permuted", x, s, effect[x] + subset[s] + rng.normal(0, noise))
        for x in range(permutations)
        for s in range(seeds)
    ]
    rows += [("all pretrained", 0, s, subset[s] + rng.normal(0, noise)) for s in range(baseline_seeds)]
    return pd.DataFrame(rows, columns=["condition", "x", "seed", "value"])


@pytest.mark.parametrize(("seeds", "baseline_seeds"), [(1, 5), (3, 3), (5, 5)])
def test_a_subset_effect_that_all_trials_of_a_seed_share_gives_no_false_alarms(seeds, baseline_seeds):
    """Permutations of seed 0 against the baselines of all seeds, unpaired, reject in more than 17%."""
    rng = np.random.default_rng(1)
    found = [permutation_effect(simulated(rng, 10, seeds, baseline_seeds)) for _ in range(400)]
    assert np.mean([d.p < 0.05 for d in found]) < 0.075  # 5% plus 2.3 standard errors of 400 samples
    assert np.mean([d.low < 0 < d.high for d in found]) > 0.925


def test_more_trials_of_permutations_make_the_estimate_more_precise():
    rng = np.random.default_rng(1)
    one, three = (
        np.mean([permutation_effect(simulated(rng, 10, s, 5)).standard_error for _ in range(100)])
        for s in (1, 3)
    )
    assert three < 0.6 * one


def test_the_fraction_of_the_gain_keeps_its_level_at_the_threshold():
    """Permuted layers that keep half of the gain, against the mean of both baselines."""
    rng, below = np.random.default_rng(3), []
    for _ in range(300):
        rows = simulated(rng, 10, 3, 3, loss=0.05)
        every = rows[rows.condition == "all pretrained"].set_index("seed")["value"]
        none = every - 0.1 + rng.normal(0, 0.003, 3)
        d = permutation_difference(rows, (every + none) / 2)
        below.append(stats.t.cdf(d.mean / d.standard_error, d.df) < 0.05)
    assert np.mean(below) < 0.085  # 5% plus 2.8 standard errors


def test_needed_permutations_have_80_percent_power():
    rng, loss, seeds = np.random.default_rng(2), 0.007, 8
    power = permutation_effect(simulated(rng, 2000, seeds, seeds, loss)).power()  # nearly the true variances
    needed = trials_for(power)
    assert 4 < needed < 30
    found = [permutation_effect(simulated(rng, needed, seeds, seeds, loss)).p < 0.05 for _ in range(300)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.08)


def test_needed_permutations_reach_the_margin_too():
    rng, loss, seeds, margin = np.random.default_rng(6), 0.007, 20, 0.0057
    pilot = permutation_effect(simulated(rng, 500, seeds, seeds, loss))
    pilot = dataclasses.replace(pilot, mean=-loss)  # the true one: seeds shift the estimate
    needed = trials_for(pilot.power(margin=margin))
    assert needed > 2 * trials_for(pilot.power())
    found = [permutation_effect(simulated(rng, needed, seeds, seeds, loss)) for _ in range(300)]
    assert np.mean([d.p < 0.05 and d.mean <= -margin for d in found]) == pytest.approx(0.8, abs=0.08)


def test_more_permutations_do_not_make_up_for_a_single_seed():
    found = permutation_effect(simulated(np.random.default_rng(5), 10, 1, 5, loss=0.005))
    assert trials_for(found.power()) is None
