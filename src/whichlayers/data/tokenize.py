"""Tokenise a task once: flat arrays of token ids, kept on disk and shared by every trial of a study.

The cache file's name is a hash of all that decides the tokens: the task's examples, the tokenizer, the
maximal length, the versions. It is written beside and moved into place, so a reader sees a whole one or none.
A file that is damaged all the same (a full disk, a cut copy) is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
import warnings
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from whichlayers.data.tasks import Kind, Split, Task
from whichlayers.errors import WhichlayersError

FORMAT = 1  # raise it when the cache's contents change
CHUNK = 2048  # rows encoded at once: bounds the Python lists alive at a time


@dataclass(frozen=True, eq=False)
class TokenisedSplit:
    """Row i's tokens are ids[offsets[i] : offsets[i + 1]], special tokens included, padding not."""

    ids: np.ndarray  # (tokens,) int32
    type_ids: np.ndarray | None  # (tokens,) uint8, where the tokenizer makes them
    offsets: np.ndarray  # (n + 1,) int64
    labels: np.ndarray  # (n,) int64 or float32

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def length(self, i: int) -> int:
        return int(self.offsets[i + 1] - self.offsets[i])


@dataclass(frozen=True, eq=False)
class TokenisedTask:
    name: str
    kind: Kind
    n_outputs: int
    metric: str
    metrics: tuple[str, ...]
    train: TokenisedSplit
    evals: dict[str, TokenisedSplit]
    pad_id: int
    fingerprint: str  # the task's own


def tokenise(
    task: Task, tokenizer: Any, max_length: int, cache: Path | None = None, tokenizer_fingerprint: str = ""
) -> TokenisedTask:
    """Encode all splits, each row cut to max_length (of a pair, the longer text loses tokens first).

    `tokenizer_fingerprint` stands for the tokenizer's files in the cache's key; without one it is worked out.
    """
    _check_length(task, tokenizer, max_length)
    file = cache and Path(cache) / (
        _key(task, tokenizer, max_length, tokenizer_fingerprint or fingerprint_of(tokenizer)) + ".npz"
    )
    splits = {"train": task.train} | {f"eval/{name}": split for name, split in task.evals.items()}
    encoded = _read(file, splits) if file else None
    if encoded is None:
        encoded = {name: _encode(split, tokenizer, max_length) for name, split in splits.items()}
        if file:
            _write(file, encoded)
    return TokenisedTask(
        name=task.name,
        kind=task.kind,
        n_outputs=task.n_outputs,
        metric=task.metric,
        metrics=task.metrics,
        train=encoded["train"],
        evals={name: encoded[f"eval/{name}"] for name in task.evals},
        pad_id=tokenizer.pad_token_id
        if tokenizer.pad_token_id is not None
        else 0,  # masked, so any id will do
        fingerprint=task.fingerprint,
    )


def fingerprint_of(tokenizer: Any) -> str:
    """A hash of how the tokenizer encodes, whatever truncation or padding its last call left switched on."""
    settings = [type(tokenizer).__name__, tokenizer.truncation_side, list(tokenizer.model_input_names)]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        rules.pop("truncation", None)
        rules.pop("padding", None)
    else:
        rules = {"vocab": tokenizer.get_vocab(), "special": tokenizer.all_special_tokens}
    text = json.dumps([settings, rules], sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _check_length(task: Task, tokenizer: Any, max_length: int) -> None:
    special = tokenizer.num_special_tokens_to_add(pair=task.train.pairs is not None)
    texts = 1 if task.train.pairs is None else 2
    if max_length < special + texts:
        raise WhichlayersError(
            f"max_length = {max_length} leaves no room for the text of {task.name}: this tokenizer adds "
            f"{special} special tokens; use {special + texts} or more"
        )
    limit = tokenizer.model_max_length  # a huge number where the model has none
    if max_length > limit:
        raise WhichlayersError(
            f"max_length = {max_length} is more than the model's own limit of {limit} tokens"
        )


def _encode(split: Split, tokenizer: Any, max_length: int) -> TokenisedSplit:
    with_types = "token_type_ids" in tokenizer.model_input_names
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    for start in range(0, len(split), CHUNK):
        rows = slice(start, start + CHUNK)
        batch = tokenizer(
            split.texts[rows],
            split.pairs[rows] if split.pairs is not None else None,
            truncation="longest_first",
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=with_types,
        )
        lengths.append(np.fromiter(map(len, batch["input_ids"]), dtype=np.int64))
        ids.append(_flat(batch["input_ids"], np.int32))
        if with_types:
            types.append(_flat(batch["token_type_ids"], np.uint8))
    offsets = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
    if (np.diff(offsets) == 0).any():
        row = int(np.argmin(np.diff(offsets)))
        raise WhichlayersError(
            f"the tokenizer makes no token of row {row + 1}, {split.texts[row][:60]!r}: remove it"
        )
    return TokenisedSplit(
        ids=np.concatenate([np.zeros(0, np.int32), *ids]),
        type_ids=np.concatenate([np.zeros(0, np.uint8), *types]) if with_types else None,
        offsets=offsets,
        labels=split.labels,
    )


def _flat(rows: list[list[int]], dtype: type[np.generic]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), dtype=dtype)


def _key(task: Task, tokenizer: Any, max_length: int, tokenizer_fingerprint: str) -> str:
    import tokenizers
    import transformers

    parts = [FORMAT, task.fingerprint, tokenizer_fingerprint, max_length, tokenizer.truncation_side]
    versions = [tokenizers.__version__, transformers.__version__]
    return hashlib.blake2b(json.dumps(parts + versions).encode(), digest_size=12).hexdigest()


def _write(file: Path, encoded: dict[str, TokenisedSplit]) -> None:
    arrays: dict[str, Any] = {}
    for name, split in encoded.items():
        arrays |= {f"{name}/ids": split.ids, f"{name}/offsets": split.offsets}
        if split.type_ids is not None:
            arrays[f"{name}/type_ids"] = split.type_ids
    partial = file.with_name(f".{file.stem}.{uuid.uuid4().hex}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as handle:
            np.savez(handle, **arrays)
        os.replace(partial, file)
    except OSError as error:
        warnings.warn(f"tokens are not cached, so the next run makes them again: {error}", stacklevel=3)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(file: Path, splits: dict[str, Split]) -> dict[str, TokenisedSplit] | None:
    """The cached arrays with the task's labels, or None where there are none that hold together."""
    if not file.is_file():
        return None
    try:
        with np.load(file, allow_pickle=False) as stored:  # its zip members carry a checksum each
            arrays = {name: stored[name] for name in stored.files}
        encoded = {
            name: TokenisedSplit(
                arrays[f"{name}/ids"], arrays.get(f"{name}/type_ids"), arrays[f"{name}/offsets"], split.labels
            )
            for name, split in splits.items()
        }
    except Exception:  # damage shows as a dozen kinds of error, from zipfile, zlib, numpy and the system
        return None
    return encoded if all(_holds_together(e, splits[name]) for name, e in encoded.items()) else None


def _holds_together(encoded: TokenisedSplit, split: Split) -> bool:
    flat = [encoded.ids] if encoded.type_ids is None else [encoded.ids, encoded.type_ids]
    return (
        encoded.offsets.shape == (len(split) + 1,)
        and encoded.ids.dtype == np.int32
        and encoded.offsets[0] == 0
        and bool((np.diff(encoded.offsets) > 0).all())
        and all(array.shape == (encoded.offsets[-1],) for array in flat)
    )
