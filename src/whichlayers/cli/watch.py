"""`whichlayers watch`: serve the report of a study on a local web page while the study is running.

The server listens on 127.0.0.1 and rejects requests with another Host header, which prevents DNS rebinding. It is
read-only: results.db is opened briefly and read-only, and in SQLite's WAL mode a reader never blocks the run. The page
is rendered again when it is requested and the results have changed, in a background thread with low priority.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.text import Text

from whichlayers.cli.format import console
from whichlayers.cli.options import StudyFolderPath
from whichlayers.cli.status import Status, read_status
from whichlayers.cli.watch_data import StepCounter, TrialSearch, running_losses
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder, find_folder, locate_folder
from whichlayers.text import counted, format_duration

HOST = "127.0.0.1"
PORT = 8421
PORTS_TRIED = 20  # starting with PORT, without --port
WAIT_SECONDS = 0.5  # between looks at a run that is starting
STATUS_SECONDS = 1.0  # how long a status is reused
MAX_CONNECTIONS = 32
IDLE_SECONDS = 15.0
CONNECTION_SECONDS = 120.0
MAX_PAUSE = 60.0  # seconds between two renderings, however slow they are
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def watch(
    folder: StudyFolderPath,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, help=f"Port of the web page. Default: {PORT}, or the next free port."
        ),
    ] = None,
) -> None:
    """Serve the report of a study on a web page that updates itself while the study runs. Stop with Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        _wait_for_folder(folder)
        _wait_for_start(locate_folder(folder))
        study_folder = find_folder(folder)
        read_status(study_folder)  # raises errors here instead of in the browser
        _serve(study_folder, port)


def _wait_for_folder(path: Path) -> None:
    """Wait while the folder of a study file does not exist: a run makes it after it has read models and data."""
    folder = locate_folder(path).path
    if folder.exists() or not (study_file := path.with_suffix(".toml")).is_file():
        return
    text = f"{study_file} has not been run yet, or its run is still reading models and data: waiting for {folder} ..."
    console().print(Text(text), soft_wrap=True)
    while not folder.exists():
        time.sleep(WAIT_SECONDS)
    time.sleep(WAIT_SECONDS)  # the run locks the folder right after making it


def _wait_for_start(folder: StudyFolder) -> None:
    """Wait while a run reads models and data and measures memory, before its first trial."""
    if folder.is_starting:
        console().print(Text(f"waiting for the run in {folder.path} to start training ..."), soft_wrap=True)
    while folder.is_starting:
        time.sleep(WAIT_SECONDS)


def _serve(study_folder: StudyFolder, port: int | None) -> None:
    """Serve the page of a study until Ctrl-C."""
    with make_server(study_folder, port) as server:
        start_rendering(server, _lower_priority)
        address = f"http://{HOST}:{server.server_address[1]}/"
        text = f"watching {study_folder.path} at {address} (stop with Ctrl-C; the study keeps running)"
        console().print(Text(text), soft_wrap=True)
        server.serve_forever()


def _lower_priority() -> None:
    """Lower the priority of this process, so that it does not slow down the run."""
    with contextlib.suppress(OSError):
        os.nice(10)


@dataclass
class LivePage:
    """The page of a running study, rendered in a background thread when it is requested and results have changed."""

    folder: StudyFolder
    render: Callable[[str], str]  # version -> HTML
    version: str = ""  # of the rendered page
    html: str = ""
    requested: threading.Event = field(default_factory=threading.Event)
    ready: threading.Event = field(default_factory=threading.Event)
    stopped: bool = False
    cached_status: Status | None = None
    cached_until: float = 0.0
    status_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.search = TrialSearch(self.folder)
        self.steps = StepCounter(self.folder)

    def status(self) -> Status:
        """The status of the study, reused for a second, or longer if it is slow to read."""
        with self.status_lock:
            start = time.monotonic()
            if self.cached_status is None or start > self.cached_until:
                self.cached_status = read_status(self.folder)
                seconds = time.monotonic() - start
                self.cached_until = start + seconds + max(STATUS_SECONDS, 10 * seconds)
            return self.cached_status

    def results_version(self) -> str:
        """A string that changes whenever the results do: the number of trials by status."""
        counts = self.status().counts
        return f"{counts.done}.{counts.failed}.{counts.total}"

    def render_loop(self) -> None:
        """Render the page on request until `stopped`; runs in the background thread."""
        while not self.stopped:
            self.requested.wait()
            self.requested.clear()
            if self.stopped:
                return
            start = time.monotonic()
            try:
                version = self.results_version()
                if version != self.version:
                    self.html, self.version = self.render(version), version
            except Exception as error:  # keep the last page; without one, show the error
                self.html = (
                    self.html or f"<!doctype html><title>whichlayers</title><p>{escape(str(error))}</p>"
                )
            finally:
                self.ready.set()
            time.sleep(min(MAX_PAUSE, 3 * (time.monotonic() - start)))

    def page(self) -> str:
        """The latest page as HTML. Waits for the first one."""
        self.requested.set()
        self.ready.wait()
        return self.html

    def trials(self, query: str) -> dict[str, Any]:
        """Rows of the table of trials for a query string."""
        counts = self.status().counts
        return self.search.answer(query, f"{self.results_version()}.{counts.running}")

    def state(self) -> dict[str, Any]:
        """Progress and version of the page, polled by its script."""
        status = self.status()
        self.requested.set()
        share = self.steps.share(status)
        return {
            "text": describe_progress(status, share),
            "share": share,
            "running": status.counts.running if status.running else 0,
            "version": self.version,
        }


