"""The page and the table of two studies."""

from __future__ import annotations

import json
import re

import pytest
from synthetic_results import incremental, lifelike, localized, write_results
from typer.testing import CliRunner

from carryover.cli import app

NAME = "<b>second</b>"


@pytest.fixture
def two(tmp_path, monkeypatch):
    made = incremental(("SST-2", "CoLA"), (500, 5000), 4) + localized()
    write_results(tmp_path / "one", made, lifelike(6), name="first")
    write_results(tmp_path / "two", made[: len(made) - 3], lambda p: lifelike(6)(p) + 0.01, name=NAME)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_shows_the_table_and_writes_the_page(two):
    result = CliRunner().invoke(app, ["compare", "one", "two"])
    assert result.exit_code == 0, result.output
    assert result.output.count("+0.010") == 8  # four incremental curves, two of blocks, two baselines
    assert f"{NAME} is higher in" in result.output.replace("\n", " ")
    assert "no partner: localized, in first" in result.output
    page = (two / "compare.html").read_text(encoding="utf-8")
    assert NAME not in page
    assert "&lt;b&gt;second&lt;/b&gt; minus first" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert set(data["charts"]) == {
        f"{kind}_{what}" for kind in ("incremental", "localized") for what in ("difference", "both")
    }
    lines = [m for m in data["charts"]["incremental_difference"]["marks"] if m["kind"] == "line"]
    assert all(row[1] == pytest.approx(0.01) for mark in lines for row in mark["rows"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["one", "three"], "there is no three"),
        (["one", "empty"], "holds no results.db"),
        (["one", "two", "--out", "nowhere/page.html"], "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_compared_is_said(two, arguments, told):
    (two / "empty").mkdir()
    result = CliRunner().invoke(app, ["compare", *arguments])
    assert result.exit_code == 2
    assert told in result.output.replace("\n", " ")
