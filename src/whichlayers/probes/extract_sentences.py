"""Extracts the pooled hidden states of every layer of a frozen model in one forward pass, and caches them in a file.

    states = extract(encoder, split, pad_id, cache=folder, key=cache_key(...))    # (n, depth + 1, H)

The encoder runs in eval mode, without dropout, so the hidden states of a text are deterministic and computed once.
Index 0 is the embeddings and index k the output of layer k, as in `hidden_states` of transformers. ModernBERT is an
exception: its layers add to a residual stream that is normalized only after the last layer. Its top index is the
stream after the final norm, as its task heads read it; all others are the stream before the norm.

The file is memory-mapped: neither writing nor reading it takes memory proportional to the data. It has a checksum, and
a corrupted file is computed again. Processes that need the same file compute it once.
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
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.batches import pad
from whichlayers.data.tokenize import TokenizedSplit
from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write
from whichlayers.models.families import Anatomy
from whichlayers.models.head import cls_states, mean_states, takes_token_types
from whichlayers.text import counted
from whichlayers.trial import Pooling

FORMAT = 1  # increase when the contents of the file change
# by device type, including padding; all layers of a batch are in memory at once
TOKENS_PER_BATCH = {"cpu": 2048, "cuda": 16384}
CHECKSUM_BYTES = 4  # after the array
CHUNK_BYTES = 1 << 24

Precision = Literal["float32", "float16"]
# called with the number of examples that went through the encoder since the last call
OnRows = Callable[[int], None]


def cache_key(
    model_fingerprint: str,
    task_fingerprint: str,
    max_length: int,
    pooling: Pooling = "mean",
    precision: Precision = "float32",
) -> str:
    """File name of the hidden states of a model on a task: a hash of everything that determines them."""
    import transformers

    parts = [FORMAT, model_fingerprint, task_fingerprint, max_length, pooling, precision]
    return hash_key([*parts, transformers.__version__])


def hash_key(parts: list[Any]) -> str:
    """A file name of 24 hex digits: a hash of JSON values that determine the file's contents."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def extract(
    encoder: PreTrainedModel,
    split: TokenizedSplit,
    pad_id: int,
    *,
    pooling: Pooling = "mean",
    precision: Precision = "float32",
    device: str | torch.device = "cpu",
    cache: Path | None = None,
    key: str = "",
    on_rows: OnRows | None = None,
    tokens_per_batch: int | None = None,
) -> np.ndarray:
    """Pooled hidden states of all examples, (n, depth + 1, H), memory-mapped.

    They are read from the file `key` in the folder `cache`, or computed and written there. Without a cache they are
    stored in a temporary file, which is deleted together with the array.
    """
    shape = (len(split), Anatomy(encoder).depth + 1, encoder.config.hidden_size)

    def compute(target: np.ndarray) -> None:
        device_type = torch.device(device).type
        budget = tokens_per_batch or TOKENS_PER_BATCH.get(device_type, TOKENS_PER_BATCH["cpu"])
        for rows, states in _batches(encoder, split, pad_id, pooling, torch.device(device), budget):
            target[rows] = check_finite(states.to(getattr(torch, precision)).cpu().numpy(), states)
            if on_rows is not None:
                on_rows(len(rows))

    states, computed = cached_array(shape, precision, compute, cache, key)
    if not computed and on_rows is not None:
        on_rows(len(split))
    return states


def select_rows(split: TokenizedSplit, rows: np.ndarray) -> TokenizedSplit:
    """A split with only these rows, in this order."""
    spans = [np.arange(split.offsets[r], split.offsets[r + 1]) for r in rows]
    tokens = np.concatenate(spans) if spans else np.zeros(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(span) for span in spans])]).astype(np.int64)
    types = None if split.type_ids is None else split.type_ids[tokens]
    return TokenizedSplit(split.ids[tokens], types, offsets, split.labels[rows])


# --- forward pass ---


