"""Claims T1 to S2 on simulated studies with known effects: true, false, too noisy to decide, not tested."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import numpy as np
import pandas as pd
import pytest
from synthetic_results import (
    baselines,
    incremental,
    keeping,
    localized,
    permutation,
    single_layer,
    trial,
    write_results,
)

from whichlayers.analysis.claims import ClaimThresholds, as_records, as_table, evaluate_claims, study_claims
from whichlayers.analysis.claims.base import ClaimTest, evaluate_claim
from whichlayers.analysis.claims.singh2020 import s1, s2, scaled_movement
from whichlayers.analysis.claims.tamkin2020_layers import t3, t4, t5
from whichlayers.analysis.claims.tamkin2020_sizes import t1, t2
from whichlayers.analysis.claims.tamkin2020_training import t6, t7
from whichlayers.results.frames import finished, load_points
from whichlayers.trial import Point, Probe, Training

DEPTH = 6
THRESHOLDS = ClaimThresholds()
HOLDS, FAILS, UNDECIDED, NOT_TESTED = "holds", "does not hold", "not enough trials", "not tested"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """study(make_points, trials) -> finished points with a value of 0, cached."""

    @functools.cache
    def build(make_points, trials):
        folder = tmp_path_factory.mktemp("study")
        return finished(load_points(write_results(folder, make_points(trials), lambda p: 0.0, depth=DEPTH)))

    return build


def with_values(points, level, sd, seed=0, shared=0.01):
    """Points whose value is level(row) plus noise of the trial and of the (task, size, seed)."""
    rng = np.random.default_rng(seed)
    trials = {t: rng.normal(0, sd) for t in dict.fromkeys(points.trial_id)}
    units = points.task + points.train_size.astype(str) + "/" + points.seed.astype(str)
    common = {unit: rng.normal(0, shared) for unit in dict.fromkeys(units)}
    levels = [level(row) for row in points.itertuples(index=False)]
    return points.assign(value=levels + points.trial_id.map(trials) + units.map(common))


def fraction_with_verdict(verdict, claim, points, level, sd, studies=8):
    """The fraction of simulated studies in which the claim gets this verdict."""
    return np.mean(
        [claim(with_values(points, level, sd, s), THRESHOLDS).verdict == verdict for s in range(studies)]
    )


# --- T1: training sizes ---


def two_sizes(trials):
    return incremental(("QNLI", "MRPC"), (500, 5000), trials, DEPTH)


def early_with_more_data(row):
    return 0.5 + 0.4 * (row.x / DEPTH) ** (2.5 if row.train_size == 500 else 0.4)


def same_at_both_sizes(row):
    return 0.5 + 0.4 * (row.x / DEPTH)


def test_t1_holds_if_more_data_need_fewer_layers(study):
    points = study(two_sizes, 4)
    assert fraction_with_verdict(HOLDS, t1, points, early_with_more_data, 0.01) == 1
    claim = t1(with_values(points, early_with_more_data, 0.01), THRESHOLDS)
    assert len(claim.tests) == 4
    early = next(test for test in claim.tests if "fraction" in test.about)
    truth = np.mean([(k / 6) ** 0.4 - (k / 6) ** 2.5 for k in (1, 2)])
    assert early.effect == pytest.approx(truth, abs=0.05)
    assert early.low < truth < early.high


def test_t1_rarely_holds_if_the_size_has_no_effect_and_can_fail(study):
    points = study(two_sizes, 4)
    assert fraction_with_verdict(HOLDS, t1, points, same_at_both_sizes, 0.01) == 0
    assert t1(with_values(points, same_at_both_sizes, 0.001), THRESHOLDS).verdict == FAILS
    shrinks = with_values(
        points, lambda r: early_with_more_data(r._replace(train_size=5500 - r.train_size)), 0.01
    )
    assert t1(shrinks, THRESHOLDS).verdict == FAILS


def test_t1_is_undecided_with_few_trials_and_not_tested_with_one_size(study):
    points = study(two_sizes, 2)
    claim = t1(with_values(points, early_with_more_data, 0.12, seed=1), THRESHOLDS)
    assert claim.verdict == UNDECIDED
    assert t1(study(two_sizes, 1), THRESHOLDS).verdict == UNDECIDED
    assert "at least 3" in t1(study(two_sizes, 1), THRESHOLDS).details
    only = points[points.train_size == 500]
    assert t1(only, THRESHOLDS).verdict == NOT_TESTED


# --- T2: probing ---


def with_probing(trials):
    study_points = incremental(("SST-2",), (500, 5000), trials, DEPTH)
    probes = [
        Point("probing", "", k, trial(size=9000, seed=s, probe=Probe(k)))
        for k in range(1, 7)
        for s in range(trials)
    ]
    return study_points + probes


PROBE = {1: 0.5, 2: 0.52, 3: 0.5, 4: 0.7, 5: 0.8, 6: 0.65}


def unrelated_with_much_data(row):
    if row.experiment == "probing" or row.train_size == 500:
        return PROBE.get(int(row.x), 0.5)
    return 0.5 + 0.4 * min(1.0, row.x / 2) - 0.05 * (row.x == 5)


def test_t2_holds_if_only_small_data_follow_the_probe(study):
    points = study(with_probing, 4)
    claim = t2(with_values(points, unrelated_with_much_data, 0.005), THRESHOLDS)
    assert claim.verdict == HOLDS
    assert claim.tests[0].effect < 0.6
    assert claim.tests[1].effect > 0.4


def test_t2_is_tested_for_each_pooling_of_the_probes(study):
    points = with_values(study(with_probing, 4), unrelated_with_much_data, 0.005)
    other = points[points.experiment == "probing"].assign(variant="pooling summary")
    both = pd.concat(
        [points.assign(variant=points["variant"].mask(points.experiment == "probing", "pooling mean")), other]
    )
    alone, tests = t2(points, THRESHOLDS).tests, t2(both, THRESHOLDS).tests
    assert [test.effect for test in tests] == [test.effect for test in alone] * 2
    assert [test.about.split(":")[0].rpartition(" (")[2] for test in tests] == [
        *["pooling mean)"] * 2, *["pooling summary)"] * 2,
    ]  # fmt: skip


def test_t2_fails_if_the_probe_predicts_at_every_size(study):
    points = study(with_probing, 4)
    level = lambda row: PROBE.get(int(row.x), 0.5)  # noqa: E731
    assert t2(with_values(points, level, 0.005), THRESHOLDS).verdict == FAILS
    assert t2(with_values(points, level, 0.2), THRESHOLDS).verdict == UNDECIDED
    assert t2(study(with_probing, 1), THRESHOLDS).verdict == UNDECIDED
    assert t2(points[points.experiment != "probing"], THRESHOLDS).verdict == NOT_TESTED


# --- T3: blocks ---


def blocks(trials):
    return localized(("SST-2", "QNLI"), trials=trials, depth=DEPTH, block=2)


def block_level(shift):
    """Each task loses most of its gain around one block, and QNLI's gain is half as large."""

    def level(row):
        gain = 0.4 if row.task == "SST-2" else 0.2
        if row.condition in ("all pretrained", "none pretrained"):
            return 0.5 + gain * (row.condition == "all pretrained")
        middle = 2 + (shift if row.task == "QNLI" else 0)
        return 0.5 + gain * (1 - 0.6 * np.exp(-((row.x - middle) ** 2)))

    return level


