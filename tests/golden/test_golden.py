"""Files written by version 0.1 stay valid: trial ids, stored trials, study files, an interrupted study.

The files here were written by version 0.1 (commit 86713a3), when this project was called carryover. Do not regenerate
them: a change that breaks these tests breaks the studies of users.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from fake_facts import FakeFacts

import whichlayers
from whichlayers.runs import machine
from whichlayers.study.expand import expand
from whichlayers.study.preset import load_preset
from whichlayers.study.study_file import load_study
from whichlayers.trial import Trial

HERE = Path(__file__).parent
PRESETS = json.loads((HERE / "preset_ids.json").read_text())
TRIALS = [json.loads(line) for line in (HERE / "trials.jsonl").read_text().splitlines()]
TIMES = {"seconds"}


def stored_line(x: float, trial: Trial) -> str:
    stored = json.loads(trial.to_json())  # by its stored names, which never change
    corpus = stored["words"]["corpus"] if stored["words"] else ""
    return f"{x:g} {trial.model} {trial.task} {trial.train_size} {trial.seed} {corpus} {trial.id}"


@pytest.mark.parametrize("name", PRESETS)
def test_ids_of_all_trials_of_all_presets(name):
    groups: dict[str, list[str]] = {}
    for point in expand(load_preset(name), FakeFacts(depth=12)):
        line = stored_line(point.x, point.trial)
        groups.setdefault(f"{point.experiment} | {point.condition}", []).append(line)
    found = {
        key: {
            "points": len(lines),
            "digest": hashlib.blake2b("\n".join(sorted(lines)).encode(), digest_size=16).hexdigest(),
        }
        for key, lines in groups.items()
    }
    assert found == PRESETS[name]


@pytest.mark.parametrize("stored", TRIALS, ids=lambda stored: stored["id"])
def test_stored_trials_load_and_are_stored_with_the_same_names(stored):
    trial = Trial.from_json(stored["trial_json"])
    assert trial.id == stored["id"]
    assert json.loads(trial.to_json()) == json.loads(stored["trial_json"])


@pytest.fixture
def old_study(tmp_path: Path) -> Path:
    """A study folder of version 0.1 whose run was killed: 76 of 102 trials done."""
    shutil.copytree(HERE / "study", tmp_path / "somewhere")
    recorded = tmp_path / "somewhere" / "killed" / "study.toml"
    recorded.write_text(recorded.read_text().replace("/somewhere", str(tmp_path / "somewhere")))
    return tmp_path / "somewhere"


def last_epochs(database: Path) -> dict[str, dict[str, float | None]]:
    """(trial id) -> (metric -> value at its last epoch)"""
    connection = sqlite3.connect(database)
    rows = connection.execute(
        "SELECT trial_id, metric, value FROM epochs AS e WHERE epoch = "
        "(SELECT MAX(epoch) FROM epochs WHERE trial_id = e.trial_id)"
    )
    found: dict[str, dict[str, float | None]] = {}
    for trial, metric, value in rows:
        found.setdefault(trial, {})[metric] = value
    connection.close()
    return found


def test_an_old_study_file_and_the_one_its_folder_recorded_are_the_same_study(old_study):
    given, recorded = load_study(old_study / "old.toml"), load_study(old_study / "killed" / "study.toml")
    assert given == recorded
    assert {e.kind for e in given.experiments} == {
        "incremental", "permutation", "probing", "word_probing", "neurons", "selectivity",
    }  # fmt: skip


@pytest.mark.slow
def test_an_interrupted_study_of_version_0_1_is_resumed(old_study, monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)  # more threads are slower here
    folder = old_study / "killed"
    before = last_epochs(folder / "results.db")
    results = whichlayers.run(old_study / "old.toml", folder, workers=0)
    assert results.frame()["trial_id"].nunique() == 102
    after = last_epochs(folder / "results.db")
    connection = sqlite3.connect(folder / "results.db")
    runs = dict(connection.execute("SELECT id, run_id FROM trials"))
    statuses = dict(connection.execute("SELECT status, COUNT(*) FROM trials GROUP BY status"))
    connection.close()
    assert statuses == {"done": 102}
    assert sorted(runs.values()) == [1] * 76 + [2] * 26  # finished trials are not repeated
    done = [trial for trial, run in runs.items() if run == 1]
    assert {trial: after[trial] for trial in done} == {trial: before[trial] for trial in done}
    expected = json.loads((old_study / "expected.json").read_text())
    assert after.keys() == expected.keys()
    for trial, metrics in expected.items():
        assert after[trial].keys() == metrics.keys()
        for name, value in metrics.items():
            if name not in TIMES:
                # ties may be broken differently on another CPU
                tolerance = 1e-3 if name.endswith("loss") else 0.01
                assert after[trial][name] == pytest.approx(value, abs=tolerance), (trial, name)
