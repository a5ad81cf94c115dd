"""Adapters that a user describes: the layers that have them, and one of the settings that the study trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from whichlayers.errors import WhichlayersError
from whichlayers.text import join_list
from whichlayers.trial import Adapter, Training, Trial

TRAINING_KEYS = (
    *("lr", "epochs", "batch_size", "weight_decay", "warmup", "schedule", "clip_norm", "max_length"),
)


def parse_adapter_layers(text: str, depth: int) -> tuple[int, ...] | None:
    """The layers that "everywhere", "first:K" or "last:K" names in a model of `depth` layers; None for other texts."""
    if text == "everywhere":
        return tuple(range(1, depth + 1))
    match = re.fullmatch(r"(first|last):(\d+)", text)
    if match is None:
        return None
    k = int(match[2])
    if not 1 <= k <= depth:
        raise WhichlayersError(
            f"--adapters {text}: the model has {depth} layers; give {match[1]}:1 to {match[1]}:{depth}"
        )
    return tuple(range(1, k + 1)) if match[1] == "first" else tuple(range(depth - k + 1, depth + 1))


def adapter_words(adapter: Adapter) -> str:
    """ "LoRA of rank 8", "IA3" """
    return f"LoRA of rank {adapter.rank}" if adapter.method == "lora" else "IA3"


def settings_of(trial: Trial) -> dict[str, Any]:
    """What the adapters of a trial are and how they are trained, apart from their layers, by key."""
    adapter = trial.adapter
    assert adapter is not None
    found: dict[str, Any] = {"method": adapter.method}
    if adapter.method == "lora":
        found |= {"rank": adapter.rank, "alpha": adapter.alpha, "dropout": adapter.dropout}
    found["targets"] = ",".join(adapter.targets)
    return found | {key: getattr(trial.training, key) for key in TRAINING_KEYS}


def trial_with_setting(done: Sequence[Trial], wanted: Mapping[str, str], usual: Training) -> Trial:
    """A finished trial with adapters of the setting that the user wants, with the largest training size.

    Args:
        done: The finished trials of one model and task.
        wanted: Values by key, as in `settings_of`; they have to leave one setting of the study.
        usual: The training settings of the study; of trials that are otherwise alike, those that have them are taken.

    Raises:
        WhichlayersError: No setting, or several settings have these values.
    """
    adapted = [t for t in done if t.kind == "finetune" and t.adapter is not None]
    if not adapted:
        raise WhichlayersError(
            '--adapters: the study has no finished trial with adapters; add an experiment of kind "adapt" and run it'
        )
    settings: dict[tuple[tuple[str, Any], ...], list[Trial]] = {}
    for trial in adapted:
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
        raise WhichlayersError(f"{asked}: the study has no such adapters; it has {_listed(list(settings))}")
    if len(fitting) > 1:
        raise WhichlayersError(
            f"{asked or '--adapters'}: the study has several settings of adapters: {_listed(fitting)}. Choose one with "
            "--setting KEY=VALUE, which may be repeated"
        )
    return max(settings[fitting[0]], key=lambda t: (t.train_size, t.training == usual))


def _matches(value: Any, text: str) -> bool:
    """Whether a setting has the value that a user wrote; modules may be given by the ends of their names."""
    if value is None:
        return False
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


def _listed(settings: Sequence[tuple[tuple[str, Any], ...]]) -> str:
    """Settings by the keys in which they differ; a single one by all keys of its adapter and its learning rate."""
    tables = [dict(one) for one in settings]
    keys = [
        key for key in dict.fromkeys(k for t in tables for k in t) if len({t.get(key) for t in tables}) > 1
    ]
    keys = keys or ["method", "rank", "alpha", "targets", "lr"]
    return "; ".join(" ".join(f"{k}={_shown(t[k])}" for k in keys if k in t) for t in tables)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
