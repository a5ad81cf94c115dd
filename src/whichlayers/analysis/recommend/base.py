"""What a recommendation consists of: questions, their answers, and what was compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from whichlayers.analysis.intervals import SIGNIFICANT, Interval, welch_difference
from whichlayers.analysis.power import minutes_per_added_trial
from whichlayers.analysis.verdicts import NOT_ENOUGH_TRIALS, RECOMMENDED, AnswerVerdict, ComparisonResult
from whichlayers.catalog import METRICS
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import CURVE
from whichlayers.text import (
    consecutive,
    counted,
    format_duration,
    format_range,
    format_score,
    in_points,
    join_list,
)
from whichlayers.trial import ALL_PRETRAINED

Goal = Literal["size", "speed", "accuracy", "features"]
GOALS: tuple[Goal, ...] = get_args(Goal)


@dataclass(frozen=True)
class Candidate:
    """A model variant of an experiment, with its scores by seed."""

    name: str  # what it is, such as "layers 1 to 8 (top 4 dropped)"
    rows: pd.DataFrame  # its finished points: one per seed, with value, seconds and trial_id
    layers: tuple[int, ...] | None = None  # the pretrained layers it keeps, in order; None: all
    steps: int = 0  # how far it is from the baseline: layers dropped, frozen, without adapters, ...

    @property
    def scores(self) -> pd.Series:
        """Scores by seed."""
        return self.rows.set_index("seed")["value"]

    @property
    def trial_id(self) -> str:
        """A trial of this variant: that with the lowest seed."""
        return str(self.rows.sort_values("seed")["trial_id"].iloc[0])

    def differences(self, baseline: Candidate) -> np.ndarray:
        """(n,) scores minus those of the baseline, over the seeds that both have, in the order of the seeds."""
        mine, other = self.scores, baseline.scores
        seeds = sorted(mine.index.intersection(other.index))
        return mine.loc[seeds].to_numpy(float) - other.loc[seeds].to_numpy(float)


@dataclass(frozen=True)
class Comparison:
    """One row of what was compared: a candidate and its difference from the baseline."""

    name: str
    score: float  # mean over its trials
    difference: float  # mean over paired trials
    low: float
    high: float
    level: float  # of the interval
    n: int
    result: ComparisonResult
    trial_id: str = ""  # a trial of the candidate


@dataclass(frozen=True)
class Answer:
    """The answer to one question, for one model, task and training size.

    `difference`, `low` and `high` compare the recommended variant with `baseline`; they are NaN if nothing is
    recommended. `more_trials` and `minutes` say what it takes to decide, if that can be estimated.
    """

    question: str  # key of the question
    verdict: AnswerVerdict
    text: str  # the answer in a few sentences
    model: str
    model_fingerprint: str
    task: str
    train_size: int
    variant: str  # settings that distinguish this curve from others; "" if there is one
    metric: str
    baseline: str
    depth: int
    choice: str = ""  # the recommended variant in words; "" if none is
    layers: tuple[int, ...] | None = None  # the pretrained layers that it keeps; None: all
    trial_id: str | None = None  # a trial of the recommended variant
    baseline_trial_id: str | None = None
    score: float = float("nan")
    difference: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    level: float = float("nan")
    n: int = 0
    more_trials: int | None = None
    minutes: float | None = None
    outlook: str = ""  # what it would take to go further than recommended, as a sentence
    compared: tuple[Comparison, ...] = ()
    savings: Mapping[str, float] = field(default_factory=dict)  # "seconds per trial", ...: fraction saved

    @property
    def title(self) -> str:
        """Task, training size and settings, for a heading."""
        parts = (self.task, counted(self.train_size, "example"), self.variant)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Question:
    """A question that a study can answer. Each has its own file in this package.

    Args:
        key: Identifies it.
        title: As a heading.
        text: The question.
        goals: The goals (`--for`) that it serves.
        experiments: Names of the experiments whose results answer it.
        answer: From the finished points of one curve of such an experiment and the tolerance; None if the curve
            says nothing about the question.
        ask: The experiment of a study file that asks the question, for models of this depth and this learning rate of
            finetuning.
        chooses_best: Whether the answer is the best of several settings, so that its gain has to be corrected for the
            choice.
    """

    key: str
    title: str
    text: str
    goals: tuple[Goal, ...]
    experiments: tuple[str, ...]
    answer: Callable[[pd.DataFrame, float], Answer | None]
    ask: Callable[[int, float], Mapping[str, Any]]
    chooses_best: bool = False

    @property
    def topic(self) -> str:
        """The title within a sentence: "layers with adapters"."""
        return self.title[:1].lower() + self.title[1:]

    def answers(self, points: pd.DataFrame, tolerance: float) -> Iterator[tuple[Answer, pd.DataFrame]]:
        """Answers from the finished points of a study, each with the points of its curve: one per model, task, training
        size and variant."""
        for _, rows in each_group(points[points["experiment"].isin(self.experiments)], CURVE):
            found = self.answer(rows, tolerance)
            if found is not None:
                yield found, rows


def subject(rows: pd.DataFrame) -> dict[str, Any]:
    """The fields of an answer that say what it is about, from the points of one curve."""
    first = rows.iloc[0]
    names = ("model", "model_fingerprint", "task", "variant", "metric")
    numbers = {"train_size": int(first["train_size"]), "depth": int(first["depth"])}
    return {name: str(first[name]) for name in names} | numbers


def baseline_of(rows: pd.DataFrame) -> Candidate | None:
    """The model with all layers pretrained, of the same curve; None if no trial of it has finished."""
    found = rows[rows["condition"] == ALL_PRETRAINED]
    return None if found.empty else Candidate(f"all {int(rows['depth'].iloc[0])} layers", found)


def without_baseline(question: str, rows: pd.DataFrame, baseline: str, text: str) -> Answer:
    """The answer that there is nothing to compare with.

    Args:
        question: Key of the question.
        rows: Finished points of the curve.
        baseline: What the others would be compared with.
        text: Why there is no answer, and what to do.
    """
    about = subject(rows) | {"question": question, "baseline": baseline}
    return Answer(**about, verdict=NOT_ENOUGH_TRIALS, text=text)


def score_matrix(candidates: Sequence[Candidate], baseline: Candidate) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the candidates (n, m) and of the baseline (n,) over the n seeds that all of them have."""
    table = pd.concat([c.scores for c in (baseline, *candidates)], axis=1, join="inner").sort_index()
    values = table.to_numpy(float)
    return values[:, 1:], values[:, 0]


