"""One run at a time in a study folder: a lock that the operating system drops when its holder dies.

Not all shared file systems pass such locks on to other machines. So the holder also shows that it lives: it
touches the file every few seconds. Who gets the lock while another machine's name stands in a file that was
touched just now does not have it. A name in a file that nobody touches is what a killed run left behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from whichlayers.errors import WhichlayersError

LOCK_NAME = ".lock"
PATIENCE = 0.5  # seconds; `status` holds the lock for an instant while it looks who does
HEARTBEAT = 20.0  # seconds
SIGNS_OF_LIFE = 120.0  # a file not touched for so long is nobody's, whatever it says


class Locked(WhichlayersError):
    """Another process runs the study in this folder."""


@dataclass(frozen=True)
class Holder:
    host: str
    pid: int
    since: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).strftime("%Y-%m-%d %H:%M:%S")
        return f"process {self.pid} on {self.host}, since {since}"


@contextmanager
def study_lock(folder: Path) -> Iterator[Holder | None]:
    """Hold the folder, or raise Locked saying who does. Gives the holder before, if it left without a word.

    The file stays, empty: removing it would race.
    """
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _acquire(descriptor, PATIENCE):
            raise Locked(_held_by(folder, _read(descriptor) or "another process"))
        before = _read(descriptor)
        if before is not None and _lives_elsewhere(before, descriptor):
            raise Locked(_held_by(folder, before))
        holder = Holder(socket.gethostname(), os.getpid(), time.time())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        released = threading.Event()
        threading.Thread(target=_show_life, args=(descriptor, released), daemon=True).start()
        try:
            yield before
        finally:
            released.set()
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(folder: Path) -> Holder | None:
    """Who runs the study in this folder now; None when nobody does."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        found = _read(descriptor)
        if _acquire(descriptor, 0, fcntl.LOCK_SH):
            return found if found is not None and _lives_elsewhere(found, descriptor) else None
        return found or Holder("an unknown host", 0, time.time())
    finally:
        os.close(descriptor)


def _held_by(folder: Path, who: object) -> str:
    return f"{folder} is being run by {who}: wait for it or stop it; `whichlayers status {folder}` shows how far it is"


def _lives_elsewhere(who: Holder, descriptor: int) -> bool:
    """Whether another machine holds the folder by a lock that this one does not see."""
    if who.host == socket.gethostname():
        return False  # the system would not have given the lock away
    return time.time() - os.fstat(descriptor).st_mtime < SIGNS_OF_LIFE


def _show_life(descriptor: int, released: threading.Event) -> None:
    while not released.wait(HEARTBEAT):
        try:
            os.utime(descriptor)
        except OSError:  # closed just now
            return


def _acquire(descriptor: int, patience: float, kind: int = fcntl.LOCK_EX) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None
