"""Claims about how to finetune, on synthetic results in which they hold or do not."""

import dataclasses

import pytest
from synthetic_results import keeping, trial, write_results

from whichlayers.analysis.claims import evaluate_claims
from whichlayers.results.frames import finished, load_points
from whichlayers.trial import Point, Surgery, Training

DEPTH, SEEDS = 8, range(6)


def claims_of(folder, points, score) -> dict:
    found = finished(load_points(write_results(folder, points, score, depth=DEPTH)))
    return {claim.id: claim for claim in evaluate_claims(found)}


def noise(point: Point) -> float:
    return 0.001 * (int(point.trial.id, 16) % 5)


def with_training(one, **training):
    return dataclasses.replace(one, training=Training(**training))


def freeze_points(frozen=(0, 6, 8)) -> list[Point]:
    points = []
    for seed in SEEDS:
        points.append(Point("freeze", "all pretrained", 0.0, trial(seed=seed)))
        for k in frozen:
            factors = tuple((layer, 0.0) for layer in range(k + 1)) if k else ()
            points.append(
                Point("freeze", "top", float(k), with_training(trial(seed=seed), lr_factors=factors))
            )
    return points


@pytest.mark.parametrize(("kept", "verdict"), [(0.95, "holds"), (0.7, "does not hold")])
def test_l1_the_last_fourth_reaches_90_percent(tmp_path, kept, verdict):
    def score(point):
        return 0.8 * (1 if point.x == 0 else kept if point.x == 6 else 0.6) + noise(point)

    claim = claims_of(tmp_path, freeze_points(), score)["L1"]
    assert claim.verdict == verdict
    assert claim.effect == pytest.approx(0.8 * (kept - 0.9), abs=0.005)


def test_l1_uses_the_baseline_if_no_point_has_zero_frozen_layers(tmp_path):
    claim = claims_of(tmp_path, freeze_points(frozen=(6,)), lambda p: (0.8 if p.x == 0 else 0.76) + noise(p))[
        "L1"
    ]
    assert claim.verdict == "holds"
    assert claim.effect == pytest.approx(0.76 - 0.9 * 0.8, abs=0.005)


@pytest.mark.parametrize(("kept", "verdict"), [(0.906, "holds"), (0.894, "does not hold")])
def test_l1_has_no_margin_on_top_of_90_percent(tmp_path, kept, verdict):
    """0.5 points of the metric from 90%, and significant."""

    def score(point):
        return 0.8 * (1 if point.x == 0 else kept if point.x == 6 else 0.6) + noise(point)

    claim = claims_of(tmp_path, freeze_points(), score)["L1"]
    (test,) = claim.tests
    assert (claim.verdict, test.margin, test.level) == (verdict, 0.0, 0.9)
    assert test.p == pytest.approx(1 - test.p_against)


def prune_points() -> list[Point]:
    points = []
    for seed in SEEDS:
        points.append(Point("prune", "all pretrained", 0.0, trial(seed=seed)))
        for n in (2, 3, 5):
            for end, order in (("top", range(1, DEPTH + 1 - n)), ("bottom", range(n + 1, DEPTH + 1))):
                points.append(
                    Point("prune", end, float(n), trial(seed=seed, surgery=Surgery(order=tuple(order))))
                )
    return points


def test_p1_dropped_layers(tmp_path):
    def score(point):
        loss = {"top": 0.002, "bottom": 0.05}.get(point.condition, 0.0) * point.x
        return 0.9 - loss + noise(point) - (0.3 if point.x == 5 else 0)  # 5 of 8 are more than 40%

    claims = claims_of(tmp_path, prune_points(), score)
    assert claims["P1"].verdict == "holds"
    assert claims["P1"].effect == pytest.approx(0.9 - 0.006 - 0.98 * 0.9, abs=0.005)


@pytest.mark.parametrize(("loss", "verdict"), [(0.004, "holds"), (0.008, "does not hold")])
def test_p1_has_no_margin_on_top_of_98_percent(tmp_path, loss, verdict):
    """0.6 points of the metric from 98%, and significant."""
    claims = claims_of(
        tmp_path, prune_points(), lambda p: 0.9 - loss * p.x * (p.condition == "top") + noise(p)
    )
    assert claims["P1"].verdict == verdict


def reinit_points() -> list[Point]:
    points = []
    for seed in SEEDS:
        for k in (2, 6, 7, 8):
            surgery = keeping(k, DEPTH, recipe="bert_init") if k < DEPTH else Surgery()
            surgery = dataclasses.replace(surgery, reinit_pooler=k < DEPTH)
            points.append(
                Point("incremental", "", float(k), trial(seed=seed, head="pooler", surgery=surgery))
            )
        for training in ({"bias_correction": False}, {"epochs": 20}):
            one = dataclasses.replace(trial(seed=seed, head="pooler"), training=Training(**training))
            points.append(Point("incremental", "", float(DEPTH), one))
    return points


@pytest.mark.parametrize(("sign", "verdict"), [(1, "holds"), (-1, "does not hold")])
def test_z1_to_z3(tmp_path, sign, verdict):
    def score(point):
        training = point.trial.training
        effect = (
            0.04 * (point.x < DEPTH) - 0.05 * (not training.bias_correction) + 0.06 * (training.epochs == 20)
        )
        return 0.7 + sign * effect + noise(point)

    folder = write_results(tmp_path, reinit_points(), score, depth=DEPTH)
    points = load_points(folder)
    # the synthetic file is of version 3, which had no poolers that are re-initialized
    found = finished(points.assign(reinit_pooler=~points["untouched"]))
    claims = {claim.id: claim for claim in evaluate_claims(found)}
    for name, effect in (("Z1", 0.04), ("Z2", 0.05), ("Z3", 0.06)):
        assert claims[name].verdict == verdict, name
        assert claims[name].effect == pytest.approx(sign * effect, abs=0.005)


def test_z1_averages_the_same_layers_in_every_trial(tmp_path):
    """A trial without k = 2 would otherwise have the mean of k = 6 and 7, which score higher."""
    folder = write_results(
        tmp_path, reinit_points(), lambda p: 0.7 - 0.02 * (DEPTH - p.x) + noise(p), depth=DEPTH
    )
    points = load_points(folder)
    points = finished(points.assign(reinit_pooler=~points["untouched"] | (points["x"] == DEPTH)))
    points = points[(points["seed"] > 0) | (points["x"] != 2)]
    (test,) = {claim.id: claim for claim in evaluate_claims(points)}["Z1"].tests
    assert test.n == len(SEEDS) - 1


def test_claims_without_data_are_not_listed(tmp_path):
    found = claims_of(tmp_path, freeze_points(), lambda point: 0.8 + noise(point))
    assert {"L1"} == set(found) & {"Z1", "Z2", "Z3", "L1", "P1"}
