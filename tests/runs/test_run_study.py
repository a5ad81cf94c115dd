"""Running a study with a stand-in engine: here and in workers; failing trials, dying workers, edits."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import fakes
import pytest
from fakes import FakeSubjects, make_study
from running import assert_complete, computed, run

import whichlayers
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import Store, StoreError
from whichlayers.results.records import Counts
from whichlayers.runs import machine
from whichlayers.runs.events import Note, Progress, RunStarted, TrialDone, TrialFailed


@pytest.mark.parametrize(("workers", "max_stack"), [(0, 1), (0, 4), (2, 4)])
def test_a_study_runs_once_and_only_once(folder, workers, max_stack):
    events = []
    summary = run(folder, workers=workers, max_stack=max_stack, on_event=events.append)
    assert (summary.trials, summary.done, summary.failed, summary.ran) == (15, 15, 0, 15)
    assert_complete(folder, 15)
    assert len(computed(folder)) == len(set(computed(folder))) == 15

    again = run(folder, workers=workers, max_stack=max_stack)
    assert (again.done, again.ran) == (15, 0)
    assert len(computed(folder)) == 15

    started = next(e for e in events if isinstance(e, RunStarted))
    assert (started.trials, started.steps, started.workers) == (15, 15 * 4, workers)
    assert sum(isinstance(e, TrialDone) for e in events) == 15
    steps = [e.steps_done for e in events if isinstance(e, Progress)]
    assert steps == sorted(steps)
    assert steps[-1] == 60
    assert [e.text for e in events if isinstance(e, Note)] == ["builtin:sentiment: nothing left out"]


def test_the_run_says_what_made_it(folder):
    run(folder)
    with Store.read(folder / "results.db") as store:
        last = store.last_run()
    versions = json.loads(last["versions"])
    assert {"python", "torch", "transformers", "numpy"} <= set(versions)
    assert last["outcome"] == "complete"
    assert last["pid"] == os.getpid()
    assert last["threads"] == machine.usable_cores()
    assert last["device"].startswith("cpu")
    assert last["started"] <= last["finished"]
    assert (folder / "study.toml").read_text() == make_study().to_toml()


def test_an_edited_study_runs_only_what_is_new(folder):
    run(folder, make_study(trials=2))
    before = computed(folder)
    subjects = FakeSubjects()
    summary = run(folder, make_study(trials=3, sizes=(16, 32)), subjects=subjects)
    assert summary.ran == 20
    assert not set(before) & set(computed(folder)[10:])
    assert set(subjects.checked) == set(computed(folder)[10:])  # what is done is not loaded again
    assert_complete(folder, 30)


def told_by(folder, study, **options) -> list[str]:
    events = []
    run(folder, study, on_event=events.append, **options)
    return [e.text for e in events if isinstance(e, Note) if "nothing left out" not in e.text]


def test_finished_trials_that_an_edited_study_drops_are_told_of(folder):
    assert told_by(folder, make_study(trials=3)) == []
    (folder / "report.html").touch()
    (folder / "epochs.csv").touch()
    dropped, report, export = told_by(folder, make_study(trials=2, sizes=(16, 32)))
    assert dropped == (
        "5 finished trials are no longer asked for (the study, its data or its model changed): they stay in"
        " results.db and in no result"
    )
    assert report == f"of the study as it was: report.html; whichlayers report {folder} writes anew"
    assert export == f"of the study as it was: epochs.csv; whichlayers export {folder} writes anew"
    assert told_by(folder, make_study(trials=2, sizes=(16, 32))) == []  # once is enough
    assert told_by(folder, make_study(trials=3, sizes=(16, 32))) == []  # and they are back
    assert_complete(folder, 30)


def test_changed_data_are_told_of(folder):
    class OtherData(FakeSubjects):
        def task_facts(self, spec):
            return fakes.FakeFacts(spec.name, f"other data of {spec.name}")

    run(folder, make_study(trials=1))
    (told,) = told_by(folder, make_study(trials=1), subjects=OtherData())
    assert told.startswith("5 finished trials are no longer asked for")


def test_a_folder_of_another_study_or_of_other_things_is_refused(folder):
    run(folder)
    with pytest.raises(StoreError, match="holds the study 'fake study', not 'other'"):
        run(folder, make_study(name="other"))
    (folder.parent / "papers").mkdir()
    (folder.parent / "papers" / "thesis.tex").touch()
    with pytest.raises(WhichlayersError, match=r"not empty \(thesis.tex\)"):
        run(folder.parent / "papers")
    with pytest.raises(WhichlayersError, match="is a file"):
        run(folder.parent / "computed")


def test_nothing_trains_when_something_is_wrong(folder):
    with pytest.raises(WhichlayersError, match="no tokenizer"):
        run(folder, subjects=FakeSubjects(complaint=WhichlayersError("no tokenizer here")))
    assert computed(folder) == []
    assert {path.name for path in folder.iterdir()} == {".lock"}  # nothing that looks like a study
    with pytest.raises(WhichlayersError, match="workers = -1"):
        run(folder, workers=-1)
    with pytest.raises(WhichlayersError, match="max_stack = 0"):
        run(folder, max_stack=0)
    assert run(folder).done == 15  # and the folder can still be used
    with pytest.raises(WhichlayersError, match="no tokenizer"):
        run(
            folder,
            make_study(trials=4),
            subjects=FakeSubjects(complaint=WhichlayersError("no tokenizer here")),
        )
    assert (folder / "study.toml").read_text() == make_study().to_toml()  # of the results that are there
    assert_complete(folder, 15)


@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_culprits_of_a_stack_fail(folder, monkeypatch, workers):
    monkeypatch.setenv("FAKE_BAD", "1")
    events = []
    summary = run(folder, workers=workers, max_stack=7, on_event=events.append)
    assert (summary.done, summary.failed, summary.ran) == (10, 5, 15)
    with Store.read(folder / "results.db") as store:
        failures = store.failures()
    assert {f.trial.seed for f in failures} == {1}
    assert failures[0].error.startswith("ValueError: this seed is bad\n")
    assert "fakes.py" in failures[0].error  # the end of the traceback
    assert sum(isinstance(e, TrialFailed) for e in events) == 5
    assert any("in halves" in e.text for e in events if isinstance(e, Note))

    assert run(folder, workers=0).ran == 0  # failed ones rest until they are asked for
    monkeypatch.delenv("FAKE_BAD")
    assert run(folder, workers=0, retry_failed=True).ran == 5
    assert_complete(folder, 15)


def test_a_trial_that_the_engine_itself_gives_up_is_failed_alone(folder):
    summary = run(folder, engine="fakes:judging_engine", max_stack=15)
    assert (summary.done, summary.failed) == (10, 5)
    with Store.read(folder / "results.db") as store:
        assert {f.error for f in store.failures()} == {"loss is not a number"}


def test_an_engine_that_forgets_trials_is_caught(folder):
    summary = run(folder, engine="fakes:forgetful_engine", max_stack=15)
    assert (summary.done, summary.failed) == (0, 15)


def test_a_stack_whose_worker_died_runs_again_elsewhere(folder, monkeypatch):
    monkeypatch.setenv("FAKE_DEADLY", "1")
    monkeypatch.setenv("FAKE_MORTAL", "1")
    events = []
    summary = run(folder, workers=2, max_stack=5, on_event=events.append)
    assert (summary.done, summary.failed) == (15, 0)
    assert_complete(folder, 15)
    assert len((folder.parent / "deaths").read_text().split()) == 1
    assert any("signal 9" in e.text and "run again" in e.text for e in events if isinstance(e, Note))


def test_a_trial_that_kills_every_worker_fails_and_the_study_goes_on(folder, monkeypatch):
    monkeypatch.setenv("FAKE_DEADLY", "1")
    monkeypatch.setattr("whichlayers.runs.executors.local.DEATHS_IN_A_ROW", 100)
    summary = run(folder, make_study(trials=2), workers=2, max_stack=10)
    assert (summary.done, summary.failed) == (5, 5)
    with Store.read(folder / "results.db") as store:
        assert {f.trial.seed for f in store.failures()} == {1}
        assert all("signal 9" in f.error for f in store.failures())


def test_workers_that_all_die_stop_the_run_and_lose_nothing(folder, monkeypatch):
    monkeypatch.setenv("FAKE_DEADLY", "0")
    monkeypatch.setattr("whichlayers.runs.executors.local.DEATHS_IN_A_ROW", 2)
    with pytest.raises(WhichlayersError, match="in a row died"):
        run(folder, make_study(trials=1), workers=2, max_stack=3)
    with Store.read(folder / "results.db") as store:
        assert store.counts() == Counts(pending=5)
        assert store.last_run()["outcome"] == "stopped by an error"
    monkeypatch.delenv("FAKE_DEADLY")
    assert run(folder, make_study(trials=1)).done == 5


def test_workers_that_cannot_start_are_a_clear_error(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "nowhere", fakes)  # the driver finds it, a worker does not
    with pytest.raises(WhichlayersError, match=r"(?s)cannot start here.*No module named 'nowhere'"):
        run(folder, workers=1, engine="nowhere:engine")
    with Store.read(folder / "results.db") as store:
        assert store.counts() == Counts(pending=15)


def test_without_ray_the_way_to_get_it_is_told(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    with pytest.raises(WhichlayersError) as told:
        run(folder, on="ray")
    assert f"pip install '{project['optional-dependencies']['ray'][0]}'" in str(told.value)


def test_devices_that_are_not_there_are_refused(monkeypatch):
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
    ("words", "shown"),
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
def test_the_command_is_kept_without_paths_of_the_machine(monkeypatch, words, shown):
    monkeypatch.setattr("sys.argv", words)
    assert machine.this_run(["cpu"], 1).command == shown
    assert machine.versions()["whichlayers"] == whichlayers.__version__
