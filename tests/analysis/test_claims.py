"""Every claim on simulated studies whose truth is known: true, false, too noisy to say, never asked."""

from __future__ import annotations

import functools
import gc
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

from whichlayers.analysis.claims import Limits, as_records, as_table, claims, study_claims
from whichlayers.analysis.claims.base import Test, judge
from whichlayers.analysis.claims.singh2020 import s1, s2, scaled_movement
from whichlayers.analysis.claims.tamkin2020_data_size import t1, t2
from whichlayers.analysis.claims.tamkin2020_layers import t3, t5
from whichlayers.analysis.claims.tamkin2020_permutation import t4
from whichlayers.analysis.claims.tamkin2020_settings import t6, t7
from whichlayers.results.frames import finished, load_points
from whichlayers.trial import Point, Training

DEPTH = 6
LIMITS = Limits()
HOLDS, FAILS, OPEN, NOT_ASKED = "holds", "does not hold", "not enough data", "not asked for"


@pytest.fixture(scope="module", autouse=True)
def _light_collections():
    """statsmodels' multipletests collects garbage at each call; what is here already need not be looked at."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """study(maker, trials) -> finished points with a value of 0, made once each."""

    @functools.cache
    def made(maker, trials):
        folder = tmp_path_factory.mktemp("study")
        return finished(load_points(write_results(folder, maker(trials), lambda p: 0.0, depth=DEPTH)))

    return made


def with_values(points, level, sd, seed=0, shared=0.01):
    """level(row) plus noise of each trial and of each (task, size, seed), the same in whichever row it stands."""
    rng = np.random.default_rng(seed)
    trials = {t: rng.normal(0, sd) for t in dict.fromkeys(points.trial_id)}
    units = points.task + points.train_size.astype(str) + "/" + points.seed.astype(str)
    common = {unit: rng.normal(0, shared) for unit in dict.fromkeys(units)}
    levels = [level(row) for row in points.itertuples(index=False)]
    return points.assign(value=levels + points.trial_id.map(trials) + units.map(common))


def share_of(verdict, claim, points, level, sd, studies=8):
    return np.mean(
        [claim(with_values(points, level, sd, s), LIMITS).verdict == verdict for s in range(studies)]
    )


# --- T1: sizes ---


def two_sizes(trials):
    return incremental(("SST-2", "CoLA"), (500, 5000), trials, DEPTH)


def grows_early(row):
    return 0.5 + 0.4 * (row.x / DEPTH) ** (2.5 if row.train_size == 500 else 0.4)


def the_same_at_both(row):
    return 0.5 + 0.4 * (row.x / DEPTH)


def test_t1_holds_where_more_data_need_fewer_layers(study):
    points = study(two_sizes, 4)
    assert share_of(HOLDS, t1, points, grows_early, 0.01) == 1
    claim = t1(with_values(points, grows_early, 0.01), LIMITS)
    assert len(claim.tests) == 4
    early = next(test for test in claim.tests if "share" in test.about)
    truth = np.mean([(k / 6) ** 0.4 - (k / 6) ** 2.5 for k in (1, 2)])
    assert early.effect == pytest.approx(truth, abs=0.05)
    assert early.low < truth < early.high


def test_t1_seldom_holds_where_the_size_changes_nothing_and_can_fail(study):
    points = study(two_sizes, 4)
    assert share_of(HOLDS, t1, points, the_same_at_both, 0.01) == 0
    assert t1(with_values(points, the_same_at_both, 0.001), LIMITS).verdict == FAILS
    shrinks = with_values(points, lambda r: grows_early(r._replace(train_size=5500 - r.train_size)), 0.01)
    assert t1(shrinks, LIMITS).verdict == FAILS


def test_t1_says_how_many_trials_it_needs(study):
    points = study(two_sizes, 2)
    claim = t1(with_values(points, grows_early, 0.12, seed=1), LIMITS)
    assert claim.verdict == OPEN
    assert t1(study(two_sizes, 1), LIMITS).verdict == OPEN
    assert "at least 3" in t1(study(two_sizes, 1), LIMITS).details
    only = points[points.train_size == 500]
    assert t1(only, LIMITS).verdict == NOT_ASKED


# --- T2: probing ---


def with_probing(trials):
    made = incremental(("SST-2",), (500, 5000), trials, DEPTH)
    probes = [
        Point("probing", "", k, trial(size=9000, seed=s, training=Training(epochs=40 + k)))
        for k in range(1, 7)
        for s in range(trials)
    ]
    return made + probes


PROBE = {1: 0.5, 2: 0.52, 3: 0.5, 4: 0.7, 5: 0.8, 6: 0.65}


def unlike_at_much_data(row):
    if row.experiment == "probing" or row.train_size == 500:
        return PROBE.get(int(row.x), 0.5)
    return 0.5 + 0.4 * min(1.0, row.x / 2) - 0.05 * (row.x == 5)


def test_t2_holds_where_only_little_data_follow_the_probe(study):
    points = study(with_probing, 4)
    claim = t2(with_values(points, unlike_at_much_data, 0.005), LIMITS)
    assert claim.verdict == HOLDS
    assert claim.tests[0].effect < 0.6
    assert claim.tests[1].effect > 0.4


def test_t2_fails_where_the_probe_predicts_at_every_size(study):
    points = study(with_probing, 4)
    level = lambda row: PROBE.get(int(row.x), 0.5)  # noqa: E731
    assert t2(with_values(points, level, 0.005), LIMITS).verdict == FAILS
    assert t2(with_values(points, level, 0.2), LIMITS).verdict == OPEN
    assert t2(study(with_probing, 1), LIMITS).verdict == OPEN
    assert t2(points[points.experiment != "probing"], LIMITS).verdict == NOT_ASKED


# --- T3: blocks ---


def blocks(trials):
    return localized(("SST-2", "QNLI"), trials=trials, depth=DEPTH, block=2)


def block_level(shift):
    """Each task loses a third of its gain about one block, and QNLI's gain is half as large."""

    def level(row):
        gain = 0.4 if row.task == "SST-2" else 0.2
        if row.condition in ("all pretrained", "none pretrained"):
            return 0.5 + gain * (row.condition == "all pretrained")
        middle = 2 + (shift if row.task == "QNLI" else 0)
        return 0.5 + gain * (1 - 0.6 * np.exp(-((row.x - middle) ** 2)))

    return level


