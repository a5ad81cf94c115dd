"""Messages for keys that a study file does not have: a similar key, or the table that the key belongs to."""

from __future__ import annotations

from typing import Any

from whichlayers.config import toml
from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.sections import ModelSpec, Section, TaskSpec, TrainingSpec
from whichlayers.config.synonyms import suggest_key, synonym_of
from whichlayers.config.validators import as_tuple
from whichlayers.experiments import KINDS
from whichlayers.text import join_list

SECTIONS: dict[str, type[Section]] = {
    "models": ModelSpec,
    "tasks": TaskSpec,
    "corpora": CorpusSpec,
    "training": TrainingSpec,
}


def unknown_key(path: toml.KeyPath, settings: dict[str, Any], top: type[Section]) -> str:
    """The message for a key that is not allowed.

    Args:
        path: Path of the key, such as ("training", "learning_rate").
        settings: The settings of the study, as given.
        top: The section of the keys at the top of the file.
    """
    key, tables = str(path[-1]), [part for part in path[:-1] if isinstance(part, str)]
    table = tables[-1] if tables else ""
    if table == "experiments":
        return _unknown_in_experiment(key, _kind(path, settings))
    return describe_unknown(key, SECTIONS.get(table, top), top)


def describe_unknown(key: str, section: type[Section], top: type[Section]) -> str:
    """The message for a key that `section` does not have; `top` is the section of the top of the file."""
    allowed = section.key_order()
    if synonym_of(key, allowed) is None:
        for other, where in (
            (top, "at the top of the file, before the first [table]"),
            (TrainingSpec, "in [training]"),
        ):
            found = synonym_of(key, other.key_order())
            if found == key:
                return f"unknown key; `{key}` belongs {where}"
            if found is not None and other is not section:
                return f"unknown key; did you mean `{found}` {where}?"
    return f"unknown key;{suggest_key(key, allowed)} allowed: {', '.join(allowed)}"


def _unknown_in_experiment(key: str, kind: str) -> str:
    allowed = KINDS[kind].key_order()
    others = [name for name, experiment in KINDS.items() if key in experiment.model_fields]
    if others:
        where = f"it belongs to {join_list(others, 'or')}" if len(others) <= 3 else "other kinds have it"
        return f"not a key of this kind of experiment ({where}); allowed: {', '.join(allowed)}"
    found = None if synonym_of(key, allowed) else synonym_of(key, TrainingSpec.key_order())
    if found is not None:
        return f"unknown key; did you mean `{found}` in `training`? allowed: {', '.join(allowed)}"
    return f"unknown key;{suggest_key(key, allowed)} allowed: {', '.join(allowed)}"


def _kind(path: toml.KeyPath, settings: dict[str, Any]) -> str:
    """The kind of the experiment that a path leads into; a single experiment may be given in place of a list."""
    entry = as_tuple(settings["experiments"])[path[1] if isinstance(path[1], int) else 0]
    return str(entry["kind"])
