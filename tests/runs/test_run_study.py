"""Running a study with a fake handler: in this process and in workers; failing trials, dying workers, edits."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import fakes
import pytest
from fakes import FakeAssets, make_study
from running import assert_complete, computed_trials, run_fake_study
from typer.testing import CliRunner

import whichlayers
from whichlayers.cli import app
from whichlayers.cli.status import read_status
from whichlayers.errors import WhichlayersError
from whichlayers.experiments.freeze import Freeze
from whichlayers.results.db import ResultsDB, ResultsDBError
from whichlayers.results.folder import StudyFolder
from whichlayers.results.records import Counts
from whichlayers.runs import machine
from whichlayers.runs.events import Note, Progress, RunStarted, TrialDone, TrialFailed
from whichlayers.runs.run_study import OUTPUT_FILES


@pytest.mark.parametrize(("workers", "max_stack"), [(0, 1), (0, 4), (2, 4)])
def test_a_study_runs_once_and_only_once(folder, workers, max_stack):
    events = []
    summary = run_fake_study(folder, workers=workers, max_stack=max_stack, on_event=events.append)
    assert (summary.trials, summary.done, summary.failed, summary.ran) == (15, 15, 0, 15)
    assert_complete(folder, 15)
    assert len(computed_trials(folder)) == len(set(computed_trials(folder))) == 15

    again = run_fake_study(folder, workers=workers, max_stack=max_stack)
    assert (again.done, again.ran) == (15, 0)
    assert len(computed_trials(folder)) == 15

    started = next(e for e in events if isinstance(e, RunStarted))
    assert (started.trials, started.steps, started.workers) == (15, 15 * 4, workers)
    assert sum(isinstance(e, TrialDone) for e in events) == 15
    steps = [e.steps_done for e in events if isinstance(e, Progress)]
    assert steps == sorted(steps)
    assert steps[-1] == 60
    assert [e.text for e in events if isinstance(e, Note)] == ["builtin:sentiment: nothing left out"]


def test_a_trial_that_several_points_share_is_checked_once(folder):
    study, assets = make_study(), FakeAssets()
    study = study.model_copy(update={"experiments": study.experiments * 2})
    run_fake_study(folder, study, assets=assets)
    assert len(assets.checked) == len(set(assets.checked)) == 15


def test_without_checkpoint_minutes_the_folder_for_checkpoints_is_not_used(folder, tmp_path):
    class Recording(fakes.FakeHandler):
        def run(self, trials, worker, settings, report):
            folders.append(settings.checkpoint_folder)
            super().run(trials, worker, settings, report)

    handlers, checkpoints = fakes.handlers_of(Recording()), tmp_path / "checkpoints"
    for minutes, expected in ((0, None), (1, checkpoints)):
        folders: list[Path | None] = []
        options = {"checkpoint_minutes": minutes, "checkpoints": checkpoints, "handlers": handlers}
        run_fake_study(folder / str(minutes), **options)
        assert set(folders) == {expected}


def test_the_run_records_its_software_and_hardware(folder, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run_fake_study(folder)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        last = db.last_run()
    versions = json.loads(last["versions"])
    assert {"python", "torch", "transformers", "numpy"} <= set(versions)
    assert last["outcome"] == "complete"
    assert last["pid"] == os.getpid()
    assert last["threads"] == machine.usable_cores()
    assert last["device"].startswith("cpu")
    assert last["started"] <= last["finished"]
    assert (folder / "study.toml").read_text() == make_study().to_toml()


def test_an_edited_study_runs_only_what_is_new(folder):
    run_fake_study(folder, make_study(trials=2))
    before = computed_trials(folder)
    assets = FakeAssets()
    summary = run_fake_study(folder, make_study(trials=3, sizes=(16, 32)), assets=assets)
    assert summary.ran == 20
    assert not set(before) & set(computed_trials(folder)[10:])
    assert set(assets.checked) == set(computed_trials(folder)[10:])  # finished trials are not loaded again
    assert_complete(folder, 30)


def notes_of(folder, study, **options) -> list[str]:
    events = []
    run_fake_study(folder, study, on_event=events.append, **options)
    return [e.text for e in events if isinstance(e, Note) if "nothing left out" not in e.text]


def test_finished_trials_that_an_edited_study_drops_are_noted(folder):
    assert notes_of(folder, make_study(trials=3)) == []
    for name in ("report.html", "neuron_overlap.csv", "epochs.csv", "neurons.csv", "results.parquet"):
        (folder / name).touch()
    dropped, report, *exports = notes_of(folder, make_study(trials=2, sizes=(16, 32)))
    assert dropped == (
        "5 finished trials are no longer part of the study (the study, its data or its model changed): results leave"
        f" them out. {folder / 'study.toml'} now has the settings of this run; a run with the earlier settings includes"
        " them again"
    )
    outdated = "out of date: report.html, neuron_overlap.csv; update with: whichlayers report"
    assert report == f"{outdated} {folder}"
    assert exports == [
        f"out of date: results.parquet; update with: whichlayers export --format parquet {folder}",
        f"out of date: epochs.csv; update with: whichlayers export --epochs {folder}",
        f"out of date: neurons.csv; update with: whichlayers export --neurons {folder}",
    ]
    assert notes_of(folder, make_study(trials=2, sizes=(16, 32))) == []  # noted once
    assert read_status(StudyFolder(folder)).other_done == 5
    again, *_ = notes_of(folder, make_study(trials=1, sizes=(16, 32)))
    assert again.startswith("10 finished trials are no longer part of the study")
    assert "changed), 15 in total: results leave them out" in again
    assert read_status(StudyFolder(folder)).other_done == 15
    assert notes_of(folder, make_study(trials=3, sizes=(16, 32))) == []  # they are part of the study again
    assert_complete(folder, 30)
    assert read_status(StudyFolder(folder)).other_done == 0


@pytest.mark.parametrize(
    ("command", "names"),
    [(c, n) for c, n in OUTPUT_FILES.items() if c[:6] == "export" and "neurons" not in c],
)
def test_the_noted_commands_write_the_files_that_are_out_of_date(folder, command, names):
    run_fake_study(folder, make_study(trials=1))
    before = set(folder.iterdir())
    done = CliRunner().invoke(app, [*command.split(), str(folder)])
    assert done.exit_code == 0, done.output
    assert {path.name for path in set(folder.iterdir()) - before} == set(names)


def test_changed_data_are_noted(folder):
    class OtherData(FakeAssets):
        def task_info(self, spec):
            return fakes.FakeInfo(spec.name, f"other data of {spec.name}")

    run_fake_study(folder, make_study(trials=1))
    (note,) = notes_of(folder, make_study(trials=1), assets=OtherData())
    assert note.startswith("5 finished trials are no longer part of the study")


def test_what_is_left_out_for_a_model_is_noted(folder):
    class WithoutBiases(FakeAssets):
        def model_info(self, spec):
            return dataclasses.replace(super().model_info(spec), has_biases=False)

    study = make_study(trials=1).model_copy(update={"experiments": (Freeze(),)})
    note = "fake-org/fake has no biases: freeze leaves out the trials that train biases alone"
    assert note in notes_of(folder, study, assets=WithoutBiases())[0]
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert note in db.notes()[0]
    assert notes_of(folder / "with", study) == []


def test_a_folder_of_another_study_or_of_other_things_is_refused(folder):
    run_fake_study(folder)
    with pytest.raises(ResultsDBError, match="holds the study 'fake study', not 'other'"):
        run_fake_study(folder, make_study(name="other"))
    (folder.parent / "papers").mkdir()
    (folder.parent / "papers" / "thesis.tex").touch()
    with pytest.raises(WhichlayersError, match=r"not empty \(thesis.tex\)"):
        run_fake_study(folder.parent / "papers")
    with pytest.raises(WhichlayersError, match="is a file"):
        run_fake_study(folder.parent / "computed")


def test_nothing_trains_when_something_is_wrong(folder):
    with pytest.raises(WhichlayersError, match="no tokenizer"):
        run_fake_study(folder, assets=FakeAssets(error=WhichlayersError("no tokenizer here")))
    assert computed_trials(folder) == []
    assert {path.name for path in folder.iterdir()} == {".lock"}  # no files of a study
    with pytest.raises(WhichlayersError, match="workers = -1"):
        run_fake_study(folder, workers=-1)
    with pytest.raises(WhichlayersError, match="max_stack = 0"):
        run_fake_study(folder, max_stack=0)
    assert run_fake_study(folder).done == 15  # the folder can still be used
    with pytest.raises(WhichlayersError, match="no tokenizer"):
        run_fake_study(
            folder,
            make_study(trials=4),
            assets=FakeAssets(error=WhichlayersError("no tokenizer here")),
        )
    assert (folder / "study.toml").read_text() == make_study().to_toml()  # the study of the stored results
    assert_complete(folder, 15)


@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_bad_trials_of_a_stack_fail(folder, monkeypatch, workers):
    monkeypatch.setenv("FAKE_FAIL_SEED", "1")
    events = []
    summary = run_fake_study(folder, workers=workers, max_stack=7, on_event=events.append)
    assert (summary.done, summary.failed, summary.ran) == (10, 5, 15)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        failures = db.failures()
    assert {f.trial.seed for f in failures} == {1}
    assert failures[0].error.startswith("ValueError: this seed is bad\n")
    assert "fakes.py" in failures[0].error  # the end of the traceback
    assert sum(isinstance(e, TrialFailed) for e in events) == 5
    assert any("in halves" in e.text for e in events if isinstance(e, Note))

    assert run_fake_study(folder, workers=0).ran == 0  # failed trials run only with retry_failed
    monkeypatch.delenv("FAKE_FAIL_SEED")
    assert run_fake_study(folder, workers=0, retry_failed=True).ran == 5
    assert_complete(folder, 15)


def test_a_trial_whose_result_is_an_error_fails_alone(folder):
    summary = run_fake_study(folder, handlers=fakes.handlers_of(fakes.Diverging()), max_stack=15)
    assert (summary.done, summary.failed) == (10, 5)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert {f.error for f in db.failures()} == {"loss is not a number"}


def test_a_handler_that_reports_no_results_is_an_error(folder):
    summary = run_fake_study(folder, handlers=fakes.handlers_of(fakes.NoResults()), max_stack=15)
    assert (summary.done, summary.failed) == (0, 15)


def test_a_stack_whose_worker_died_runs_again_elsewhere(folder, monkeypatch):
    monkeypatch.setenv("FAKE_KILL_SEED", "1")
    monkeypatch.setenv("FAKE_KILL_ONCE", "1")
    events = []
    summary = run_fake_study(folder, workers=2, max_stack=5, on_event=events.append)
    assert (summary.done, summary.failed) == (15, 0)
    assert_complete(folder, 15)
    assert len((folder.parent / "deaths").read_text().split()) == 1
    assert any(
        "signal 9" in e.text and "running its 5 trials again" in e.text for e in events if isinstance(e, Note)
    )


def test_a_trial_that_kills_every_worker_fails_and_the_study_continues(folder, monkeypatch):
    monkeypatch.setenv("FAKE_KILL_SEED", "1")
    monkeypatch.setattr("whichlayers.runs.executors.local.MAX_WORKER_DEATHS", 100)
    summary = run_fake_study(folder, make_study(trials=2), workers=2, max_stack=10)
    assert (summary.done, summary.failed) == (5, 5)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert {f.trial.seed for f in db.failures()} == {1}
        assert all("signal 9" in f.error for f in db.failures())


def test_workers_that_all_die_stop_the_run_and_lose_no_trial(folder, monkeypatch):
    monkeypatch.setenv("FAKE_KILL_SEED", "0")
    monkeypatch.setattr("whichlayers.runs.executors.local.MAX_WORKER_DEATHS", 2)
    with pytest.raises(WhichlayersError, match="in a row died"):
        run_fake_study(folder, make_study(trials=1), workers=2, max_stack=3)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert db.counts() == Counts(pending=5)
        assert db.last_run()["outcome"] == "stopped by an error"
    monkeypatch.delenv("FAKE_KILL_SEED")
    assert run_fake_study(folder, make_study(trials=1)).done == 5


def test_workers_that_cannot_start_are_a_clear_error(folder, monkeypatch):
    class Handler(fakes.FakeHandler):
        __module__, __qualname__ = "nowhere", "Handler"

    # importable in the main process, but not in a worker
    monkeypatch.setitem(sys.modules, "nowhere", SimpleNamespace(Handler=Handler))
    with pytest.raises(WhichlayersError, match=r"(?s)cannot start: .*No module named 'nowhere'"):
        run_fake_study(folder, workers=1, handlers=fakes.handlers_of(Handler()))
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert db.counts() == Counts(pending=15)


def test_the_error_without_ray_says_how_to_install_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    with pytest.raises(WhichlayersError) as error:
        run_fake_study(folder, on="ray")
    assert f"pip install '{project['optional-dependencies']['ray'][0]}'" in str(error.value)


def test_unavailable_devices_are_refused(monkeypatch):
    with pytest.raises(WhichlayersError, match="no such device"):
        machine.choose_devices("gpu9")
    with pytest.raises(WhichlayersError, match="--device mps: not supported; use cpu, cuda or cuda:N"):
        machine.choose_devices("cpu,mps")
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(WhichlayersError, match="sees 0 CUDA devices"):
        machine.choose_devices("cuda:3")
    assert machine.choose_devices(None) == ["cpu"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["/opt/env/bin/whichlayers", "run", "demo", "--folder", "a b"],
            "whichlayers run demo --folder 'a b'",
        ),
        (["/opt/env/lib/whichlayers/__main__.py", "run", "demo"], "python -m whichlayers run demo"),
        (["/home/me/own_task.py", "./model"], "python own_task.py ./model"),
        ([""], "python"),
    ],
)
def test_the_command_is_recorded_without_local_paths(monkeypatch, argv, expected):
    monkeypatch.setattr("sys.argv", argv)
    assert machine.describe_run(["cpu"], 1).command == expected
    assert machine.versions()["whichlayers"] == whichlayers.__version__
