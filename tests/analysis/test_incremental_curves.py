"""Statistics of incremental curves and differences from baselines, on simulated scores with known effects."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from synthetic_results import incremental, localized, write_results

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.incremental_curves import (
    curves,
    early_gain_fractions,
    gains,
    incremental_steps,
    small_ks,
)
from whichlayers.results.frames import finished, load_points


def read(folder, points, score, depth=4):
    return finished(load_points(write_results(folder, points, score, depth=depth)))


def with_levels(levels, offsets=(0.0, 0.01, -0.01)):
    """A score: a level per k, an offset per seed, and a small offset per seed and k."""
    return lambda p: levels[int(p.x)] + offsets[p.trial.seed] + 0.001 * ((p.trial.seed + int(p.x)) % 3)


def test_gain_is_paired_and_the_smallest_k_is_found(tmp_path):
    points = read(tmp_path, incremental(depth=4), with_levels([0.5, 0.6, 0.795, 0.79, 0.8]))
    (curve,) = curves(points)
    assert curve.depth == 4
    assert curve.gain.mean == pytest.approx(0.3, abs=0.002)
    assert curve.gain.n == 3
    assert curve.gain.half_width < 0.005  # the offset of the seed cancels
    assert (curve.reaches, curve.falls_back) == (2, ())
    table = gains(points)
    assert table.loc[0, "reaches_90"] == 2
    assert table.loc[0, "none"] == pytest.approx(0.501, abs=1e-6)


def test_a_curve_may_fall_again(tmp_path):
    points = read(tmp_path, incremental(depth=4), with_levels([0.5, 0.85, 0.6, 0.7, 0.8]))
    assert (curves(points)[0].reaches, curves(points)[0].falls_back) == (1, (2, 3))


@pytest.mark.parametrize("levels", [[0.5] * 5, [0.8, 0.7, 0.6, 0.5, 0.4]])
def test_without_a_significant_gain_no_k_reaches_it(tmp_path, levels):
    points = read(tmp_path, incremental(depth=4), with_levels(levels))
    assert curves(points)[0].reaches is None


def test_one_trial_gives_a_gain_but_no_k_that_reaches_it(tmp_path):
    (curve,) = curves(read(tmp_path, incremental(depth=4, trials=1), with_levels([0.5, 0.6, 0.7, 0.8, 0.9])))
    assert curve.gain.mean == pytest.approx(0.4, abs=0.01)
    assert curve.reaches is None


def test_a_curve_without_its_ends_has_no_gain(tmp_path):
    (curve,) = curves(read(tmp_path, incremental(depth=4, ks=(1, 2)), with_levels([0.5, 0.6, 0.7, 0.8, 0.9])))
    assert curve.gain is None
    assert gains(read(tmp_path / "b", incremental(depth=4, ks=(1, 2)), lambda p: 0.5))["gain"].isna().all()


def test_fraction_of_gain_uses_the_seeds_that_all_three_k_have(tmp_path):
    """k = 2 lacks its lowest seed: by raw means it would reach 90% of the gain, by shared seeds it does not."""

    def score(p):
        if p.x == 2 and p.trial.seed == 0:
            return None
        varies = 0.002 * (p.x == 4) * p.trial.seed  # a gain without variance is not significant
        return {0: 0.5, 2: 0.72, 4: 0.8}[int(p.x)] + varies + (0.0, 0.2, 0.201)[p.trial.seed]

    points = read(tmp_path, incremental(depth=4, ks=(0, 2, 4)), score)
    (curve,) = curves(points)
    assert curve.means[2] > curve.means[0] + 0.9 * (curve.means[4] - curve.means[0])
    assert curve.reaches == 4


def test_steps_are_differences_between_adjacent_k_that_were_run(tmp_path):
    points = read(tmp_path, incremental(depth=4, ks=(0, 1, 4)), with_levels([0.5, 0.6, 0, 0, 0.65]))
    steps = incremental_steps(points)
    assert list(zip(steps.from_k, steps.to_k, strict=True)) == [(0, 1), (1, 4)]
    assert steps["mean"].tolist() == pytest.approx([0.1, 0.05], abs=0.001)
    assert steps.p_adjusted.isna().equals(steps.p.isna())
    assert not (steps.p_adjusted < steps.p).any()


def test_blocks_are_compared_with_the_baseline_by_seed(tmp_path):
    def score(p):
        cost = {"all pretrained": 0.0, "none pretrained": 0.4, "block preserved": 0.3}.get(p.condition)
        return (
            0.9
            - (p.x / 10 if cost is None else cost)
            + (0.0, 0.02, 0.05)[p.trial.seed]
            + p.trial.seed * p.x / 1e4
        )

    points = read(tmp_path, localized(depth=4, block=2), score)
    table = differences_from_baseline(points)
    assert set(table.condition) == {"block reinitialized", "block preserved"}
    cost = table.query("condition == 'block reinitialized'").set_index("x")["mean"]
    assert cost.to_dict() == pytest.approx({1: -0.1, 2: -0.2, 3: -0.3}, abs=1e-3)
    gained = differences_from_baseline(points, "none pretrained").query("condition == 'block preserved'")
    assert gained["mean"].min() > 0.09


def test_early_gain_fraction_is_the_ratio_of_means():
    assert small_ks(12) == [1, 2, 3, 4]
    assert small_ks(2) == [1]
    rng = np.random.default_rng(0)
    rows = [
        (seed, k, 12, 0.5 + 0.3 * min(1, k / 6) + 0.02 * seed + rng.normal(0, 0.003))
        for seed in range(4)
        for k in range(13)
    ]
    frame = pd.DataFrame(rows, columns=["seed", "x", "depth", "value"])
    table = frame.pivot(index="seed", columns="x", values="value").mean()
    expected = (table[[1, 2, 3, 4]].mean() - table[0]) / (table[12] - table[0])
    assert early_gain_fractions(frame).mean() == pytest.approx(expected)
    assert early_gain_fractions(frame[frame.x != 12]) is None
    assert (
        early_gain_fractions(frame.assign(value=np.random.default_rng(0).normal(0, 0.01, len(frame)))) is None
    )
