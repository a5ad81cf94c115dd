"""What is wrong with a study, in the terms of its file: every problem at once, with key, value and line."""

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

LONGEST_VALUE = 80  # characters of a value that an error repeats


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the key it is about, what is wrong with it and, if it has one, its value."""

    path: toml.Path
    text: str
    given: str | None = None

    def __str__(self) -> str:
        key = toml.key_text(self.path)
        given = f" = {self.given}" if self.given is not None else ""
        return f"{key}{given}: {self.text}" if key else self.text


class StudyError(WhichlayersError):
    """A study that cannot be run as it is written. `problems` lists everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem], file: str | None = None, text: str | None = None) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        lines = toml.key_lines(text) if text is not None else {}
        by_line = sorted(self.problems, key=lambda problem: toml.line_of(problem.path, lines) or 0)
        said = [_where(problem, file, lines) + str(problem) for problem in by_line]
        if len(said) > 1:
            said = [f"{file or 'the study'} has {len(said)} problems:", *(f"  {line}" for line in said)]
        super().__init__("\n".join(said))


def _where(problem: Problem, file: str | None, lines: dict[toml.Path, int]) -> str:
    if file is None:
        return ""
    line = toml.line_of(problem.path, lines)
    return f"{file}: " if line is None else f"{file}:{line}: "


def shown(value: object) -> str:
    text = toml.value_text(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def close_match(word: str, allowed: Iterable[str]) -> str:
    """' did you mean `train_sizes`?', or nothing when no allowed word is near."""
    by_lower = {a.lower(): a for a in allowed}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f" did you mean `{by_lower[near[0]]}`?" if near else ""


def one_of(allowed: Iterable[str]) -> str:
    return ", ".join(toml.value_text(a) for a in allowed)


def refuse(*problems: tuple[str | toml.Path, str]) -> NoReturn:
    """For a validator of a section: each problem is a key of the section and what is wrong with it."""
    raise PydanticCustomError("several", "see problems", {"problems": problems})


def problems_of(
    error: ValidationError, data: dict[str, Any], unknown_key: Callable[[toml.Path, dict[str, Any]], str]
) -> list[Problem]:
    """pydantic's errors in the terms of the file."""
    found = []
    for e in error.errors(include_url=False):
        path, kind, ctx = _as_written(e["loc"], data), e["type"], e.get("ctx", {})
        given = shown(e["input"])
        if kind == "several":
            for key, text in ctx["problems"]:
                found.append(_of_section(path, key, text, e["input"]))
        elif kind == "extra_forbidden":
            found.append(Problem(path, unknown_key(path, data)))
        elif kind == "missing":
            found.append(Problem(path, "this key is needed"))
        else:
            found.append(Problem(path, _sentence(kind, ctx, e["input"], e["msg"]), given))
    return found


def _of_section(path: toml.Path, key: str | toml.Path, text: str, section: Any) -> Problem:
    """A problem with a key of a section, with all of the section (""), or with a name that stands for it."""
    if isinstance(section, str):
        return Problem(path, text, shown(section))
    if not key:
        return Problem(path, text)
    if isinstance(key, tuple):
        return Problem((*path, *key), text)
    has_value = isinstance(section, Mapping) and key in section
    return Problem((*path, key), text, shown(section[key]) if has_value else None)


def _as_written(loc: toml.Path, data: Mapping[str, Any]) -> toml.Path:
    """pydantic's location without the steps that are not in the file: the kind of an experiment, which
    pydantic puts after its number, and the place of a single value where a list is allowed too."""
    if loc[:1] == ("experiments",):
        loc = loc[:2] + loc[3:]
    path: list[str | int] = []
    here: Any = data
    for part in loc:
        if isinstance(here, Mapping):
            path.append(part)
            here = here.get(part) if isinstance(part, str) else None
        elif isinstance(here, list | tuple) and isinstance(part, int) and part < len(here):
            path.append(part)
            here = here[part]
        else:
            break
    return tuple(path)


def _sentence(kind: str, ctx: dict[str, Any], given: object, otherwise: str) -> str:
    match kind:
        case "value_error":
            return str(ctx["error"])
        case "literal_error":
            words = re.findall(r"'([^']*)'", ctx["expected"])
            return f"allowed: {one_of(words)};{close_match(str(given), words)}".rstrip(";")
        case "int_type" | "int_from_float":
            return "a whole number is needed"
        case "float_type":
            return "a number is needed"
        case "bool_type":
            return "true or false is needed"
        case "string_type":
            return "text in quotes is needed"
        case "finite_number":
            return "a finite number is needed"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a table of keys is needed"
        case "string_too_short":
            return "text of at least one character is needed"
        case "greater_than_equal":
            return f"must be {ctx['ge']} or more"
        case "greater_than":
            return f"must be more than {ctx['gt']}"
        case "less_than":
            return f"must be less than {ctx['lt']}"
        case "less_than_equal":
            return f"must be {ctx['le']} or less"
    return otherwise[:1].lower() + otherwise[1:]
