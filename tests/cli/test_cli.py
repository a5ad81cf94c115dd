"""The command-line interface, with fake models, data and engine."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest
from synthetic_results import downgrade
from typer.testing import CliRunner

import whichlayers
from whichlayers.cli import app
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import ResultsDB
from whichlayers.results.schema import SCHEMA_VERSION
from whichlayers.runs import assets, estimate, run_study
from whichlayers.runs.estimate import StudyTiming


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WHICHLAYERS_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    real = functools.partial(
        run_study.run, handlers=fakes.HANDLERS, assets=fakes.FakeAssets(), workers=0, device="cpu"
    )
    monkeypatch.setattr(run_study, "run", lambda *args, **options: real(*args, **(options | {"workers": 0})))
    monkeypatch.setattr(assets, "Assets", lambda cache: fakes.FakeAssets())
    Path("mine.toml").write_text(fakes.make_study(name="mine").to_toml())


def call(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_help_and_version_come_without_heavy_imports():
    began = time.monotonic()
    script = (
        "import sys; from whichlayers.cli import app; from typer.testing import CliRunner;"
        " r = CliRunner().invoke(app, ['--help']); assert r.exit_code == 0 and 'status' in r.output;"
        " print({'torch', 'transformers', 'pandas', 'matplotlib', 'sklearn', 'datasets'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "set()", done.stderr
    assert time.monotonic() - began < 5
    assert call("--version").output == f"whichlayers {whichlayers.__version__}\n"


@pytest.mark.parametrize("command", ["models", "presets", "new", "plan", "run", "status", "report", "export"])
def test_every_command_has_help(command):
    assert "Usage" in call(command, "--help").output


def test_presets_are_listed_and_printed():
    assert "tamkin2020/incremental" in call("presets").output
    assert 'name = "demo"' in call("presets", "demo").output
    assert "error: no preset" in call("presets", "demmo", code=2).stderr


def test_new_writes_a_study_that_loads():
    assert "whichlayers run first.toml" in call("new", "first.toml").output
    assert whichlayers.load_study("first.toml").name == "first"
    assert "already exists" in call("new", "first.toml", code=2).stderr


def test_new_with_own_files():
    Path("reviews").mkdir()
    files = ("--train", "reviews/train.csv", "--dev", "reviews/dev.csv", "--text", "a", "--label", "y")
    more = ("--pair", "b", "--kind", "regression", "--metric", "spearman")
    assert "reviews/train.csv: no such file" in call("new", "own.toml", *files, code=2).stderr
    for name in ("train", "dev"):
        Path(f"reviews/{name}.csv").write_text("a,b,y\n" + "one,two,0.5\n" * 96)
    call("new", "own.toml", *files, *more)
    assert "# Training sizes: numbers of examples (500)" in Path("own.toml").read_text()
    assert "Your training file has 96 rows" in Path("own.toml").read_text()
    study = whichlayers.load_study("own.toml")
    (task,) = study.tasks
    assert study.train_sizes == ("all",)
    assert (task.name, task.pair, task.kind, task.metric) == ("reviews", "b", "regression", "spearman")
    Path("reviews/train.csv").write_text("a,b,y\n" + "one,two,0.5\n" * 500)
    call("new", "more.toml", *files)
    assert whichlayers.load_study("more.toml").train_sizes == (240,)
    for bad in (("--metric", "acc"), ("--kind", "regresion")):
        error = call("new", "bad.toml", *files, *bad, code=2).stderr
        assert f'error: tasks[0].{bad[0][2:]} = "{bad[1]}": allowed: ' in error
        assert not Path("bad.toml").exists()


def test_models_are_listed():
    assert "PATH/TO/FOLDER" in call("models").output


def test_plan_counts_without_writing_anything():
    output = call(
        "plan", "mine.toml", "--sizes", "16,40", "--max-stack", "5", "--device", "cpu", "--no-measure"
    ).output
    rows = [line.split() for line in output.splitlines()]
    assert ["fake-org/fake", "builtin:sentiment", "40", "15", "150", "3"] in rows
    assert ["fake-org/fake", "builtin:sentiment", "16", "15", "60", "3"] in rows
    assert ["total", "30", "210", "6"] in rows
    assert "time  unknown: not measured" in output
    expected = (
        "data  builtin:sentiment: classification, 2 classes (a 60.0%, b 40.0%), accuracy; "
        "100 training and 40 dev examples; guessing scores 60.0"
    )
    assert expected in " ".join(output.split()).replace("data ", "data  ")
    assert [path.name for path in Path.cwd().iterdir()] == ["mine.toml"]
    call("run", "mine.toml")
    assert (
        "15 of 30 trials are done in mine"
        in call("plan", "mine.toml", "--sizes", "16,40", "--no-measure").output
    )


def test_plan_shows_notes_about_the_data(monkeypatch):
    noted = fakes.FakeAssets()
    noted.notes = lambda: ["sentiment: all 40 dev examples have one label"]
    monkeypatch.setattr(assets, "Assets", lambda cache: noted)
    assert "dev examples have one label" in call("plan", "mine.toml", "--no-measure").output


def test_plan_shows_distinct_model_names_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "64")
    models = [f"/a/long/path/of/folders/to/models/of/mine/tiny-{size}" for size in "ab"]
    output = call("plan", "mine.toml", "--no-measure", *(w for m in models for w in ("--model", m))).output
    rows = [line.split() for line in output.splitlines()]
    assert ["model", "task", "examples", "trials", "steps", "stacks"] in rows
    assert {row[0] for row in rows if row[2:3] == ["16"]} == {"tiny-a", "tiny-b"}
    assert "…" not in output


def test_plan_reports_the_errors_of_run_also_without_measuring(monkeypatch):
    bad = fakes.FakeAssets(error=WhichlayersError("no tokenizer here"))
    monkeypatch.setattr(assets, "Assets", lambda cache: bad)
    assert "no tokenizer here" in call("plan", "mine.toml", "--no-measure", code=2).stderr


def test_plan_counts_only_trials_that_run_would_run(monkeypatch):
    monkeypatch.setattr(estimate, "fit_memory", lambda resources, *rest: resources)
    timed: list[str] = []

    def time_stacks(stacks, *rest):
        timed.extend(trial_id for stack in stacks for trial_id in stack.trial_ids)
        return StudyTiming((), 0.0)

    monkeypatch.setattr(estimate, "time_stacks", time_stacks)
    with monkeypatch.context() as failing:
        failing.setenv("FAKE_FAIL_SEED", "1")
        call("run", "mine.toml", "--trials", "2", code=1)
    output = call("plan", "mine.toml").output  # 3 trials
    assert "5 of 15 trials are done in mine\n" in output
    assert "5 trials failed there and will not run again without --retry-failed" in output
    with ResultsDB.open_readonly(Path("mine/results.db")) as db:
        ended = db.trial_ids("done", "failed")
    assert len(timed) == len(set(timed)) == 5
    assert not ended & set(timed)


def test_plan_shows_its_current_activity(monkeypatch):
    monkeypatch.setattr(estimate, "fit_memory", lambda resources, *rest: resources)
    monkeypatch.setattr(estimate, "time_stacks", lambda *arguments: StudyTiming((), 0.0))
    assert "timing a few steps of 1 kind of stack ..." in call("plan", "mine.toml").stderr
    two = call("plan", "mine.toml", "--tasks", "builtin:sentiment,builtin:acceptability").stderr
    assert "timing a few steps of 2 kinds of stack ..." in two


def test_options_that_apply_to_nothing_are_rejected():
    error = call("plan", "mine.toml", "--data", "./glue", code=2).stderr
    assert (
        '--data (source) = "./glue": only applies to GLUE tasks, the corpora of Durrani et al. 2021, and your own'
        " files if they are in that folder, but the"
        " study has only builtin:sentiment; remove it" in error
    )
    error = call("run", "mine.toml", "--words", "500", code=2).stderr
    assert "--words (words) = 500: only applies to corpora, but the study has only builtin:sentiment" in error


def test_a_study_runs_in_a_folder_of_its_name_and_resumes_there():
    first = call("run", "mine.toml", "--trials", "2")
    assert "10 of 10 trials of the study are done" in first.output
    assert "10/10 trials" in first.stderr
    again = call("run", "mine")  # the folder: the study as it was run
    assert "nothing to run; 10 of 10 trials" in again.output
    more = call("run", "mine.toml")  # the file has 3 trials
    assert "5 trials in" in more.output
    assert "15 of 15" in more.output
    assert "nothing to run" in call("run", "mine/study.toml").output
    quiet = call("run", "mine.toml", "--folder", "other", "--quiet")
    assert quiet.stderr == ""


def test_a_preset_runs_with_other_models_tasks_and_sizes():
    call(
        *("run", "tamkin2020/incremental", "--model", "fake-org/fake", "--tasks", "builtin:sentiment"),
        *("--sizes", "16,0.5", "--sizes", "20", "--trials", "1", "--recipe", "bert_init"),
    )
    with ResultsDB.open_readonly(Path("tamkin2020-incremental/results.db")) as db:
        trials = db.trials("done")
    assert {trial.train_size for trial in trials} == {16, 20, 50}, "with commas and repeated"
    assert {trial.surgery.recipe for trial in trials if trial.surgery.reinit} == {"bert_init"}


def test_status_and_report_accept_the_folder_or_a_file_in_it(monkeypatch):
    monkeypatch.setenv("FAKE_FAIL_SEED", "1")
    result = call("run", "mine.toml", code=1)
    assert "5 trials failed" in result.output
    assert "failed: fake-org/fake on builtin:sentiment, 16 examples, seed 1" in result.stderr
    for name in ("mine", "mine/study.toml", "mine/results.db"):
        output = call("status", name).output
        assert "mine: 10 of 15 trials done" in output
        assert "5 failed" in output
        assert "ValueError: this seed is bad" in output
        assert "results.db" in output
        assert "builtin:sentiment: nothing left out" in output
    assert "fakes.py" not in call("status", "mine").output
    assert "fakes.py" in call("status", "mine", "--errors").output
    written = call("report", "mine").output.splitlines()[-1]
    assert Path(written.removeprefix("wrote ")).is_file()
    monkeypatch.delenv("FAKE_FAIL_SEED")
    assert "5 trials in" in call("run", "mine", "--retry-failed").output


def test_export_is_tidy():
    import pandas as pd

    call("run", "mine.toml")
    call("export", "mine")
    frame = pd.read_csv("mine/results.csv")
    assert len(frame) == 15
    assert not frame.duplicated(["experiment", "condition", "x", "seed"]).any()
    with ResultsDB.open_readonly(Path("mine/results.db")) as db:
        expected = {trial.id: fakes.accuracy(trial, 2) for trial in db.trials("done")}
    assert dict(zip(frame["trial_id"], frame["accuracy"], strict=True)) == pytest.approx(expected)
    assert frame["reinit"].iloc[0] == "1 2 3 4"

    call("export", "mine", "--format", "parquet", "--epochs", "--out", "long.parquet")
    long = pd.read_parquet("long.parquet")
    assert len(long) == 15 * 2 * 4
    assert set(long["metric"]) == {"accuracy", "train_loss", "dev_loss", "seconds"}
    assert "no folder" in call("export", "mine", "--out", "nowhere/x.csv", code=2).stderr
    assert "run the experiment `neurons`" in call("export", "mine", "--neurons", code=2).stderr
    for other in (["--epochs"], ["--format", "tensorboard"]):
        error = call("export", "mine", "--neurons", *other, code=2).stderr
        assert f"--neurons and {' '.join(other)} exclude each other" in error


def test_export_format_follows_the_file_extension():
    import pandas as pd

    call("run", "mine.toml", "--trials", "1")
    call("export", "mine", "--out", "x.parquet")
    call("export", "mine", "--out", "y.csv.gz")
    call("export", "mine", "--out", "plain")
    assert len(pd.read_parquet("x.parquet")) == len(pd.read_csv("y.csv.gz")) == len(pd.read_csv("plain")) == 5
    call("export", "mine", "--out", "z.data", "--format", "parquet")
    assert len(pd.read_parquet("z.data")) == 5
    error = call("export", "mine", "--out", "y.csv", "--format", "parquet", code=2).stderr
    assert "--out y.csv has the extension of csv, but --format is parquet" in error
    assert (
        "use .csv or .parquet, or give --format" in call("export", "mine", "--out", "y.json", code=2).stderr
    )
    assert not Path("y.csv").exists()
    assert not Path("y.json").exists()


def test_a_study_file_selects_the_folder_beside_it():
    assert "mine holds no results.db: run the study" in call("status", "mine.toml", code=2).stderr
    call("run", "mine.toml")
    assert "mine: 15 of 15 trials done" in call("status", "mine.toml").output
    assert Path("mine/report.html").samefile(call("report", "mine.toml").output.splitlines()[-1].split()[-1])
    assert call("claims", "mine.toml").output == call("claims", "mine").output
    assert "mine/results.csv" in call("export", "mine.toml").output
    assert "are the same folder" in call("compare", "mine.toml", "mine/results.db", code=2).stderr
    Path("study.toml").write_text(fakes.make_study(name="study").to_toml())  # the name of the recorded file
    call("run", "study.toml")
    assert "study: 15 of 15 trials done" in call("status", "study.toml").output


def test_a_similar_preset_is_suggested():
    error = call("run", "tamkin2020/incremenal", code=2).stderr
    assert "did you mean `tamkin2020/incremental`?" in error
    Path("empty").mkdir()
    assert "empty is a folder without study.toml" in call("run", "empty", code=2).stderr


def test_a_study_that_was_never_run_has_no_last_run():
    call("run", "mine.toml")
    with ResultsDB.open(Path("mine/results.db"), "mine") as db:
        db.connection.execute("DELETE FROM runs")
        db.connection.execute("UPDATE trials SET status = 'pending'")
    assert "not running; resume with: whichlayers run mine" in call("status", "mine").output
    assert "no trial has finished in mine yet" in call("export", "mine", code=2).stderr
    assert not Path("mine/results.csv").exists()


def test_errors_are_short_and_red_and_have_no_traceback(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, message in [
        (("run", "nothing"), "no study file or preset nothing"),
        (("run", "nothing.toml"), "no such file"),
        (("run", "mine.toml", "--sizes", "many"), "--sizes many"),
        (("run", "mine.toml", "--trials", "0"), "--trials 0: must be at least 1"),
        (("run", "mine.toml", "--trials", "few"), "error: --trials few: must be an integer"),
        (("run", "mine.toml", "--trails", "2"), "no such option: --trails"),
        (("run",), "missing argument 'STUDY'; see "),
        (("runn", "mine.toml"), "no such command 'runn'"),
        (("plan", "mine.toml", "--device", "mps"), "not supported; use cpu, cuda or cuda:N"),
        (("status", "nowhere"), "there is no nowhere"),
        (("status", "mine.toml"), "holds no results.db"),
        (("report", "."), "holds no results.db"),
        (("plan", "mine.toml", "--device", "gpu"), "no such device"),
        (("run", "mine.toml", "--device", "gpu"), "no such device"),
        (("run", "mine.toml", "--device", "cuda:7"), "--device cuda:7: torch sees 0 CUDA devices here"),
        (("run", "mine.toml", "--max-stack", "0"), "max_stack = 0: must be 1 (no stacking) or more"),
        (("plan", "mine.toml", "--max-stack", "0"), "max_stack = 0: must be 1 (no stacking) or more"),
        (
            ("plan", "mine.toml", "--workers", "-1"),
            "workers = -1: must be 0 (train in the main process) or more",
        ),
        (("run", "mine.toml", "--checkpoint-minutes", "-1"), "checkpoint_minutes = -1"),
    ]:
        result = call(*arguments, code=2)
        assert "error: " in result.stderr
        assert message in result.stderr
        assert "Traceback" not in result.output
    assert [path.name for path in Path.cwd().iterdir()] == ["mine.toml"]  # before any work
    monkeypatch.setenv("WHICHLAYERS_DEBUG", "1")
    assert isinstance(CliRunner().invoke(app, ["status", "nowhere"]).exception, WhichlayersError)


def test_paths_that_cannot_be_written_are_reported_without_a_traceback():
    call("run", "mine.toml", "--trials", "1")
    Path("file").touch()
    Path("mine/report.html").mkdir()
    for arguments, path in [
        (("new", "/proc/x.toml"), "/proc/x.toml"),
        (("new", "file/x.toml"), "file"),
        (("run", "mine.toml", "--folder", "/proc/x"), "/proc/x"),
        (("report", "mine"), "mine/report.html"),
        (("export", "mine", "--out", "/proc/x.csv"), "/proc/x.csv"),
        (("export", "mine", "--out", "/proc/x.parquet"), "/proc/x.parquet"),
    ]:
        error = call(*arguments, code=2).stderr
        assert re.search(rf"error: \S*{path}: \w", error), error
        assert "Traceback" not in error


def test_characters_that_a_terminal_cannot_encode_are_replaced():
    Path("plain.toml").write_text(fakes.make_study(name="3 × 4").to_toml())
    call("run", "plain.toml")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "whichlayers", "status", "plain"]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, b"3 ? 4: 15 of 15 trials done"), done.stderr


def test_ctrl_c_says_how_to_resume(monkeypatch):
    def interrupted(event):
        if type(event).__name__ == "TrialDone":
            os.kill(os.getpid(), signal.SIGINT)

    real = run_study.run
    monkeypatch.setattr(run_study, "run", lambda *a, **o: real(*a, **(o | {"on_event": interrupted})))
    assert (
        "Resume with: whichlayers run mine" in call("run", "mine.toml", "--max-stack", "1", code=130).stderr
    )
    monkeypatch.setattr(run_study, "run", real)
    assert "14 trials in" in call("run", "mine").output


def test_power_estimates_trials_and_adds_paired_ones():
    call("run", "mine.toml")
    output = call("power", "mine", "--difference", "0.2").output
    assert "4 comparisons have enough trials to detect a difference of 20.0 points" in output
    assert "process-min" in output
    assert "k = 4 against 3" in call("power", "mine.toml", "--all").output
    before = ResultsDB.open_readonly(Path("mine/results.db")).trial_ids("done")
    added = call("power", "mine", "--add", "2").output
    assert "added 2 trials of every point to mine/study.toml" in added
    assert whichlayers.load_study("mine/study.toml").trials.default == 5
    assert "25 of 25 trials of the study are done" in call("run", "mine").output
    with ResultsDB.open_readonly(Path("mine/results.db")) as db:
        assert before < db.trial_ids("done")
        assert {trial.seed for trial in db.trials("done")} == set(range(5))
    assert "--difference" in call("power", "mine", "--difference", "0", code=2).stderr
    assert "nowhere" in call("power", "nowhere", code=2).stderr


READING = (("status", "mine"), ("report", "mine"), ("export", "mine"), ("claims", "mine"), ("power", "mine"))
READING += (("compare", "mine", "copy"), ("plan", "mine"))


def test_every_command_refuses_a_newer_results_db_with_the_same_message():
    call("run", "mine.toml", "--trials", "1")
    with ResultsDB.open(Path("mine/results.db"), "mine") as db, db.transaction() as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    shutil.copytree("mine", "copy")
    commands = [*READING, ("plan", "mine.toml"), ("run", "mine"), ("run", "mine.toml"), ("watch", "mine")]
    messages = {" ".join(call(*arguments, code=2).stderr.split()) for arguments in commands}
    assert messages == {
        f"error: mine/results.db was written by a newer whichlayers ({whichlayers.__version__}) with schema version 99,"
        f" and this whichlayers supports versions 1 to {SCHEMA_VERSION}: upgrade whichlayers"
    }


def test_every_command_reads_an_old_results_db_and_only_run_migrates_it():
    call("run", "mine.toml", "--trials", "2")
    database = Path("mine/results.db")
    downgrade(database)
    before = database.read_bytes()
    shutil.copytree("mine", "copy")
    for arguments in READING:
        call(*arguments)
    assert database.read_bytes() == before
    output = call("run", "mine.toml", "--trials", "3").output
    assert "results.db was migrated to this version; the old file is kept as results.db.v1" in output
    assert "15 of 15 trials of the study are done" in output
    assert Path("mine/results.db.v1").exists()
    assert "migrated" not in call("run", "mine.toml", "--trials", "4").output
