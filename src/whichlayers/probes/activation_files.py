"""Files of hidden states: memory-mapped arrays that are computed once.

Neither writing nor reading a file takes memory proportional to the data. A file has a checksum, and a corrupted file is
computed again. Processes that need the same file compute it once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write
from whichlayers.text import counted, format_bytes

CHECKSUM_BYTES = 4  # after the array
CHUNK_BYTES = 1 << 24

StoredPrecision = Literal["float32", "float16"]


def hash_key(parts: list[Any]) -> str:
    """A file name of 24 hex digits: a hash of JSON values that determine the file's contents."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def cached_array(
    shape: tuple[int, ...],
    precision: StoredPrecision,
    compute: Callable[[np.ndarray], None],
    cache: Path | None = None,
    key: str = "",
) -> tuple[np.ndarray, bool]:
    """A memory-mapped array, read from the cache or filled by `compute`, and whether it was computed now."""
    if cache is None:
        with tempfile.TemporaryDirectory(prefix="whichlayers-") as folder:
            file = Path(folder) / "features.npy"
            _write(file, shape, precision, compute)
            return _open(file, shape, precision), True  # the mapping stays valid after the file is unlinked
    file = Path(cache) / f"{key}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        computed = not _is_valid(file, shape, precision)
        if computed:
            _write(file, shape, precision, compute)
    return _open(file, shape, precision), computed


def _write(
    file: Path, shape: tuple[int, ...], precision: StoredPrecision, compute: Callable[[np.ndarray], None]
) -> None:
    """Write the array and its checksum, atomically."""
    _check_disk_space(file.parent, shape, precision)
    with atomic_write(file) as partial:
        target = np.lib.format.open_memmap(partial, "w+", np.dtype(precision), shape)
        compute(target)
        target.flush()
        checksum = _checksum(target)
        del target
        with open(partial, "ab") as handle:
            handle.write(checksum)


def _open(file: Path, shape: tuple[int, ...], precision: StoredPrecision) -> np.ndarray:
    """Map the file copy-on-write: torch requires a writable array, and the file is never changed."""
    found = np.load(file, mmap_mode="c", allow_pickle=False)
    if found.shape != shape or found.dtype != np.dtype(precision):
        raise ValueError(f"{file} contains {found.shape} {found.dtype}")
    return found


def _is_valid(file: Path, shape: tuple[int, ...], precision: StoredPrecision) -> bool:
    """Whether the file exists, has this shape and dtype, and matches its checksum."""
    try:
        found = _open(file, shape, precision)
        with open(file, "rb") as handle:
            handle.seek(-CHECKSUM_BYTES, os.SEEK_END)
            return handle.read() == _checksum(found)
    except (OSError, ValueError, EOFError):  # missing, truncated, or not such an array
        return False


def _checksum(array: np.ndarray) -> bytes:
    value, rows = 0, max(1, CHUNK_BYTES // (array[0].nbytes if len(array) else 1))
    for start in range(0, len(array), rows):
        value = zlib.crc32(np.ascontiguousarray(array[start : start + rows]).data, value)
    return value.to_bytes(CHECKSUM_BYTES, "little")


def _check_disk_space(folder: Path, shape: tuple[int, ...], precision: StoredPrecision) -> None:
    """Raise if the array does not fit: writing to a memory-mapped file on a full disk would kill the process."""
    size, free = int(np.prod(shape)) * np.dtype(precision).itemsize, shutil.disk_usage(folder).free
    if size > free:
        raise WhichlayersError(
            f"the hidden states of {counted(shape[0], 'example')} in {shape[1]} layers take {format_bytes(size)}, but"
            f" {folder} has {format_bytes(free)} free: set WHICHLAYERS_CACHE to a folder on a larger disk"
        )


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file; the system releases it if the process dies."""
    descriptor = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
