"""A study on a real Ray cluster of several nodes: the same results as in one process, even if workers are killed.

WHICHLAYERS_CHAOS=600 runs the study repeatedly for 600 seconds with an unlimited number of kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest
import ray_handlers
from fakes import make_study
from ray_cluster import Cluster, run_with_random_kills
from running import assert_complete, run_fake_study
from small_study import small_study
from test_real_engine import finished, values

import whichlayers
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import ResultsDB
from whichlayers.results.records import Counts
from whichlayers.runs import machine
from whichlayers.runs.events import Note
from whichlayers.runs.executors import ray_worker

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[client]>=2.40'")

NODES = 2


@pytest.fixture(scope="module")
def cluster():
    made = Cluster(NODES)
    os.environ["RAY_ADDRESS"] = made.address
    yield made
    os.environ.pop("RAY_ADDRESS", None)
    made.close()


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> whichlayers.Study:
    """4 points of a curve by 2 seeds, and 3 probes by 2; stacks of a few seconds."""
    return small_study(
        tmp_path_factory.mktemp("model"),
        experiments=["incremental", {"kind": "probing", "trials": 2}],
    )


@pytest.fixture(scope="module")
def uninterrupted(study, tmp_path_factory) -> dict[tuple, float]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_cores", lambda: 1)
        whichlayers.run(study, folder, device="cpu", workers=0, max_stack=8, progress=False)
    return values(folder)


def assert_same(found: dict[tuple, float], expected: dict[tuple, float]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-6 if key[2] == "accuracy" else 1e-4), key


def on_ray(folder: Path, study: whichlayers.Study, **options):
    return whichlayers.run(study, folder, device="cpu", on="ray", progress=False, **options)


def test_one_process_two_and_ray_give_the_same_metrics(cluster, study, uninterrupted, tmp_path):
    whichlayers.run(study, tmp_path / "two", device="cpu", workers=2, max_stack=3, progress=False)
    assert_same(values(tmp_path / "two"), uninterrupted)
    assert on_ray(tmp_path / "ray", study, max_stack=2).last_run.done == 14
    assert_same(values(tmp_path / "ray"), uninterrupted)
    with ResultsDB.open_readonly(tmp_path / "ray" / "results.db") as db:
        last = db.last_run()
    assert (last["outcome"], last["pid"]) == ("complete", os.getpid())
    assert "on Ray" in last["device"]
    assert not (tmp_path / "ray" / "checkpoints").exists()


def test_through_the_client_server(cluster, folder):
    summary = run_fake_study(folder, on=f"ray://127.0.0.1:{cluster.client_port}", workers=2, max_stack=5)
    assert (summary.done, summary.failed) == (15, 0)
    assert_complete(folder, 15)


def test_with_random_kills_every_trial_finishes_once_with_the_same_results(
    cluster, study, uninterrupted, tmp_path
):
    """Kills workers, nodes and the run itself at random times."""
    (tmp_path / "small.toml").write_text(study.to_toml())
    chaos, turn = float(os.environ.get("WHICHLAYERS_CHAOS", "0")), 0
    until = time.monotonic() + chaos
    while turn == 0 or time.monotonic() < until:
        folder = tmp_path / str(turn)
        options = ["--max-stack", "1", "--checkpoint-minutes", "0.001", "--retries", "50", "--quiet"]
        arguments = ["run", "small.toml", "--on", "ray", "--device", "cpu", "--folder", str(folder), *options]
        done: dict[str, tuple] = {}

        def start(folder=folder, arguments=arguments, done=done) -> subprocess.Popen[bytes]:
            before = finished(folder)
            assert {trial: before[trial] for trial in done} == done  # finished trials are not changed
            done.update(before)
            command = [sys.executable, "-m", "whichlayers", *arguments]
            return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        kills = run_with_random_kills(
            cluster, start, random.Random(turn), (2.0, 6.0), max_kills=1000 if chaos else 3
        )
        with ResultsDB.open_readonly(folder / "results.db") as db:
            assert db.counts() == Counts(done=14)
        assert_same(values(folder), uninterrupted)
        assert sum(kills.values()) > 0, "nothing was killed"
        turn += 1
        print(f"run {turn}: {kills}")


def test_a_bad_trial_fails_alone_and_the_study_continues(cluster, folder):
    for name, handler, message in (
        ("failing", ray_handlers.Failing(), "a corrupt shard"),
        ("diverging", fakes.Diverging(), "loss is not a number"),
    ):
        summary = run_fake_study(
            folder / name, on="ray", workers=2, max_stack=8, handlers=fakes.handlers_of(handler)
        )
        assert (summary.done, summary.failed) == (10, 5)
        with ResultsDB.open_readonly(folder / name / "results.db") as db:
            assert {f.trial.seed for f in db.failures()} == {1}
            assert all(message in f.error for f in db.failures())


def test_a_trial_that_kills_its_workers_fails_after_its_retries(cluster, folder):
    study, notes = make_study(trials=2), []
    note = lambda event: notes.append(event.text) if isinstance(event, Note) else None  # noqa: E731
    options = {"on": "ray", "workers": 2, "max_stack": 5, "retries": 1}
    handlers = fakes.handlers_of(ray_handlers.Killing())
    summary = run_fake_study(folder, study, handlers=handlers, on_event=note, **options)
    assert (summary.done, summary.failed) == (5, 5)
    with ResultsDB.open_readonly(folder / "results.db") as db:
        assert {f.trial.seed for f in db.failures()} == {1}
        assert all("the Ray worker" in f.error for f in db.failures())
    assert any("running its 5 trials again" in text for text in notes)


def test_running_out_of_memory_on_ray_halves_the_stacks(cluster, folder):
    handlers = fakes.handlers_of(ray_handlers.LowMemory())
    summary = run_fake_study(folder, on="ray", workers=2, max_stack=5, handlers=handlers)
    assert (summary.done, summary.failed) == (15, 0)
    assert_complete(folder, 15)


def test_weights_damaged_in_transfer_fail_their_own_trials(cluster, study, tmp_path, monkeypatch):
    read_files = ray_worker._read_files

    def damaged(files):
        sent = read_files(files)
        return sent | {name: data[:-99] for name, data in sent.items() if name.endswith(".safetensors")}

    monkeypatch.setattr(ray_worker, "_read_files", damaged)
    few = whichlayers.Study(**(study.settings() | {"experiments": ["incremental"], "trials": 1}))
    summary = on_ray(tmp_path / "study", few, max_stack=2, workers=1).last_run
    assert (summary.done, summary.failed) == (0, 4)
    with ResultsDB.open_readonly(tmp_path / "study" / "results.db") as db:
        assert db.counts() == Counts(failed=4)
        assert all("are damaged" in f.error for f in db.failures())


def test_values_of_on(folder, monkeypatch):
    with pytest.raises(WhichlayersError, match=r"--on rey: give this, ray or ray://HOST:PORT"):
        run_fake_study(folder, on="rey")
    with pytest.raises(WhichlayersError, match="--device cuda:1: on Ray, give cpu or cuda"):
        run_fake_study(folder, on="ray", device="cuda:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WhichlayersError, match=r"Ray is not installed: pip install 'ray\[client\]>="):
        run_fake_study(folder, on="ray")