def recommended(
    about: Mapping[str, Any],
    chosen: Candidate,
    baseline: Candidate,
    interval: Interval,
    level: float,
    text: str,
    **more: Any,
) -> Answer:
    """The answer that recommends a candidate.

    Args:
        about: What the answer is about, as from `subject`, with its question and what was compared.
        chosen: The recommended variant.
        baseline: What it is compared with.
        interval: Of the difference between the two.
        level: Of the interval.
        text: The answer in a few sentences.
        more: Further fields of the answer.
    """
    return Answer(
        **about,
        verdict=RECOMMENDED,
        text=text,
        choice=chosen.name,
        layers=chosen.layers,
        trial_id=chosen.trial_id,
        score=float(chosen.scores.mean()),
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        level=level,
        n=interval.n,
        savings=training_savings(chosen, baseline),
        **more,
    )


def suggested_peft_lr(lr: float) -> float:
    """A learning rate for adapters, biases, norms or the head alone: 20 times that of finetuning, to one digit."""
    return float(f"{20 * lr:.0e}")


def minutes_for(rows: pd.DataFrame, trials: int) -> float:
    """Minutes that so many more trials of every point of these rows take, from the times of the finished ones."""
    return trials * minutes_per_added_trial(rows)


def training_savings(candidate: Candidate, baseline: Candidate) -> dict[str, float]:
    """The fractions of training time, memory and trained parameters that a variant saves, as `Answer.savings`.

    Times vary with the load of the machine: they are left out if the difference is not significant (Welch's t test of
    the logarithms, a value per stack, whose trials are timed together). What is not known, or differs by less than 1%,
    is left out as well.
    """
    found = {}
    mine, other = (stack_times(c.rows) for c in (candidate, baseline))
    if (mine > 0).all() and (other > 0).all():
        ratio = welch_difference(np.log(mine), np.log(other))
        if ratio is not None and ratio.p < SIGNIFICANT:
            found["training time"] = 1 - math.exp(ratio.mean)
    for column, name in {"memory": "training memory", "trained_parameters": "trained parameters"}.items():
        if column in candidate.rows and column in baseline.rows:
            own, full = (float(pd.to_numeric(c.rows[column]).mean()) for c in (candidate, baseline))
            if own > 0 and full > 0:  # False for NaN
                found[name] = 1 - own / full
    return {name: fraction for name, fraction in found.items() if abs(fraction) >= 0.01}


def stack_times(rows: pd.DataFrame) -> np.ndarray:
    """(number of stacks,) mean seconds of the trials in each stack; empty if the rows do not say what was stacked."""
    if "stack" not in rows:
        return np.empty(0)
    return rows.groupby("stack")["seconds"].mean().to_numpy(float)


def points_of(metric: str) -> str:
    """The unit of differences: "points of accuracy"."""
    name = METRICS[metric].display_name if metric in METRICS else metric
    return f"points of {name}" if in_points(metric) else name


def describe_interval(mean: float, low: float, high: float, level: float, n: int, metric: str) -> str:
    """ "−0.3 points of accuracy (90% interval −0.9 to +0.3, 10 trials)" """
    interval = f"{level:.4g}% interval {format_range(low, high, metric, signed=True)}"
    return (
        f"{format_score(mean, metric, signed=True)} {points_of(metric)} ({interval}, {counted(n, 'trial')})"
    )


def describe_layers(layers: Sequence[int]) -> str:
    """(1, 2, 3, 5) -> "layers 1-3 and 5" """
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in consecutive(layers)]
    return f"{'layer' if len(layers) == 1 else 'layers'} {join_list(parts)}"


def more_trials_text(more: int | None, minutes: float | None) -> str:
    """What it takes to decide: "12 more trials of the compared points, about 34 min 10 s of one worker"."""
    if more is None:
        return "the number of trials it would take cannot be estimated, or is more than 1,000"
    seconds = 60 * (minutes or 0)
    about = "less than a minute" if seconds < 60 else f"about {format_duration(seconds)}"
    return f"{counted(more, 'more trial')} of the compared points, {about} of one worker"