def test_t3_holds_if_tasks_need_different_blocks_and_not_if_one_task_just_loses_less(study):
    points = study(blocks, 5)
    assert fraction_with_verdict(HOLDS, t3, points, block_level(2), 0.01) == 1
    assert fraction_with_verdict(HOLDS, t3, points, block_level(0), 0.01) <= 1 / 8
    assert t3(with_values(points, block_level(0), 0.0005, shared=0.001), THRESHOLDS).verdict == FAILS
    assert t3(points[points.task == "SST-2"], THRESHOLDS).verdict == NOT_TESTED
    flat = t3(with_values(points, lambda row: 0.5, 0.01), THRESHOLDS)
    assert flat.verdict == UNDECIDED
    assert "no significant gain" in flat.details


# --- T4: permutations ---


def orders(trials):
    study_points = permutation(("SST-2", "CoLA"), permutations=10, trials=1, depth=DEPTH)
    return study_points + [
        b for task in ("SST-2", "CoLA") for b in baselines("permutation", task, 5000, range(1, trials), DEPTH)
    ]


def permuted_level(kept, alike=1.0):
    """Permutations keep this fraction of the gain on average; with alike = 0, CoLA's scores do not follow SST-2's."""
    offsets = np.random.default_rng(3).normal(0, 0.03, (2, 11))

    def level(row):
        if row.condition == "permuted":
            weight = 1.0 if row.task == "SST-2" else alike
            return 0.5 + 0.4 * kept + np.dot([weight, 1 - weight], offsets[:, int(row.x)])
        return 0.9 if row.condition == "all pretrained" else 0.5

    return level


