"""Claims of a study whose first trial has just finished: nothing is decided, and nothing fails."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from claim_points import claim_points

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.claims import evaluate_claims
from whichlayers.analysis.guessing import compare_with_guessing
from whichlayers.analysis.incremental_curves import curves, early_gain_fractions, incremental_steps
from whichlayers.analysis.layer_effects import layer_effects
from whichlayers.analysis.power import power_estimates
from whichlayers.analysis.variance_components import variance_table
from whichlayers.trial import COMPONENTS

CELLS = [
    ("incremental", {"x": 0}),
    ("incremental", {"x": 6}),
    ("incremental", {"x": 2, "reinit_pooler": True}),
    ("epochs", {"x": 6, "epochs": 10}),
    ("localized", {"x": 1, "condition": "block reinitialized", "reinit": (1, 2)}),
    ("localized", {"x": 1, "condition": "block preserved", "reinit": (3, 4, 5, 6)}),
    ("localized", {"x": 0, "condition": "all pretrained"}),
    ("permutation", {"x": 1, "condition": "permuted", "order": (2, 1, 3, 4, 5, 6)}),
    ("permutation", {"x": 0, "condition": "none pretrained"}),
    ("single_layer", {"x": 0, "condition": "all pretrained"}),
    ("single_layer", {"x": 1}),
    ("probing", {"x": 6, "kind": "probe"}),
    ("prune", {"x": 3, "condition": "bottom", "order": (4, 5, 6)}),
    ("prune", {"x": 2, "condition": "top", "order": (1, 2, 3, 4)}),
    ("prune", {"x": 0, "condition": "all pretrained"}),
    ("freeze", {"x": 4, "condition": "top"}),
    ("word_probing", {"x": 6, "task": "UD-EWT:xpos", "kind": "word_probe"}),
    ("word_probing", {"x": 6, "task": "UD-EWT:xpos", "kind": "word_probe", "finetuned_on": "SST-2"}),
    ("neurons", {"x": 0, "task": "UD-EWT:xpos", "kind": "word_probe", "neurons": "top", "ranking": "lca"}),
]


def one_trial(experiment, x, **columns):
    settings = {
        "order": (),
        "reinit": (),
        "kind": "finetune",
        "guess": 0.5,
        "model_fingerprint": "f",
    } | columns
    rows = claim_points(np.array([[0.8]]), [x], experiment, **settings)
    seeds = {f"seed_{component}": rows["seed"] for component in COMPONENTS}
    return rows.assign(seconds=60.0, untouched=rows["order"].map(len) == 0, **seeds)


@pytest.mark.parametrize(("experiment", "columns"), CELLS)
def test_a_single_trial_decides_nothing(experiment, columns):
    points = one_trial(experiment, **columns)
    assert {claim.verdict for claim in evaluate_claims(points)} <= {"not enough trials", "not tested"}
    assert compare_with_guessing(points) == []
    assert all(curve.gain is None for curve in curves(points))
    assert incremental_steps(points).empty
    assert differences_from_baseline(points).empty
    assert layer_effects(points).empty
    assert variance_table(points).empty
    assert all(estimate.needed is None for estimate in power_estimates(points, 0.01))
    assert early_gain_fractions(points) is None


def test_a_single_pair_of_probes_before_and_after_finetuning():
    before, after = (
        one_trial("word_probing", 6, task="UD-EWT:xpos", kind="word_probe", finetuned_on=task)
        for task in ("", "SST-2")
    )
    points = pd.concat([before, after])
    claims = {claim.id: claim for claim in evaluate_claims(points)}
    (test,) = claims["D1"].tests
    assert (test.about, test.n) == ("UD-EWT:xpos after SST-2: upper quarter of the layers", 1)
    assert math.isnan(test.p)
    assert claims["D1"].verdict == "not enough trials"
