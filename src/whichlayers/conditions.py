"""Conditions, which name the curve of a point: what is changed, and the settings that tell it apart from other curves.

Parameter-efficient finetuning needs a higher learning rate than finetuning all parameters. With `peft_lr`, the
condition names it ("everywhere, lr 0.001"), so that results are told apart and still compared with the baseline, which
has the learning rate of the experiment. Other settings, such as the rank of adapters, are named where they differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_OWN_LR = re.compile(r", lr ([\d.e+-]+)$")


def with_settings(condition: str, settings: Iterable[str]) -> str:
    """The condition with the names of settings: "everywhere, IA3"; the condition may be empty."""
    return ", ".join(filter(None, [condition, *settings]))


def with_lr(condition: str, lr: float | None) -> str:
    """The condition of models trained with the learning rate `lr`; None: with that of the experiment."""
    return condition if lr is None else f"{condition}, lr {float(lr)}"


def own_lr(condition: str) -> float | None:
    """The learning rate that a condition names; None if it names none."""
    found = _OWN_LR.search(condition)
    return None if found is None else float(found[1])


def without_lr(condition: str) -> str:
    """The condition without its learning rate: the inverse of `with_lr`."""
    return _OWN_LR.sub("", condition)
