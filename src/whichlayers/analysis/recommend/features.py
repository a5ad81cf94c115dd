"""Question: which layer's frozen hidden states make the best features? Answered by `probing`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from whichlayers.analysis.recommend.base import Answer, Candidate, Question, without_baseline
from whichlayers.analysis.recommend.best_of import best_of
from whichlayers.results.frame_utils import each_group
from whichlayers.text import format_score, join_list, join_numbers


def answer(rows: pd.DataFrame, tolerance: float) -> Answer | None:
    """The layer whose linear probe scores highest, compared with the last layer."""
    depth = int(rows["depth"].iloc[0])
    by_layer = {int(layer): cell for (layer,), cell in each_group(rows, ["x"])}
    last = f"the last layer ({depth})"
    if depth not in by_layer:
        text = (
            f"No answer: there is no finished probe of {last}, so there is nothing to compare the others with. If the "
            f"study is complete, layer {depth} was not probed: add it to `layers` of the experiment, or leave `layers` "
            "out to probe all."
        )
        return without_baseline(QUESTION.key, rows, last, text)
    candidates = [
        Candidate(_name(layer), by_layer[layer], tuple(range(1, layer + 1)))
        for layer in sorted(by_layer)
        if layer < depth
    ]
    baseline = Candidate(last, by_layer[depth])
    keep = f"use the hidden states of {last}"
    verb = "As frozen features, use the hidden states of"
    layers = join_numbers(layer for layer in sorted(by_layer) if layer < depth)
    compared = f"layers {layers}" if len(candidates) > 1 else "".join(c.name for c in candidates)
    found = best_of(
        QUESTION.key, rows, candidates, baseline, tolerance, compared=compared, keep=keep, verb=verb
    )
    if found is None or not found.variant:
        return found
    return dataclasses.replace(found, text=f"{found.text} {_scores(found, [*candidates, baseline])}")


def _scores(found: Answer, candidates: Sequence[Candidate]) -> str:
    """The scores of the chosen layer and of the last one, which tell of several poolings the better one."""
    *_, baseline = candidates
    chosen = [c for c in candidates if c.trial_id == found.trial_id] if found.trial_id else []
    scores = [
        f"{format_score(float(c.scores.mean()), found.metric)} at {c.name}" for c in [*chosen, baseline]
    ]
    return f"Mean score: {join_list(scores)}."


def _name(layer: int) -> str:
    return f"layer {layer}" if layer else "the embeddings (layer 0)"


def ask(depth: int, lr: float) -> Mapping[str, Any]:
    """An experiment that probes every layer."""
    return {"kind": "probing"}


QUESTION = Question(
    key="features",
    title="Frozen features",
    text="Which layer's hidden states make the best features without finetuning?",
    goals=("features",),
    experiments=("probing",),
    answer=answer,
    ask=ask,
    chooses_best=True,
)
