"""The claims in the terminal: every claim with its numbers, at any width; and as JSON and CSV."""

from __future__ import annotations

import io
import json

import pandas as pd
import pytest
from rich.console import Console
from synthetic_results import incremental, lifelike, write_results
from typer.testing import CliRunner

from whichlayers.analysis.claims import Claim, study_claims
from whichlayers.report.claim_table import claim_rows, claims_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    study_points = incremental(("SST-2", "[bold]CoLA"), (500, 5000), 4)
    return write_results(tmp_path_factory.mktemp("claims"), study_points, lifelike(6))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_fits_the_width_and_truncates_nothing(folder, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(claims_table(study_claims(folder), with_tests=True))
    text = console.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    others = [claim for claim in study_claims(folder) if claim.verdict == "not tested"]
    assert text.count("not tested") == len(others) >= 8
    assert "[bold]CoLA" in text
    assert "95% interval" in " ".join(text.split())


def test_the_row_has_the_numbers_of_the_decisive_test(folder):
    claim = study_claims(folder)[0]
    row = claim_rows([claim])[0]
    assert row.effect == f"{100 * claim.effect:+.1f}% of the gain"
    assert f"{100 * abs(claim.low):.1f}" in row.interval
    assert row.verdict == claim.verdict
    assert len(row.tests) == 3


@pytest.mark.parametrize(
    ("about", "expected", "interval"),
    [
        ("at 5,000", "r = 0.984", "0.900 to 0.990"),
        ("500 against 5,000", "difference in r: +0.984", "+0.900 to +0.990"),  # signs as the effect has
    ],
)
def test_a_coefficient_is_named(about, expected, interval):
    claim = Claim("T4", "", 0.984, 0.9, 0.99, 0.01, "holds", None, "", unit="r", about=about)
    (row,) = claim_rows([claim])
    assert row.effect == expected
    assert (row.level, row.interval) == ("95%", interval)


@pytest.mark.parametrize(
    ("p", "end"), [(0.0123, ", p = 0.012"), (1e-5, ", p < 0.001"), (float("nan"), " 0.990")]
)
def test_a_missing_p_value_is_left_out(p, end):
    claim = Claim("T4", "", 0.984, 0.9, 0.99, p, "holds", None, "", unit="r", about="at 5,000")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(claims_table([claim]))
    line = next(line for line in console.export_text().splitlines() if "r = 0.984" in line)
    assert line.rstrip().endswith(f"95% interval 0.900 to 0.990{end}" if end[0] == "," else end)


def test_the_command_prints_all_three_forms(folder):
    from whichlayers.cli import app

    def output(*options):
        result = CliRunner().invoke(app, ["claims", str(folder), *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "T1" in output()
    records = json.loads(output("--format", "json"))
    assert [record["id"] for record in records] == [claim.id for claim in study_claims(folder)]
    assert {"T1", "T2", "T3", "T4", "T5", "T6", "T7", "S1", "S2"} <= {record["id"] for record in records}
    assert len(records[0]["tests"]) == 3
    table = pd.read_csv(io.StringIO(output("--format", "csv", "--margin", "0.02")))
    assert (table.claim == "T1").sum() == 3
