"""whichlayers watch: the report of a study while it runs, as a page on this machine alone.

The server answers on 127.0.0.1 and to requests that name it so; a page elsewhere that sends the browser here under
another name (DNS rebinding) gets nothing. It only reads: results.db is opened read-only for moments, and in SQLite's
write-ahead mode a reader never holds up the run. The page is made anew when the results have changed and someone
asks, in a thread of its own and with the lowest priority, so that the run keeps its cores.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from whichlayers.cli.format import console, duration
from whichlayers.cli.options import StudyFolderPath
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder, find_folder

if TYPE_CHECKING:
    from whichlayers.runs.status import Status

HOST = "127.0.0.1"
PORT = 8421
PORTS_TRIED = 20  # from the first on, where the user names none
FRESH = 1.0  # seconds that a look at the study is good for
LONGEST_REST = 60.0  # seconds between two pages, however long one takes to make
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
        typer.Option("--port", min=1, max=65535, help=f"By default {PORT}, or the next that is free."),
    ] = None,
) -> None:
    """Show the report of a study while it runs, on a page that keeps itself up to date. Ends with Ctrl-C."""
    found = find_folder(folder)
    look(found)  # complains now, not in the browser
    with contextlib.suppress(KeyboardInterrupt), make_server(found, port) as server:
        with_pages(server, _lower_priority)
        address = f"http://{HOST}:{server.server_address[1]}/"
        told = f"watching {found.path} at {address} (Ctrl-C ends this; the study runs on)"
        console().print(Text(told), soft_wrap=True)
        server.serve_forever()


def _lower_priority() -> None:
    """Of this process; the run shall not feel that someone looks."""
    with contextlib.suppress(OSError):
        os.nice(10)


def look(folder: StudyFolder) -> Status:
    from whichlayers.runs.status import status

    return status(folder)


@dataclass
class Onlooker:
    """The newest page of a study, made in the background when there is news and someone asks."""

    folder: StudyFolder
    make: Callable[[str], str]  # version -> page
    version: str = ""  # of the page that is ready
    text: str = ""
    wanted: threading.Event = field(default_factory=threading.Event)
    ready: threading.Event = field(default_factory=threading.Event)
    stopped: bool = False
    seen: Status | None = None
    seen_until: float = 0.0
    looking: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> Status:
        """Of the last second or so; of a large study, which takes longer to look at, of the last few."""
        with self.looking:
            begun = time.monotonic()
            if self.seen is None or begun > self.seen_until:
                self.seen = look(self.folder)
                cost = time.monotonic() - begun
                self.seen_until = begun + cost + max(FRESH, 10 * cost)
            return self.seen

    def news(self) -> str:
        """What changes when the results do: how many trials have which status."""
        counts = self.now().counts
        return f"{counts.done}.{counts.failed}.{counts.total}"

    def work(self) -> None:
        while not self.stopped:
            self.wanted.wait()
            self.wanted.clear()
            if self.stopped:
                return
            begun = time.monotonic()
            try:
                version = self.news()
                if version != self.version:
                    self.text, self.version = self.make(version), version
            except Exception as error:  # the page that was ready stays; whoever waits for one is told
                self.text = (
                    self.text or f"<!doctype html><title>whichlayers</title><p>{html.escape(str(error))}</p>"
                )
            finally:
                self.ready.set()
            time.sleep(min(LONGEST_REST, 3 * (time.monotonic() - begun)))

    def page(self) -> str:
        self.wanted.set()
        self.ready.wait()
        return self.text

    def state(self) -> dict[str, Any]:
        now = self.now()
        self.wanted.set()
        return {
            "text": progress_text(now),
            "share": now.counts.done / max(1, now.counts.total),
            "version": self.version,
        }


class WatchServer(ThreadingHTTPServer):
    daemon_threads = True
    onlooker: Onlooker

    def server_close(self) -> None:
        if hasattr(self, "onlooker"):
            self.onlooker.stopped = True
            self.onlooker.wanted.set()
        super().server_close()


class Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.answer(HTTPStatus.FORBIDDEN, "text/plain", f"ask for http://{HOST}:{port}/")
            return
        try:
            if self.path in ("/", "/page"):
                self.answer(HTTPStatus.OK, "text/html", self.server.onlooker.page())
            elif self.path == "/state":
                self.answer(HTTPStatus.OK, "application/json", json.dumps(self.server.onlooker.state()))
            else:
                self.answer(HTTPStatus.NOT_FOUND, "text/plain", "there is nothing here but /")
        except WhichlayersError as error:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))

    do_HEAD = do_GET  # without the body: see answer

    def answer(self, code: HTTPStatus, kind: str, text: str) -> None:
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
        """The terminal is not for every request."""


def make_server(folder: StudyFolder, port: int | None) -> WatchServer:
    """Listens on 127.0.0.1; on the port asked for, or on the first free one from PORT on."""
    tried = [port] if port else list(range(PORT, PORT + PORTS_TRIED))
    for number in tried:
        try:
            server = WatchServer((HOST, number), Handler)
        except OSError as error:
            problem = error.strerror
            continue
        server.onlooker = Onlooker(folder, partial(_page, folder))
        return server
    if port:
        raise WhichlayersError(f"--port {port} cannot be used ({problem}): name another, or leave it out")
    raise WhichlayersError(f"the ports {tried[0]} to {tried[-1]} are all taken: name a free one with --port")


def with_pages(server: WatchServer, before: Callable[[], None] = lambda: None) -> None:
    """Starts the thread that makes pages."""
    before()
    threading.Thread(target=server.onlooker.work, daemon=True).start()


def progress_text(now: Status) -> str:
    counts = now.counts
    text = f"{counts.done:,} of {counts.total:,} trials finished"
    text += f", {counts.failed:,} failed" if counts.failed else ""
    if now.running:
        left = f", about {duration(now.seconds_left)} left" if now.seconds_left is not None else ""
        return f"{text}, {counts.running:,} running now{left}."
    if counts.pending or counts.running:
        last = f" (the last run: {now.last_outcome})" if now.last_outcome else ""
        return f"{text}. Nobody runs it now{last}; go on with: whichlayers run {now.folder}"
    return f"{text}. The study is complete."


def _page(folder: StudyFolder, version: str) -> str:
    from whichlayers.report.build import page
    from whichlayers.study.describe import describe_file

    return page(folder.path, live=version, words=describe_file(folder.study_file))
