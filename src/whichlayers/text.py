"""Formatting of numbers and lists for messages, tables and reports."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A count with its noun in the singular or plural: "1 trial", "2,000 trials"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
