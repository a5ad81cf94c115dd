"""Choose one of the settings that a study trained, by the values that a user wants: `build --setting rank=8`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whichlayers.errors import WhichlayersError
from whichlayers.text import join_list
from whichlayers.trial import Trial

Setting = tuple[tuple[str, Any], ...]  # keys and values


def trials_with_setting(
    trials: Sequence[Trial],
    settings_of: Callable[[Trial], Mapping[str, Any]],
    wanted: Mapping[str, str],
    what: str,
    option: str,
    keys: Sequence[str] = (),
) -> list[Trial]:
    """The trials of the one setting that has the values that the user wants.

    Args:
        trials: Trials of a study; at least one.
        settings_of: The setting of a trial, by key.
        wanted: Values by key, as the user wrote them; they have to leave one setting.
        what: What has the settings: "adapters".
        option: The option of the user that needs them, for the error if several are left.
        keys: The keys that identify a single setting in messages.

    Raises:
        WhichlayersError: No setting, or several settings have these values.
    """
    settings: dict[Setting, list[Trial]] = {}
    for trial in trials:
        settings.setdefault(tuple(settings_of(trial).items()), []).append(trial)
    known = dict.fromkeys(key for found in settings for key, _ in found)
    for key in wanted:
        if key not in known:
            raise WhichlayersError(
                f"--setting {key}={wanted[key]}: choose one of the keys {join_list(known, 'or')}"
            )
    fitting = [s for s in settings if all(_matches(dict(s).get(k), v) for k, v in wanted.items())]
    asked = " ".join(f"--setting {key}={value}" for key, value in wanted.items())
    if not fitting:
        raise WhichlayersError(
            f"{asked}: the study has no such {what}; it has {'; '.join(format_settings(list(settings), keys))}"
        )
    if len(fitting) > 1:
        raise WhichlayersError(
            f"{asked or option}: the study has several settings of {what}: "
            f"{'; '.join(format_settings(fitting, keys))}. Choose one with --setting KEY=VALUE, which may be repeated"
        )
    return settings[fitting[0]]


def _matches(value: Any, text: str) -> bool:
    """Whether a setting has the value that a user wrote; modules may be given by the ends of their names."""
    if value is None:
        return False
    if isinstance(value, bool):
        return str(value).lower() == text.lower()
    if isinstance(value, int | float):
        try:
            return float(value) == float(text)
        except ValueError:
            return False
    if value == text:
        return True
    names, ends = str(value).split(","), [end.strip() for end in text.split(",")]
    by_end = [[name for name in names if name == end or name.endswith(f".{end}")] for end in ends]
    return all(by_end) and {name for found in by_end for name in found} == set(names)


def format_settings(settings: Sequence[Setting], keys: Sequence[str] = ()) -> list[str]:
    """Settings as text, by the keys in which they differ; a single one by `keys`."""
    tables = [dict(one) for one in settings]
    all_keys = dict.fromkeys(key for table in tables for key in table)
    differing = [key for key in all_keys if len({table.get(key) for table in tables}) > 1]
    return [" ".join(f"{k}={_shown(t[k])}" for k in differing or keys if k in t) for t in tables]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
