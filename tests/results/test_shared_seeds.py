"""Trials that share seeds: which are independent, and what is said of studies with `vary` and `vary_apart`."""

from __future__ import annotations

import dataclasses
import sqlite3

import numpy as np
import pandas as pd
import pytest
from fake_facts import a_study
from synthetic_results import incremental, lifelike, single_layer, write_results
from synthetic_words import forgetting, word_points

import whichlayers
from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.intervals import t_interval
from whichlayers.results.connection import DATABASE
from whichlayers.results.frames import finished, load_points, load_top_neurons
from whichlayers.results.shared_seeds import NAMES, independent_trials, named_notes, seed_notes, seed_use
from whichlayers.study.expand import component_seeds
from whichlayers.trial import COMPONENTS


def varied(points, **settings):
    """The points with the seeds of a study with these settings, such as `vary_apart`."""
    study = a_study(**settings)
    seeded = [dataclasses.replace(p.trial, seeds=component_seeds(study, p.trial.seed)) for p in points]
    return [dataclasses.replace(p, trial=trial) for p, trial in zip(points, seeded, strict=True)]


def read(folder, points, score=lifelike(6)):  # noqa: B008
    return load_points(write_results(folder, points, score))


def seeds_of_design(n):
    """(n, components) seeds of the trials of a study with `vary_apart`."""
    study = a_study(vary_apart=True)
    own = [dict(component_seeds(study, i)) for i in range(n)]
    return np.array([[one.get(c, i) for c in COMPONENTS] for i, one in enumerate(own)])


@pytest.mark.parametrize(
    ("trials", "independent"),
    [
        (5, range(5)),
        (7, range(5)),
        (25, range(5)),
        (27, [*range(5), 25, 26]),
        (50, [*range(5), *range(25, 30)]),
    ],
)
def test_five_of_25_trials_are_independent(tmp_path, trials, independent):
    points = read(tmp_path, varied(incremental(trials=trials, ks=(0, 6)), vary_apart=True))
    use = seed_use(points)
    assert (use.seeds, use.independent) == (tuple(range(trials)), tuple(independent))
    assert (use.shared, use.fixed, use.varied) == (trials > 5, (), COMPONENTS)
    assert set(finished(points)["seed"]) == set(independent_trials(points)["seed"]) == set(independent)
    assert set(finished(points, shared_seeds=True)["seed"]) == set(range(trials))


def test_the_independent_trials_share_no_seed_whatever_has_failed(tmp_path):
    def score(point):
        return "diverged" if point.trial.seed in (1, 26) else lifelike(6)(point)

    points = read(tmp_path, varied(incremental(trials=50, ks=(0, 6)), vary_apart=True), score)
    found = finished(points)
    assert set(found["seed"]) == {0, 2, 3, 4, 25, 27, 28, 29}
    at_zero = found[found["x"] == 0]
    assert all(at_zero[f"seed_{c}"].is_unique for c in COMPONENTS)


def test_intervals_of_independent_trials_cover_the_mean(tmp_path):
    """25 trials whose components contribute half of the variance, and the residual the other half."""
    points = read(tmp_path, varied(incremental(trials=25, ks=(0,)), vary_apart=True))
    kept, rng = list(seed_use(points).independent), np.random.default_rng(0)
    design, covered = seeds_of_design(25), {"all": 0, "independent": 0}
    for _ in range(1000):
        values = np.sqrt(0.5) * rng.normal(size=25)
        for column in design.T:
            values += np.sqrt(0.1) * rng.normal(size=25)[column]
        for name, one in (("all", values), ("independent", values[kept])):
            interval = t_interval(one)
            covered[name] += interval.low < 0 < interval.high
    assert covered["independent"] / 1000 == pytest.approx(0.95, abs=0.02)
    assert covered["all"] / 1000 < 0.8


def test_differences_are_those_of_independent_trials(tmp_path):
    points = read(tmp_path, varied(single_layer(trials=25), vary_apart=True))
    assert set(differences_from_baseline(finished(points))["n"]) == {5}
    assert set(differences_from_baseline(finished(points, shared_seeds=True))["n"]) == {25}


@pytest.mark.parametrize("vary", [("init",), ("init", "head"), ("subset", "order", "dropout")])
def test_components_with_one_seed_are_named_and_no_trial_is_left_out(tmp_path, vary):
    """Without re-initialized layers `init` has no effect; the baseline has more trials than the other points."""
    points = varied(incremental(trials=3, ks=(0, 3)) + incremental(trials=8, ks=(6,)), vary=list(vary))
    points = read(tmp_path, points)
    use = seed_use(points)
    assert (use.varied, use.shared) == (tuple(c for c in COMPONENTS if c in vary), False)
    assert len(finished(points)) == 14
    (note,) = seed_notes(points)
    assert all(NAMES[c] in note for c in COMPONENTS)
    assert "too narrow" in note


def test_shared_and_fixed_seeds_are_two_notes(tmp_path):
    points = read(
        tmp_path, varied(incremental(trials=12, ks=(0, 6)), vary=["init", "subset"], vary_apart=True)
    )
    shared, fixed = seed_notes(points)
    assert "5 of 12 trials" in shared
    assert fixed.startswith(
        "All trials have the same order of the examples, initial head and dropout masks (vary)."
    )


def test_usual_studies_have_no_notes(tmp_path):
    points = read(tmp_path / "all", incremental(trials=12, ks=(0, 6)))
    assert independent_trials(points) is points
    assert seed_notes(points) == []
    assert seed_notes(points.iloc[:0]) == []
    one = read(tmp_path / "one", varied(incremental(trials=1, ks=(0, 6)), vary=["init"]))
    assert seed_notes(one) == []
    frame = pd.DataFrame({"seed": [0, 1], "value": [0.1, 0.2]})  # without seeds of components
    assert independent_trials(frame) is frame


def test_notes_of_several_studies_name_them():
    assert named_notes([("a", ["x"]), ("b", []), ("c", ["x", "y"])]) == ["a and c: x", "c: y"]


def test_overlaps_of_top_neurons_are_those_of_independent_trials(tmp_path):
    words = word_points(models=("bert",), tasks=("SST-2",), corpora=("UD-EWT:xpos",), trials=10)
    points = varied([p for p in words if p.experiment == "neurons"], vary_apart=True)
    folder = write_results(tmp_path, points, forgetting())
    with sqlite3.connect(folder / DATABASE) as db:
        db.execute("ALTER TABLE trials ADD COLUMN top_neurons TEXT")
        db.execute("UPDATE trials SET top_neurons = '1:2 3:4' WHERE neurons = 'top'")
    assert set(load_top_neurons(folder)["seed"]) == set(range(10))
    found = whichlayers.load(folder).neuron_overlap()
    assert set(found.loc[found["comparison"] == "finetuning", "n"]) == {5}
