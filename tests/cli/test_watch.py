"""`whichlayers watch`: local, read-only, never blocks the run, and reports errors."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from fakes import RUN
from synthetic_results import incremental, lifelike, trial, write_results
from typer.testing import CliRunner

from whichlayers.cli import app
from whichlayers.cli.status import read_status
from whichlayers.cli.watch import (
    HOST,
    MAX_CONNECTIONS,
    LivePage,
    RequestHandler,
    describe_progress,
    make_server,
    start_rendering,
)
from whichlayers.cli.watch_data import TrialSearch, curve_labels
from whichlayers.results.db import ResultsDB
from whichlayers.results.folder import StudyFolder
from whichlayers.results.lock import LockHolder, study_lock
from whichlayers.results.losses import LossLog
from whichlayers.runs.plan import total_steps, unique_trials
from whichlayers.trial import Point, Probe


@pytest.fixture
def study(tmp_path):
    return write_results(tmp_path / "study", incremental(), lambda p: lifelike(6)(p) if p.x < 4 else None)


@pytest.fixture
def server(study):
    made = make_server(StudyFolder(study), free_port())
    start_rendering(made)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def request(server, path="/", host=None, method="GET"):
    port = server.server_address[1]
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request(method, path, headers={"Host": host or f"{HOST}:{port}"})
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_the_page_and_its_state(server):
    answer, page = request(server)
    assert answer.status == 200
    assert "12 of 21 trials finished" in page
    version = re.search(r'data-live="([^"]+)"', page)[1]
    assert "connect-src &#39;self&#39;" in page
    answer, text = request(server, "/state")
    state = json.loads(text)
    assert state["version"] == version
    assert state["share"] == pytest.approx(12 / 21)
    assert "Not running (last run: finished); resume with" in state["text"]
    with sqlite3.connect(server.live_page.folder.database) as db:
        db.execute("DELETE FROM runs")
    assert "Not running; resume with" in describe_progress(read_status(server.live_page.folder), 12 / 21)
    assert answer.getheader("X-Frame-Options") == "DENY"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1"])
def test_requests_with_another_host_header_are_rejected(server, host):
    answer, text = request(server, "/", host)
    assert answer.status == 403
    assert "trials" not in text


def test_the_server_is_read_only_and_has_only_the_page(server, study):
    assert request(server, "/results.db")[0].status == 404
    assert request(server, "/../study.toml")[0].status == 404
    for method in ("POST", "PUT", "DELETE"):
        assert request(server, "/", method=method)[0].status == 501
    request(server)
    left = {path.name for path in study.iterdir()}
    assert left <= {"results.db", "results.db-wal", "results.db-shm"}


def test_losses_of_running_trials(server, study):
    assert json.loads(request(server, "/losses")[1]) == []
    with sqlite3.connect(study / "results.db") as db:
        ids = [row[0] for row in db.execute("SELECT id FROM trials WHERE status = 'pending' ORDER BY id")]
        db.execute("UPDATE trials SET status = 'running' WHERE id IN (?, ?)", ids[:2])
    log = LossLog(study)
    log.record(7, {ids[0]: 0.5, ids[2]: 0.7})  # one running trial has no loss yet, one is not running
    log.flush()
    (curve,) = json.loads(request(server, "/losses")[1])
    assert curve["id"] == ids[0]
    assert curve["points"] == [[7, 0.5]]
    assert curve["steps"] > 7
    assert "bert-base-uncased on SST-2, 500 examples" in curve["lines"][0]
    assert curve["lines"][1] == f"step 7 of {curve['steps']:,}: loss 0.500"


def test_progress_counts_the_steps_of_running_trials(tmp_path, monkeypatch):
    """Trials of 500 and of 5,000 examples, against a sum over trials in Python."""
    study = incremental(sizes=(500, 5000))
    folder = write_results(tmp_path / "study", study, lambda p: lifelike(6)(p) if p.x < 1 else None)
    with sqlite3.connect(folder / "results.db") as db:
        done = [row[0] for row in db.execute("SELECT id FROM trials WHERE status = 'done'")]
        ids = [row[0] for row in db.execute("SELECT id FROM trials WHERE status = 'pending' ORDER BY id")]
        db.execute("UPDATE trials SET status = 'running' WHERE id IN (?, ?)", ids[:2])
    log = LossLog(folder)
    log.record(5, {ids[0]: 0.5})
    log.record(7, dict.fromkeys(ids[:3], 0.5))  # the third is not running
    log.flush()
    steps = {point.trial.id: point.trial.steps for point in study}
    taken, total = sum(steps[one] for one in done), sum(steps.values())
    assert len(set(steps.values())) == 2
    assert LivePage(StudyFolder(folder), str).state()["share"] == pytest.approx(taken / total)  # not running
    monkeypatch.setattr("whichlayers.cli.status.lock_holder", lambda path: LockHolder("a-host", 1, 0.0))
    state = LivePage(StudyFolder(folder), str).state()
    assert state["share"] == pytest.approx((taken + 14) / total)
    assert f"2 running now, {100 * (taken + 14) // total}% done" in state["text"]
    log.record(10**6, {ids[0]: 0.5})
    log.flush()
    assert LivePage(StudyFolder(folder), str).state()["share"] < 1  # trials are left


def test_progress_of_a_study_with_probes_counts_steps_as_the_run_does(tmp_path, monkeypatch):
    study = incremental() + [Point("probing", "", k, trial(probe=Probe(k))) for k in range(3)]
    folder = write_results(tmp_path / "study", study, lambda p: 0.5 if p.x < 1 else None)
    counts = read_status(StudyFolder(folder)).counts
    with ResultsDB.open_readonly(folder / "results.db") as db:
        done, total = total_steps(db.trials("done")), total_steps(unique_trials(study))
    assert done / total != counts.done / counts.total

    def share() -> float:
        return LivePage(StudyFolder(folder), str).state()["share"]

    assert share() == pytest.approx(done / total)
    monkeypatch.setattr("whichlayers.cli.status.lock_holder", lambda path: LockHolder("a-host", 1, 0.0))
    assert share() == pytest.approx(done / total)  # the run has not noted its progress
    with ResultsDB.open(folder / "results.db", "a study") as db:
        db.set_time_left(db.begin_run(RUN), 60.0, total - done - 30)
    assert share() == pytest.approx((done + 30) / total)
    with ResultsDB.open(folder / "results.db", "a study") as db:
        db.begin_run(RUN)  # that was the progress of an earlier run
    assert share() == pytest.approx(done / total)


@pytest.mark.parametrize(
    ("descriptions", "labels"),
    [
        (["a on SST-2, 500 examples, seed 0 (all pretrained)"], [""]),
        (["a on SST-2, 5 examples, seed 0 (x)", "a on SST-2, 5 examples, seed 1 (x)"], ["seed 0", "seed 1"]),
        (
            ["a on SST-2, 5 examples, seed 0 (x)", "a on SST-2, 5 examples, seed 1 (frozen 1, y)"],
            ["x", "frozen 1, y"],
        ),
        (
            ["a on SST-2, 5 examples, seed 0 (x)", "a on SST-2, 9 examples, seed 0 (x)"],
            ["5 examples", "9 examples"],
        ),
        ([], []),
    ],
)
def test_curves_are_labeled_by_what_differs(descriptions, labels):
    assert curve_labels(descriptions) == labels


def test_curves_that_differ_in_more_than_the_seed_differ_in_color(server, study):
    with sqlite3.connect(study / "results.db") as db:
        db.execute("UPDATE trials SET status = 'running' WHERE status = 'pending'")
        ids = [row[0] for row in db.execute("SELECT id FROM trials WHERE status = 'running'")]
    log = LossLog(study)
    log.record(7, dict.fromkeys(ids, 0.5))
    log.flush()
    curves = json.loads(request(server, "/losses")[1])
    pairs = {(curve["label"], *curve["color"]) for curve in curves}
    assert (len(curves), len(pairs)) == (9, 3)  # three seeds of k = 4, 5 and 6
    assert len({light for _, light, _ in pairs}) == len({dark for *_, dark in pairs}) == 3
    places = {curve["place"]: curve["label"] for curve in curves}
    assert [places[place] for place in range(3)] == [
        "re-initialized 5-6",
        "re-initialized 6",
        "all pretrained",
    ]


def test_the_table_of_trials_is_searched_and_sorted(server):
    answer = json.loads(request(server, "/trials?q=sst-2&status=done&sort=score&descending=1")[1])
    assert (answer["total"], answer["of"]) == (12, 21)
    scores = [float(row[answer["columns"].index("score")]) for row in answer["rows"]]
    assert scores == sorted(scores, reverse=True)
    assert json.loads(request(server, "/trials?q=%3Cscript%3E")[1])["total"] == 0
    assert request(server, "/trials", "evil.example")[0].status == 403


def test_the_table_of_trials_has_the_short_names_of_models(tmp_path):
    folder = write_results(tmp_path, incremental(models=("/models/of/mine/small-bert",)), lifelike(6))
    answer = TrialSearch(StudyFolder(folder)).answer("q=/models/of", "1")
    assert {row[answer["columns"].index("model")] for row in answer["rows"]} == {"small-bert"}


def test_it_waits_for_a_run_that_has_not_started_training(study, tmp_path):
    starting = tmp_path / "starting"
    starting.mkdir()
    command = [sys.executable, "-m", "whichlayers", "watch", str(starting), "--port", str(free_port())]
    with study_lock(starting), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert "waiting for the run in" in watching.stdout.readline()
            shutil.copyfile(study / "results.db", starting / "results.db")
            assert "stop with Ctrl-C" in watching.stdout.readline()
        finally:
            watching.kill()


@pytest.mark.parametrize("given", ["mine", "mine.toml"])
def test_it_waits_for_the_folder_of_a_study_file(study, tmp_path, monkeypatch, given):
    """A run makes the folder after it has read models and data."""
    (tmp_path / "mine.toml").write_text("", encoding="utf-8")
    waits, served = [], []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            shutil.copytree(study, tmp_path / "mine")

    monkeypatch.setattr("whichlayers.cli.watch.time.sleep", wait)
    monkeypatch.setattr("whichlayers.cli.watch._serve", lambda folder, port: served.append(folder.path))
    result = CliRunner().invoke(app, ["watch", str(tmp_path / given)])
    assert result.exit_code == 0
    assert "mine.toml has not been run yet, or its run is still reading" in result.output.replace("\n", " ")
    assert served == [tmp_path / "mine"]
    assert len(waits) == 4


def test_the_current_folder_is_watched(study, monkeypatch):
    served = []
    monkeypatch.chdir(study)
    monkeypatch.setattr(
        "whichlayers.cli.watch._serve", lambda folder, port: served.append(folder.path.resolve())
    )
    assert CliRunner().invoke(app, ["watch", "."]).exit_code == 0
    assert served == [study]


def test_a_folder_without_a_study_file_is_not_waited_for(tmp_path):
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "mine")])
    assert result.exit_code == 2
    assert "give the folder of a study that was run" in result.output.replace("\n", " ")


def test_a_head_request_is_answered_without_the_page(server):
    answer, text = request(server, "/", method="HEAD")
    whole, page = request(server, "/")
    assert (answer.status, text) == (200, "")
    assert answer.getheader("Content-Length") == whole.getheader("Content-Length") == str(len(page.encode()))
    assert answer.getheader("X-Frame-Options") == "DENY"
    assert request(server, "/", "evil.example", method="HEAD")[0].status == 403
    assert request(server, "/nothing", method="HEAD")[0].status == 404


def test_the_server_listens_on_localhost_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_new_results_give_a_new_page_and_a_writer_is_never_blocked(server, study):
    """One thread writes like a run, while others request pages."""
    request(server)
    slowest, stop = [], threading.Event()

    def poll():
        while not stop.is_set():
            request(server, "/state")
            request(server, "/page")

    clients = [threading.Thread(target=poll) for _ in range(3)]
    for client in clients:
        client.start()
    db = sqlite3.connect(
        study / "results.db", timeout=0, isolation_level=None
    )  # 0: being blocked is an error
    pending = [row[0] for row in db.execute("SELECT id FROM trials WHERE status = 'pending'")]
    for trial_id in pending:
        begun = time.monotonic()
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO epochs VALUES (?, 2, 'accuracy', 0.9)", (trial_id,))
        db.execute("UPDATE trials SET status = 'done' WHERE id = ?", (trial_id,))
        db.execute("COMMIT")
        slowest.append(time.monotonic() - begun)
        time.sleep(0.1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if (
            "21 of 21" in request(server)[1]
            and "is complete" in json.loads(request(server, "/state")[1])["text"]
        ):
            break
        time.sleep(0.2)
    stop.set()
    for client in clients:
        client.join()
    assert "21 of 21 trials finished" in request(server)[1]
    assert "The study is complete" in json.loads(request(server, "/state")[1])["text"]
    assert max(slowest) < 1.0
    db.close()


def test_a_page_is_rendered_once_for_each_version(study):
    rendered = []
    live_page = LivePage(StudyFolder(study), lambda version: rendered.append(version) or "page")
    threading.Thread(target=live_page.render_loop, daemon=True).start()
    for _ in range(5):
        assert live_page.page() == "page"
    live_page.stopped = True
    live_page.requested.set()
    assert len(rendered) == 1


def test_a_port_in_use_is_reported_or_skipped(study, monkeypatch):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["watch", str(study), "--port", str(port)])
        assert result.exit_code == 2
        assert f"--port {port} cannot be used" in result.output.replace("\n", " ")
        monkeypatch.setattr("whichlayers.cli.watch.PORT", port)
        with make_server(StudyFolder(study), None) as other:
            assert other.server_address[1] > port


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "holds no results.db"),
        (lambda folder: (folder / "results.db").write_bytes(b""), "holds no study yet"),
        (
            lambda folder: (folder / "results.db").write_bytes(b"not a database at all" * 99),
            "is not a valid results database (file is not a database): save what can be read with",
        ),
        (lambda folder: write_results(folder, incremental(), lifelike(6), version=99), "schema version 99"),
    ],
)
@pytest.mark.parametrize("command", ["watch", "report"])
def test_folders_without_a_study_are_reported_at_once(tmp_path, command, prepare, message):
    prepare(tmp_path)
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")


def test_ctrl_c_ends_it(study):
    command = [sys.executable, "-m", "whichlayers", "watch", str(study), "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert "stop with Ctrl-C" in watching.stdout.readline()
            watching.send_signal(signal.SIGINT)
            assert watching.wait(timeout=20) == 0
        finally:
            watching.kill()


def half_open(server) -> socket.socket:
    """A client that sends the start of a request and then nothing."""
    client = socket.create_connection((HOST, server.server_address[1]), timeout=10)
    client.sendall(b"GET / HTTP/1.1\r\nHost:")
    return client


def test_slow_clients_are_bounded_and_disconnected(server, monkeypatch):
    monkeypatch.setattr(RequestHandler, "timeout", 1.0)
    clients = [half_open(server) for _ in range(MAX_CONNECTIONS + 20)]
    refused = [client for client in clients[MAX_CONNECTIONS:] if client.recv(1) == b""]
    assert len(refused) == 20
    assert len(server.open_since) <= MAX_CONNECTIONS
    assert all(client.recv(1) == b"" for client in clients[:MAX_CONNECTIONS])  # the time-out closes them
    deadline = time.monotonic() + 10
    while server.open_since and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.open_since
    assert request(server)[0].status == 200


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(server, monkeypatch):
    monkeypatch.setattr("whichlayers.cli.watch.CONNECTION_SECONDS", 0.5)
    client = half_open(server)
    began = time.monotonic()
    try:
        while time.monotonic() - began < 10:
            client.sendall(b"x")
            time.sleep(0.1)
    except OSError:
        pass
    assert time.monotonic() - began < 10
    monkeypatch.undo()  # the first page of a process takes longer: it imports what it draws with
    assert request(server)[0].status == 200
