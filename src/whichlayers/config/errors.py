"""Errors in study files: all problems at once, each with its key, value and line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from whichlayers.config import toml
from whichlayers.errors import WhichlayersError

MAX_VALUE_LENGTH = 80  # characters of a value in an error message


@dataclass(frozen=True)
class Problem:
    """One error in a study.

    Args:
        path: Path of the key, such as ("experiments", 0, "keep"); () for the whole study.
        text: What is wrong and what is allowed.
        value: The value of the key as TOML, if it has one.
    """

    path: toml.KeyPath
    text: str
    value: str | None = None

    def __str__(self) -> str:
        key = toml.key_text(self.path)
        value = f" = {self.value}" if self.value is not None else ""
        return f"{key}{value}: {self.text}" if key else self.text


class StudyError(WhichlayersError):
    """Raised for an invalid study. `problems` lists all errors; the message has one line for each.

    Args:
        problems: The errors; duplicates are removed.
        file: Name of the study file, for the message.
        text: Content of the study file, to find the line of each key.
    """

    def __init__(self, problems: Iterable[Problem], file: str | None = None, text: str | None = None) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        lines = toml.key_lines(text) if text is not None else {}
        by_line = sorted(self.problems, key=lambda problem: toml.line_of(problem.path, lines) or 0)
        messages = [_location(problem, file, lines) + str(problem) for problem in by_line]
        if len(messages) > 1:
            header = f"{file or 'the study'} has {len(messages)} problems:"
            messages = [header, *(f"  {message}" for message in messages)]
        super().__init__("\n".join(messages))


def _location(problem: Problem, file: str | None, lines: dict[toml.KeyPath, int]) -> str:
    """ "study.toml:12: ", or an empty string without a file."""
    if file is None:
        return ""
    line = toml.line_of(problem.path, lines)
    return f"{file}: " if line is None else f"{file}:{line}: "


def format_value(value: object) -> str:
    """A value as TOML, shortened to `MAX_VALUE_LENGTH` characters."""
    text = toml.value_text(value)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."


def close_match(word: str, allowed: Iterable[str]) -> str:
    """ " did you mean `train_sizes`?", or an empty string if no allowed word is similar. Ignores case."""
    by_lower = {a.lower(): a for a in allowed}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f" did you mean `{by_lower[matches[0]]}`?" if matches else ""


def format_choices(allowed: Iterable[str]) -> str:
    """The allowed values as TOML, separated by commas."""
    return ", ".join(toml.value_text(a) for a in allowed)


def allowed_values(value: object, allowed: Iterable[str]) -> str:
    """ "allowed: "a", "b"; did you mean `a`?", the message for a value that is not allowed."""
    allowed = list(allowed)
    return f"allowed: {format_choices(allowed)};{close_match(str(value), allowed)}".rstrip(";")


def raise_problems(*problems: tuple[str | toml.KeyPath, str]) -> NoReturn:
    """Raise one or more problems from a section's validator.

    Args:
        problems: Pairs of a key of the section, or a path below it, and the message. An empty key means the
            whole section.
    """
    raise PydanticCustomError("several", "see problems", {"problems": problems})


def problems_from_validation(
    error: ValidationError, data: dict[str, Any], unknown_key: Callable[[toml.KeyPath, dict[str, Any]], str]
) -> list[Problem]:
    """Convert pydantic's errors.

    Args:
        error: The error raised by pydantic.
        data: The settings that were validated.
        unknown_key: Gives the message for the path of a key that is not allowed.

    Returns:
        One problem for each error, with the path the key has in the study file.
    """
    problems = []
    for e in error.errors(include_url=False):
        path, kind, ctx = _path_in_file(e["loc"], data), e["type"], e.get("ctx", {})
        value = format_value(e["input"])
        if kind == "several":
            for key, text in ctx["problems"]:
                problems.append(_section_problem(path, key, text, e["input"]))
        elif kind == "extra_forbidden":
            problems.append(Problem(path, unknown_key(path, data)))
        elif kind == "missing":
            problems.append(Problem(path, "this key is required"))
        else:
            problems.append(Problem(path, _message(kind, ctx, e["input"]), value))
    return problems


def _section_problem(path: toml.KeyPath, key: str | toml.KeyPath, text: str, section: Any) -> Problem:
    """A problem with a key of a section, with the whole section (key ""), or with a name given in its place."""
    if isinstance(section, str):
        return Problem(path, text, format_value(section))
    if not key:
        return Problem(path, text)
    if isinstance(key, tuple):
        return Problem((*path, *key), text)
    has_value = isinstance(section, Mapping) and key in section
    return Problem((*path, key), text, format_value(section[key]) if has_value else None)


def _path_in_file(loc: toml.KeyPath, data: Mapping[str, Any]) -> toml.KeyPath:
    """pydantic's location without the parts that are not in the file.

    These are the kind of an experiment, which pydantic adds after its index, and the index of a single value given
    in place of a list.
    """
    if loc[:1] == ("experiments",):
        loc = loc[:2] + loc[3:]
    path: list[str | int] = []
    current: Any = data
    for part in loc:
        if isinstance(current, Mapping) and isinstance(part, str):
            path.append(part)
            current = current.get(part)
        elif isinstance(current, Mapping):  # a single table in place of a list
            continue
        elif isinstance(current, list | tuple) and isinstance(part, int) and part < len(current):
            path.append(part)
            current = current[part]
        else:
            break
    return tuple(path)


def _message(kind: str, ctx: dict[str, Any], value: object) -> str:
    """The message for one of pydantic's error types, none of which shows pydantic's own wording."""
    match kind:
        case "value_error":
            return str(ctx["error"])
        case "literal_error":
            return allowed_values(value, re.findall(r"'([^']*)'", ctx["expected"]))
        case "int_type" | "int_from_float":
            return "must be an integer"
        case "float_type":
            return "must be a number"
        case "bool_type":
            return "must be true or false"
        case "string_type":
            return "must be a string in quotes"
        case "finite_number":
            return "must be a finite number"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a table"
        case "tuple_type" | "list_type":
            return "must be a list"
        case "string_too_short":
            return "must not be an empty string"
        case "greater_than_equal":
            return f"must be at least {ctx['ge']:g}"
        case "greater_than":
            return f"must be greater than {ctx['gt']:g}"
        case "less_than":
            return f"must be less than {ctx['lt']:g}"
        case "less_than_equal":
            return f"must be at most {ctx['le']:g}"
    return "this value is not allowed; see docs/study-file.md for the values of this key"