def test_t4_holds_if_little_gain_is_kept_and_tasks_agree(study):
    points = study(orders, 3)
    claim = t4(with_values(points, permuted_level(0.15), 0.004, shared=0.004), THRESHOLDS)
    assert claim.verdict == HOLDS
    assert [test.unit for test in claim.tests] == ["accuracy", "of the gain", "mcc", "of the gain", "rho"]
    assert claim.tests[1].effect == pytest.approx(0.15, abs=0.06)
    assert claim.tests[4].n == 10


def test_t4_fails_if_most_of_the_gain_is_kept(study):
    points = study(orders, 3)
    assert t4(with_values(points, permuted_level(0.8), 0.004, shared=0.004), THRESHOLDS).verdict == FAILS
    unrelated = t4(with_values(points, permuted_level(0.15, alike=0.0), 0.004, shared=0.004), THRESHOLDS)
    assert unrelated.verdict != HOLDS
    assert unrelated.tests[4].p > 0.05
    assert t4(study(orders, 1), THRESHOLDS).verdict == UNDECIDED
    one_task = with_values(points, permuted_level(0.15), 0.004, shared=0.004).query("task == 'SST-2'")
    assert t4(one_task, THRESHOLDS).verdict == HOLDS
    assert "two tasks" in t4(one_task, THRESHOLDS).details


# --- T5: one layer ---


def layers(trials):
    return single_layer(("SST-2", "CoLA"), trials=trials, depth=DEPTH)


def first_matters_on_cola(row):
    return 0.9 - 0.1 * (row.x == 1 and row.task == "CoLA")


def test_t5_needs_equivalence_and_not_just_a_large_p(study):
    points = study(layers, 5)
    holding = t5(with_values(points, first_matters_on_cola, 0.002), THRESHOLDS)
    assert holding.verdict == HOLDS
    assert [test.about for test in holding.tests][2] == "CoLA: layer 1"
    assert holding.tests[2].effect == pytest.approx(-0.1, abs=0.01)
    noisy = t5(with_values(points, first_matters_on_cola, 0.02), THRESHOLDS)
    assert noisy.verdict == UNDECIDED
    assert noisy.needed is None or noisy.needed > 5
    worse_layer = lambda row: first_matters_on_cola(row) - 0.05 * (row.x == 4)  # noqa: E731
    assert t5(with_values(points, worse_layer, 0.002), THRESHOLDS).verdict == FAILS
    wide = t5(with_values(points, first_matters_on_cola, 0.02), ClaimThresholds(margin=0.09))
    assert wide.verdict == HOLDS
    assert t5(study(layers, 1), THRESHOLDS).verdict == UNDECIDED