def test_t3_holds_where_tasks_need_different_blocks_and_not_where_one_is_hurt_less_everywhere(study):
    points = study(blocks, 5)
    assert share_of(HOLDS, t3, points, block_level(2), 0.01) == 1
    assert share_of(HOLDS, t3, points, block_level(0), 0.01) <= 1 / 8
    assert t3(with_values(points, block_level(0), 0.0005, shared=0.001), LIMITS).verdict == FAILS
    assert t3(points[points.task == "SST-2"], LIMITS).verdict == NOT_ASKED
    flat = t3(with_values(points, lambda row: 0.5, 0.01), LIMITS)
    assert flat.verdict == OPEN
    assert "no clear gain" in flat.details


# --- T4: permutations ---


def orders(trials):
    made = permutation(("SST-2", "CoLA"), permutations=10, trials=1, depth=DEPTH)
    return made + [
        b for task in ("SST-2", "CoLA") for b in baselines("permutation", task, 5000, range(1, trials), DEPTH)
    ]


def permuted_level(left, alike=1.0):
    luck = np.random.default_rng(3).normal(0, 0.03, (2, 11))

    def level(row):
        if row.condition == "permuted":
            weight = 1.0 if row.task == "SST-2" else alike
            return 0.5 + 0.4 * left + np.dot([weight, 1 - weight], luck[:, int(row.x)])
        return 0.9 if row.condition == "all pretrained" else 0.5

    return level


