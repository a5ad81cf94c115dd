"""Claims over several studies: verdicts by study, model and task, from results.db and from claims.csv."""

from __future__ import annotations

import dataclasses
import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_results import incremental, lifelike, permutation, single_layer, write_results
from synthetic_words import forgetting, word_points
from typer.testing import CliRunner

from whichlayers.analysis.claims import CLAIMS, as_table, from_table, study_claims
from whichlayers.analysis.claims.base import FAILS, HOLDS, NOT_TESTED, UNDECIDED, ClaimTest, evaluate_claim
from whichlayers.analysis.claims.base import ClaimThresholds as Thresholds
from whichlayers.analysis.claims.durrani2021 import d2
from whichlayers.analysis.claims.subjects import (
    StudyClaims,
    claims_by_subject,
    load_claims,
    load_studies,
    subject_table,
)
from whichlayers.analysis.claims.tamkin2020_layers import t5
from whichlayers.cli import app
from whichlayers.errors import WhichlayersError
from whichlayers.plots.claims_grid import TITLES, draw_claims_grid, grid_columns, sort_tasks
from whichlayers.report.subject_claims import SYMBOLS, subjects_grid_markdown, subjects_markdown
from whichlayers.results.frames import finished, load_points


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("studies")
    sentences = incremental(("SST-2", "CoLA"), (500, 5000), 4) + permutation(("SST-2", "CoLA"), trials=3)
    write_results(root / "sentences", sentences, lifelike(6))
    words = word_points(models=("bert-base-uncased", "bert-small"), corpora=("UD-EWT:xpos",), trials=3)
    write_results(root / "words", words, forgetting(6))
    return root


@pytest.fixture(scope="module")
def tested(folders):
    """The claims on both studies, by study."""
    return {study: study_claims(folders / study) for study in ("sentences", "words")}


@pytest.fixture(scope="module")
def subjects(tested):
    return claims_by_subject([StudyClaims(name, tuple(claims)) for name, claims in tested.items()])


@pytest.fixture(scope="module")
def exported(tested, tmp_path_factory):
    """Folders with claims.csv and without results.db."""
    root = tmp_path_factory.mktemp("exported")
    for study, claims in tested.items():
        (root / study).mkdir()
        as_table(claims).to_csv(root / study / "claims.csv", index=False)
    return root


def made(p, p_against, model, task, effect=1.0):
    return ClaimTest(f"{task}: made", "accuracy", effect, 0.0, 2.0, p, p_against, 5, model=model, task=task)


def test_tests_are_combined_by_model_and_task_as_those_of_a_claim():
    tests = [
        made(1e-6, 0.99, "a", "SST-2"),
        made(1e-5, 0.99, "a", "SST-2", effect=2.0),
        made(0.4, 0.5, "a", "CoLA"),
        made(0.9, 1e-6, "b", "SST-2"),
        made(1e-6, 0.99, "b", ""),
    ]
    claim = evaluate_claim("T1", CLAIMS["T1"], tests, Thresholds())
    found = {(one.model, one.task): one for one in claims_by_subject([StudyClaims("s", (claim,))])}
    verdicts = {key: one.verdict for key, one in found.items()}
    assert verdicts == {
        ("a", "SST-2"): HOLDS, ("a", "CoLA"): UNDECIDED, ("b", "SST-2"): FAILS, ("b", ""): HOLDS,
    }  # fmt: skip
    assert claim.verdict == FAILS  # as one of its parts does
    assert found["a", "SST-2"].test.effect == 2.0  # the larger p value
    assert (found["a", "SST-2"].tests, found["a", "SST-2"].tests_hold) == (2, 2)