def test_t5_expects_the_first_layer_to_matter_on_cola_alone(study):
    points = study(layers, 5)
    on_both = t5(with_values(points, lambda row: 0.9 - 0.1 * (row.x == 1), 0.002), THRESHOLDS)
    assert (on_both.verdict, on_both.about) == (FAILS, "SST-2: layer 1, of 6 tested")
    on_neither = t5(with_values(points, lambda row: 0.9, 0.002), THRESHOLDS)
    assert (on_neither.verdict, on_neither.about) == (FAILS, "CoLA: layer 1")


def test_t5_rarely_holds_if_a_layer_costs_the_margin(study):
    assert (
        fraction_with_verdict(
            HOLDS, t5, study(layers, 5), lambda row: first_matters_on_cola(row) - 0.01 * (row.x == 3), 0.003
        )
        <= 1 / 8
    )


# --- T6 and T7: settings ---


def raised_lr(trials):
    points = incremental(("SST-2", "CoLA"), (5000,), trials, DEPTH)
    for task in ("SST-2", "CoLA"):
        for k in range(DEPTH):
            factors = tuple((n, 5.0) for n in range(k + 1, DEPTH + 1))
            for s in range(trials):
                t = trial(task, 5000, s, surgery=keeping(k, DEPTH), training=Training(lr_factors=factors))
                points.append(Point("incremental", "", k, t))
    return points


def kept_norms(trials):
    points = incremental(("SST-2", "CoLA"), (5000,), trials, DEPTH)
    for task in ("SST-2", "CoLA"):
        for k in range(DEPTH):
            for s in range(trials):
                t = trial(task, 5000, s, surgery=keeping(k, DEPTH, keep_layer_norm=True))
                points.append(Point("incremental", "", k, t))
    return points


@pytest.mark.parametrize(
    ("claim", "make_points", "column", "changed"),
    [(t6, raised_lr, "reinit_lr_factor", 5.0), (t7, kept_norms, "keep_layer_norm", True)],
)
def test_t6_and_t7_bound_the_gain(study, claim, make_points, column, changed):
    points = study(make_points, 3)

    def level(gain):
        return lambda row: 0.5 + 0.05 * row.x + gain * (getattr(row, column) == changed)

    assert claim(with_values(points, level(0.0), 0.003), THRESHOLDS).verdict == HOLDS
    assert claim(with_values(points, level(-0.1), 0.003), THRESHOLDS).verdict == HOLDS
    assert claim(with_values(points, level(0.05), 0.003), THRESHOLDS).verdict == FAILS
    undecided = claim(with_values(points, level(0.0), 0.08, seed=2), THRESHOLDS)
    assert undecided.verdict == UNDECIDED
    assert len(undecided.tests) == 2
    assert claim(study(make_points, 1), THRESHOLDS).verdict == UNDECIDED
    assert fraction_with_verdict(HOLDS, claim, points, level(0.01), 0.005, studies=20) <= 0.15
    assert claim(points[points[column] != changed], THRESHOLDS).verdict == NOT_TESTED


# --- S1 and S2: weights ---


def weight_change(points, level, sd=0.02):
    rng = np.random.default_rng(0)
    rows = []
    for row in points.drop_duplicates("trial_id").itertuples(index=False):
        for layer in range(1, DEPTH + 1):
            name = f"encoder.layer.{layer - 1}.output.dense.weight"
            rows.append(
                (row.trial_id, name, layer, "frobenius", level(row, layer) * np.exp(rng.normal(0, sd)))
            )
    return pd.DataFrame(rows, columns=["trial_id", "name", "layer", "kind", "value"])


def test_s1_and_s2_on_simulated_weight_change(study):
    points = study(two_sizes, 3)
    rising = weight_change(points, lambda row, layer: layer * (2 if row.train_size == 5000 else 1))
    assert s1(points, rising, THRESHOLDS).verdict == s2(points, rising, THRESHOLDS).verdict == HOLDS
    assert len(s1(points, rising, THRESHOLDS).tests) == 4
    assert s2(points, rising, THRESHOLDS).effect == pytest.approx(math.log(2), abs=0.05)
    falling = weight_change(points, lambda row, layer: (7 - layer) / (2 if row.train_size == 5000 else 1))
    assert s1(points, falling, THRESHOLDS).verdict == s2(points, falling, THRESHOLDS).verdict == FAILS
    noise = weight_change(points, lambda row, layer: 1.0, sd=0.5)
    assert HOLDS not in (s1(points, noise, THRESHOLDS).verdict, s2(points, noise, THRESHOLDS).verdict)


