"""Atomic writing of files: a reader sees the old file or the complete new one, never a part of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
SCRATCH_LOCK = ".in-use"


@contextlib.contextmanager
def atomic_write(path: Path, fsync: bool = False) -> Iterator[Path]:
    """Give the `with` block a temporary path to write to, and move that file to `path` when the block ends.

    The temporary file is next to `path`, named "NAME.RANDOM.partial". It is deleted if the block raises; only a killed
    process leaves it behind. A file at `path` is replaced; to a device or a pipe, the block writes directly.

    Args:
        path: File to write; its folder must exist.
        fsync: Whether to flush the file to disk before it is moved, so that it survives a power failure.

    Raises:
        OSError: `path` is a folder; or the file cannot be written or moved; `filename` (or `filename2`) is `path`.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # a device or a pipe, such as /dev/stdout, is written to, not replaced
    if path.exists() and not path.is_file():
        with _naming(path, path):
            yield path
        return
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        with _naming(path, partial):
            yield partial
            if fsync:
                with open(partial, "rb") as written:
                    os.fsync(written.fileno())
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def is_partial(name: str) -> bool:
    """Whether this is the name of a file that a killed process left behind."""
    return name.endswith(PARTIAL)


@contextlib.contextmanager
def _naming(path: Path, written: Path) -> Iterator[None]:
    """Let errors of the block that concern the file `written` name `path`."""
    try:
        yield
    except OSError as error:
        if _concerns(error, written):
            error.filename = str(path)
        raise


def _concerns(error: OSError, file: Path) -> bool:
    """Whether the error names this file, or says that the disk is full, which Python reports without a name."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return error.filename2 is None and str(error.filename) == str(file)


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A temporary folder, deleted when the block ends. Those that killed processes left behind are deleted, too.

    Args:
        prefix: Start of its name; all folders with it must come from this function.
        parent: Where it is created. Default: the system's folder for temporary files.
    """
    place = Path(parent or tempfile.gettempdir())
    for left in place.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(left / SCRATCH_LOCK, create=False):
            shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) as folder,
        _locked(Path(folder) / SCRATCH_LOCK, create=True),
    ):
        yield Path(folder)


@contextlib.contextmanager
def _locked(file: Path, create: bool) -> Iterator[None]:
    """Hold a lock on a file until the block ends or the process dies; raises OSError if another process holds it."""
    descriptor = os.open(file, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
