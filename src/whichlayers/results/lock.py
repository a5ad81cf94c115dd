"""A lock that allows one run at a time in a study folder.

The operating system releases the lock when the process that holds it dies. Some shared file systems do not propagate
such locks to other machines. Therefore the holder also updates the modification time of the lock file every
HEARTBEAT seconds: a process that acquires the lock while the file names another machine and was modified less than
STALE_SECONDS ago treats the folder as locked. A holder named in an older file belongs to a run that was killed.
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
WAIT_SECONDS = 0.5  # `whichlayers status` holds the lock for a moment while it reads the holder
HEARTBEAT = 20.0  # seconds
STALE_SECONDS = 120.0  # a lock file that was not modified for so long has no holder


class StudyLockedError(WhichlayersError):
    """Another process is running the study in this folder."""


@dataclass(frozen=True)
class LockHolder:
    """The process that runs a study; the content of the lock file."""

    host: str
    pid: int
    since: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).strftime("%Y-%m-%d %H:%M:%S")
        return f"process {self.pid} on {self.host}, since {since}"


@contextmanager
def study_lock(folder: Path) -> Iterator[LockHolder | None]:
    """Hold the lock of a study folder.

    The lock file is emptied on release, not deleted: deleting it would be a race.

    Yields:
        The previous holder if it did not release the lock (its process was killed), else None.

    Raises:
        StudyLockedError: Another process holds the lock.
    """
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _acquire(descriptor, WAIT_SECONDS):
            raise locked_error(folder, _read(descriptor) or "another process")
        previous = _read(descriptor)
        if previous is not None and _is_alive_elsewhere(previous, descriptor):
            raise locked_error(folder, previous)
        holder = LockHolder(socket.gethostname(), os.getpid(), time.time())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        released = threading.Event()
        threading.Thread(target=_send_heartbeats, args=(descriptor, released), daemon=True).start()
        try:
            yield previous
        finally:
            released.set()
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def lock_holder(folder: Path) -> LockHolder | None:
    """The process that is running the study in this folder; None if there is none."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        holder = _read(descriptor)
        if _acquire(descriptor, 0, fcntl.LOCK_SH):
            return holder if holder is not None and _is_alive_elsewhere(holder, descriptor) else None
        return holder or LockHolder("an unknown host", 0, time.time())
    finally:
        os.close(descriptor)


def locked_error(folder: Path, holder: object) -> StudyLockedError:
    return StudyLockedError(
        f"{folder} is locked by a run ({holder}): wait until it ends, or stop it;"
        f" `whichlayers status {folder}` shows its progress"
    )


def _is_alive_elsewhere(holder: LockHolder, descriptor: int) -> bool:
    """Whether a process on another machine holds the folder by a lock that is not visible on this one."""
    if holder.host == socket.gethostname():
        return False  # the lock was acquired on this machine, so the holder has died
    return time.time() - os.fstat(descriptor).st_mtime < STALE_SECONDS


def _send_heartbeats(descriptor: int, released: threading.Event) -> None:
    while not released.wait(HEARTBEAT):
        try:
            os.utime(descriptor)
        except OSError:  # the file was closed meanwhile
            return


def _acquire(descriptor: int, timeout: float, kind: int = fcntl.LOCK_EX) -> bool:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


def _read(descriptor: int) -> LockHolder | None:
    try:
        return LockHolder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None
