"""The results in results/, and what docs/reproduction.md says of them, are those that the code computes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # one copy of recompute.py, with one cache
    spec.loader.exec_module(module)
    return module


recompute = script(ROOT / "results" / "recompute.py")
check_reproduction = script(ROOT / "docs" / "check_reproduction.py")
PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [folder.name for folder in recompute.studies()])
def test_claims_and_summary_of_a_study_follow_from_its_results(name):
    assert recompute.differences(recompute.RESULTS / name) == []


def test_a_different_verdict_is_found(tmp_path):
    source = recompute.RESULTS / "all-mpnet-base-v2-recipes"
    folder = tmp_path / source.name
    folder.mkdir()
    for file in ("results.csv", "claims.csv", "summary.csv"):
        (folder / file).write_text((source / file).read_text())
    assert recompute.differences(folder) == []
    text = (folder / "claims.csv").read_text()
    (folder / "claims.csv").write_text(text.replace("S1,holds", "S1,does not hold"))
    assert [found.partition(":")[0] for found in recompute.differences(folder)] == [
        f"{folder.name}/claims.csv"
    ]


def test_every_number_of_the_page_is_computed_or_stated_elsewhere():
    assert check_reproduction.problems(PAGE) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("S1 fails in one case of five", "S1 fails in one case of four"),
        ("layers 3 and 4 add 14.0", "layers 3 and 4 add 13.9"),
        ("end within 2.1 points", "end within 2.0 points"),
        ("| SST-2, 5,000 | 80.6 |", "| SST-2, 5,000 | 80.7 |"),
        ("14 of 18 tests hold", "15 of 18 tests hold"),
    ],
)
def test_a_wrong_number_is_found(before, after):
    assert before in PAGE
    found = check_reproduction.problems(PAGE.replace(before, after))
    assert any(text.startswith("not on the page") and before in text for text in found)


def test_a_number_that_nothing_computes_is_found():
    (found,) = check_reproduction.problems(PAGE + "\nA further result is 12.34.\n")
    assert found.startswith("not computed: 12.34")