class WatchServer(ThreadingHTTPServer):
    """Web server with the live page of a study.

    At most MAX_CONNECTIONS are open at a time, each for at most CONNECTION_SECONDS: a browser opens new ones.
    """

    daemon_threads = True
    live_page: LivePage

    def __init__(self, *arguments: Any) -> None:
        self.open_since: dict[Any, float] = {}  # by socket
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self.open_since) >= MAX_CONNECTIONS:
            self.shutdown_request(request)
            return
        self.open_since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open_since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called by `serve_forever` twice a second."""
        limit = time.monotonic() - CONNECTION_SECONDS
        for request, since in list(self.open_since.items()):
            if since < limit:
                with contextlib.suppress(OSError):  # its thread then ends and closes it
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server."""

    def server_close(self) -> None:
        if hasattr(self, "live_page"):
            self.live_page.stopped = True
            self.live_page.requested.set()
        super().server_close()


class RequestHandler(BaseHTTPRequestHandler):
    """Answers / and /page with the page; /state, /losses and /trials?QUERY with JSON."""

    server: WatchServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS  # to send a request, and between two requests

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.answer(HTTPStatus.FORBIDDEN, "text/plain", f"use http://{HOST}:{port}/")
            return
        try:
            if self.path in ("/", "/page"):
                self.answer(HTTPStatus.OK, "text/html", self.server.live_page.page())
            elif self.path == "/state":
                self.answer_json(self.server.live_page.state())
            elif self.path == "/losses":
                self.answer_json(running_losses(self.server.live_page.folder))
            elif urlsplit(self.path).path == "/trials":
                self.answer_json(self.server.live_page.trials(urlsplit(self.path).query))
            else:
                self.answer(HTTPStatus.NOT_FOUND, "text/plain", "not found; the page is at /")
        except WhichlayersError as error:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))

    def answer_json(self, data: Any) -> None:
        """Send data as JSON."""
        self.answer(HTTPStatus.OK, "application/json", json.dumps(data))

    do_HEAD = do_GET  # `answer` leaves out the body

    def answer(self, code: HTTPStatus, kind: str, text: str) -> None:
        """Send a response of content type `kind`; without a body for a HEAD request."""
        body = text.encode("utf-8")
        self.send_response(code)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do not log requests to the terminal."""


def make_server(folder: StudyFolder, port: int | None) -> WatchServer:
    """A server on 127.0.0.1, on the given port or on the first free one from PORT on."""
    tried = [port] if port else list(range(PORT, PORT + PORTS_TRIED))
    for number in tried:
        try:
            server = WatchServer((HOST, number), RequestHandler)
        except OSError as error:
            reason = error.strerror
            continue
        server.live_page = LivePage(folder, partial(_render_page, folder))
        return server
    if port:
        raise WhichlayersError(
            f"--port {port} cannot be used ({reason}): choose another port, or omit --port"
        )
    raise WhichlayersError(f"ports {tried[0]} to {tried[-1]} are all in use: choose a free one with --port")


def start_rendering(server: WatchServer, before: Callable[[], None] = lambda: None) -> None:
    """Start the background thread that renders the page. `before` is called first."""
    before()
    threading.Thread(target=server.live_page.render_loop, daemon=True).start()


def describe_progress(status: Status, share: float) -> str:
    """One line on the progress of a study; `share` is the share that is done, from `StepCounter`."""
    counts = status.counts
    text = f"{counts.done:,} of {counted(counts.total, 'trial')} finished"
    text += f", {counts.failed:,} failed" if counts.failed else ""
    if status.running:
        left = (
            f", about {format_duration(status.seconds_left)} left" if status.seconds_left is not None else ""
        )
        return f"{text}, {counts.running:,} running now, {math.floor(100 * share)}% done{left}."
    if counts.pending or counts.running:
        last = f" (last run: {status.last_outcome})" if status.last_outcome else ""
        return f"{text}. Not running{last}; resume with: whichlayers run {status.folder}"
    return f"{text}. The study is complete."


def _render_page(folder: StudyFolder, version: str) -> str:
    """The report as a self-contained HTML page that polls for newer versions."""
    from whichlayers.report.build import page
    from whichlayers.study.describe import describe_file

    return page(folder.path, live=version, description=describe_file(folder.study_file))
