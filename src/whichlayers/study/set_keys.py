"""Set single keys of a study from text such as "training.lr=1e-4", checked like a study file."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whichlayers.config.sections import TrainingSpec
from whichlayers.config.synonyms import suggest_key, synonym_of
from whichlayers.config.validators import as_tuple
from whichlayers.errors import WhichlayersError
from whichlayers.study.study_file import TABLES, Study

_KEY = re.compile(r"(?:(training)\.|([a-z]+)\[(\d+)\]\.)?([A-Za-z_]\w*)")
# in a list: a string in quotes, or a word that does not start with a digit
_QUOTED_OR_WORD = re.compile(r"""\"[^\"]*\"|'[^']*'|(?<=[\[,\s])[A-Za-z_./][^\s,\[\]"'={}]*(?=\s*[,\]])""")
FORMS = "KEY=VALUE, training.KEY=VALUE, or TABLE[INDEX].KEY=VALUE such as experiments[0].keep=[0, 6]"


def set_keys(study: Study, assignments: Sequence[str]) -> Study:
    """A copy of a study with keys set to other values.

    Args:
        study: The study.
        assignments: "KEY=VALUE": a top-level key ("trials=5"), a key of [training] ("training.lr=1e-4") or a key of
            one entry of a table ("experiments[0].keep=[0, 6]"; entries are counted from 0). Values are TOML; text
            that is not valid TOML is a string, so that quotes may be left out, in lists as well.

    Returns:
        The study; relative paths in new values start from the current folder.

    Raises:
        WhichlayersError: If a key or a value is not allowed; the message names the key.
    """
    if not assignments:
        return study
    settings: dict[str, Any] = study.settings()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        match = _KEY.fullmatch(key.strip())
        if match is None or not equals:
            raise WhichlayersError(f"--set {assignment}: must have the form {FORMS}{_key_hint(key.strip())}")
        training, table, index, name = match.groups()
        value = _parse(text.strip())
        if training:
            settings["training"] = _entry(settings["training"]) | {name: value}
        elif table:
            settings[table] = _with_entry(settings, table, int(index), name, value, assignment)
        else:
            if name not in Study.model_fields:
                raise WhichlayersError(f"--set {assignment}: {_unknown(name)}")
            settings[name] = value
    changed = Study(**settings).resolved(Path.cwd())
    changed._file = f"{study._file or 'the study'} with --set {' --set '.join(assignments)}"  # for messages
    return changed


def _with_entry(
    settings: dict[str, Any], table: str, index: int, name: str, value: Any, assignment: str
) -> list[Any]:
    """The entries of a table, with a key of one of them set."""
    if table not in TABLES:
        suggestion = suggest_key(table, TABLES)
        raise WhichlayersError(
            f"--set {assignment}: no table {table};{suggestion} tables: {', '.join(TABLES)}"
        )
    key = "kind" if table == "experiments" else "name"  # what a string in place of an entry stands for
    entries = [{key: entry} if isinstance(entry, str) else entry for entry in as_tuple(settings[table])]
    if index >= len(entries):
        names = ", ".join(f"{table}[{i}] is {_label(entry)}" for i, entry in enumerate(entries)) or "none"
        raise WhichlayersError(f"--set {assignment}: the study has no {table}[{index}]; it has: {names}")
    entries[index] = _entry(entries[index]) | {name: value}
    return entries


def _entry(section: Any) -> dict[str, Any]:
    """The keys of a section that were given, as a dict; a dict stays one."""
    if isinstance(section, dict):
        return section
    given = {key: getattr(section, key) for key in section.key_order() if key in section.model_fields_set}
    kind = getattr(section, "kind", None)
    has_kind = "kind" in type(section).model_fields and kind is not None
    return ({"kind": kind} if has_kind else {}) | {key: v for key, v in given.items() if v is not None}


def _label(entry: Any) -> str:
    """What names an entry of a table in messages: the name of a model, the kind of an experiment."""
    settings = _entry(entry)
    return str(settings.get("name", settings.get("kind")))


def _parse(text: str) -> Any:
    """The value of TOML text; text that is not TOML is a string, and so are the words of a list without quotes."""
    for toml in (text, _QUOTED_OR_WORD.sub(_with_quotes, text)) if text.startswith("[") else (text,):
        try:
            return tomllib.loads(f"value = {toml}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text


def _with_quotes(found: re.Match[str]) -> str:
    """A word with quotes around it; a string that has them, and true and false, as they are."""
    word = found[0]
    return word if word[0] in "\"'" or word in ("true", "false") else f'"{word}"'


def _key_hint(key: str) -> str:
    """What was probably meant by a key such as "trainng.lr" or "experiments.keep"; "" if that is not clear."""
    table, dot, name = key.partition(".")
    if not (dot and name.isidentifier()):
        return ""
    if table in TABLES:
        return f"; did you mean {table}[0].{name}, of the first entry of {table}?"
    close = difflib.get_close_matches(table, ["training"], n=1)
    return f"; did you mean training.{name}?" if close else ""


def _unknown(name: str) -> str:
    """The message for a key that is not at the top of a study file."""
    allowed = Study.key_order()
    of_training = None if synonym_of(name, allowed) else synonym_of(name, TrainingSpec.key_order())
    if of_training is not None:
        return f"unknown key; did you mean training.{of_training}?"
    return f"unknown key;{suggest_key(name, allowed)} allowed: {', '.join(allowed)}, training.KEY, TABLE[INDEX].KEY"
