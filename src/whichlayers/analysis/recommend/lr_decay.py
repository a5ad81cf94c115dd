"""Question: which layer-wise learning rate decay? Answered by `lr_decay`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from whichlayers.analysis.recommend.base import Answer, Candidate, Question, baseline_of
from whichlayers.analysis.recommend.best_of import best_of
from whichlayers.results.frame_utils import each_group
from whichlayers.text import join_list
from whichlayers.trial import ALL_PRETRAINED


def answer(rows: pd.DataFrame, tolerance: float) -> Answer | None:
    """The decay factor with the highest score, compared with one learning rate for all layers."""
    baseline = baseline_of(rows)
    if baseline is None:
        return None
    cells = each_group(rows[rows["condition"] != ALL_PRETRAINED], ["condition", "x"])
    candidates = [
        Candidate(_name(condition, x), cell) for (condition, x), cell in cells if condition or x != 1
    ]
    return best_of(
        QUESTION.key,
        rows,
        candidates,
        Candidate("one learning rate for all layers", baseline.rows),
        tolerance,
        compared=join_list(c.name for c in candidates),
        keep="use one learning rate for all layers",
    )


def _name(condition: str, factor: float) -> str:
    """ "a decay of 0.9", also with re-initialized layers"""
    reinit = f" with the {condition.replace('reinitialized', 're-initialized')}" if condition else ""
    return f"a decay of {factor:g}{reinit}"


def ask(depth: int, lr: float) -> Mapping[str, Any]:
    """An experiment with the default decay factors."""
    return {"kind": "lr_decay"}


QUESTION = Question(
    key="lr_decay",
    title="Learning rate decay",
    text="Does a smaller learning rate in lower layers help, and how much smaller?",
    goals=("accuracy",),
    experiments=("lr_decay",),
    answer=answer,
    ask=ask,
    chooses_best=True,
)
