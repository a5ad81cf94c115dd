"""--json: every such command prints JSON that parses and agrees with the results; --set and shell completion."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path

import fakes
import pytest
from synthetic_results import incremental, lifelike, write_results
from typer.testing import CliRunner

from whichlayers.cli import app
from whichlayers.models.families import FAMILIES
from whichlayers.runs import assets


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assets, "Assets", lambda cache: fakes.FakeAssets())
    Path("mine.toml").write_text(fakes.make_study(name="mine").to_toml())
    return write_results(tmp_path / "a", incremental(trials=3), lambda p: lifelike(6)(p) if p.x < 5 else None)


def call(*arguments: str, code: int = 0, **environment: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env=environment)
    assert result.exit_code == code, result.output
    return result.stdout


def as_json(*arguments: str):
    def fail(name):
        raise AssertionError(name)

    return json.loads(call(*arguments, "--json"), parse_constant=fail)  # NaN and Infinity are no JSON


def test_models_and_presets():
    data = as_json("models")
    assert all(set(one) == {"name", "description"} for one in data["models"])
    assert {(one["name"], one["kind"]) for one in data["families"]} == {
        (name, "decoder" if family.causal else "encoder") for name, family in FAMILIES.items()
    }
    assert {one["note"] for one in data["families"]} == {family.note for family in FAMILIES.values()}
    presets = {one["name"]: one for one in as_json("presets")}
    assert "tamkin2020/incremental" in presets
    assert as_json("presets", "demo")["settings"]["name"] == "demo"


def test_plan(folder):
    data = as_json("plan", "mine.toml", "--no-measure", "--device", "cpu")
    rows = data["rows"]
    assert data["trials"] == sum(row["trials"] for row in rows) > 0
    assert data["seconds"] is None
    assert data["disk_bytes"]["results"] > 0
    fewer = as_json("plan", "mine.toml", "--no-measure", "--device", "cpu", "--set", "trials=1")
    assert fewer["trials"] < data["trials"]
    error = CliRunner().invoke(app, ["plan", "mine.toml", "--set", "training.lr=0"])
    assert error.exit_code == 2
    assert "training.lr = 0: must be greater than 0" in error.stderr


def test_status_and_power(folder):
    data = as_json("status", "a")
    assert data["trials"] == {"pending": 6, "running": 0, "done": 15, "failed": 0, "total": 21}
    power = as_json("power", "a", "--difference", "0.02")
    assert power["difference"] == 0.02
    assert power["comparisons"][0]["about"].startswith("k = 1")
    assert all(one["n"] == 3 for one in power["comparisons"])


def test_compare(folder, tmp_path):
    write_results(tmp_path / "b", incremental(trials=3), lambda p: lifelike(6)(p) + 0.01)
    data = as_json("compare", "a", "b")
    assert {one["x"]: round(one["mean"], 6) for one in data["points"]} == {float(k): 0.01 for k in range(5)}
    assert [curve["task"] for curve in data["curves"]] == ["SST-2"]
    assert sum(one["results"] for one in data["unpaired"]) == 6
    assert not Path("compare.html").exists()


def test_the_keys_are_documented(folder, tmp_path):
    write_results(tmp_path / "b", incremental(trials=3), lambda p: lifelike(6)(p) + 0.01)
    trial_id = incremental(trials=3)[0].trial.id
    outputs = {
        "plan": as_json("plan", "mine.toml", "--no-measure", "--device", "cpu"),
        "status": as_json("status", "a"),
        "claims": as_json("claims", "a")[0],
        "power": as_json("power", "a"),
        "compare": as_json("compare", "a", "b"),
        "recommend": as_json("recommend", "a"),
        "models": as_json("models"),
        "presets": as_json("presets")[0] | as_json("presets", "demo"),
        "show": as_json("show", "a", trial_id),
    }
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    table = page.partition("## As JSON")[2].partition("\n## ")[0]
    for command, data in outputs.items():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| `{command}`")]
        assert set(data) - set(re.findall(r"`(\w+)`", row.split("|")[2])) == set(), command


def test_show(folder):
    with sqlite3.connect(folder / "results.db") as db:
        ids = sorted(row[0] for row in db.execute("SELECT id FROM trials WHERE status = 'done'"))
    data = as_json("show", "a", ids[0][:10])
    assert data["trial_id"] == ids[0]
    assert data["points"][0]["experiment"] == "incremental"
    assert [epoch["epoch"] for epoch in data["epochs"]] == [1, 2]
    text = call("show", "a", ids[0])
    assert f"trial {ids[0]}: done" in text
    assert f"{100 * data['epochs'][1]['accuracy']:.1f}" in text
    assert "train_loss" in text
    for wrong, message in (("zz", "has no trial zz"), ("", "21 trials of")):
        error = CliRunner().invoke(app, ["show", "a", wrong])
        assert error.exit_code == 2
        assert message in error.stderr


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("whichlayers sta", ["status"]),
        ("whichlayers plan tamkin2020/inc", ["tamkin2020/incremental", "tamkin2020/incremental-as-released"]),
        ("whichlayers plan mi", ["mine.toml"]),
        ("whichlayers presets dem", ["demo"]),
        ("whichlayers run --ch", ["--checkpoint-minutes", "--checkpoints"]),
    ],
)
def test_shell_completion(typed, expected, folder):
    words = {
        "_WHICHLAYERS_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    result = CliRunner().invoke(app, [], env=words | {"PATH": os.environ["PATH"]}, prog_name="whichlayers")
    assert result.stdout.split() == expected


def test_trials_of_show_are_completed(folder):
    with sqlite3.connect(folder / "results.db") as db:
        ids = sorted(row[0] for row in db.execute("SELECT id FROM trials"))
    same = [one for one in ids if one[0] == ids[0][0]]
    test_shell_completion(f"whichlayers show a {ids[0][0]}", same, folder)
    test_shell_completion("whichlayers show nowhere 1", [], folder)


def test_the_how_to_lists_the_commands_with_json():
    import typer

    group = typer.main.get_command(app)
    with_json = {
        name
        for name, command in group.commands.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    text = (Path(__file__).resolve().parents[2] / "docs" / "how-to.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "--json" in line or line.startswith("Also `plan`")]
    named = set(re.findall(r"(?:whichlayers |`)([a-z]+)", " ".join(lines)))
    assert len(with_json) > 5
    assert named & set(group.commands) - {"export"} == with_json
