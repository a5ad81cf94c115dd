"""The recommendation of a study, for its report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from whichlayers.analysis.recommend import LOSS, QUESTIONS, Answer, recommend
from whichlayers.analysis.recommend.costs import cost_text
from whichlayers.report.tables import TextTable
from whichlayers.results.costs import ModelCost, read_costs
from whichlayers.text import counted, format_range, format_score, short_names

MAX_ANSWERS = 12  # per question; the command lists all


@dataclass(frozen=True)
class AnswerItem:
    """One answer on the page."""

    heading: str
    verdict: str
    text: str
    cost: str
    outlook: str
    compared: TextTable | None


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question with its answers."""

    title: str
    text: str
    answers: list[AnswerItem]
    omitted: int  # answers that are not listed


@dataclass(frozen=True)
class RecommendationSection:
    """The section of the page."""

    questions: list[AnsweredQuestion]
    unasked: list[str]  # topics of questions that the study did not ask
    loss: str  # in points


def recommendation_section(folder: Path, points: pd.DataFrame) -> RecommendationSection | None:
    """The recommendation from finished points, at the default loss; None if the study answers no question."""
    result = recommend(points)
    if not result.answers:
        return None
    costs, names = read_costs(folder), short_names(points["model"])
    several = len({a.model_fingerprint for a in result.answers}) > 1
    questions = []
    for key, question in QUESTIONS.items():
        answers = result.of(key)
        if answers:
            items = [_item(a, costs, names[a.model] if several else "") for a in answers[:MAX_ANSWERS]]
            omitted = len(answers) - len(items)
            questions.append(AnsweredQuestion(question.title, question.text, items, omitted))
    return RecommendationSection(questions, [q.topic for q in result.unasked], format_score(LOSS))


def _item(answer: Answer, costs: Sequence[ModelCost], model: str) -> AnswerItem:
    heading = f"{model}, {answer.title}" if model else answer.title
    return AnswerItem(
        heading, answer.verdict, answer.text, cost_text(answer, costs), answer.outlook, _table(answer)
    )


def _table(answer: Answer) -> TextTable | None:
    if not answer.compared:
        return None
    level = f"{100 * answer.compared[0].level:.4g}% interval"
    headers = {"name": "compared", "score": "score", "difference": "difference", "interval": level}
    metric = answer.metric
    rows = [
        {
            "name": c.name,
            "score": format_score(c.score, metric),
            "difference": format_score(c.difference, metric, signed=True),
            "interval": format_range(c.low, c.high, metric, signed=True),
            "trials": str(c.n),
            "result": c.result,
        }
        for c in answer.compared
    ]
    label = f"Compared with {answer.baseline} ({counted(len(rows), 'comparison')})"
    return TextTable(
        label, headers | {"trials": "trials", "result": "result"}, rows, frozenset({"name", "result"})
    )
