"""Questions: how many layers need LoRA, and which single layer or block is best for it? Answered by `adapt`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd

from whichlayers.analysis.recommend.base import (
    Answer,
    Candidate,
    Question,
    baseline_of,
    describe_layers,
    suggested_peft_lr,
    without_baseline,
)
from whichlayers.analysis.recommend.best_of import best_of
from whichlayers.analysis.recommend.within_tolerance import last_within_tolerance
from whichlayers.results.frame_utils import each_group
from whichlayers.text import join_list
from whichlayers.trial import ALL_PRETRAINED

MAX_LISTED = 8
MEAN_OF_PLACES = "the mean of these places"


def answer_count(rows: pd.DataFrame, tolerance: float) -> Answer | None:
    """The fewest layers with adapters that are within `tolerance` of finetuning the whole model."""
    baseline, depth = baseline_of(rows), int(rows["depth"].iloc[0])
    if baseline is None:
        return None
    trained = Candidate(f"finetuning all {depth} layers", baseline.rows)
    by_condition: dict[str, dict[int, pd.DataFrame]] = {}
    for (condition, x), cell in each_group(rows[rows["condition"] != ALL_PRETRAINED], ["condition", "x"]):
        by_condition.setdefault(str(condition), {})[int(x)] = cell
    everywhere = {
        condition.partition(", ")[2]: cells[depth]
        for condition, cells in by_condition.items()
        if condition.partition(", ")[0] == "everywhere" and depth in cells
    }
    series = []
    for condition, cells in by_condition.items():
        place, _, settings = condition.partition(", ")
        if place == "everywhere" and any(
            c.partition(", ")[2] == settings for c in by_condition if c != condition
        ):
            continue  # the first step of another series
        cells = ({depth: everywhere[settings]} if settings in everywhere else {}) | cells
        series.append([_candidate(place, settings, k, depth, cells[k]) for k in sorted(cells, reverse=True)])
    counts = "; ".join(join_list(depth - c.steps for c in one) for one in series)
    several = f"{len(series)} series (layers with adapters: {counts})"
    return last_within_tolerance(
        COUNT.key,
        rows,
        series,
        trained,
        tolerance,
        compared=f"adapters in {counts} layers" if len(series) == 1 else several,
        keep="finetune all layers",
        alternative="model with adapters",
        otherwise="another learning rate (`peft_lr`)",
    )


def _candidate(place: str, settings: str, k: int, depth: int, rows: pd.DataFrame) -> Candidate:
    layers = range(1, k + 1) if place == "first" else range(depth - k + 1, depth + 1)
    where = f"all {depth} layers" if k == depth else describe_layers(layers)
    return Candidate(f"adapters in {where}" + (f" ({settings})" if settings else ""), rows, steps=depth - k)


def answer_place(rows: pd.DataFrame, tolerance: float) -> Answer | None:
    """The single layer or block whose adapters score highest, compared with the mean of all of them.

    With several ranks or learning rates, places are compared with those that have the highest mean over all places: a
    place would otherwise gain by its learning rate. The difference between places does not depend on that choice.
    Blocks of several lengths are places like any other.
    """
    adapted = rows[rows["condition"] != ALL_PRETRAINED]
    by_settings = {
        s: cells for (s,), cells in each_group(adapted.assign(settings=_settings(adapted)), ["settings"])
    }
    if not by_settings:
        return None
    best = max(by_settings, key=lambda settings: by_settings[settings]["value"].mean())
    cells = list(each_group(by_settings[best], ["condition", "x"]))
    if len(cells) < 2:
        return None
    candidates = [Candidate(_place_name(str(condition), int(x)), cell) for (condition, x), cell in cells]
    everywhere = pd.concat([cell for _, cell in cells]).sort_values("seed")
    # the mean of fewer places would be that of other places
    complete = everywhere[everywhere.groupby("seed")["seed"].transform("size") == len(cells)]
    if complete.empty:
        text = "No answer: no seed has finished trials of all places, so there is no mean of them to compare with."
        return without_baseline(PLACE.key, rows, MEAN_OF_PLACES, text)
    mean = complete.groupby("seed", as_index=False).agg(
        {"value": "mean", "seconds": "mean", "trial_id": "first"}
    )
    listed = [c.name.removeprefix("adapters in ") for c in candidates]
    answer = best_of(
        PLACE.key,
        rows,
        candidates,
        Candidate(MEAN_OF_PLACES, mean),
        tolerance,
        compared=join_list(listed)
        if len(listed) <= MAX_LISTED
        else f"{len(listed)} places from {listed[0]} to {listed[-1]}",
        keep="any of these layers will do",
    )
    if answer is None or len(by_settings) == 1:
        return answer
    named = "; ".join(settings or "the experiment's learning rate" for settings in by_settings)
    note = (
        f"All places have {best or 'that learning rate'}, which has the highest mean over them of: {named}."
    )
    return dataclasses.replace(answer, text=f"{answer.text} {note}")


def _settings(rows: pd.DataFrame) -> pd.Series:
    """The settings that a condition names, apart from the place: "rank 8, lr 0.001"; empty if it names none."""
    return rows["condition"].map(lambda condition: _split_place(str(condition))[1])


def _split_place(condition: str) -> tuple[str, str]:
    """ "blocks, of 2 layers, rank 8" -> ("blocks, of 2 layers", "rank 8")"""
    place, _, settings = condition.partition(", ")
    if settings.startswith("of "):
        length, _, settings = settings.partition(", ")
        place = f"{place}, {length}"
    return place, settings


def _place_name(condition: str, first: int) -> str:
    place, settings = _split_place(condition)
    length = place.removeprefix("blocks").removeprefix(",")  # " of 2 layers", or empty
    where = f"layer {first}" if place == "single" else f"the block{length} that starts at layer {first}"
    return f"adapters in {where}" + (f" ({settings})" if settings else "")


def ask_count(depth: int, lr: float) -> Mapping[str, Any]:
    """An experiment with adapters in the last k layers, for every k up to all of them."""
    return {"kind": "adapt", "where": ["last"], "peft_lr": suggested_peft_lr(lr)}


def ask_place(depth: int, lr: float) -> Mapping[str, Any]:
    """An experiment with adapters in each single layer."""
    return {"kind": "adapt", "where": ["single"], "peft_lr": suggested_peft_lr(lr)}


COUNT = Question(
    key="adapters",
    title="Layers with adapters",
    text="Do adapters in all or in a few layers score within the tolerance of finetuning?",
    goals=("speed",),
    experiments=("adapt",),
    answer=answer_count,
    ask=ask_count,
)
PLACE = Question(
    key="adapter_place",
    title="Best layer for adapters",
    text="If one layer or one block has adapters, which one is best?",
    goals=("speed",),
    experiments=("adapt_layers",),
    answer=answer_place,
    ask=ask_place,
    chooses_best=True,
)
