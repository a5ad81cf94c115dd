"""TOML helpers for study files: write values, format key paths and find the line of a key.

The standard library reads TOML, but neither writes it nor reports line numbers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

KeyPath = tuple[str | int, ...]  # path of a key, such as ("experiments", 0, "keep")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")
_QUOTED_OR_COMMENT = re.compile(
    r'"""[\s\S]*?"""|' + r"'''[\s\S]*?'''|" + r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'|#[^\n]*"
)

MAX_BYTES = 1_000_000  # of a study file
MAX_DEPTH = 64  # of nested brackets, and of the parts of a key
_LONG_KEY = re.compile(r"""(?:\.\s*(?:[A-Za-z0-9_-]+|"")\s*)""" + f"{{{MAX_DEPTH}}}")


class SyntaxProblem(Exception):
    """A text is not TOML, or is nested too deeply to be a study. `line` and `column` are None if they are unknown."""

    def __init__(self, text: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(text)
        self.line, self.column = line, column


def loads(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        SyntaxProblem: The text is not valid, or so long or nested so deeply that parsing would take minutes.
    """
    if len(text) > MAX_BYTES:
        raise SyntaxProblem(f"{len(text):,} characters; a study file has at most {MAX_BYTES:,}")
    if (line := _too_deep(text)) is not None:
        raise SyntaxProblem(f"brackets or keys are nested more than {MAX_DEPTH} deep", line)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number with too many digits
        match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
        if match is not None:
            raise SyntaxProblem(match[1], int(match[2]), int(match[3])) from None
        raise SyntaxProblem(str(error), len(text.splitlines())) from None
    except RecursionError:
        raise SyntaxProblem("nested too deeply") from None


def _too_deep(text: str) -> int | None:
    """The line of the first bracket or key that is nested too deeply; None if there is none."""
    depth = 0
    for number, line in enumerate(_QUOTED_OR_COMMENT.sub(_blank, text).split("\n"), start=1):
        for mark in re.findall(r"[\[\]{}]", line):
            depth = depth + 1 if mark in "[{" else max(0, depth - 1)
            if depth > MAX_DEPTH:
                return number
        if _LONG_KEY.search(line):
            return number
    return None


def _blank(match: re.Match[str]) -> str:
    """A string without its content, or nothing in place of a comment. Line breaks are kept."""
    return ("" if match[0].startswith("#") else '""') + "\n" * match[0].count("\n")


def key_text(path: KeyPath) -> str:
    """("experiments", 0, "keep") -> experiments[0].keep"""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{_key(part)}"
    return text.removeprefix(".")


def value_text(value: object) -> str:
    """A value as TOML, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{ " + ", ".join(f"{_key(str(k))} = {value_text(v)}" for k, v in value.items()) + " }"
        case Sequence():
            return "[" + ", ".join(value_text(v) for v in value) + "]"
    return str(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else value_text(name)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line numbers of all keys and table headers. Keys of an inline table are not listed; see `line_of`."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}  # index of the last [[name]] header of each name
    table: KeyPath = ()
    depth = 0  # nesting of brackets at the start of the line
    for number, line in enumerate(_QUOTED_OR_COMMENT.sub(_mask_structure, text).split("\n"), start=1):
        if depth == 0 and (header := _HEADER.match(line)):
            table = _parts(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, number)
            continue
        if depth == 0 and (assignment := _ASSIGNMENT.match(line)):
            lines.setdefault((*table, *_parts(assignment[1])), number)
        depth = max(0, depth + len(re.findall(r"[\[{]", line)) - len(re.findall(r"[\]}]", line)))
    return lines


def line_of(path: KeyPath, lines: dict[KeyPath, int]) -> int | None:
    """The line of the key, or of the closest enclosing key or table that has one."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def _parts(dotted: str) -> tuple[str, ...]:
    """'a."b c"' -> ("a", "b c")"""
    return tuple(part.strip("\"'") for part in re.findall(_KEY, dotted))


def _mask_structure(match: re.Match[str]) -> str:
    """Remove a comment; in a string, replace brackets, "=" and "#". Line breaks are kept."""
    if match[0].startswith("#"):
        return ""
    return re.sub(r"[\[\]{}=#]", "_", match[0])
