"""Question: what is the smallest model within the tolerance? Answered by `prune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from whichlayers.analysis.recommend.base import Answer, Candidate, Question, baseline_of, describe_layers
from whichlayers.analysis.recommend.within_tolerance import last_within_tolerance
from whichlayers.results.frame_utils import each_group
from whichlayers.text import join_list
from whichlayers.trial import ALL_PRETRAINED


def answer(rows: pd.DataFrame, tolerance: float) -> Answer | None:
    """The fewest layers that are shown to be within `tolerance` of all layers."""
    baseline, depth = baseline_of(rows), int(rows["depth"].iloc[0])
    candidates = []
    for _, cell in each_group(rows[rows["condition"] != ALL_PRETRAINED], ["condition", "x"]):
        layers = tuple(cell["order"].iloc[0])
        if layers and len(layers) < depth:
            name = f"{describe_layers(layers)} of {depth}"
            candidates.append(Candidate(name, cell, layers, depth - len(layers)))
    if baseline is None:
        return None
    series = nested_series(candidates, depth)
    dropped = "; ".join(join_list(c.steps for c in one) for one in series)
    several = f"{len(series)} series of models (layers dropped: {dropped})"
    return last_within_tolerance(
        QUESTION.key,
        rows,
        series,
        baseline,
        tolerance,
        compared=f"models without {dropped} layers" if len(series) == 1 else several,
        keep=f"keep {baseline.name}",
        alternative="smaller model",
    )


def nested_series(candidates: Sequence[Candidate], depth: int) -> list[list[Candidate]]:
    """Candidates as series in which each drops the layers of the one before and more, the deepest first.

    Models without their top layers are one series, those without their bottom layers another. Other sets of dropped
    layers are appended to the first series they fit. The result depends on the layers alone, never on scores.
    """

    def dropped(c: Candidate) -> frozenset[int]:
        return frozenset(range(1, depth + 1)) - frozenset(c.layers or ())

    def place(c: Candidate) -> tuple[int, int, tuple[int, ...]]:
        kept = c.layers or ()
        is_contiguous = kept[-1] - kept[0] == len(kept) - 1
        kind = 2 if not is_contiguous else 0 if kept[0] == 1 else 1 if kept[-1] == depth else 2
        return kind, len(dropped(c)), tuple(sorted(dropped(c)))

    series: list[list[Candidate]] = []
    # the same model may be listed under two conditions
    unique = {dropped(c): c for c in reversed(candidates)}
    for candidate in sorted(unique.values(), key=place):
        for one in series:
            if dropped(one[-1]) < dropped(candidate):
                one.append(candidate)
                break
        else:
            series.append([candidate])
    return series


def ask(depth: int, lr: float) -> Mapping[str, Any]:
    """An experiment that drops 1 to depth - 1 top layers."""
    return {"kind": "prune", "top": list(range(1, depth))}


QUESTION = Question(
    key="smallest",
    title="Smallest model",
    text="What is the smallest model whose score is within the tolerance?",
    goals=("size", "speed"),
    experiments=("prune",),
    answer=answer,
    ask=ask,
)
