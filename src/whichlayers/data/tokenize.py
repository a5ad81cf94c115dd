"""Tokenize a task into flat arrays of token ids, cached on disk and shared by all trials of a study.

The name of the cache file is a hash of everything that affects the tokens: the examples, the tokenizer, max_length
and library versions. Files are written atomically (to a temporary file that is then renamed), and a damaged file is
ignored and written again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from whichlayers.catalog import Kind
from whichlayers.data.prompts import encode_prompts
from whichlayers.data.tasks import Split, Task
from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write
from whichlayers.text import counted

FORMAT = 2  # increase it when the contents of the cache files change
CHUNK = 2048  # rows tokenized at once, to limit memory


@dataclass(frozen=True, eq=False)
class TokenizedSplit:
    """Tokens of one split, without padding. Row i is ids[offsets[i] : offsets[i + 1]], with special tokens."""

    ids: np.ndarray  # (tokens,) int32
    type_ids: np.ndarray | None  # (tokens,) uint8; None if the tokenizer returns none
    offsets: np.ndarray  # (n + 1,) int64
    labels: np.ndarray  # (n,) int64 or float32
    truncated: int = 0  # number of rows with more than max_length tokens, which were truncated

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def length(self, i: int) -> int:
        """Number of tokens of row i."""
        return int(self.offsets[i + 1] - self.offsets[i])


@dataclass(frozen=True, eq=False)
class TokenizedTask:
    """A `Task` with tokens instead of texts."""

    name: str
    kind: Kind
    n_outputs: int
    metric: str
    metrics: tuple[str, ...]
    train: TokenizedSplit
    evals: dict[str, TokenizedSplit]
    pad_id: int
    fingerprint: str  # that of the Task

    @property
    def truncated(self) -> tuple[int, int]:
        """Number of truncated rows, and of all rows, in all splits."""
        splits = [self.train, *self.evals.values()]
        return sum(split.truncated for split in splits), sum(map(len, splits))


def tokenize(
    task: Task,
    tokenizer: Any,
    max_length: int,
    cache: Path | None = None,
    tokenizer_fingerprint: str = "",
    pair_template: str = "",
) -> TokenizedTask:
    """Tokenize all splits, truncating rows to max_length (of a pair, the longer text first).

    Args:
        task: The task.
        tokenizer: A Hugging Face tokenizer.
        max_length: Maximum number of tokens of a row, special tokens included.
        cache: Folder of the cache; None does not cache.
        tokenizer_fingerprint: Identifies the tokenizer in the cache key; computed if empty.
        pair_template: How a pair of texts becomes one text, with {first} and {second}. Default: the tokenizer joins
            them.
    """
    if task.train.pairs is None:
        pair_template = ""
    _check_length(task, tokenizer, max_length, pairs=task.train.pairs is not None and not pair_template)
    name = _cache_key(
        task, tokenizer, max_length, tokenizer_fingerprint or hash_tokenizer(tokenizer), pair_template
    )
    file = cache and Path(cache) / f"{name}.npz"
    splits = {"train": task.train} | {f"eval/{name}": split for name, split in task.evals.items()}
    encoded = _read_cache(file, splits) if file else None
    if encoded is None:
        encoded = {
            name: _encode(split, tokenizer, max_length, pair_template) for name, split in splits.items()
        }
        if file:
            _write_cache(file, encoded)
    return TokenizedTask(
        name=task.name,
        kind=task.kind,
        n_outputs=task.n_outputs,
        metric=task.metric,
        metrics=task.metrics,
        train=encoded["train"],
        evals={name: encoded[f"eval/{name}"] for name in task.evals},
        pad_id=0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id,  # masked, so any id works
        fingerprint=task.fingerprint,
    )


def hash_tokenizer(tokenizer: Any) -> str:
    """Hash (16 hex digits) of the tokenizer's rules and vocabulary, without its current truncation and padding."""
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


def _check_length(task: Task, tokenizer: Any, max_length: int, pairs: bool) -> None:
    """Raise if max_length leaves no token for the texts or exceeds the model's limit."""
    special = tokenizer.num_special_tokens_to_add(pair=pairs)
    texts = 1 if task.train.pairs is None else 2
    if max_length < special + texts:
        raise WhichlayersError(
            f"max_length = {max_length} is too small for task {task.name}: this tokenizer adds "
            f"{counted(special, 'special token')}; use {special + texts} or more"
        )
    limit = tokenizer.model_max_length  # a huge number if the model has no limit
    if max_length > limit:
        raise WhichlayersError(
            f"max_length = {max_length} exceeds the model's limit of {limit} tokens; use {limit} or less"
        )