def test_verdicts_by_task_are_adjusted_over_the_tasks_of_a_claim():
    """Each task is a conclusion of its own: the largest p value of each is Holm-adjusted."""
    large = {"SST-2": 0.012, "QNLI": 0.02, "RTE": 0.045, "MRPC": 0.3}
    tests = [made(p, 0.99, "a", task) for task, largest in large.items() for p in (1e-6, largest)]

    def verdicts(tests):
        claim = evaluate_claim("T1", CLAIMS["T1"], tests, Thresholds())
        return claim.verdict, {
            one.task: (one.verdict, one.test.p) for one in claims_by_subject([StudyClaims("s", (claim,))])
        }

    whole, found = verdicts(tests)
    assert whole == UNDECIDED
    # 4 · 0.012 < 0.05, but 3 · 0.02 is not, nor is any that comes after it
    assert found == {t: (HOLDS if t == "SST-2" else UNDECIDED, p) for t, p in large.items()}
    # a claim that holds as a whole, one conclusion at 5%, holds on every task
    whole, found = verdicts(tests[:-2])
    assert (whole, {verdict for verdict, _ in found.values()}) == (HOLDS, {HOLDS})
    # a test without a p value is undecided and no member of the family
    whole, found = verdicts([*tests[:2], *tests[4:], made(math.nan, math.nan, "a", "QNLI")])
    assert [found[task][0] for task in ("SST-2", "QNLI")] == [HOLDS, UNDECIDED]


def test_holding_on_some_task_by_chance_is_as_rare_as_alpha():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(300, 1))  # seeds that the tasks share
    p = 2 * stats.norm.sf(np.abs(np.sqrt(0.3) * shared + np.sqrt(0.7) * rng.normal(size=(300, 6))))
    some = 0
    for row in p:
        claim = evaluate_claim(
            "T1", CLAIMS["T1"], [made(x, 0.99, "a", str(t)) for t, x in enumerate(row)], Thresholds()
        )
        some += any(one.verdict == HOLDS for one in claims_by_subject([StudyClaims("s", (claim,))]))
    assert (p.min(axis=1) < 0.05).mean() > 0.15
    assert some / len(p) <= 0.07  # 0.05 and two standard errors


def test_every_test_names_its_model_and_its_task(tested):
    for claims in tested.values():
        tests = [test for claim in claims for test in claim.tests]
        assert tests
        assert all(test.model for test in tests)
        assert all(test.task or " and " in test.about or "block" in test.about for test in tests)
        for test in tests:
            assert test.task in test.about
    tasks = {test.task for claim in tested["words"] for test in claim.tests}
    assert tasks == {"SST-2", "RTE"}  # the tasks that the models were finetuned on


def test_models_that_a_claim_is_about_and_no_study_has_are_not_testable(folders, tested, subjects):
    missing = [(one.claim, one.model) for one in subjects if one.test is None]
    assert missing == [(claim, model) for claim in ("D1", "D2", "D3") for model in ("RoBERTa", "XLNet")]
    assert {one.verdict_label for one in subjects if one.test is None} == {"not testable here"}
    points = finished(load_points(folders / "words"))
    found = d2(points.assign(family="mpnet"), Thresholds())
    assert (found.verdict, found.not_testable) == (NOT_TESTED, ("RoBERTa", "XLNet"))
    d1 = next(claim for claim in tested["words"] if claim.id == "D1")
    with_roberta = dataclasses.replace(d1, not_testable=("XLNet",))
    both = [StudyClaims("a", (d1,)), StudyClaims("b", (with_roberta,))]
    assert [one.model for one in claims_by_subject(both) if one.test is None] == ["XLNet"]


def test_claims_csv_and_results_db_give_the_same_verdicts(tested, subjects, exported):
    read = claims_by_subject(load_studies([exported / study for study in tested]))
    pd.testing.assert_frame_equal(subject_table(read), subject_table(subjects))
    for study, claims in tested.items():
        pd.testing.assert_frame_equal(as_table(load_claims(exported / study)), as_table(claims))
    with pytest.raises(WhichlayersError, match="leave out --margin"):
        load_claims(exported / "words", Thresholds(margin=0.02))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="task"), "no column task"),
        (lambda table: table.assign(claim_verdict="perhaps"), "the verdict 'perhaps'"),
        (lambda table: table.assign(effect="much"), "cannot be read as a table of claims"),
    ],
)
def test_a_damaged_table_is_a_clear_error(tested, tmp_path, change, message):
    table = as_table(tested["sentences"])
    change(table).to_csv(tmp_path / "claims.csv", index=False)
    with pytest.raises(WhichlayersError, match=message):
        load_claims(tmp_path)


