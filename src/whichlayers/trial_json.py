"""How trials are hashed into ids and stored in results.db: as JSON, by names that never change.

A field of a dataclass may be renamed. Its stored name and its default, which ids leave out, never change: ids and
finished trials of existing studies would be lost.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from whichlayers.trial_settings import Adapter, Probe, Surgery, Training, WordProbe

if TYPE_CHECKING:
    from whichlayers.trial import Trial

# fields whose stored name is that of an earlier version
STORED_NAMES = {"word_probe": "words", "measure": "ask", "standardize": "standardise"}
FIELD_NAMES = {stored: name for name, stored in STORED_NAMES.items()}
# Fields that were added after version 0.1: of the trial itself (""), and of its settings. They are stored only if they
# differ from their default: the JSON of a trial is the same as before.
LATER_FIELDS = {
    "": ("seeds", "adapter", "pair_template", "bos"),
    "surgery": ("reinit_pooler",),
    "training": ("parameters", "frozen_dropout", "bias_correction", "precision"),
}
NAMES_ONLY = (
    "model",
    "revision",
    "task",
    "corpus",
)  # fields that are not hashed: names do not change a result
SETTINGS = {
    "surgery": Surgery,
    "training": Training,
    "probe": Probe,
    "word_probe": WordProbe,
    "adapter": Adapter,
}


def identity_of(trial: Trial) -> dict[str, Any]:
    """The fields of a `Trial`, nested, by their stored names: without names of models and data, and without defaults.

    Without values that are equal to their default, a setting that is added in a later version does not change the ids
    of existing trials.
    """
    return _without_keys(_renamed(_non_defaults(trial), STORED_NAMES), NAMES_ONLY)


def hash_identity(identity: Mapping[str, Any]) -> str:
    """The id of a trial: 16 hex digits."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def trial_to_json(trial: Trial) -> str:
    """A `Trial` with all of its fields as JSON."""
    fields = dataclasses.asdict(trial)
    for section, names in LATER_FIELDS.items():
        settings, stored = (getattr(trial, section), fields[section]) if section else (trial, fields)
        for name in names:
            if getattr(settings, name) == getattr(type(settings), name):
                del stored[name]
    return json.dumps(_renamed(fields, STORED_NAMES), sort_keys=True)


def fields_from_json(text: str) -> dict[str, Any]:
    """The fields of a trial, from which `Trial(**fields)` creates it again."""
    fields = _renamed(_with_tuples(json.loads(text)), FIELD_NAMES)
    factors = fields["training"]["lr_factors"]
    fields["training"]["lr_factors"] = tuple((int(layer), float(factor)) for layer, factor in factors)
    for section, kind in SETTINGS.items():
        if fields.get(section) is not None:
            fields[section] = kind(**fields[section])
    return fields


def _with_tuples(value: Any) -> Any:
    """A JSON value with tuples in place of lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The nested dictionary with its keys mapped by `names`."""
    return {
        names.get(key, key): _renamed(value, names) if isinstance(value, dict) else value
        for key, value in fields.items()
    }


def _without_keys(fields: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The nested dictionary without these keys."""
    return {
        key: _without_keys(value, keys) if isinstance(value, dict) else value
        for key, value in fields.items()
        if key not in keys
    }


def _non_defaults(instance: Any) -> dict[str, Any]:
    """Fields of a dataclass instance that differ from their default, as a nested dictionary."""
    kept = {}
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        if value != default:
            kept[f.name] = _non_defaults(value) if dataclasses.is_dataclass(value) else value
    return kept
