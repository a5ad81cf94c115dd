"""How many more trials: against statsmodels' own solution and against the power that simulated studies have."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from whichlayers.analysis.trials_needed import comparisons, minutes_of_a_trial_more
from whichlayers.study.add_trials import with_more_trials
from whichlayers.study.file import Study


def points(n: int, sd: float, experiment: str = "incremental", seed: int = 0) -> pd.DataFrame:
    """Three points of one curve whose differences scatter by `sd`; a trial takes 60, 120 and 180 seconds."""
    draw = np.random.default_rng(seed)
    common = draw.normal(0, 0.2, n)  # of a seed, in all of its trials: it must not count
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
                    "value": 0.5 + 0.1 * x + common[s] + draw.normal(0, sd / math.sqrt(2)),
                    "seconds": 60.0 * (x + 1),
                    "trial_id": f"{x}-{s}",
                }
            )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("difference", [0.005, 0.01, 0.03])
def test_what_is_needed_is_what_statsmodels_solves_for(difference):
    found = comparisons(points(12, 0.02), difference)
    assert [c.about for c in found] == ["k = 1 against 0", "k = 2 against 1"]
    for c in found:
        solved = TTestPower().solve_power(effect_size=difference / c.sd, alpha=0.05, power=0.8)
        assert c.needed == pytest.approx(max(2, math.ceil(solved)), abs=1)
        assert c.more == max(0, c.needed - 12)
    assert [c.minutes for c in found] == [3.0, 5.0]


def test_so_many_trials_find_the_difference_four_times_in_five():
    (c, _) = comparisons(points(30, 0.02), 0.01)
    draw = np.random.default_rng(1)
    samples = draw.normal(0.01, c.sd, (20_000, c.needed))
    assert np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.03)


def test_other_experiments_are_held_against_all_pretrained():
    found = comparisons(points(5, 0.02, "prune"), 0.05)
    assert [c.about for c in found] == ["top 1 against all pretrained", "top 2 against all pretrained"]
    assert found[1].minutes == 4.0


def test_one_trial_says_nothing_and_equal_differences_no_more():
    assert [(c.known, c.needed, c.more) for c in comparisons(points(1, 0.02), 0.01)] == [
        (False, None, None)
    ] * 2
    same = points(3, 0.0)
    same["value"] = same["x"]
    assert [(c.known, c.needed, c.more) for c in comparisons(same, 0.01)] == [(False, None, None)] * 2
    assert all(c.needed is None and c.known for c in comparisons(points(5, 0.5), 1e-4))


def test_a_trial_at_several_points_is_paid_for_once():
    one = points(4, 0.02)
    assert minutes_of_a_trial_more(one) == 6.0
    assert minutes_of_a_trial_more(pd.concat([one, one.assign(experiment="prune")])) == 6.0


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
    more = with_more_trials(study, 2)
    assert more.trials.plain() == {"500": 7, "default": 5}
    incremental, permutation = more.experiments
    assert incremental.trials is None
    assert permutation.trials.plain() == 3
    assert permutation.baseline_trials.plain() == {"500": 6, "default": 4}
    assert (more.seed, more.name) == (study.seed, study.name)
    assert study.trials.plain() == {"500": 5, "default": 3}
