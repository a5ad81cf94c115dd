"""The pooled states of every layer of a frozen model, from one pass over the examples, kept in a file.

    table = extract(encoder, split, pad_id, cache=folder, key=cache_key(...))    # (n, depth + 1, H)

The encoder runs in eval mode: no dropout, so a state is a function of its text alone and is computed once.
Place 0 holds the embeddings, place k the output of layer k, as transformers gives them (`hidden_states`). A
caveat on ModernBERT: its layers add to a stream that is normalised only after the last one, so its top place
holds the stream after the final norm, as its task heads read it, and all others the stream before any.

The file is memory-mapped: neither making nor reading it takes memory that grows with the data. It carries a
checksum; one that is damaged is made again. Two processes that want the same one make it once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.batches import pad
from whichlayers.data.tokenize import TokenisedSplit
from whichlayers.errors import WhichlayersError
from whichlayers.models.anatomy import Anatomy
from whichlayers.models.head import mean_states, summary_states, takes_token_types
from whichlayers.trial import Pooling

FORMAT = 1  # raise it when the file's contents change
TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 16384}  # padded tokens in a batch; all its layers are held at once
CHECKSUM_BYTES = 4  # after the array
CHUNK_BYTES = 1 << 24

Precision = Literal["float32", "float16"]
OnRows = Callable[[int], None]  # how many more examples have gone through the encoder


def cache_key(
    model_fingerprint: str,
    task_fingerprint: str,
    max_length: int,
    pooling: Pooling = "mean",
    precision: Precision = "float32",
) -> str:
    """A name for the features of a model on a task: a hash of all that decides them."""
    import transformers

    parts = [FORMAT, model_fingerprint, task_fingerprint, max_length, pooling, precision]
    return name_of([*parts, transformers.__version__])


def name_of(parts: list[Any]) -> str:
    """A file's name: a hash of all that decides what is in it."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def extract(
    encoder: PreTrainedModel,
    split: TokenisedSplit,
    pad_id: int,
    *,
    pooling: Pooling = "mean",
    precision: Precision = "float32",
    device: str | torch.device = "cpu",
    cache: Path | None = None,
    key: str = "",
    on_rows: OnRows | None = None,
    tokens_at_once: int | None = None,
) -> np.ndarray:
    """(n, depth + 1, H), memory-mapped: read from the cache's file `key`, or computed and put there.

    Without a cache it lies in a temporary file, which goes when the array does.
    """
    shape = (len(split), Anatomy(encoder).depth + 1, encoder.config.hidden_size)

    def compute(target: np.ndarray) -> None:
        device_type = torch.device(device).type
        budget = tokens_at_once or TOKENS_AT_ONCE.get(device_type, TOKENS_AT_ONCE["cpu"])
        for rows, states in _batches(encoder, split, pad_id, pooling, torch.device(device), budget):
            target[rows] = finite(states.to(getattr(torch, precision)).cpu().numpy(), states)
            if on_rows is not None:
                on_rows(len(rows))

    states, fresh = kept(shape, precision, compute, cache, key)
    if not fresh and on_rows is not None:
        on_rows(len(split))
    return states


def restricted(split: TokenisedSplit, rows: np.ndarray) -> TokenisedSplit:
    """The split with these rows alone, in this order."""
    spans = [np.arange(split.offsets[r], split.offsets[r + 1]) for r in rows]
    tokens = np.concatenate(spans) if spans else np.zeros(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(span) for span in spans])]).astype(np.int64)
    types = None if split.type_ids is None else split.type_ids[tokens]
    return TokenisedSplit(split.ids[tokens], types, offsets, split.labels[rows])


# --- the pass ---


