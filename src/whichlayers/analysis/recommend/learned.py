"""Whether the model that an answer compares with has learned its task; otherwise there is no answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from whichlayers.analysis.guessing import NO_BETTER, GuessComparison, compare_best, settings_of
from whichlayers.analysis.intervals import LEVEL, Interval, paired_difference, t_interval
from whichlayers.analysis.recommend.base import Answer, minutes_for, more_trials_text
from whichlayers.analysis.verdicts import NOT_ENOUGH_TRIALS, NOT_LEARNED
from whichlayers.text import counted, format_range, format_score
from whichlayers.trial import ALL_PRETRAINED

RESULT_FIELDS = (
    *("choice", "layers", "trial_id", "score", "difference", "low", "high", "level", "n"),
    *("more_trials", "minutes", "outlook"),
)


def if_learned(
    answer: Answer, rows: pd.DataFrame, compared: Mapping[tuple, GuessComparison], best_place: bool
) -> Answer:
    """The answer, or that there is none: a model that learned nothing loses nothing without its layers.

    Args:
        answer: The answer of one curve.
        rows: The points of the curve.
        compared: The comparisons with guessing of the study, by setting.
        best_place: Whether the settings are compared with each other, not with a model that was finetuned as usual.
    """
    if best_place:
        places = rows[rows["condition"] != ALL_PRETRAINED]
        one = compare_best(places, "with adapters at the place that is best on other seeds")
    else:
        baseline = rows[rows["trial_id"] == answer.baseline_trial_id]
        one = None if baseline.empty else compared.get(tuple(settings_of(baseline).iloc[0]))
    if one is None or one.better:
        return answer
    blank: dict[str, Any] = {
        f.name: f.default for f in dataclasses.fields(Answer) if f.name in RESULT_FIELDS
    } | {"savings": {}}
    # of linear probes, too, the best one is compared already
    other = None if best_place or one.layer is not None else _best_other(answer, rows, one.guess)
    if other is not None:
        text = _unfair(one, baseline.iloc[0], *other)
        return dataclasses.replace(answer, verdict=NOT_LEARNED, text=text, **blank)
    if one.failed:
        text = (
            f"No answer: the model did not learn this task, so no layer can matter. It scores {one.text}. Use more "
            "examples, more epochs or another learning rate."
        )
        return dataclasses.replace(answer, verdict=NOT_LEARNED, text=text, **blank)
    more = None if one.trials_needed is None else one.trials_needed - one.interval.n
    blank |= {"more_trials": more, "minutes": None if more is None else minutes_for(rows, more)}
    text = (
        f"No answer: {one.result}. The model scores {one.text}. To decide whether it learned this task: "
        f"{more_trials_text(more, blank['minutes'])}."
    )
    return dataclasses.replace(answer, verdict=NOT_ENOUGH_TRIALS, text=text, **blank)


def _best_other(answer: Answer, rows: pd.DataFrame, guess: float) -> tuple[str, Interval, float] | None:
    """The compared setting that is better than guessing by the most, with its interval and level.

    It must be better than the baseline, too: that one of two is significant does not show that they differ. The
    intervals hold for all settings together (Bonferroni), so that one that is no better than guessing, or than the
    baseline, is found in at most 2.5% of studies.

    Returns:
        None if there is no such setting.
    """
    level = 1 - (1 - LEVEL) / max(1, len(answer.compared))
    usual, found = _scores_at(rows, answer.baseline_trial_id), []
    for one in answer.compared:
        scores = _scores_at(rows, one.trial_id)
        interval, gain = t_interval(scores, level), paired_difference(scores, usual, level)
        learned = interval.n > 1 and interval.sd > 0 and interval.low > guess
        if learned and gain is not None and gain.significant and gain.mean > 0:
            found.append((one.name, interval))
    if not found:
        return None
    name, interval = max(found, key=lambda item: item[1].low)
    return name, interval, level


def _scores_at(rows: pd.DataFrame, trial_id: str | None) -> pd.Series:
    """The scores by seed at the point of a trial."""
    condition, x = rows.loc[rows["trial_id"] == trial_id, ["condition", "x"]].iloc[0]
    return rows[(rows["condition"] == condition) & (rows["x"] == x)].set_index("seed")["value"]


def _unfair(one: GuessComparison, baseline: pd.Series, name: str, interval: Interval, level: float) -> str:
    """That another setting learned the task, so that it is the baseline that is trained badly."""
    shown = NO_BETTER if one.failed else "not shown to be better than guessing"
    lr = json.loads(str(baseline["training"])).get("lr")
    at_lr = "" if lr is None else f" at learning rate {lr:g}"
    metric = one.metric
    score = (
        f"{format_score(interval.mean, metric)} ({100 * level:.4g}% interval "
        f"{format_range(interval.low, interval.high, metric)}, {counted(interval.n, 'trial')})"
    )
    return (
        f"No answer: finetuning all parameters is {shown}{at_lr}, but the task can be learned: {name}, {score}. "
        f"Finetuning all parameters scores {one.text}. The baseline is no fair comparison: raise `epochs` or change "
        "`lr` in [training], rather than adding trials."
    )
