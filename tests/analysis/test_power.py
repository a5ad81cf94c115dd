"""Numbers of trials, against statsmodels' solution and against the power of simulated studies."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from whichlayers.analysis.power import (
    equivalence_power,
    interaction_power,
    mean_power,
    minutes_per_added_trial,
    power_estimates,
    t_test_power,
    tost_power,
    trials_for,
    welch_power,
    yekutieli_level,
)
from whichlayers.study.study_file import Study


def points(n: int, sd: float, experiment: str = "incremental", seed: int = 0) -> pd.DataFrame:
    """Three points of one curve whose paired differences have standard deviation `sd`; trials take 60, 120, 180 s."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0, 0.2, n)  # offset of each seed, which pairing removes
    rows = []
    for x in range(3):
        condition = "" if experiment == "incremental" else ("all pretrained" if x == 0 else "top")
        for s in range(n):
            rows.append(
                {
                    "experiment": experiment,
                    "model": "m",
                    "model_fingerprint": "f",
                    "task": "t",
                    "train_size": 500,
                    "variant": "",
                    "condition": condition,
                    "x": float(x),
                    "seed": s,
                    "value": 0.5 + 0.1 * x + common[s] + rng.normal(0, sd / math.sqrt(2)),
                    "seconds": 60.0 * (x + 1),
                    "trial_id": f"{x}-{s}",
                }
            )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("difference", [0.005, 0.01, 0.03])
def test_needed_trials_agree_with_statsmodels(difference):
    found = power_estimates(points(12, 0.02), difference)
    assert [c.about for c in found] == ["k = 1 against 0", "k = 2 against 1"]
    for c in found:
        level = 0.05 / (2 * (1 + 1 / 2))  # Benjamini-Yekutieli, two comparisons
        solved = TTestPower().solve_power(effect_size=difference / c.sd, alpha=level, power=0.8)
        assert c.needed == pytest.approx(max(2, math.ceil(solved)), abs=1)
        assert c.additional == max(0, c.needed - 12)
    assert [c.minutes_per_trial for c in found] == [3.0, 5.0]


def test_needed_trials_have_80_percent_power():
    (c, _) = power_estimates(points(30, 0.02), 0.01)
    samples = np.random.default_rng(1).normal(0.01, c.sd, (20_000, c.needed))
    level = yekutieli_level(0.05, 2)
    assert np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue < level) == pytest.approx(0.8, abs=0.03)


def test_other_experiments_are_compared_with_all_pretrained():
    found = power_estimates(points(5, 0.02, "prune"), 0.05)
    assert [c.about for c in found] == ["top 1 against all pretrained", "top 2 against all pretrained"]
    assert found[1].minutes_per_trial == 4.0


def test_one_trial_and_equal_differences_are_not_estimable():
    assert [(c.estimable, c.needed, c.additional) for c in power_estimates(points(1, 0.02), 0.01)] == [
        (False, None, None)
    ] * 2
    same = points(3, 0.0)
    same["value"] = same["x"]
    assert [(c.estimable, c.needed, c.additional) for c in power_estimates(same, 0.01)] == [
        (False, None, None)
    ] * 2
    assert all(c.needed is None and c.estimable for c in power_estimates(points(5, 0.5), 1e-4))


def test_a_trial_at_several_points_counts_once():
    one = points(4, 0.02)
    assert minutes_per_added_trial(one) == 6.0
    assert minutes_per_added_trial(one.assign(variant=None)) == 6.0
    assert minutes_per_added_trial(pd.concat([one, one.assign(experiment="prune")])) == 6.0


def test_a_study_with_more_trials_keeps_the_seeds_that_it_has():
    study = Study(
        name="s",
        models=["org/m"],
        tasks=["SST-2"],
        experiments=[
            "incremental",
            {"kind": "permutation", "trials": 1, "baseline_trials": {"500": 4, "default": 2}},
        ],
        trials={"500": 5, "default": 3},
    )
    more = study.with_more_trials(2)
    assert more.trials.plain() == {"500": 7, "default": 5}
    incremental, permutation = more.experiments
    assert incremental.trials is None
    assert permutation.trials.plain() == 3
    assert permutation.baseline_trials.plain() == {"500": 6, "default": 4}
    assert (more.seed, more.name) == (study.seed, study.name)
    assert study.trials.plain() == {"500": 5, "default": 3}