# --- all of them ---


def test_untested_claims_of_a_small_study_say_what_to_run(tmp_path):
    folder = write_results(tmp_path, incremental(depth=2, trials=1), lambda p: 0.5 + 0.1 * p.x, depth=2)
    found = study_claims(folder)
    tamkin, singh, durrani = (
        [f"{letter}{i + 1}" for i in range(n)] for letter, n in zip("TSD", (10, 4, 4), strict=True)
    )
    assert [claim.id for claim in found] == tamkin + singh + durrani
    assert {claim.verdict for claim in found} == {NOT_TESTED}
    assert all("run" in claim.details for claim in found)
    records = json.loads(json.dumps(as_records(found), allow_nan=False))
    assert records[0]["p"] is None
    assert as_table(found).claim_verdict.tolist() == [NOT_TESTED] * 18


def test_p_values_are_adjusted_within_a_claim_and_every_test_is_in_the_table(study):
    points = with_values(study(two_sizes, 4), early_with_more_data, 0.05)
    found = evaluate_claims(points)
    assert found[0].p == max(test.p for test in found[0].tests) or found[0].verdict == FAILS
    table = as_table(found)
    assert (table.claim == "T1").sum() == 4
    known = table.dropna(subset=["p"])
    assert (known.p_adjusted >= known.p - 1e-12).all()
    assert (known.p_adjusted > known.p).any()


def test_no_claim_holds_if_all_values_are_equal(study):
    for make_points in (two_sizes, blocks, orders):
        found = evaluate_claims(study(make_points, 3))
        assert all(claim.verdict != HOLDS for claim in found)
    assert t5(study(layers, 3), THRESHOLDS).verdict == UNDECIDED  # they also occur by chance


def test_an_undecided_claim_needs_more_trials_than_there_are():
    tests = [ClaimTest("a", "r", 0.1, -0.1, 0.3, p=0.2, p_against=0.8, n=5, power=lambda n, alpha: 1.0)]
    found = evaluate_claim("X", "text", tests, THRESHOLDS)
    assert (found.needed, found.tests[0].needed) == (6, 2)
    below = [dataclasses.replace(tests[0], p_against=0.3)]  # its margin is not reached with more trials
    found = evaluate_claim("X", "text", below, THRESHOLDS)
    assert (found.needed, found.tests[0].needed) == (None, None)


def test_a_significant_effect_that_is_small_is_named():
    tests = [ClaimTest("a", "accuracy", 0.002, 0.001, 0.003, p=1e-4, p_against=1e-4, n=50)]
    found = evaluate_claim("X", "text", tests, THRESHOLDS)
    assert found.verdict == found.tests[0].verdict == "below the margin"
    assert "present, but smaller than the margin: a" in found.details


def test_scaled_movement_goes_from_0_to_1_in_every_trial():
    rows = [
        ("m", "CoLA", 500, seed, layer, 2.0 + seed + layer**2) for seed in (0, 1) for layer in range(1, 5)
    ]
    rows += [("m", "CoLA", 500, 2, layer, 3.0) for layer in range(1, 5)]
    moved = pd.DataFrame(rows, columns=["model", "task", "train_size", "seed", "layer", "value"])
    scaled = scaled_movement(moved)
    assert set(scaled["seed"]) == {0, 1}  # the layers of seed 2 moved equally far
    by_layer = scaled.groupby("layer")["value"].mean()
    assert by_layer.tolist() == pytest.approx([0, 3 / 15, 8 / 15, 1])