def by_length(lengths: np.ndarray, tokens_at_once: int) -> Iterator[np.ndarray]:
    """Rows in batches of like length, each of at most so many tokens with its padding; the longest first,
    so that what does not fit into memory fails at once."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, tokens_at_once // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size


def _batches(
    encoder: PreTrainedModel,
    split: TokenisedSplit,
    pad_id: int,
    pooling: Pooling,
    device: torch.device,
    tokens_at_once: int,
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """(rows, their pooled states (B, depth + 1, H)) until every row has been through the encoder once."""
    anatomy, with_types = Anatomy(encoder), takes_token_types(encoder)
    encoder = encoder.to(device)  # type: ignore[arg-type]
    was_training = encoder.training
    encoder.eval()
    try:
        for rows in by_length(np.diff(split.offsets), tokens_at_once):
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
                states = torch.stack([_pooled(h, mask, pooling, anatomy) for h in hidden], 1)
            yield rows, states
    finally:
        encoder.train(was_training)


def _pooled(hidden: Tensor, mask: Tensor, pooling: Pooling, anatomy: Anatomy) -> Tensor:
    if pooling == "mean":
        return mean_states(hidden, mask)
    return summary_states(hidden, mask, anatomy.family.summary_token)


def finite(values: np.ndarray, states: Tensor) -> np.ndarray:
    """The values as they are stored, once they are known to be numbers; `states`: what they were before."""
    if not np.isfinite(values).all():
        raise not_finite(bool(torch.isfinite(states).all()))
    return values


def not_finite(whole: bool) -> WhichlayersError:
    """`whole`: the states were numbers before they were rounded."""
    return WhichlayersError(
        "a hidden state is too large for float16: keep the features as float32"
        if whole
        else "the model gives hidden states that are not finite numbers: are its weights whole?"
    )


# --- the file ---


def kept(
    shape: tuple[int, ...],
    precision: Precision,
    compute: Callable[[np.ndarray], None],
    cache: Path | None = None,
    key: str = "",
) -> tuple[np.ndarray, bool]:
    """The array that `compute` fills, memory-mapped, and whether it was filled now or lay in the cache."""
    if cache is None:
        with tempfile.TemporaryDirectory(prefix="whichlayers-") as folder:
            file = Path(folder) / "features.npy"
            _write(file, shape, precision, compute)
            return _open(file, shape, precision), True  # the mapping outlives the file's name
    file = Path(cache) / f"{key}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        fresh = not _is_whole(file, shape, precision)
        if fresh:
            _write(file, shape, precision, compute)
    return _open(file, shape, precision), fresh


def _write(
    file: Path, shape: tuple[int, ...], precision: Precision, compute: Callable[[np.ndarray], None]
) -> None:
    """Written beside and moved into place: a reader sees a whole file or none."""
    _check_room(file.parent, shape, precision)
    partial = file.with_name(f".{file.stem}.{uuid.uuid4().hex}.partial")
    try:
        target = np.lib.format.open_memmap(partial, "w+", np.dtype(precision), shape)
        compute(target)
        target.flush()
        checksum = _checksum(target)
        del target
        with open(partial, "ab") as handle:
            handle.write(checksum)
        os.replace(partial, file)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _open(file: Path, shape: tuple[int, ...], precision: Precision) -> np.ndarray:
    """Mapped so that writing to the array would leave the file as it is (torch asks for a writable one)."""
    found = np.load(file, mmap_mode="c", allow_pickle=False)
    if found.shape != shape or found.dtype != np.dtype(precision):
        raise ValueError(f"{file} holds {found.shape} {found.dtype}")
    return found


def _is_whole(file: Path, shape: tuple[int, ...], precision: Precision) -> bool:
    try:
        found = _open(file, shape, precision)
        with open(file, "rb") as handle:
            handle.seek(-CHECKSUM_BYTES, os.SEEK_END)
            return handle.read() == _checksum(found)
    except (OSError, ValueError, EOFError):  # missing, cut short, or not an array of ours
        return False


def _checksum(array: np.ndarray) -> bytes:
    value, rows = 0, max(1, CHUNK_BYTES // (array[0].nbytes if len(array) else 1))
    for start in range(0, len(array), rows):
        value = zlib.crc32(np.ascontiguousarray(array[start : start + rows]).data, value)
    return value.to_bytes(CHECKSUM_BYTES, "little")


def _check_room(folder: Path, shape: tuple[int, ...], precision: Precision) -> None:
    """A memory-mapped file on a full disk kills the process that writes to it, so it is asked before."""
    need, free = int(np.prod(shape)) * np.dtype(precision).itemsize, shutil.disk_usage(folder).free
    if need > free:
        raise WhichlayersError(
            f"the states of {shape[0]:,} examples in {shape[1]} layers take {need / 1e9:.1f} GB, and"
            f" {folder} has {free / 1e9:.1f} GB free: set WHICHLAYERS_CACHE to a folder on a larger disk"
        )


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One process at a time makes the file; the system drops the lock when its holder dies."""
    descriptor = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
