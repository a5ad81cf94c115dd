"""Question: which layers can stay frozen? Answered by `freeze`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from whichlayers.analysis.recommend.base import Answer, Candidate, Question, baseline_of, describe_layers
from whichlayers.analysis.recommend.within_tolerance import last_within_tolerance
from whichlayers.results.frame_utils import each_group
from whichlayers.text import join_list

SERIES = ("top", "bottom")  # conditions: what is trained; for the others, see few_parameters


def answer(rows: pd.DataFrame, tolerance: float) -> Answer | None:
    """The most layers that can be frozen within `tolerance` of finetuning all of them."""
    baseline, depth = baseline_of(rows), int(rows["depth"].iloc[0])
    if baseline is None:
        return None
    series = []
    for condition in SERIES:
        cells = {int(k): cell for (k,), cell in each_group(rows[rows["condition"] == condition], ["x"]) if k}
        one = [Candidate(_name(condition, k, depth), cells[k], steps=k) for k in sorted(cells)]
        if one:
            series.append(one)
    counts = "; ".join(join_list(c.steps for c in one) for one in series)
    several = f"{len(series)} series (layers frozen: {counts})"
    return last_within_tolerance(
        QUESTION.key,
        rows,
        series,
        baseline,
        tolerance,
        compared=f"{counts} frozen layers" if len(series) == 1 else several,
        keep="train all layers",
        alternative="partly frozen model",
    )


def _name(condition: str, k: int, depth: int) -> str:
    if condition == "top":
        return f"{describe_layers(range(1, k + 1))} and the embeddings frozen"
    return f"{describe_layers(range(depth - k + 1, depth + 1))} frozen"


def ask(depth: int, lr: float) -> Mapping[str, Any]:
    """An experiment that freezes the lowest k layers for every k."""
    return {"kind": "freeze", "train": ["top"]}


QUESTION = Question(
    key="freeze",
    title="Layers to freeze",
    text="How many layers can stay frozen with a score within the tolerance?",
    goals=("speed",),
    experiments=("freeze",),
    answer=answer,
    ask=ask,
)
