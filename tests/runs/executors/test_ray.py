"""A study on a real Ray cluster of several nodes: the same numbers as anywhere, whatever dies on the way.

WHICHLAYERS_CHAOS=600 runs the study again and again for 600 seconds, and never stops killing.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import make_study
from ray_cluster import Cluster, run_disturbed
from running import assert_complete, run
from small_subject import small_study
from test_real_engine import finished, values

import whichlayers
from whichlayers.errors import WhichlayersError
from whichlayers.results.db import Store
from whichlayers.results.records import Counts
from whichlayers.runs import machine
from whichlayers.runs.events import Note
from whichlayers.runs.executors import transfer

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
        tmp_path_factory.mktemp("subject"),
        experiments=["incremental", {"kind": "probing", "trials": 2}],
    )


@pytest.fixture(scope="module")
def undisturbed(study, tmp_path_factory) -> dict[tuple, float]:
    folder = tmp_path_factory.mktemp("undisturbed") / "study"
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


def test_one_process_two_and_ray_give_the_same_metrics(cluster, study, undisturbed, tmp_path):
    whichlayers.run(study, tmp_path / "two", device="cpu", workers=2, max_stack=3, progress=False)
    assert_same(values(tmp_path / "two"), undisturbed)
    assert on_ray(tmp_path / "ray", study, max_stack=2).last_run.done == 14
    assert_same(values(tmp_path / "ray"), undisturbed)
    with Store.read(tmp_path / "ray" / "results.db") as store:
        last = store.last_run()
    assert (last["outcome"], last["pid"]) == ("complete", os.getpid())
    assert "on Ray" in last["device"]
    assert not (tmp_path / "ray" / "checkpoints").exists()


def test_through_the_client_server(cluster, folder):
    summary = run(folder, on=f"ray://127.0.0.1:{cluster.client_port}", workers=2, max_stack=5)
    assert (summary.done, summary.failed) == (15, 0)
    assert_complete(folder, 15)


def test_whatever_is_killed_every_trial_ends_once_with_its_numbers(cluster, study, undisturbed, tmp_path):
    """Workers, nodes and the driver itself, at random moments."""
    (tmp_path / "small.toml").write_text(study.to_toml())
    chaos, turn = float(os.environ.get("WHICHLAYERS_CHAOS", "0")), 0
    until = time.monotonic() + chaos
    while turn == 0 or time.monotonic() < until:
        folder = tmp_path / str(turn)
        options = ["--max-stack", "1", "--checkpoint-minutes", "0.001", "--retries", "50", "--quiet"]
        words = ["run", "small.toml", "--on", "ray", "--device", "cpu", "--folder", str(folder), *options]
        done: dict[str, tuple] = {}

        def start(folder=folder, words=words, done=done) -> subprocess.Popen[bytes]:
            before = finished(folder)
            assert {trial: before[trial] for trial in done} == done  # none that was done is touched again
            done.update(before)
            command = [sys.executable, "-m", "whichlayers", *words]
            return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        kills = run_disturbed(cluster, start, random.Random(turn), (2.0, 6.0), most=1000 if chaos else 3)
        with Store.read(folder / "results.db") as store:
            assert store.counts() == Counts(done=14)
        assert_same(values(folder), undisturbed)
        assert sum(kills.values()) > 0, "nothing was killed: this showed nothing"
        turn += 1
        print(f"run {turn}: {kills}")


def test_a_poisoned_trial_fails_alone_and_the_study_goes_on(cluster, folder):
    for engine, words in (("bad", "a corrupt shard"), ("diverging", "loss is not a number")):
        summary = run(folder / engine, on="ray", workers=2, max_stack=8, engine=f"ray_engines:{engine}")
        assert (summary.done, summary.failed) == (10, 5)
        with Store.read(folder / engine / "results.db") as store:
            assert {f.trial.seed for f in store.failures()} == {1}
            assert all(words in f.error for f in store.failures())


def test_a_trial_that_kills_its_workers_fails_after_its_retries(cluster, folder):
    study, notes = make_study(trials=2), []
    note = lambda event: notes.append(event.text) if isinstance(event, Note) else None  # noqa: E731
    options = {"on": "ray", "workers": 2, "max_stack": 5, "retries": 1}
    summary = run(folder, study, engine="ray_engines:deadly", on_event=note, **options)
    assert (summary.done, summary.failed) == (5, 5)
    with Store.read(folder / "results.db") as store:
        assert {f.trial.seed for f in store.failures()} == {1}
        assert all("the Ray worker" in f.error for f in store.failures())
    assert any("will be run again" in text for text in notes)


def test_running_out_of_memory_on_ray_halves_the_stacks(cluster, folder):
    summary = run(folder, on="ray", workers=2, max_stack=5, engine="ray_engines:tight")
    assert (summary.done, summary.failed) == (15, 0)
    assert_complete(folder, 15)


def test_weights_damaged_on_the_way_fail_their_own_trials(cluster, study, tmp_path, monkeypatch):
    whole = transfer._bytes_of

    def damaged(files):
        sent = whole(files)
        return sent | {name: data[:-99] for name, data in sent.items() if name.endswith(".safetensors")}

    monkeypatch.setattr(transfer, "_bytes_of", damaged)
    few = whichlayers.Study(**(study.settings() | {"experiments": ["incremental"], "trials": 1}))
    summary = on_ray(tmp_path / "study", few, max_stack=2, workers=1).last_run
    assert (summary.done, summary.failed) == (0, 4)
    with Store.read(tmp_path / "study" / "results.db") as store:
        assert store.counts() == Counts(failed=4)
        assert all("arrived damaged" in f.error for f in store.failures())


def test_what_on_may_be(folder, monkeypatch):
    with pytest.raises(WhichlayersError, match=r"--on rey: give this, ray or ray://HOST:PORT"):
        run(folder, on="rey")
    with pytest.raises(WhichlayersError, match="--device cuda:1: on Ray give cpu or cuda"):
        run(folder, on="ray", device="cuda:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WhichlayersError, match=r"Ray is not installed: pip install 'ray\[client\]>="):
        run(folder, on="ray")
