"""Question: how many top layers to re-initialize before finetuning? Answered by `incremental`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from whichlayers.analysis.recommend.base import Answer, Candidate, Question, without_baseline
from whichlayers.analysis.recommend.best_of import best_of
from whichlayers.results.frame_utils import each_group
from whichlayers.text import join_numbers, outer_layers


def answer(rows: pd.DataFrame, tolerance: float) -> Answer | None:
    """The number of re-initialized top layers with the highest score, compared with none."""
    depth = int(rows["depth"].iloc[0])
    by_kept = {int(k): cell for (k,), cell in each_group(rows, ["x"])}
    full = f"all {depth} layers pretrained"
    if depth not in by_kept:
        text = (
            f"No answer: there is no finished trial with {full}, so there is nothing to compare the others with. If "
            'the study is complete, add "depth" to `keep` of the experiment.'
        )
        return without_baseline(QUESTION.key, rows, full, text)
    candidates = [
        Candidate(f"{outer_layers('top', depth - k)} re-initialized", by_kept[k])
        for k in sorted(by_kept, reverse=True)
        if k < depth
    ]
    baseline = Candidate(full, by_kept[depth])
    counts = [depth - k for k in sorted(by_kept, reverse=True) if k < depth]
    several = f"the top {join_numbers(counts)} layers"
    return best_of(
        QUESTION.key,
        rows,
        candidates,
        baseline,
        tolerance,
        compared=f"{outer_layers('top', counts[0]) if len(counts) == 1 else several} re-initialized",
        keep="keep the pretrained weights of all layers",
        verb="Finetune with",
    )


def ask(depth: int, lr: float) -> Mapping[str, Any]:
    """An experiment that keeps k layers for every k."""
    return {"kind": "incremental"}


QUESTION = Question(
    key="reinit",
    title="Layers to re-initialize",
    text="Does it help to re-initialize the top layers, and how many?",
    goals=("accuracy",),
    experiments=("incremental",),
    answer=answer,
    ask=ask,
    chooses_best=True,
)
