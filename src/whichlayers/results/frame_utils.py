"""Data frames from SQL queries, and iteration over the rows or groups of a frame."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

CHUNK_ROWS = 50_000  # rows as Python objects take ten times the memory of the data frame


def read_in_chunks(query: str, db: sqlite3.Connection) -> pd.DataFrame:
    """The rows of a query, read CHUNK_ROWS at a time to save memory."""
    return pd.concat(list(pd.read_sql_query(query, db, chunksize=CHUNK_ROWS)), ignore_index=True)


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