def batches_by_length(lengths: np.ndarray, tokens_per_batch: int) -> Iterator[np.ndarray]:
    """Yields row indices in batches of similar length, each with at most `tokens_per_batch` tokens including padding.

    The longest rows come first, so that a batch too large for memory fails at the start.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, tokens_per_batch // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size


def _batches(
    encoder: PreTrainedModel,
    split: TokenizedSplit,
    pad_id: int,
    pooling: Pooling,
    device: torch.device,
    tokens_per_batch: int,
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yields (row indices (B,), pooled hidden states (B, depth + 1, H)), each row once."""
    anatomy, with_types = Anatomy(encoder), takes_token_types(encoder)
    encoder = encoder.to(device)  # type: ignore[arg-type]
    was_training = encoder.training
    encoder.eval()
    try:
        for rows in batches_by_length(np.diff(split.offsets), tokens_per_batch):
            batch = pad(split, rows, pad_id)
            inputs: dict[str, Any] = {
                "input_ids": torch.from_numpy(batch.input_ids).to(device),
                "attention_mask": torch.from_numpy(batch.attention_mask).to(device),
            }
            if with_types and batch.token_type_ids is not None:
                inputs["token_type_ids"] = torch.from_numpy(batch.token_type_ids).to(device)
            with torch.no_grad():
                hidden = encoder(**inputs, output_hidden_states=True).hidden_states  # each (B, L, H)
                assert len(hidden) == anatomy.depth + 1
                mask = inputs["attention_mask"]
                states = torch.stack([_pool(h, mask, pooling, anatomy) for h in hidden], 1)
            yield rows, states
    finally:
        encoder.train(was_training)


def _pool(hidden: Tensor, mask: Tensor, pooling: Pooling, anatomy: Anatomy) -> Tensor:
    """Hidden states (B, L, H) and attention mask (B, L) -> (B, H)."""
    if pooling == "mean":
        return mean_states(hidden, mask)
    return cls_states(hidden, mask, anatomy.family.cls_position)


def check_finite(values: np.ndarray, states: Tensor) -> np.ndarray:
    """Returns `values` if all are finite, else raises; `states` are the same values before rounding."""
    if not np.isfinite(values).all():
        raise not_finite_error(bool(torch.isfinite(states).all()))
    return values


def not_finite_error(finite_before_rounding: bool) -> WhichlayersError:
    """The error for hidden states that are not finite, because of rounding to float16 or because of the model."""
    return WhichlayersError(
        "a hidden state is too large for float16: store the hidden states in float32"
        if finite_before_rounding
        else "the model's hidden states are not finite numbers: check that its weights are not corrupted"
    )


# --- file ---


def cached_array(
    shape: tuple[int, ...],
    precision: Precision,
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
    file: Path, shape: tuple[int, ...], precision: Precision, compute: Callable[[np.ndarray], None]
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


def _open(file: Path, shape: tuple[int, ...], precision: Precision) -> np.ndarray:
    """Map the file copy-on-write: torch requires a writable array, and the file is never changed."""
    found = np.load(file, mmap_mode="c", allow_pickle=False)
    if found.shape != shape or found.dtype != np.dtype(precision):
        raise ValueError(f"{file} contains {found.shape} {found.dtype}")
    return found


def _is_valid(file: Path, shape: tuple[int, ...], precision: Precision) -> bool:
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


def _check_disk_space(folder: Path, shape: tuple[int, ...], precision: Precision) -> None:
    """Raise if the array does not fit: writing to a memory-mapped file on a full disk would kill the process."""
    size, free = int(np.prod(shape)) * np.dtype(precision).itemsize, shutil.disk_usage(folder).free
    if size > free:
        raise WhichlayersError(
            f"the hidden states of {counted(shape[0], 'example')} in {shape[1]} layers take {size / 1e9:.1f} GB, but"
            f" {folder} has {free / 1e9:.1f} GB free: set WHICHLAYERS_CACHE to a folder on a larger disk"
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
