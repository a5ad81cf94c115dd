"""Question: is it enough to train biases, layer norms or the head alone? Answered by `freeze`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from whichlayers.analysis.recommend.base import Answer, Candidate, Question, baseline_of, suggested_peft_lr
from whichlayers.analysis.recommend.within_tolerance import last_within_tolerance
from whichlayers.results.frame_utils import each_group
from whichlayers.text import join_list

# conditions: what is trained besides the head, from the most parameters to the fewest in models with biases
NAMES = {"biases": "the biases", "norms": "the layer norms", "head": "the head"}


def answer(rows: pd.DataFrame, tolerance: float) -> Answer | None:
    """The fewest parameters to train, of biases, layer norms and the head, within `tolerance` of training all.

    Each learning rate is a series, in which fewer and fewer parameters are trained.
    """
    baseline = baseline_of(rows)
    if baseline is None:
        return None
    parts = rows["condition"].map(lambda condition: str(condition).partition(", ")[0])
    alone = rows[parts.isin(list(NAMES))]
    order = by_parameters(alone.assign(part=parts))
    by_lr: dict[str, dict[str, Candidate]] = {}
    for (condition,), cell in each_group(alone, ["condition"]):
        part, _, lr = str(condition).partition(", ")
        name = f"{NAMES[part]} alone" + (f" ({lr})" if lr else "")
        by_lr.setdefault(lr, {})[part] = Candidate(name, cell, steps=order.index(part))
    series = [[found[part] for part in order if part in found] for found in by_lr.values()]
    listed = "; ".join(
        join_list(NAMES[part] for part in order if part in found) + (f" ({lr})" if lr else "")
        for lr, found in by_lr.items()
    )
    several = f"{len(series)} series, one for each learning rate ({listed})"
    return last_within_tolerance(
        QUESTION.key,
        rows,
        series,
        baseline,
        tolerance,
        compared=f"{listed}, each trained alone" if len(series) == 1 else several,
        keep="train all parameters",
        alternative="model with few trained parameters",
        verb="Train",
        otherwise="another learning rate (`peft_lr`)",
    )


def by_parameters(alone: pd.DataFrame) -> list[str]:
    """The trained parts from the most parameters to the fewest, whatever their scores.

    Args:
        alone: Points with the column `part`; `trained_parameters` is not known in results of version 0.1.

    Returns:
        The parts in `alone`, in the order of `NAMES` where the numbers are equal or one of them is not known.
    """
    found = [part for part in NAMES if part in set(alone["part"])]
    if "trained_parameters" not in alone:
        return found
    counts = pd.to_numeric(alone["trained_parameters"]).groupby(alone["part"]).mean()
    return found if counts.isna().any() else sorted(found, key=lambda part: -counts[part])


def ask(depth: int, lr: float) -> Mapping[str, Any]:
    """An experiment that trains layer norms, biases and the head alone."""
    return {"kind": "freeze", "train": ["norms", "biases", "head"], "peft_lr": suggested_peft_lr(lr)}


QUESTION = Question(
    key="few_parameters",
    title="Biases, layer norms or head alone",
    text="Is it enough to train biases, layer norms or the head alone, with a score within the tolerance?",
    goals=("speed",),
    experiments=("freeze",),
    answer=answer,
    ask=ask,
)
