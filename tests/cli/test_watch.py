"""whichlayers watch: on this machine alone, read-only, never in the way of the run, and clear about what it cannot."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from synthetic_results import incremental, lifelike, write_results
from typer.testing import CliRunner

from whichlayers.cli import app
from whichlayers.cli.watch import HOST, Onlooker, look, make_server, progress_text, with_pages
from whichlayers.results.folder import StudyFolder


@pytest.fixture
def study(tmp_path):
    return write_results(tmp_path / "study", incremental(), lambda p: lifelike(6)(p) if p.x < 4 else None)


@pytest.fixture
def server(study):
    made = make_server(StudyFolder(study), free_port())
    with_pages(made)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def ask(server, path="/", host=None, method="GET"):
    port = server.server_address[1]
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request(method, path, headers={"Host": host or f"{HOST}:{port}"})
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_the_page_and_its_state(server):
    answer, page = ask(server)
    assert answer.status == 200
    assert "12 of 21 trials finished" in page
    version = re.search(r'data-live="([^"]+)"', page)[1]
    assert "connect-src &#39;self&#39;" in page
    answer, text = ask(server, "/state")
    state = json.loads(text)
    assert state["version"] == version
    assert state["share"] == pytest.approx(12 / 21)
    assert "Nobody runs it now (the last run: finished); go on with" in state["text"]
    with sqlite3.connect(server.onlooker.folder.database) as db:
        db.execute("DELETE FROM runs")
    assert "Nobody runs it now; go on with" in progress_text(look(server.onlooker.folder))
    assert answer.getheader("X-Frame-Options") == "DENY"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1"])
def test_other_names_for_this_machine_get_nothing(server, host):
    answer, text = ask(server, "/", host)
    assert answer.status == 403
    assert "trials" not in text


def test_it_only_reads_and_has_nothing_else(server, study):
    assert ask(server, "/results.db")[0].status == 404
    assert ask(server, "/../study.toml")[0].status == 404
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/", method=method)[0].status == 501
    ask(server)
    left = {path.name for path in study.iterdir()}
    assert left <= {"results.db", "results.db-wal", "results.db-shm"}


def test_a_head_request_is_answered_without_the_page(server):
    answer, text = ask(server, "/", method="HEAD")
    whole, page = ask(server, "/")
    assert (answer.status, text) == (200, "")
    assert answer.getheader("Content-Length") == whole.getheader("Content-Length") == str(len(page.encode()))
    assert answer.getheader("X-Frame-Options") == "DENY"
    assert ask(server, "/", "evil.example", method="HEAD")[0].status == 403
    assert ask(server, "/nothing", method="HEAD")[0].status == 404


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_new_results_make_a_new_page_and_a_writer_is_never_held_up(server, study):
    """One thread writes as a run does, others ask for pages all the while."""
    ask(server)
    slowest, stop = [], threading.Event()

    def look():
        while not stop.is_set():
            ask(server, "/state")
            ask(server, "/page")

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    db = sqlite3.connect(study / "results.db", timeout=0, isolation_level=None)  # 0: held up once is an error
    waiting = [row[0] for row in db.execute("SELECT id FROM trials WHERE status = 'pending'")]
    for trial in waiting:
        begun = time.monotonic()
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO epochs VALUES (?, 2, 'accuracy', 0.9)", (trial,))
        db.execute("UPDATE trials SET status = 'done' WHERE id = ?", (trial,))
        db.execute("COMMIT")
        slowest.append(time.monotonic() - begun)
        time.sleep(0.1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if "21 of 21" in ask(server)[1] and "is complete" in json.loads(ask(server, "/state")[1])["text"]:
            break
        time.sleep(0.2)
    stop.set()
    for looker in lookers:
        looker.join()
    assert "21 of 21 trials finished" in ask(server)[1]
    assert "The study is complete" in json.loads(ask(server, "/state")[1])["text"]
    assert max(slowest) < 1.0
    db.close()


def test_a_page_is_made_once_for_each_state(study):
    made = []
    onlooker = Onlooker(StudyFolder(study), lambda version: made.append(version) or "page")
    threading.Thread(target=onlooker.work, daemon=True).start()
    for _ in range(5):
        assert onlooker.page() == "page"
    onlooker.stopped = True
    onlooker.wanted.set()
    assert len(made) == 1


def test_a_taken_port_is_said_or_passed_by(study, monkeypatch):
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
    ("prepare", "told"),
    [
        (lambda folder: None, "holds no results.db"),
        (lambda folder: (folder / "results.db").write_bytes(b""), "holds no study yet"),
        (lambda folder: (folder / "results.db").write_bytes(b"not a database at all" * 99), "cannot be read"),
        (lambda folder: write_results(folder, incremental(), lifelike(6), version=99), "version 99"),
    ],
)
@pytest.mark.parametrize("command", ["watch", "report"])
def test_what_is_no_study_is_said_at_once(tmp_path, command, prepare, told):
    prepare(tmp_path)
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert result.exit_code == 2
    assert told in result.output.replace("\n", " ")


def test_ctrl_c_ends_it(study):
    command = [sys.executable, "-m", "whichlayers", "watch", str(study), "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert "Ctrl-C ends this" in watching.stdout.readline()
            watching.send_signal(signal.SIGINT)
            assert watching.wait(timeout=20) == 0
        finally:
            watching.kill()
