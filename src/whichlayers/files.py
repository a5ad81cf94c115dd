"""Atomic writing of files: a reader sees the old file or the complete new one, never a part of it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: Path, fsync: bool = False) -> Iterator[Path]:
    """Give the `with` block a temporary path to write to, and move that file to `path` when the block ends.

    The temporary file is next to `path`, named "NAME.RANDOM.partial". It is deleted if the block raises; only a killed
    process leaves it behind. A file at `path` is replaced.

    Args:
        path: File to write; its folder must exist.
        fsync: Whether to flush the file to disk before it is moved, so that it survives a power failure.

    Raises:
        OSError: The file cannot be written or moved; `filename` (or `filename2`) is `path`.
    """
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        yield partial
        if fsync:
            with open(partial, "rb") as written:
                os.fsync(written.fileno())
        os.replace(partial, path)
    except OSError as error:
        if _concerns(error, partial):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _concerns(error: OSError, file: Path) -> bool:
    """Whether the error names this file, or says that the disk is full, which Python reports without a name."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return error.filename2 is None and str(error.filename) == str(file)
