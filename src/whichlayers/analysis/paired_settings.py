"""The settings in which the two trials of a pair agree or differ, as columns of the points.

A condition names a setting of its adapters or of its probe only where the curves of its study differ in it, so the same
trial may be "everywhere" in one study and "everywhere, LoRA" in another. Here such settings are taken from the trials,
and conditions are without them: what else a study contains does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from whichlayers.conditions import own_lr, without_lr
from whichlayers.experiments.adapt import METHOD_NAMES
from whichlayers.results.frame_utils import each_row
from whichlayers.results.frames import REINIT_COLUMNS, setting_label, training_settings
from whichlayers.text import short_names

TRAINING = "training "  # prefix of the columns that hold training settings
ADAPTER = "adapter "  # of those that hold settings of adapters
PROBE = "probe "  # of those that hold settings of linear probes
PREFIXES = (TRAINING, ADAPTER, PROBE)
TARGETS = f"{ADAPTER}targets"
MAX_LENGTH = f"{TRAINING}max_length"  # the only training setting that probes use
BLOCK, PEFT_LR = "block", "peft_lr"
PLAIN = ("model", *REINIT_COLUMNS, "head", BLOCK, PEFT_LR)
TIED_TO_SIZE = (f"{TRAINING}epochs",)  # varies with the training size, which names a curve already
NOT_USED = ""  # value of a setting in trials that do not have it

SettingDifference = tuple[str, str, str]  # name of a setting, its value in A, its value in B


def with_setting_columns(
    frames: Sequence[pd.DataFrame], probes: Sequence[pd.DataFrame]
) -> list[pd.DataFrame]:
    """The finished points of two studies with one column per setting, and with conditions that name none.

    Args:
        frames: The points, as from `finished`.
        probes: The settings of the linear probes of each study, as from `load_probe_settings`.
    """
    named = {
        (row.experiment, without_lr(row.condition).partition(", ")[0])
        for frame in frames
        for row in each_row(frame[["experiment", "condition"]].drop_duplicates())
        if own_lr(row.condition) is not None
    }
    return [_with_columns(frame, settings, named) for frame, settings in zip(frames, probes, strict=True)]


def _with_columns(
    points: pd.DataFrame, probes: pd.DataFrame, with_own_lr: set[tuple[str, str]]
) -> pd.DataFrame:
    points = points.reset_index(drop=True)
    training = training_settings(points).map(str).add_prefix(TRAINING)
    adapters = [json.loads(text) if isinstance(text, str) else {} for text in points["adapter"]]
    conditions, blocks, lrs = [], [], []
    for row, adapter, lr in zip(each_row(points), adapters, training[f"{TRAINING}lr"], strict=True):
        condition = without_lr(row.condition)
        block: int | str = NOT_USED
        if adapter:
            condition = condition.partition(", ")[0]
            block = len(adapter["layers"]) if condition == "blocks" else NOT_USED
        elif row.experiment == "localized" and condition.startswith("block "):
            condition = condition.partition(", of ")[0]
            changed = len(row.reinit)
            block = changed if condition == "block reinitialized" else row.depth - changed
        own = (row.experiment, condition) in with_own_lr or own_lr(row.condition) is not None
        conditions.append(condition)
        blocks.append(str(block))
        lrs.append(str(own_lr(row.condition) or float(lr)) if own else NOT_USED)
    of_adapters = pd.DataFrame(
        {
            f"{ADAPTER}{name}": [_adapter_value(adapter, name) for adapter in adapters]
            for name in ("method", "rank", "targets", "alpha", "dropout")
        }
    )
    of_probes = points[["trial_id"]].merge(probes, on="trial_id", how="left").drop(columns="trial_id")
    of_probes = of_probes.map(lambda value: NOT_USED if pd.isna(value) else str(value)).add_prefix(PROBE)
    points = points.assign(condition=conditions, **{BLOCK: blocks, PEFT_LR: lrs})
    return pd.concat([points, training, of_adapters, of_probes], axis=1)


def _adapter_value(adapter: dict[str, Any], name: str) -> str:
    value = adapter.get(name, NOT_USED)
    if name == "method":
        return METHOD_NAMES.get(value, NOT_USED)
    return ", ".join(value) if isinstance(value, list) else str(value)


def split_settings(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], list[SettingDifference]]:
    """The columns in which pairs must agree, and the settings with one value each that differ between studies."""
    matched: list[str] = []
    differing: list[SettingDifference] = []
    prefixed = [str(name) for name in a if str(name).startswith(PREFIXES) and name in b]
    for name in [*PLAIN, *prefixed]:
        one, other = (list(dict.fromkeys(effective_values(frame, name))) for frame in (a, b))
        if max(len(one), len(other)) > 1:
            matched.append(name)
        elif one and other and one != other:
            differing.append((setting_name(name), _value_text(name, one[0]), _value_text(name, other[0])))
    return matched, differing


def effective_values(frame: pd.DataFrame, name: str) -> pd.Series:
    """Values of a setting where it has an effect.

    Those of re-initialization have one in models with such layers, those of training in models that were finetuned,
    those of adapters and probes in trials that have them.
    """
    rows = frame[~frame["untouched"]] if name in REINIT_COLUMNS else frame
    if name == "head" or name.startswith(TRAINING):
        rows = rows[rows["train_size"] > 0]
        rows = rows if name == MAX_LENGTH else rows[rows["kind"] != "probe"]
    values = rows[name]
    return (
        values[values != NOT_USED]
        if name in (BLOCK, PEFT_LR) or name.startswith((ADAPTER, PROBE))
        else values
    )


def setting_name(column: str) -> str:
    """The name of the setting in a column: "lr", "adapter rank", "probe lr"."""
    return column.removeprefix(TRAINING).replace("_", " ")


def setting_labels(pairs: pd.DataFrame, matched: Sequence[str]) -> list[str]:
    """One label per row, of the settings that distinguish curves of the same experiment, task and size."""
    varying = [name for name in matched if len({*pairs[name]} - {NOT_USED}) > 1 and name not in TIED_TO_SIZE]
    if not varying:
        return [""] * len(pairs)
    if "model" in varying:
        pairs = pairs.assign(model=pairs["model"].map(short_names(pairs["model"])))
    if TARGETS in varying:
        pairs = pairs.assign(**{TARGETS: pairs[TARGETS].map(_short_targets(pairs[TARGETS]))})
    return [
        ", ".join(
            _setting_text(name, value)
            for name, value in zip(varying, row, strict=True)
            if not (isinstance(value, str) and value == NOT_USED)
        )
        for row in each_row(pairs[varying])
    ]


def _short_targets(targets: pd.Series) -> dict[str, str]:
    """ "attention.self.query, attention.self.value" -> "query + value", where that tells the lists apart."""
    full = {text: text.replace(", ", " + ") for text in targets}
    short = {
        text: " + ".join(dict.fromkeys(name.rpartition(".")[2] for name in text.split(", "))) for text in full
    }
    return short if len(set(short.values())) == len(short) else full


def _value_text(name: str, value: Any) -> str:
    as_is = name not in (*REINIT_COLUMNS,) or name == "recipe"
    return str(value) if as_is else setting_label(name, value)


def _setting_text(name: str, value: Any) -> str:
    """A setting in the label of a curve: "lr 0.001", "rank 8", "LoRA", "pooling mean"."""
    if name in ("model", "head", "recipe", TARGETS, f"{ADAPTER}method"):
        return str(value)
    if name == BLOCK:
        return f"blocks of {value}"
    if name in REINIT_COLUMNS:
        return setting_label(name, value)
    if name == f"{PROBE}standardize":
        return "standardized" if value == "True" else "not standardized"
    name = name if name == f"{PROBE}lr" else name.removeprefix(ADAPTER).removeprefix(PROBE)
    return f"{setting_name(name)} {value}"
