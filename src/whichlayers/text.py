"""Formatting of numbers and lists for messages, tables and reports."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """A count with its noun in the singular or plural: "1 trial", "2,000 trials"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def join_list(items: Iterable[object], conjunction: str = "and") -> str:
    """Items as a list in a sentence: "a", "a and b", "a, b and c"; "" without items."""
    parts = [str(item) for item in items]
    return f"{', '.join(parts[:-1])} {conjunction} {parts[-1]}" if len(parts) > 1 else "".join(parts)
