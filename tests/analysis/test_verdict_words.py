"""One vocabulary of verdicts: the words of the terminal, the page and claims.csv are the same, and documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichlayers.analysis.claims import as_table, from_table, study_claims
from whichlayers.analysis.verdicts import (
    ANSWER_VERDICTS,
    CLAIM_VERDICTS,
    COMPARISON_RESULTS,
    EARLIER_WORDS,
    NOT_TESTABLE,
)
from whichlayers.report.claim_table import claim_rows
from whichlayers.report.subject_claims import LEGEND

STATISTICS = Path(__file__).resolve().parents[2] / "docs" / "statistics.md"


@pytest.fixture
def claims(tmp_path):
    from synthetic_results import incremental, lifelike, write_results

    folder = write_results(tmp_path / "s", incremental(("SST-2",), (500, 5000), 3), lifelike(6))
    return study_claims(folder)


def test_the_words_of_the_page_and_of_the_csv_are_the_same(claims):
    on_page = {row.id: row.verdict for row in claim_rows(claims)}
    in_csv = dict(as_table(claims)[["claim", "claim_verdict"]].itertuples(index=False))
    assert on_page == in_csv
    assert set(in_csv.values()) <= set(CLAIM_VERDICTS)
    assert len(set(in_csv.values())) > 1


def test_words_of_earlier_versions_are_read(claims):
    back = {new: old for old, new in EARLIER_WORDS.items()}
    table = as_table(claims)
    old = table.replace({"claim_verdict": back, "verdict": back})
    assert set(old["claim_verdict"]) & set(EARLIER_WORDS)
    assert [c.verdict for c in from_table(old)] == [c.verdict for c in from_table(table)]


def test_the_documentation_lists_every_word():
    rows = [line for line in STATISTICS.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    listed = {word.strip() for row in rows for word in row.split("|")[1].split(",")}
    assert {*CLAIM_VERDICTS, *ANSWER_VERDICTS, *COMPARISON_RESULTS, NOT_TESTABLE} <= listed
    assert all(f" {word}" in LEGEND for word in CLAIM_VERDICTS if word != "not tested")
