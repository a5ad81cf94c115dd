"""Adapters that a user describes: the layers that have them, and one of the settings that the study trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from whichlayers.deploy.settings import trials_with_setting
from whichlayers.errors import WhichlayersError
from whichlayers.trial import Adapter, Training, Trial

TRAINING_KEYS = (
    *("lr", "epochs", "batch_size", "weight_decay", "warmup", "schedule", "clip_norm", "max_length"),
)
SHOWN_KEYS = ("method", "rank", "alpha", "targets", "lr")  # of a single setting, in messages


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
    found = trials_with_setting(adapted, settings_of, wanted, "adapters", "--adapters", SHOWN_KEYS)
    return max(found, key=lambda t: (t.train_size, t.training == usual))
