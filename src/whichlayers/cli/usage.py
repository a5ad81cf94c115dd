"""Messages for options and arguments that cannot be parsed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# the wording of the library that parses options -> ours
WORDING = {
    r"(Input should be|.* is not) a valid (integer|int)\b.*": "must be an integer",
    r"(Input should be|.* is not) a valid (number|float)\b.*": "must be a number",
    r"(Input should be|.* is not) a valid (boolean|bool)\b.*": "must be true or false",
    r"Input should be greater than or equal to (\S+)": r"must be at least \1",
    r"Input should be greater than (\S+)": r"must be greater than \1",
    r"Input should be less than or equal to (\S+)": r"must be at most \1",
    r"Input should be less than (\S+)": r"must be less than \1",
    r"\S+ is not in the range \S*?([\d.e-]+)<=x(<=(\S+?))?\.?": r"must be at least \1",
    r"Value error, (.*)": r"\1",
}


def describe_usage_error(error: Any, command: str, arguments: Sequence[str] = ()) -> str:
    """What is wrong with the options of a command, in one line that ends with how to get help.

    Args:
        error: The `UsageError` of click.
        command: The command that was called, such as "whichlayers run".
        arguments: The arguments that were given, which the message of a wrong value does not have.
    """
    message = error.format_message().rstrip(".")
    name, _, problem = message.partition(": ")
    if name.startswith("Invalid value for ") and problem:
        option = name.removeprefix("Invalid value for ").strip("'\"")
        message = f"{option}{_given(error, arguments)}: {_our_words(problem)}"
    else:
        message = f"{message[:1].lower()}{message[1:]}"
    return f"{message} See {command} --help" if message.endswith("?") else f"{message}; see {command} --help"


def _our_words(problem: str) -> str:
    """A problem in the words that all messages have."""
    for pattern, words in WORDING.items():
        if match := re.fullmatch(pattern, problem):
            problem = match.expand(words)
            break
    if match := re.fullmatch(r"'.*?' is not one of (.*)", problem):
        allowed = ", ".join(re.findall(r"'([^']*)'", match[1]))
        return f"must be one of {allowed}"
    return problem


def _given(error: Any, arguments: Sequence[str]) -> str:
    """The value of the option that an error is about, with a space before it; empty if it is not found."""
    names = getattr(getattr(error, "param", None), "opts", ())
    for argument, value in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument in names and value:
            return f" {value}"
        option, equals, attached = argument.partition("=")
        if option in names and equals:
            return f" {attached}"
    return ""
