"""The results in results/, and what docs/reproduction.md says of them, are those that the code computes."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_results import trial, write_results

from whichlayers.results.frames import load_baseline_weight_change
from whichlayers.trial import Point, Training

ROOT = Path(__file__).parents[2]


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # one copy of recompute.py, with one cache
    spec.loader.exec_module(module)
    return module


recompute = script(ROOT / "results" / "recompute.py")
add_study = script(ROOT / "results" / "add_study.py")
check_reproduction = script(ROOT / "docs" / "check_reproduction.py")
PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [folder.name for folder in recompute.studies()])
def test_claims_and_summary_of_a_study_follow_from_its_results(name):
    assert recompute.differences(recompute.RESULTS / name) == []


def test_a_different_verdict_is_found(tmp_path):
    source = recompute.RESULTS / "all-mpnet-base-v2"
    folder = tmp_path / source.name
    folder.mkdir()
    for file in ("results.csv.gz", "claims.csv", "summary.csv"):
        (folder / file).write_bytes((source / file).read_bytes())
    assert recompute.differences(folder) == []
    text = (folder / "claims.csv").read_text()
    (folder / "claims.csv").write_text(text.replace("S1,holds", "S1,does not hold"))
    assert [found.partition(":")[0] for found in recompute.differences(folder)] == [
        f"{folder.name}/claims.csv"
    ]


def test_weight_changes_of_frozen_models_are_not_taken_from_the_stored_table(tmp_path):
    source = recompute.RESULTS / "carryover-bert-tiny-freeze"
    stored = pd.read_csv(source / "claims.csv")
    row = {"claim_verdict": "holds", "about": "SST-2, 300 examples", "effect": 0.4, "low": 0.34, "high": 0.46}
    row |= {"n": 4, "level": 0.95, "model": "carryover-bert-tiny", "task": "SST-2", "verdict": "holds"}
    stored.loc[stored["claim"] == "S1", list(row)] = list(row.values())
    stored.to_csv(tmp_path / "claims.csv", index=False)
    (tmp_path / "results.csv.gz").write_bytes((source / "results.csv.gz").read_bytes())
    assert "S1" in set(stored.loc[stored["effect"].notna(), "claim"])
    found = {claim.id: claim.verdict for claim in recompute.recompute_claims(tmp_path)}
    assert found["S1"] == "not tested"


def test_a_claim_that_is_below_the_margin_is_not_listed_as_holding(monkeypatch):
    reasons = sys.modules["reproduction_reasons"]
    one = recompute.subjects()[0]
    verdicts = {
        "T1": ["holds", "not enough trials"],
        "T2": ["holds", "below the margin"],
        "T3": ["below the margin"],
        "T4": ["does not hold"],
        "T5": ["does not hold", "below the margin"],
        "T6": ["not enough trials"],
    }
    subjects = [dataclasses.replace(one, claim=c, verdict=v) for c, each in verdicts.items() for v in each]
    monkeypatch.setattr(reasons, "subjects", lambda: subjects)
    assert reasons.by_agreement() == {
        "holding": ["T1 (1 of 1)"],
        "small": ["T2 (1 of 2, 1 below the margin)", "T3 (0 of 1, 1 below the margin)"],
        "failing": ["T4 (0 of 1)"],
        "mixed": ["T5 (0 of 2, 1 below the margin)"],
    }


def test_the_table_of_all_claims_follows_from_the_results():
    assert recompute.claims_page() == recompute.CLAIMS_PAGE.read_text(encoding="utf-8")
    assert {one.study for one in recompute.subjects() if one.study} <= {f.name for f in recompute.studies()}


def test_results_have_all_files_and_stay_small():
    for folder in recompute.studies():
        names = {path.name for path in folder.iterdir()}
        assert {"study.toml", "results.csv.gz", "claims.csv", "summary.csv", "figures"} <= names, folder.name
        assert any((folder / "figures").glob("*.png")), folder.name
    size = sum(path.stat().st_size for path in recompute.RESULTS.rglob("*") if path.is_file())
    assert size < 25e6


def test_a_study_is_added_without_the_folders_of_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(add_study, "RESULTS", tmp_path)
    points = freeze_points("/some/folder/a-model")
    source = write_results(tmp_path / "study", points, lambda p: 0.8 + p.trial.seed / 100, depth=4)
    (source / "study.toml").write_text(
        'models = ["/some/folder/a-model", "./b", "google-bert/c"]\ntrain = "../data/d.tsv"\ntext = "a / b"\n'
    )
    target = add_study.add_study(source, "new", ["freeze"])
    text = 'models = ["a-model", "b", "google-bert/c"]\ntrain = "d.tsv"\ntext = "a / b"\n'
    assert (target / "study.toml").read_text() == text
    assert {path.name for path in target.iterdir()} == {
        "study.toml", "results.csv.gz", "trials.csv", "runs.csv", "claims.csv", "summary.csv", "figures"
    }  # fmt: skip
    for path in ("results.csv.gz", "summary.csv"):
        assert set(pd.read_csv(target / path)["model"]) == {"a-model"}
    assert [path.name for path in (target / "figures").iterdir()] == ["freeze.png"]


def freeze_points(model):
    """The baseline and a model with two of four layers frozen, for three seeds."""
    for seed in range(3):
        frozen = Training(lr_factors=((0, 0.0), (1, 0.0), (2, 0.0)))
        yield Point("freeze", "all pretrained", 0, trial(seed=seed, model=model))
        yield Point("freeze", "top", 2, trial(seed=seed, model=model, training=frozen))


def test_exported_results_are_those_of_the_database(tmp_path):
    source = recompute.RESULTS / "tamkin2020-all-mpnet-base-v2"
    folder = add_study.with_database(source, tmp_path)
    stored = pd.read_csv(source / "results.csv.gz")
    expected = pd.read_csv(io.StringIO(add_study.results(folder).to_csv(index=False)))
    pd.testing.assert_frame_equal(stored, expected)
    weights = pd.read_csv(source / "weight_change.csv.gz")
    assert set(weights["kind"]) == {"frobenius", "spectral"}
    exact = load_baseline_weight_change(folder)
    np.testing.assert_allclose(weights["value"], exact["value"], rtol=1e-12)


def test_every_number_of_the_page_is_computed_or_stated_elsewhere():
    assert check_reproduction.problems(PAGE) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("layers 3 and 4 add 14.0", "layers 3 and 4 add 13.9"),
        ("end within 2.4 points", "end within 2.5 points"),
        ("| SST-2, 5,000 | 80.4 |", "| SST-2, 5,000 | 80.5 |"),
        ("14 of 18 tests hold", "15 of 18 tests hold"),
        ("1.2 to 1.8 times as far", "1.3 to 1.8 times as far"),
        ("2,207 of 3,438 trials", "2,208 of 3,438 trials"),
    ],
)
def test_a_wrong_number_is_found(before, after):
    assert before in PAGE
    found = check_reproduction.problems(PAGE.replace(before, after))
    assert any(text.startswith("not on the page") and before in text for text in found)


def test_a_number_that_nothing_computes_is_found():
    (found,) = check_reproduction.problems(PAGE + "\nA further result is 12.34.\n")
    assert found.startswith("not computed: 12.34")


def test_an_outdated_table_of_claims_is_found():
    assert "● CoLA" in PAGE.replace("\N{NO-BREAK SPACE}", " ")
    holding = "●\N{NO-BREAK SPACE}QNLI"
    for outdated in (
        PAGE.replace(holding, holding.replace("●", "○"), 1),
        PAGE.replace("S2 (8 of 8)", "S2 (7 of 8)"),
    ):
        assert outdated != PAGE
        (found,) = check_reproduction.problems(outdated)
        assert "run with --write" in found


def test_nothing_is_stated_that_the_page_does_not_have():
    assert [text for text in check_reproduction.STATED if text not in PAGE] == []


def test_the_page_does_not_claim_to_reproduce():
    text = PAGE.lower().replace("check_reproduction", "").replace("reproduction.md", "")
    assert "reproduc" not in text
    assert "not testable here" in text
