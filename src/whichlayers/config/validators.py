"""Validators of values in a study file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field

PAIR_FIELDS = ("{first}", "{second}")


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A list or tuple as a tuple; any other value as a tuple of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def index_or_name(value: Any) -> Any:
    """Validator: an integer, a non-empty string, or None."""
    is_index = isinstance(value, int) and not isinstance(value, bool)
    is_name = isinstance(value, str) and value != "" and "\0" not in value
    if is_index or is_name or value is None:
        return value
    raise ValueError('must be the index of a column, such as 1, or its name in quotes, such as "upos"')


def two_numbers(value: Any) -> tuple[Any, ...]:
    """Validator: two values."""
    values = as_tuple(value)
    if len(values) == 2:
        return values
    raise ValueError("must be two numbers, such as [0.9, 0.999]")


def at_least_one(value: Any) -> tuple[Any, ...]:
    """Validator: one value or a non-empty list, as a tuple."""
    if values := as_tuple(value):
        return values
    raise ValueError("at least one is required")


def none_or_some(value: Any) -> tuple[Any, ...] | None:
    """Validator: None, one value or a non-empty list; values as a tuple."""
    return None if value is None else at_least_one(value)


def at_most(limit: int) -> Callable[[int], int]:
    """Validator: an integer up to `limit`, which no sensible study reaches; it is not listed in the documentation."""

    def check(value: int) -> int:
        if value > limit:
            raise ValueError(f"must be at most {limit:,}")
        return value

    return check


def _pair_template(value: str) -> str:
    """Validator: a text with {first} and {second}."""
    if all(value.count(field) == 1 for field in PAIR_FIELDS):
        return value
    raise ValueError("must contain {first} and {second}, each once")


PairTemplate = Annotated[str, Field(strict=True), AfterValidator(_pair_template)]
