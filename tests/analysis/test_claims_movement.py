"""Claims S1 and S2: which trials show how far finetuning moves weights, worked out by numpy."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from claim_points import claim_points
from scipy import stats

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.singh2020 import s1, s2

THRESHOLDS = ClaimThresholds()
NOT_TESTED = "not tested"


def weight_change(rows):
    return pd.DataFrame(rows, columns=["trial_id", "name", "layer", "kind", "value"])


def untouched(n=3, **columns):
    """Trials of the pretrained model."""
    return claim_points(np.full((n, 1), 0.8), [6], "incremental", untouched=True, **columns).assign(
        order=[()] * n, trial_id=[f"t{s}" for s in range(n)]
    )


def partly_trained(first, **columns):
    """Six trials in which the upper three of six layers move, and the lower three do not: points and weight changes."""
    points = claim_points(np.full((6, 1), 0.8), [3], untouched=True, **columns)
    points = points.assign(order=[()] * 6, trial_id=[f"{first}{s}" for s in range(6)])
    rows = [
        (id, "output.dense.weight", n, "frobenius", float(n > 3))
        for id in points["trial_id"]
        for n in range(1, 7)
    ]
    return points, rows


def test_s1_and_s2_leave_out_trials_that_train_a_part_of_the_model():
    rng = np.random.default_rng(5)
    table = np.exp(rng.normal(0, 0.02, (4, 6)))
    whole = untouched(4)
    moved = [
        (f"t{s}", "output.dense.weight", n + 1, "frobenius", table[s, n]) for s in range(4) for n in range(6)
    ]
    frozen, frozen_moved = partly_trained("f", experiment="freeze", condition="frozen")
    adapted, adapted_moved = partly_trained("a", experiment="adapt", condition="lora")
    decayed, decayed_moved = partly_trained("d", experiment="lr_decay", condition="decay")
    points = pd.concat([whole, frozen, adapted, decayed])
    weights = weight_change([*moved, *frozen_moved, *adapted_moved, *decayed_moved])
    (test,) = s1(points, weights, THRESHOLDS).tests
    values = np.log(table[:, 3:].mean(axis=1) / table[:, :3].mean(axis=1))
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    assert (test.effect, test.low, test.high, test.n) == pytest.approx((values.mean(), *interval, 4))
    against = stats.ttest_1samp(values, math.log(1.05), alternative="less").pvalue
    assert test.p_against == pytest.approx(against)
    assert test.verdict != "holds"
    more = frozen.assign(train_size=5000, trial_id=[f"m{s}" for s in range(6)])
    assert s2(pd.concat([points, more]), weights, THRESHOLDS).verdict == NOT_TESTED
    # the baseline of such an experiment is trained in full
    baseline = whole.assign(experiment="freeze", condition="all pretrained")
    assert s1(baseline, weight_change(moved), THRESHOLDS).tests[0].p == test.p
    assert s1(pd.concat([frozen, adapted]), weights, THRESHOLDS).verdict == NOT_TESTED


def test_s1_and_s2_compare_trials_of_one_head_and_training_and_s1_not_on_cola():
    level = {("mean", 3): 1.0, ("mean", 5): 2.0, ("summary", 3): 4.0}
    parts, rows = [], []
    for (head, epochs), value in level.items():
        for size in (500, 5000):
            of = untouched(3, head=head, train_size=size, training=json.dumps({"epochs": epochs, "lr": 2e-5}))
            parts.append(of.assign(trial_id=[f"{head}{epochs}{size}{s}" for s in range(3)]))
            rows += [
                (
                    id,
                    "output.dense.weight",
                    n,
                    "frobenius",
                    value * (n > 1) * (2 if size == 5000 else 1) + 0.1 * n + s,
                )
                for s, id in enumerate(parts[-1]["trial_id"])
                for n in (1, 2)
            ]
    points, weights = pd.concat(parts), weight_change(rows)
    first = s1(points, weights, THRESHOLDS).tests
    assert [test.about for test in first][:3] == [
        "SST-2, 500 examples, head mean, epochs 3: upper over lower half",
        "SST-2, 5,000 examples, head mean, epochs 3: upper over lower half",
        "SST-2, 500 examples, head mean, epochs 5: upper over lower half",
    ]
    for test, value in zip(first[::2], level.values(), strict=True):
        assert (test.n, test.effect) == (
            3,
            pytest.approx(np.mean([np.log((value + 0.2 + s) / (0.1 + s)) for s in range(3)])),
        )
    second = s2(points, weights, THRESHOLDS).tests
    assert len(second) == 3  # each head and number of epochs
    for test, value in zip(second, level.values(), strict=True):
        ratios = [(2 * value + 0.3 + 2 * s) / (value + 0.3 + 2 * s) for s in range(3)]
        assert test.effect == pytest.approx(np.log(ratios).mean())
    # different epochs, as in Tamkin et al., are compared if there are no others
    as_in_tamkin = points[points["training"].str.contains('"epochs": 5') == (points["train_size"] == 500)]
    (only,) = s2(as_in_tamkin[as_in_tamkin["head"] == "mean"], weights, THRESHOLDS).tests
    assert only.about == "SST-2: 5,000 over 500 examples"
    assert only.effect == pytest.approx(np.log([(2.3 + 2 * s) / (2.3 + 2 * s) for s in range(3)]).mean())
    assert s1(points.assign(task="CoLA"), weights, THRESHOLDS).verdict == NOT_TESTED
    assert len(s1(points.assign(task="mine"), weights, THRESHOLDS).tests) == 6
    assert len(s2(points.assign(task="CoLA"), weights, THRESHOLDS).tests) == 3
