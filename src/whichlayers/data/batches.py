"""Training subsets, the order of examples in an epoch, and padding into batches.

Subset and order depend only on the trial's seeds, so trials that differ in their surgery are trained on the same
examples in the same order. For the same seed, a smaller subset is a prefix of a larger one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichlayers import rng
from whichlayers.data.tokenize import TokenizedSplit
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows padded on the right to the same length."""

    input_ids: np.ndarray  # (B, L) int64
    attention_mask: np.ndarray  # (B, L) int64, 1 for tokens, 0 for padding
    token_type_ids: np.ndarray | None  # (B, L) int64; None if the tokenizer returns none
    labels: np.ndarray  # (B,) int64 or float32


def subset(n_rows: int, size: int, seed: int) -> np.ndarray:
    """A random subset of the rows 0..n_rows-1, (size,) int64, without replacement and not stratified by label."""
    if not 1 <= size <= n_rows:
        raise WhichlayersError(
            f"train_size = {size:,}, but the task has {counted(n_rows, 'training row')}; choose 1 to {n_rows:,}, or all"
        )
    return rng.permutation(seed, "subset", n_rows)[:size].astype(np.int64)


def epoch_order(size: int, seed: int, epoch: int) -> np.ndarray:
    """The shuffled order of a subset's rows in one epoch, (size,) int64."""
    return rng.permutation(seed, f"order/{epoch}", size).astype(np.int64)


def pad(split: TokenizedSplit, rows: np.ndarray, pad_id: int, length: int | None = None) -> Batch:
    """Rows of a split as one batch, padded on the right to the longest of them, or to `length` tokens.

    The tokenizer's padding side is ignored. XLNet pads on the left, but its attention is relative and masked, so
    the side only changes the position of the [CLS] token.
    """
    rows = np.asarray(rows, dtype=np.int64)
    starts = split.offsets[rows]  # (B,)
    lengths = split.offsets[rows + 1] - starts  # (B,)
    longest = int(lengths.max(initial=0))
    if length is not None and length < longest:
        raise ValueError(f"a row has {counted(longest, 'token')}, more than length = {length}")

    position = np.arange(longest if length is None else length)  # (L,)
    is_token = position < lengths[:, None]  # (B, L)
    source = (starts[:, None] + position)[is_token]  # (tokens in the batch,)
    input_ids = np.full(is_token.shape, pad_id, dtype=np.int64)
    input_ids[is_token] = split.ids[source]
    token_type_ids = None
    if split.type_ids is not None:
        token_type_ids = np.zeros(is_token.shape, dtype=np.int64)
        token_type_ids[is_token] = split.type_ids[source]
    return Batch(input_ids, is_token.astype(np.int64), token_type_ids, split.labels[rows])


def select_rows(split: TokenizedSplit, rows: np.ndarray) -> TokenizedSplit:
    """The split with these rows only, in this order."""
    rows = np.asarray(rows, dtype=np.int64)
    starts, lengths = split.offsets[rows], split.offsets[rows + 1] - split.offsets[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
    source = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    types = None if split.type_ids is None else split.type_ids[source]
    return TokenizedSplit(split.ids[source], types, offsets, split.labels[rows])
