"""What `run` says while it loads and when it is interrupted, and `power` about comparisons it cannot judge."""

from __future__ import annotations

import functools
from pathlib import Path

import fakes
import pytest
from synthetic_results import incremental, write_results
from typer.testing import CliRunner

from whichlayers.cli import app, unexpected_error
from whichlayers.runs import run_study


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("WHICHLAYERS_DEBUG", raising=False)


def fake_run(monkeypatch, **options):
    real = functools.partial(run_study.run, handlers=fakes.HANDLERS, assets=fakes.FakeAssets(**options))
    fixed = {"workers": 0, "device": "cpu"}
    monkeypatch.setattr(run_study, "run", lambda *args, **given: real(*args, **(given | fixed)))
    Path("mine.toml").write_text(fakes.make_study(name="mine").to_toml())


def call(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_run_says_what_it_loads(monkeypatch):
    fake_run(monkeypatch)
    lines = call("run", "mine.toml").stderr.splitlines()
    assert lines[0] == "reading models and data ..."
    assert "measuring how many trials fit into memory ..." in lines
    assert "reading" not in call("run", "mine.toml", "--quiet").stderr


def test_ctrl_c_before_the_first_trial_names_the_study_and_after_it_the_folder(monkeypatch):
    fake_run(monkeypatch, error=KeyboardInterrupt())
    result = call("run", "mine.toml", "--folder", "e0")
    assert result.exit_code == 130
    assert "interrupted before the first trial; start again with: whichlayers run mine.toml" in result.stderr
    fake_run(monkeypatch)
    assert call("run", "mine.toml", "--folder", "e0").exit_code == 0
    monkeypatch.setattr(run_study, "run", interrupt)
    result = call("run", "mine.toml", "--folder", "e0")
    assert "finished trials are kept. Resume with: whichlayers run e0" in result.stderr


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


def test_power_does_not_contradict_itself():
    """Of two comparisons on a curve, one has equal differences: the table and the sentences agree on both."""
    noise = {0: 0.0, 1: 0.02, 2: 0.05}

    def score(point):
        return 0.5 + 0.1 * point.x + (noise[point.trial.seed] if point.x == 2 else 0)

    folder = write_results(Path("s"), [p for p in incremental() if p.x < 3], score, depth=6)
    output = call("power", str(folder)).output
    assert "1 unknown" in output
    assert (
        "1 comparison cannot be estimated: it has a single pair of trials, or the differences of all pairs"
        in output
    )
    assert "of every point would be enough for 1 comparison" in output


def test_an_error_that_no_check_foresaw_is_one_line(monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("division\nby zero")

    fake_run(monkeypatch)
    monkeypatch.setattr(run_study, "run", broken)
    result = call("run", "mine.toml")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: unexpected ZeroDivisionError: division by zero; this is a bug")
    monkeypatch.setenv("WHICHLAYERS_DEBUG", "1")
    assert isinstance(call("run", "mine.toml").exception, ZeroDivisionError)
    assert len(unexpected_error(ValueError("x" * 10_000))) < 500


def test_help_says_where_results_go():
    assert "path of the study file without .toml" in " ".join(call("run", "--help").output.split())