def test_a_claim_about_all_layers_does_not_hold_if_some_were_not_tested(tmp_path):
    write_results(tmp_path / "s", single_layer(("QNLI",), trials=4), lambda p: 0.9 + p.trial.seed * 1e-4)
    points = finished(load_points(tmp_path / "s"))
    noise = points["trial_id"].map(lambda id: int(id, 16) % 997 / 997e3)
    points = points.assign(value=points["value"] + noise)
    assert t5(points, Thresholds()).verdict == HOLDS
    fewer = t5(points[points["x"] != 3], Thresholds())
    assert fewer.verdict == UNDECIDED
    assert "only 5 of 6 layers" in fewer.details
    worse = points.assign(value=points["value"] - 0.1 * (points["x"] == 2))
    assert t5(worse[worse["x"] != 3], Thresholds()).verdict == FAILS


def test_the_grid_has_a_column_per_model_and_task_and_a_symbol_per_study(tested):
    studies = [StudyClaims(name, tuple(claims)) for name, claims in tested.items()]
    subjects = claims_by_subject([*studies, dataclasses.replace(studies[0], study="again")])
    columns = grid_columns(subjects)
    assert [column.model for column in columns[-2:]] == ["RoBERTa", "XLNet"]
    figure = draw_claims_grid(subjects)
    (axes,) = figure.axes
    drawn = [
        line for line in axes.lines if line.get_marker() in ("o", "X", "_") and len(line.get_xdata()) == 1
    ]
    assert len(drawn) == len(subjects)
    claims = list(dict.fromkeys(one.claim for one in subjects))
    failing = sum(one.verdict == FAILS for one in subjects)
    assert sum(line.get_marker() == "X" for line in drawn) == failing
    assert [label.get_text().split()[-1] for label in axes.get_yticklabels()] == claims
    places = {(line.get_xdata()[0], line.get_ydata()[0]) for line in drawn}
    assert len(places) == len(drawn)  # side by side
    assert sort_tasks(["", "QNLI rebuilt", "CoLA", "QNLI"]) == ["QNLI", "QNLI rebuilt", "CoLA", ""]
    with pytest.raises(WhichlayersError, match="no claim"):
        draw_claims_grid([])


def test_every_claim_has_a_short_title():
    assert set(TITLES) == set(CLAIMS)
    assert max(map(len, TITLES.values())) <= 45


def test_tables_in_markdown_have_a_line_per_verdict(subjects):
    lines = subjects_markdown(subjects).splitlines()
    assert len(lines) == len(subjects) + 2
    assert len({line.count("|") for line in lines}) == 1
    grid = subjects_grid_markdown(subjects)
    assert grid.count(SYMBOLS[NOT_TESTED]) == 6
    assert sum(grid.count(symbol) for symbol in SYMBOLS.values()) == len(subjects)


def test_the_command_takes_several_studies(folders, exported, subjects, tmp_path):
    paths = [str(folders / "sentences"), str(exported / "words")]

    def output(*options):
        result = CliRunner().invoke(app, ["claims", *paths, *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    expected = subject_table(subjects)
    table = pd.read_csv(io.StringIO(output("--format", "csv")), keep_default_na=False)
    assert list(table["verdict"]) == list(expected["verdict"])
    paths[0] = str(exported / "sentences")
    records = json.loads(output("--json"))
    assert len(records) == len(expected)
    assert records[-1]["effect"] is None
    assert output("--format", "markdown").startswith("| claim | model | task |")
    assert "not testable here" in output("--figure", str(tmp_path / "claims.svg"))
    assert (tmp_path / "claims.svg").read_text().startswith("<?xml")
    result = CliRunner().invoke(app, ["claims", *paths, "--figure", "claims.gif"])
    assert result.exit_code == 2
    assert "use .png, .svg, .pdf" in " ".join(result.output.split())


def test_from_table_keeps_what_was_not_tested(tested):
    claims = tested["words"]
    again = from_table(as_table(claims))
    assert [claim.id for claim in again] == [claim.id for claim in claims]
    assert [claim.verdict for claim in again] == [claim.verdict for claim in claims]
    assert [claim.not_testable for claim in again] == [claim.not_testable for claim in claims]
    assert [claim.about for claim in again] == [claim.about for claim in claims]
