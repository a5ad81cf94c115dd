"""Studies of several models: every sentence, table and row that is about one of them names it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic_results import incremental, lifelike, permutation, trial, write_results

from whichlayers.analysis.claims import evaluate_claims
from whichlayers.analysis.compare_studies import compare_studies
from whichlayers.analysis.guessing import describe_exclusions, not_shown_better
from whichlayers.analysis.power import power_estimates
from whichlayers.analysis.variance_components import variance_table
from whichlayers.cli.power import curve_names
from whichlayers.report.findings import headlines
from whichlayers.report.study_tables import run_time_table, variance_component_table
from whichlayers.report.tables import correlation_table
from whichlayers.results.frames import finished, load_baseline_weight_change, load_points, load_runs
from whichlayers.trial import Point, Probe, Training

MODELS = ("/models/small", "/models/large")
DEPTH = 6


def with_model(points: list[Point], model: str) -> list[Point]:
    changes = {"model": model, "model_fingerprint": f"{model}-fp"}
    return [dataclasses.replace(p, trial=dataclasses.replace(p.trial, **changes)) for p in points]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Incremental curves and permutations of two models; the small one does not learn the task SST-2."""
    study_points = incremental(tasks=("SST-2",), models=MODELS)
    for model in MODELS:
        study_points += with_model(permutation(tasks=("QNLI", "MRPC"), size=500), model)

    def score(point):
        t = point.trial
        if t.task == "SST-2" and t.model == MODELS[0]:
            return 0.5 + 0.002 * t.seed
        if t.task == "SST-2":
            return 0.6 + 0.02 * (DEPTH - len(t.surgery.reinit)) + 0.001 * np.sin(int(t.id, 16) % 1000)
        return 0.5 + 0.3 * (int(t.id, 16) % 1000) / 1000

    folder = tmp_path_factory.mktemp("two") / "two"
    return write_results(
        folder, study_points, score, guess={"SST-2": 0.527}, moved=lambda point, layer: 1.0 + layer
    )


def test_findings_and_claims_name_the_model(two):
    points = finished(load_points(two))
    excluded = not_shown_better(points)
    assert describe_exclusions(excluded, points) == "small on SST-2 (500 examples)"
    sentences = headlines(points, [])
    assert "No better than guessing: small on SST-2 (500 examples). Claims are not judged on these data." in (
        sentences
    )
    [steps] = [one for one in sentences if "from one k to the next" in one]
    assert "on SST-2 with 500 examples, large: " in steps
    claims = evaluate_claims(points, load_baseline_weight_change(two))
    about = [test.about for claim in claims for test in claim.tests]
    assert any(", large, " in text or ", large: " in text for text in about)
    assert not any("/models/" in text for text in about)
    assert {text for text in about if "Spearman" in text} == {
        f"QNLI and MRPC, {model}: Spearman over permutations" for model in ("small", "large")
    }
    details = [one.details for one in claims if "not judged on" in one.details]
    assert details
    assert all("not judged on small on SST-2 (500 examples): no better than guessing" in d for d in details)


def test_a_single_model_is_not_named(two):
    points = finished(load_points(two))
    points = points[points["model"] == MODELS[0]]
    assert describe_exclusions(not_shown_better(points), points) == "SST-2 (500 examples)"


def test_probes_and_settings_of_training_are_told_apart(tmp_path):
    long = Training(epochs=10)
    study_points = [
        Point("incremental", "", DEPTH, trial(seed=seed, model=model, training=training))
        for model in MODELS
        for training in (Training(), long)
        for seed in range(3)
    ]
    study_points += [
        Point("probing", "", 1, dataclasses.replace(trial(seed=seed, model=MODELS[0]), probe=Probe(layer=1)))
        for seed in range(3)
    ]
    points = finished(load_points(write_results(tmp_path, study_points, lambda p: 0.5, guess={"SST-2": 0.5})))
    assert describe_exclusions(not_shown_better(points), points) == (
        "small on SST-2 (500 examples, epochs 3), small on SST-2 (500 examples, epochs 10), large on SST-2 (500"
        " examples, epochs 3), large on SST-2 (500 examples, epochs 10) and linear probes of small on SST-2 (500"
        " examples)"
    )


def test_power_and_tables_have_one_row_per_model(two):
    points = finished(load_points(two))
    names = curve_names(points)
    assert {names[one.curve] for one in power_estimates(points, 0.01)} == {
        f"{experiment}, {model}, {task}, 500"
        for experiment, task in (
            ("incremental", "SST-2"),
            ("permutation", "QNLI"),
            ("permutation", "MRPC"),
        )
        for model in ("small", "large")
    }
    correlations = correlation_table(points)
    assert list(correlations.headers)[:2] == ["tasks", "model"]
    assert {row["model"] for row in correlations.rows} == {"small", "large"}
    times = [
        (row["experiment"], row["task"], row["model"]) for row in run_time_table(points, load_runs(two)).rows
    ]
    assert len(times) == len(set(times)) == 6


def test_variance_components_are_those_of_one_model(tmp_path):
    def apart(point):
        seeds = (("subset", point.trial.seed % 6), ("order", point.trial.seed // 6))
        return dataclasses.replace(point, trial=dataclasses.replace(point.trial, seeds=seeds))

    study_points = [apart(p) for p in incremental(trials=12, ks=(0,), models=MODELS)]
    points = load_points(write_results(tmp_path, study_points, lifelike(DEPTH)))
    components = variance_table(finished(points, shared_seeds=True))
    rows = variance_component_table(components).rows
    assert [row["model"] for row in rows] == ["small", "large"]
    assert [row["trials"] for row in rows] == ["12", "12"]


def test_compared_curves_have_short_names_of_models(two, tmp_path):
    other = write_results(tmp_path / "other", incremental(models=MODELS), lifelike(DEPTH), name="other")
    assert set(compare_studies(two, other).curves["setting"]) == {"small", "large"}
