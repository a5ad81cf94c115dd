"""Recommendations from the results of a study: what to do, how sure that is, and what to run next.

    recommendation = recommend(finished(load_points(folder)), tolerance=0.01)
    for answer in recommendation.answers:
        print(answer.title, answer.text)

`QUESTIONS` lists the questions, each of which has its own file here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from whichlayers.analysis.guessing import compare_with_guessing
from whichlayers.analysis.recommend import (
    adapters,
    features,
    few_parameters,
    freeze,
    lr_decay,
    reinit,
    smallest,
)
from whichlayers.analysis.recommend.base import (
    GOALS,
    Answer,
    Comparison,
    Goal,
    Question,
)
from whichlayers.analysis.recommend.learned import if_learned
from whichlayers.analysis.verdicts import RECOMMENDED
from whichlayers.errors import WhichlayersError

__all__ = ["GOALS", "QUESTIONS", "Answer", "Comparison", "Goal", "Question", "Recommendation", "recommend"]

QUESTIONS: dict[str, Question] = {
    question.key: question
    for question in (
        smallest.QUESTION,
        reinit.QUESTION,
        lr_decay.QUESTION,
        freeze.QUESTION,
        few_parameters.QUESTION,
        adapters.COUNT,
        adapters.PLACE,
        features.QUESTION,
    )
}
TOLERANCE = 0.01  # default, in units of the metric


@dataclass(frozen=True)
class Recommendation:
    """The answers that a study gives, and the questions that it did not ask."""

    tolerance: float
    goal: Goal | None
    answers: tuple[Answer, ...]
    unasked: tuple[Question, ...]

    def of(self, question: str) -> list[Answer]:
        """The answers to a question, by its key."""
        return [answer for answer in self.answers if answer.question == question]

    def best(self, answers: Sequence[Answer]) -> Answer | None:
        """The answer to follow if only one can be: that of the first question with a recommendation.

        For accuracy, the one with the highest lower bound of its gain. None if nothing is recommended.
        """
        found = [a for a in answers if a.verdict == RECOMMENDED]
        if self.goal is None:
            found = [a for a in found if QUESTIONS[a.question].goals != ("features",)]
        if self.goal == "accuracy":
            return max(found, key=lambda a: a.low, default=None)
        return next(iter(found), None)

    def to_dict(self) -> dict[str, Any]:
        """The recommendation as JSON-serializable values; NaN becomes None."""
        answers = [
            {"title": QUESTIONS[a.question].title} | _plain(dataclasses.asdict(a)) for a in self.answers
        ]
        unasked = [{"question": q.key, "title": q.title, "text": q.text} for q in self.unasked]
        return {"tolerance": self.tolerance, "for": self.goal, "answers": answers, "not_asked": unasked}


def recommend(
    points: pd.DataFrame,
    tolerance: float = TOLERANCE,
    goal: Goal | None = None,
    unfinished: Collection[str] = (),
) -> Recommendation:
    """Answer the questions of `QUESTIONS` as far as the results do.

    Args:
        points: Finished points, as from `finished(load_points(folder))`.
        tolerance: The largest drop of the score that is accepted, and the smallest gain that matters, in units of the
            metric.
        goal: Only answer questions that serve this goal; None: all questions.
        unfinished: Experiments of the study with trials that have not finished: their questions are asked, even if
            there is no answer yet.
    """
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise WhichlayersError(
            f"tolerance = {tolerance}: must be above 0, in units of the metric (0.01 is one point)"
        )
    if tolerance >= 1:
        raise WhichlayersError(
            f"tolerance = {tolerance:g}: that is {100 * tolerance:g} points, more than any score can drop; give it in"
            f" units of the metric, {tolerance / 100:g} for {tolerance:g} points"
        )
    if goal is not None and goal not in GOALS:
        raise WhichlayersError(f"for = {goal!r}: choose one of {', '.join(GOALS)}")
    questions = [q for q in QUESTIONS.values() if goal is None or goal in q.goals]
    compared = {one.setting: one for one in compare_with_guessing(points)}
    answers = tuple(
        if_learned(answer, rows, compared, best_place=answer.question == adapters.PLACE.key)
        for question in questions
        for answer, rows in question.answers(points, tolerance)
    )
    answered = {a.question for a in answers}
    asked = set(unfinished)
    unasked = tuple(q for q in questions if q.key not in answered and asked.isdisjoint(q.experiments))
    return Recommendation(tolerance, goal, answers, unasked)


def _plain(value: Any) -> Any:
    """NaN as None, in nested dictionaries and lists."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value