def test_t4_holds_where_little_is_left_and_tasks_agree(study):
    points = study(orders, 3)
    claim = t4(with_values(points, permuted_level(0.15), 0.004, shared=0.004), LIMITS)
    assert claim.verdict == HOLDS
    assert [test.unit for test in claim.tests] == ["accuracy", "of the gain", "mcc", "of the gain", "rho"]
    assert claim.tests[1].effect == pytest.approx(0.15, abs=0.06)
    assert claim.tests[4].n == 10


def test_t4_fails_where_the_order_hardly_matters_or_most_is_kept(study):
    points = study(orders, 3)
    assert t4(with_values(points, permuted_level(0.8), 0.004, shared=0.004), LIMITS).verdict == FAILS
    unlike = t4(with_values(points, permuted_level(0.15, alike=0.0), 0.004, shared=0.004), LIMITS)
    assert unlike.verdict != HOLDS
    assert unlike.tests[4].p > 0.05
    assert t4(study(orders, 1), LIMITS).verdict == OPEN
    one_task = with_values(points, permuted_level(0.15), 0.004, shared=0.004).query("task == 'SST-2'")
    assert t4(one_task, LIMITS).verdict == HOLDS
    assert "two tasks" in t4(one_task, LIMITS).details


# --- T5: one layer ---


def layers(trials):
    return single_layer(("SST-2", "CoLA"), trials=trials, depth=DEPTH)


def test_t5_needs_the_margin_and_not_a_large_p(study):
    points = study(layers, 5)
    first_matters = lambda row: 0.9 - 0.1 * (row.x == 1)  # noqa: E731
    holding = t5(with_values(points, first_matters, 0.002), LIMITS)
    assert holding.verdict == HOLDS
    assert "the first layer matters (-0.1" in holding.details
    noisy = t5(with_values(points, first_matters, 0.02), LIMITS)
    assert noisy.verdict == OPEN
    assert noisy.needed is None or noisy.needed > 5
    assert t5(with_values(points, lambda row: 0.9 - 0.05 * (row.x == 4), 0.002), LIMITS).verdict == FAILS
    assert t5(with_values(points, first_matters, 0.02), Limits(margin=0.2)).verdict == HOLDS
    assert t5(study(layers, 1), LIMITS).verdict == OPEN


def test_t5_seldom_holds_where_a_layer_costs_the_margin(study):
    assert share_of(HOLDS, t5, study(layers, 5), lambda row: 0.9 - 0.01 * (row.x == 3), 0.003) <= 1 / 8


# --- T6 and T7: settings ---


def faster(trials):
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
    ("claim", "maker", "column", "changed"),
    [(t6, faster, "reinit_lr_factor", 5.0), (t7, kept_norms, "keep_layer_norm", True)],
)
def test_t6_and_t7_no_help_is_a_bound_on_the_gain(study, claim, maker, column, changed):
    points = study(maker, 3)

    def level(gain):
        return lambda row: 0.5 + 0.05 * row.x + gain * (getattr(row, column) == changed)

    assert claim(with_values(points, level(0.0), 0.003), LIMITS).verdict == HOLDS
    assert claim(with_values(points, level(-0.1), 0.003), LIMITS).verdict == HOLDS
    assert claim(with_values(points, level(0.05), 0.003), LIMITS).verdict == FAILS
    undecided = claim(with_values(points, level(0.0), 0.08, seed=2), LIMITS)
    assert undecided.verdict == OPEN
    assert len(undecided.tests) == 2
    assert claim(study(maker, 1), LIMITS).verdict == OPEN
    assert share_of(HOLDS, claim, points, level(0.01), 0.005, studies=20) <= 0.15
    assert claim(points[points[column] != changed], LIMITS).verdict == NOT_ASKED


# --- S1 and S2: weights ---


def moved(points, level, sd=0.02):
    rng = np.random.default_rng(0)
    rows = []
    for row in points.drop_duplicates("trial_id").itertuples(index=False):
        for layer in range(1, DEPTH + 1):
            name = f"encoder.layer.{layer - 1}.output.dense.weight"
            rows.append(
                (row.trial_id, name, layer, "frobenius", level(row, layer) * np.exp(rng.normal(0, sd)))
            )
    return pd.DataFrame(rows, columns=["trial_id", "name", "layer", "kind", "value"])