def _encode(split: Split, tokenizer: Any, max_length: int, pair_template: str = "") -> TokenizedSplit:
    """Tokenize a split in chunks."""
    with_types = "token_type_ids" in tokenizer.model_input_names and not pair_template
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    truncated = 0
    for start in range(0, len(split), CHUNK):
        rows = slice(start, start + CHUNK)
        row_ids, row_types, too_long = _encode_rows(
            split, rows, tokenizer, max_length, with_types, pair_template
        )
        ids.append(_flat(row_ids, np.int32))
        types.append(_flat(row_types, np.uint8))
        lengths.append(np.fromiter(map(len, row_ids), dtype=np.int64))
        truncated += too_long
    offsets = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
    if (np.diff(offsets) == 0).any():
        row = int(np.argmin(np.diff(offsets)))
        raise WhichlayersError(
            f"row {row + 1} has no tokens after tokenization: {split.texts[row][:60]!r}; remove the row"
        )
    return TokenizedSplit(
        ids=np.concatenate([np.zeros(0, np.int32), *ids]),
        type_ids=np.concatenate([np.zeros(0, np.uint8), *types]) if with_types else None,
        offsets=offsets,
        labels=split.labels,
        truncated=truncated,
    )


def _encode_rows(
    split: Split, rows: slice, tokenizer: Any, max_length: int, with_types: bool, pair_template: str
) -> tuple[list[list[int]], list[list[int]], int]:
    """Token ids and token type ids (empty unless `with_types`) of rows, and how many of the rows were truncated."""
    if pair_template and split.pairs is not None:
        pairs = zip(split.texts[rows], split.pairs[rows], strict=True)
        prompts, truncated = encode_prompts(pair_template, pairs, tokenizer, max_length)
        return prompts, [], truncated
    batch = tokenizer(
        split.texts[rows],
        split.pairs[rows] if split.pairs is not None else None,
        truncation="longest_first",
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=with_types,
    )
    lengths = np.fromiter(map(len, batch["input_ids"]), dtype=np.int64)
    truncated = _count_truncated(split, rows, lengths, tokenizer, max_length)
    return batch["input_ids"], batch["token_type_ids"] if with_types else [], truncated


def _count_truncated(split: Split, rows: slice, lengths: np.ndarray, tokenizer: Any, max_length: int) -> int:
    """Number of rows with more than `max_length` tokens: rows of that length are tokenized again without truncation."""
    at_limit = np.flatnonzero(lengths >= max_length) + rows.start
    if not len(at_limit):
        return 0
    whole = tokenizer(
        [split.texts[i] for i in at_limit],
        None if split.pairs is None else [split.pairs[i] for i in at_limit],
        truncation=False,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # no warning that rows are longer than the model allows
    )
    return sum(len(ids) > max_length for ids in whole["input_ids"])


def _flat(rows: list[list[int]], dtype: type[np.generic]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), dtype=dtype)


def _cache_key(
    task: Task, tokenizer: Any, max_length: int, tokenizer_fingerprint: str, pair_template: str
) -> str:
    """Hash of everything that affects the tokens."""
    import tokenizers
    import transformers

    parts = [FORMAT, task.fingerprint, tokenizer_fingerprint, max_length, tokenizer.truncation_side]
    if pair_template:
        parts.append(pair_template)
    versions = [tokenizers.__version__, transformers.__version__]
    return hashlib.blake2b(json.dumps(parts + versions).encode(), digest_size=12).hexdigest()


def _write_cache(file: Path, encoded: dict[str, TokenizedSplit]) -> None:
    """Write the cache file atomically; warns if that fails."""
    arrays: dict[str, Any] = {}
    for name, split in encoded.items():
        arrays |= {f"{name}/ids": split.ids, f"{name}/offsets": split.offsets}
        arrays[f"{name}/truncated"] = np.int64(split.truncated)
        if split.type_ids is not None:
            arrays[f"{name}/type_ids"] = split.type_ids
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as partial, open(partial, "xb") as handle:
            np.savez(handle, **arrays)
    except OSError as error:
        warnings.warn(
            f"could not write the token cache {file} ({error}), so the next run tokenizes again; check permissions "
            "and free disk space",
            stacklevel=3,
        )


def _read_cache(file: Path, splits: dict[str, Split]) -> dict[str, TokenizedSplit] | None:
    """The cached tokens with the task's labels; None if there is no valid cache file."""
    if not file.is_file():
        return None
    try:
        with np.load(file, allow_pickle=False) as stored:  # its zip members have checksums
            arrays = {name: stored[name] for name in stored.files}
        encoded = {
            name: TokenizedSplit(
                arrays[f"{name}/ids"],
                arrays.get(f"{name}/type_ids"),
                arrays[f"{name}/offsets"],
                split.labels,
                int(arrays[f"{name}/truncated"]),
            )
            for name, split in splits.items()
        }
    except Exception:  # damaged files raise many types: of zipfile, zlib, numpy and the OS
        return None
    return encoded if all(_is_consistent(e, splits[name]) for name, e in encoded.items()) else None


def _is_consistent(encoded: TokenizedSplit, split: Split) -> bool:
    """Whether cached arrays have the right dtypes and shapes for the split."""
    flat = [encoded.ids] if encoded.type_ids is None else [encoded.ids, encoded.type_ids]
    return (
        encoded.offsets.shape == (len(split) + 1,)
        and encoded.ids.dtype == np.int32
        and encoded.offsets[0] == 0
        and bool((np.diff(encoded.offsets) > 0).all())
        and all(array.shape == (encoded.offsets[-1],) for array in flat)
    )
