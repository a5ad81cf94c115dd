"""Wherever intervals are shown, it is said that trials share seeds, or that all of them have the same ones."""

from __future__ import annotations

import dataclasses
import json

import pytest
from fake_facts import a_study
from synthetic_results import incremental, lifelike, prune, write_results
from typer.testing import CliRunner

import whichlayers
from whichlayers.cli import app
from whichlayers.report.build import page
from whichlayers.report.notebook import results_html
from whichlayers.study.expand import component_seeds

SHARED = "The trials of this study share seeds (vary_apart)"
COUNTED = "5 of 10 trials per point"
FIXED = "All trials have the same training subset, order of the examples and dropout masks (vary)."
runner = CliRunner()


def run(*arguments, columns=300):
    result = runner.invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result


def study(folder, score=lifelike(6), trials=10, **settings):  # noqa: B008
    """Results of a study with these settings of seeds."""
    points = incremental(trials=trials, ks=(0, 3, 6)) + prune(size=500, trials=trials)
    seeds = a_study(**settings)
    seeded = [dataclasses.replace(p.trial, seeds=component_seeds(seeds, p.trial.seed)) for p in points]
    points = [dataclasses.replace(p, trial=trial) for p, trial in zip(points, seeded, strict=True)]
    return write_results(folder, points, score, name=folder.name)


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    return study(tmp_path_factory.mktemp("studies") / "apart", vary_apart=True)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    return study(tmp_path_factory.mktemp("studies") / "fixed", vary=["init", "head"])


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return study(tmp_path_factory.mktemp("studies") / "usual")


@pytest.mark.parametrize("command", [["recommend"], ["claims"], ["claims", "--format", "csv"], ["power"]])
def test_commands_say_it(apart, fixed, usual, command):
    said = {folder: run(command[0], folder, *command[1:]).output for folder in (apart, fixed, usual)}
    assert SHARED in said[apart]
    assert COUNTED in said[apart]
    assert FIXED in said[fixed]
    assert not any(note in said[usual] for note in (SHARED, FIXED, "(vary)"))


def test_json_has_the_notes_or_stays_json(apart):
    (note,) = json.loads(run("recommend", apart, "--json").stdout)["notes"]
    assert note.startswith(SHARED)
    assert json.loads(run("power", apart, "--json").stdout)["notes"] == [note]
    result = run("claims", apart, "--json")
    assert {claim["id"] for claim in json.loads(result.stdout)} >= {"T1", "P1"}
    assert note in result.stderr


def test_compare_names_the_study(apart, fixed, usual, tmp_path):
    out = run("compare", usual, apart, "--out", tmp_path / "page.html").output
    assert f"apart: {SHARED}" in out
    assert f"apart: {SHARED}" in (tmp_path / "page.html").read_text(encoding="utf-8")
    compared = json.loads(run("compare", usual, apart, "--json").stdout)
    assert {row["n"] for row in compared["curves"]} == {5}
    assert compared["notes"][0].startswith(f"apart: {SHARED}")
    assert f"apart: {SHARED}" in run("claims", apart, usual).output


def test_the_report_the_notebook_and_the_summary_say_it(apart, fixed, usual):
    pages = {folder: page(folder) for folder in (apart, fixed, usual)}
    assert f'<p class="warn">{SHARED}' in pages[apart]
    assert f'<p class="warn">{FIXED}' in pages[fixed]
    assert SHARED not in pages[usual]
    assert "over 5 trials per point" in pages[apart]
    assert SHARED in results_html(apart)
    assert SHARED not in results_html(usual)
    results = whichlayers.load(apart)
    assert set(results.summary()["n"]) == set(results.contrasts()["n"]) == {5}
    components = results.variance_components()
    assert set(components["trials"]) == {10}


def test_more_trials_of_such_a_study_are_independent_ones(tmp_path):
    """Without a clear answer; of trials that are added with vary_apart, a fifth would count."""
    noisy = lambda p: 0.8 + 0.02 * ((7 * p.trial.seed + 3 * p.x) % 5)  # noqa: E731
    found = whichlayers.load(study(tmp_path / "noisy", noisy, vary_apart=True)).recommend(0.01)
    more = max(a.more_trials or 0 for a in found.answers)
    assert more > 0
    (step,) = (line for line in found.next_steps() if line.startswith("Run more trials"))
    assert f"set vary_apart = false and trials = {5 + more} in " in step


def test_failed_trials_are_counted(tmp_path):
    def score(p):
        return "loss is not finite" if p.trial.seed == 3 and p.condition == "top" else lifelike(6)(p)

    folder = study(tmp_path / "failed", score)
    (note,) = whichlayers.load(folder).recommend().notes
    assert note == (
        "3 trials failed and are left out: scores, intervals and verdicts are those of the trainings that did not fail."
    )
    assert note in run("recommend", folder).output