def test_s1_and_s2_on_weights_that_moved(study):
    points = study(two_sizes, 3)
    rising = moved(points, lambda row, layer: layer * (2 if row.train_size == 5000 else 1))
    assert s1(points, rising, LIMITS).verdict == s2(points, rising, LIMITS).verdict == HOLDS
    assert len(s1(points, rising, LIMITS).tests) == 4
    assert s2(points, rising, LIMITS).effect == pytest.approx(math.log(2), abs=0.05)
    falling = moved(points, lambda row, layer: (7 - layer) / (2 if row.train_size == 5000 else 1))
    assert s1(points, falling, LIMITS).verdict == s2(points, falling, LIMITS).verdict == FAILS
    noise = moved(points, lambda row, layer: 1.0, sd=0.5)
    assert HOLDS not in (s1(points, noise, LIMITS).verdict, s2(points, noise, LIMITS).verdict)


# --- all of them ---


def test_a_small_study_is_asked_for_what_it_lacks(tmp_path):
    folder = write_results(tmp_path, incremental(depth=2, trials=1), lambda p: 0.5 + 0.1 * p.x, depth=2)
    found = study_claims(folder)
    assert [claim.id for claim in found] == [
        "T1",
        "T2",
        "T3",
        "T4",
        "T5",
        "T6",
        "T7",
        "S1",
        "S2",
        *["D1", "D2", "D3", "D4"],
    ]
    assert {claim.verdict for claim in found} == {NOT_ASKED}
    assert all("run" in claim.details for claim in found)
    records = json.loads(json.dumps(as_records(found), allow_nan=False))
    assert records[0]["p"] is None
    assert as_table(found).claim_verdict.tolist() == [NOT_ASKED] * 13


def test_p_values_are_adjusted_within_a_claim_and_every_test_is_in_the_table(study):
    points = with_values(study(two_sizes, 4), grows_early, 0.05)
    found = claims(points)
    assert found[0].p == max(test.p_adjusted for test in found[0].tests) or found[0].verdict != HOLDS
    table = as_table(found)
    assert (table.claim == "T1").sum() == 4
    known = table.dropna(subset=["p"])
    assert (known.p_adjusted >= known.p - 1e-12).all()
    assert (known.p_adjusted > known.p).any()


def test_equal_values_everywhere_make_no_claim_hold_by_accident(study):
    for maker in (two_sizes, blocks, orders):
        found = claims(study(maker, 3))
        assert all(claim.verdict != HOLDS for claim in found)
    assert t5(study(layers, 3), LIMITS).verdict == OPEN  # equal is what is claimed, but chance gives it too


def test_an_undecided_claim_needs_more_trials_than_there_are():
    tests = [Test("a", "r", 0.1, -0.1, 0.3, p=0.2, p_against=0.3, n=5, needed=2)]
    assert judge("X", "text", tests, LIMITS).needed == 6


def test_an_effect_that_is_there_but_small_is_called_so():
    tests = [Test("a", "accuracy", 0.002, 0.001, 0.003, p=1e-4, p_against=1e-4, n=50)]
    found = judge("X", "text", tests, LIMITS)
    assert found.verdict == HOLDS
    assert "smaller than what counts: a" in found.details


def test_scaled_movement_goes_from_0_to_1_in_every_trial():
    rows = [
        ("m", "CoLA", 500, seed, layer, 2.0 + seed + layer**2) for seed in (0, 1) for layer in range(1, 5)
    ]
    rows += [("m", "CoLA", 500, 2, layer, 3.0) for layer in range(1, 5)]
    moved = pd.DataFrame(rows, columns=["model", "task", "train_size", "seed", "layer", "value"])
    scaled = scaled_movement(moved)
    assert set(scaled["seed"]) == {0, 1}  # one whose layers all moved alike has no shape
    by_layer = scaled.groupby("layer")["value"].mean()
    assert by_layer.tolist() == pytest.approx([0, 3 / 15, 8 / 15, 1])