def test_trials_for_t_test_have_the_promised_power():
    n = trials_for(mean_power(0.01, 0.012))
    samples = [0.01 + np.random.default_rng(seed).normal(0, 0.012, n) for seed in range(500)]
    rejected = np.mean([stats.ttest_1samp(sample, 0).pvalue < 0.05 for sample in samples])
    assert rejected == pytest.approx(0.82, abs=0.07)
    assert trials_for(mean_power(1.0, 0.01)) == 2
    assert trials_for(welch_power(0.01, (0.02**2, 0.02**2))) > trials_for(mean_power(0.01, 0.02))
    assert trials_for(tost_power(0.002, 0.005, 0.01)) < 10
    assert trials_for(tost_power(0.02, 0.005, 0.01)) is None
    assert trials_for(mean_power(0.0, 0.01)) is None
    assert trials_for(mean_power(1e-6, 1.0)) is None  # more than MAX_TRIALS


@pytest.mark.parametrize(("effect", "needed"), [(4.0, 3), (2.0, 5), (1.0, 10), (0.5, 34), (0.2, 199)])
def test_trials_for_t_test_are_those_of_the_noncentral_t_distribution(effect, needed):
    assert trials_for(mean_power(effect, 1.0)) == needed
    for n, enough in ((needed, True), (needed - 1, False)):  # simulated
        rng = np.random.default_rng(n)
        t = (rng.normal(size=200_000) + effect * math.sqrt(n)) / np.sqrt(
            rng.chisquare(n - 1, 200_000) / (n - 1)
        )
        assert (np.mean(abs(t) > stats.t.isf(0.025, n - 1)) > 0.8) == enough


def test_power_of_t_tests_agrees_with_statsmodels_where_that_is_finite():
    compared = 0
    for d, n, two_sided in itertools.product(
        (0.1, 0.5, 1.0, 2.0, 4.0), (2, 3, 5, 10, 40, 200), (True, False)
    ):
        expected = TTestPower().power(d, n, 0.05, alternative="two-sided" if two_sided else "larger")
        if math.isfinite(expected):
            compared += 1
            assert t_test_power(d * math.sqrt(n), n - 1, 0.05, two_sided) == pytest.approx(expected, abs=1e-5)
    assert compared > 40


@pytest.mark.parametrize(("mean", "sd", "n"), [(0.0, 1.0, 8), (0.3, 1.0, 12), (-0.5, 0.8, 5), (0.0, 2.0, 20)])
def test_power_of_equivalence_tests_agrees_with_simulation(mean, sd, n):
    samples = np.random.default_rng(n).normal(mean, sd, (40_000, n))
    error = samples.std(1, ddof=1) / math.sqrt(n)
    critical = stats.t.isf(0.05, n - 1)
    both = (samples.mean(1) + 1.0 > critical * error) & (samples.mean(1) - 1.0 < -critical * error)
    assert equivalence_power(mean / sd, 1.0 / sd, n, 0.05) == pytest.approx(both.mean(), abs=0.01)


def test_equivalence_at_zero_needs_more_trials_than_one_of_its_tests():
    one_sided = trials_for(mean_power(1.0, 2.0, two_sided=False))
    assert trials_for(tost_power(0.0, 2.0, 1.0)) > one_sided
    assert trials_for(tost_power(0.9, 2.0, 1.0)) == trials_for(mean_power(0.1, 2.0, two_sided=False))


def test_trials_for_an_interaction_fall_with_its_size():
    few, many = trials_for(interaction_power(10.0, 6, 3, 24)), trials_for(interaction_power(2.0, 6, 3, 24))
    assert 3 < few < many
    assert trials_for(interaction_power(0.0, 6, 3, 24)) is None


def test_power_to_be_significant_and_reach_a_margin_against_simulations():
    """With margins close to the effect, which take more trials than significance."""
    rng = np.random.default_rng(7)
    n = trials_for(welch_power(0.5, (1.0, 0.25), margin=0.4))
    assert n > trials_for(welch_power(0.5, (1.0, 0.25)))
    a, b = rng.normal(0.5, 1.0, (4000, n)), rng.normal(0.0, 0.5, (4000, n))
    held = (stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue < 0.05) & ((a - b).mean(axis=1) >= 0.4)
    assert np.mean(held) == pytest.approx(0.8, abs=0.03)
    assert welch_power(0.5, (1.0, 0.25), margin=0.6) is None
    noncentrality, margin, trials, df, df_denom = 8.0, 5.0, 5, 4.0, 20.0
    n = trials_for(interaction_power(noncentrality, df, trials, df_denom, margin))
    assert n > trials_for(interaction_power(noncentrality, df, trials, df_denom))
    numerator = rng.noncentral_chisquare(df, noncentrality * n / trials, 4000) / df
    denom = df_denom * (n - 1) / (trials - 1)
    f = numerator / (rng.chisquare(denom, 4000) / denom)
    reached = stats.ncf.cdf(f, df, denom, margin * n / trials) >= 0.5
    assert np.mean((stats.f.sf(f, df, denom) < 0.05) & reached) == pytest.approx(0.8, abs=0.03)
