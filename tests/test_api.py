"""The Python API: light imports, a study on a real small model, and its results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_study import write_model

import whichlayers
from whichlayers.runs import machine

WORDS = [
    "the",
    "a",
    "film",
    "plot",
    "was",
    "is",
    "good",
    "great",
    "fine",
    "bad",
    "dull",
    "poor",
    "very",
    "not",
]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Use one thread: on a busy machine, more threads would make so small a model very slow."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> whichlayers.Study:
    """A random BERT of two layers with a word-level tokenizer, and a task of a few words."""
    folder = tmp_path_factory.mktemp("data")
    write_model(folder / "model", WORDS)
    for split, rows in (("train", 24), ("dev", 12)):
        lines = [
            {
                "text": f"the film was {'very ' * (i % 4)}{WORDS[6 + i % 6]}",
                "label": "no" if i % 6 > 2 else "yes",
            }
            for i in range(rows)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return whichlayers.Study(
        name="small",
        models=[str(folder / "model")],
        tasks=[
            {"name": "films", "train": str(folder / "train.jsonl"), "dev": str(folder / "dev.jsonl")}
            | {"text": "text", "label": "label"}
        ],
        experiments=["incremental"],
        train_sizes=[16],
        trials=2,
        training={"epochs": 2, "max_length": 16, "lr": 1e-3},
    )


def test_a_study_on_a_real_model_gives_the_same_results_here_and_in_workers(study, tmp_path):
    here = whichlayers.run(study, tmp_path / "here", device="cpu", workers=0, max_stack=6)
    there = whichlayers.run(study, tmp_path / "there", device="cpu", workers=1, max_stack=2)
    assert (here.last_run.done, there.last_run.done) == (6, 6)
    columns = ["trial_id", "x", "seed", "accuracy", "dev_loss"]
    one, other = (r.frame()[columns].sort_values(["x", "seed"]).reset_index(drop=True) for r in (here, there))
    assert list(one["trial_id"]) == list(other["trial_id"])
    assert list(one["dev_loss"]) == pytest.approx(list(other["dev_loss"]), abs=1e-4)
    assert one["dev_loss"].nunique() == 6

    loaded = whichlayers.load(tmp_path / "here" / "results.db")
    assert loaded.folder == tmp_path / "here"
    assert len(loaded.frame()) == 6
    assert len(loaded.epochs().drop_duplicates(["trial_id", "epoch"])) == 6 * 2
    assert list((tmp_path / "here" / "cache").iterdir())
    assert not (tmp_path / "here" / "checkpoints").exists()


def test_results_as_tables_curves_and_a_page(study, tmp_path, capsys):
    single = whichlayers.Study(**(study.settings() | {"experiments": ["incremental", "single_layer"]}))
    events = []  # 2 of the 10 trials are shared by both experiments
    results = whichlayers.run(single, tmp_path / "r", device="cpu", workers=0, on_event=events.append)
    output = capsys.readouterr().err
    assert "8 trials to run" in output
    assert "8/8 trials" in output
    assert {type(event).__name__ for event in events} >= {"RunStarted", "Progress", "TrialDone"}

    frame, summary = results.frame(), results.summary()
    assert len(summary) == 3 + 4
    at_one = frame[(frame["experiment"] == "incremental") & (frame["x"] == 1)]["accuracy"]
    row = summary[(summary["experiment"] == "incremental") & (summary["x"] == 1)].iloc[0]
    assert (row["mean"], row["n"]) == (pytest.approx(at_one.mean()), 2)
    (curve,) = results.curves()
    assert curve.means[1] == pytest.approx(at_one.mean())
    contrasts = results.contrasts()
    assert list(contrasts["x"]) == [1, 2]
    assert set(contrasts["experiment"]) == {"single_layer"}
    first = frame[(frame["experiment"] == "single_layer") & (frame["x"] == 1)].set_index("seed")["accuracy"]
    whole = frame[frame["condition"] == "all pretrained"].set_index("seed")["accuracy"]
    assert contrasts["mean"].iloc[0] == pytest.approx((first - whole).mean())
    page = results.report()
    assert page == tmp_path / "r" / "report.html"
    assert page.is_file()

    whichlayers.run(single, tmp_path / "r", device="cpu", workers=0, progress=False, retry_failed=True)
    assert capsys.readouterr().err == ""


def test_a_study_file_runs_by_its_path(study, tmp_path, monkeypatch):
    monkeypatch.setenv("WHICHLAYERS_CACHE", str(tmp_path / "tokens"))
    (tmp_path / "small.toml").write_text(study.override(trials=1).to_toml())
    results = whichlayers.run(tmp_path / "small.toml", tmp_path / "out", device="cpu", workers=0)
    assert results.last_run.done == 3
    assert list((tmp_path / "tokens").iterdir())
    assert not (tmp_path / "out" / "cache").exists()


def test_a_study_folder_runs_by_its_path(study, tmp_path):
    first = whichlayers.run(study.override(trials=1), tmp_path / "small", device="cpu", workers=0)
    again = whichlayers.run(tmp_path / "small", tmp_path / "small", device="cpu", workers=0, progress=False)
    assert (again.last_run.done, again.last_run.ran) == (first.last_run.done, 0) == (3, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(whichlayers.WhichlayersError, match="this is a folder"):
        whichlayers.run(tmp_path / "empty", tmp_path / "small")


def test_errors_are_raised_before_training(study, tmp_path):
    longer = whichlayers.Study(**(study.settings() | {"training": {"max_length": 40}}))
    with pytest.raises(whichlayers.WhichlayersError, match=r"max_length = 40.* at most 32 tokens"):
        whichlayers.run(longer, tmp_path / "a", device="cpu", workers=0)
    with pytest.raises(whichlayers.WhichlayersError, match="no_such_model"):
        whichlayers.run(study.override(models=["./no_such_model"]), tmp_path / "b", device="cpu", workers=0)
    assert not (tmp_path / "b").exists()


def test_models_are_checked_without_reading_the_data(study, tmp_path):
    from whichlayers.runs.assets import Assets
    from whichlayers.study.expand import expand

    def check(study):
        assets = Assets(cache=None)
        trials = [point.trial for point in expand(study, assets)]
        assets.check_models(trials)
        return assets

    assert check(study).tokenized_tasks() == {}
    longer = whichlayers.Study(**(study.settings() | {"training": {"max_length": 40}}))
    with pytest.raises(whichlayers.WhichlayersError, match="at most 32 tokens"):
        check(longer)
    model = tmp_path / "model"
    shutil.copytree(study.models[0].name, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(whichlayers.WhichlayersError, match=r"lack 16 parameters of the encoder"):
        check(study.override(models=[str(model)]))
    (model / "config.json").write_text(json.dumps(config))
    for file in model.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(whichlayers.WhichlayersError, match="no tokenizer in"):
        check(study.override(models=[str(model)]))


def test_task_metadata(study):
    from whichlayers.runs.assets import Assets

    info = Assets(cache=None).task_info(study.tasks[0])
    assert (info.kind, info.classes, info.metric) == ("classification", 2, "accuracy")
    assert (info.train_rows, info.dev_rows) == (24, 12)


def test_a_worker_rejects_data_that_changed_after_the_run_started(study, tmp_path):
    from whichlayers.runs.assets import Assets
    from whichlayers.study.expand import expand

    copy = tmp_path / "train.jsonl"
    copy.write_text(Path(study.tasks[0].train).read_text())
    task = study.tasks[0].model_copy(update={"train": str(copy)})
    assets = Assets(cache=None)
    trial = expand(study.override(tasks=[task]), assets)[0].trial
    worker = Assets.from_index(assets.index)
    assert worker.data(trial).fingerprint == trial.task_fingerprint
    copy.write_text(copy.read_text().replace("very", "not"))
    with pytest.raises(whichlayers.WhichlayersError, match="films have changed since the run started"):
        Assets.from_index(assets.index).data(trial)


def test_importing_whichlayers_imports_nothing_heavy():
    script = (
        "import sys, whichlayers; whichlayers.Trial;"
        " print(dir(whichlayers), {'torch', 'pandas', 'pydantic'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.strip().endswith("set()"), done.stdout + done.stderr
    assert "'Results'" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = whichlayers.nonsense
