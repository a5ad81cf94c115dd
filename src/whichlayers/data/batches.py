"""Which rows a trial sees, in which order, and how they are padded into a batch.

Subset and order depend on the trial's seed alone, so trials that differ in their surgery see the same
examples in the same order. A smaller subset of a seed is the beginning of a larger one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichlayers import rng
from whichlayers.data.tokenize import TokenisedSplit
from whichlayers.errors import WhichlayersError


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows padded on the right to one length."""

    input_ids: np.ndarray  # (B, L) int64
    attention_mask: np.ndarray  # (B, L) int64, 1 on tokens, 0 on padding
    token_type_ids: np.ndarray | None  # (B, L) int64, where the tokenizer makes them
    labels: np.ndarray  # (B,) int64 or float32


def subset(n_rows: int, size: int, seed: int) -> np.ndarray:
    """`size` of the rows 0..n_rows-1, drawn at random without replacement and without regard to labels."""
    if not 1 <= size <= n_rows:
        raise WhichlayersError(
            f"train_size = {size:,}, but the task has {n_rows:,} training rows; choose 1 to {n_rows:,} or all"
        )
    return rng.permutation(seed, "subset", n_rows)[:size].astype(np.int64)


def epoch_order(size: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which a subset's rows are visited in one epoch."""
    return rng.permutation(seed, f"order/{epoch}", size).astype(np.int64)


def pad(split: TokenisedSplit, rows: np.ndarray, pad_id: int, length: int | None = None) -> Batch:
    """The rows as one batch, padded on the right to the longest of them, or to `length`.

    Right padding whatever the tokenizer's own side: XLNet pads on the left, but its attention is relative and
    masked, so the side changes nothing but where the summary token is found.
    """
    rows = np.asarray(rows, dtype=np.int64)
    starts = split.offsets[rows]  # (B,)
    lengths = split.offsets[rows + 1] - starts  # (B,)
    longest = int(lengths.max(initial=0))
    if length is not None and length < longest:
        raise ValueError(f"a row has {longest} tokens, more than length = {length}")

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
