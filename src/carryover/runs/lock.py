"""One run at a time in a study folder: a lock that the operating system drops when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from carryover.trial import CarryoverError

LOCK_NAME = ".lock"
PATIENCE = 0.5  # seconds; `status` holds the lock for an instant while it looks who does


class Locked(CarryoverError):
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
def study_lock(folder: Path) -> Iterator[None]:
    """Hold the folder, or raise Locked saying who does. The file stays, empty: removing it would race."""
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _acquire(descriptor, PATIENCE):
            raise Locked(
                f"{folder} is being run by {_read(descriptor) or 'another process'}: wait for it or stop it;"
                f" `carryover status {folder}` shows how far it is"
            )
        holder = Holder(socket.gethostname(), os.getpid(), time.time())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        try:
            yield
        finally:
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
        if _acquire(descriptor, 0, fcntl.LOCK_SH):
            return None
        return _read(descriptor) or Holder("an unknown host", 0, time.time())
    finally:
        os.close(descriptor)


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
