"""Iteration over the rows or groups of a data frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd


def each_row(frame: pd.DataFrame) -> Iterator[Any]:
    """Each row with its columns as attributes."""
    if frame.shape[1]:
        yield from frame.itertuples(index=False)
    else:  # pandas before 3.1 gives no row of a frame without columns
        yield from ((),) * len(frame)


def each_group(frame: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """(values of `by`, rows) for every group, in order of first appearance."""
    for key, group in frame.groupby(list(by), sort=False, dropna=False):
        yield (key if isinstance(key, tuple) else (key,)), group
