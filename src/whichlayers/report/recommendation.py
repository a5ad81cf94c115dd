"""The recommendation of a study, for its report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from whichlayers.analysis.recommend import QUESTIONS, TOLERANCE, Answer, recommend
from whichlayers.analysis.recommend.costs import cost_text
from whichlayers.analysis.verdicts import NOTHING_TO_GAIN, RECOMMENDED
from whichlayers.report.tables import TextTable
from whichlayers.results.connection import DATABASE, read_snapshot
from whichlayers.results.costs import ModelCost, read_costs
from whichlayers.text import counted, format_range, format_score, short_names

MAX_ANSWERS = 12  # per question; the command lists all


@dataclass(frozen=True)
class AnswerItem:
    """One answer on the page."""

    heading: str
    verdict: str
    text: str
    summary: str  # the first sentence of the text, for the main findings
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
    answered: bool  # whether any answer is a finding; "not enough trials" and "not learned" are none


@dataclass(frozen=True)
class RecommendationSection:
    """The section of the page."""

    questions: list[AnsweredQuestion]
    unasked: list[str]  # topics of questions that the study did not ask
    tolerance: str  # in points
    chooses_best: bool  # whether the answer to some question is the best of several settings


def recommendation_section(folder: Path, points: pd.DataFrame) -> RecommendationSection | None:
    """The recommendation from finished points, at the default tolerance; None if the study answers no question."""
    result = recommend(points, unfinished=_unfinished_experiments(folder))
    if not result.answers:
        return None
    costs, names = read_costs(folder), short_names(points["model"])
    several = len({a.model_fingerprint for a in result.answers}) > 1
    questions = []
    for key, question in QUESTIONS.items():
        answers = result.of(key)
        if answers:
            variants = len({a.variant for a in answers}) > 1
            items = [
                _item(a, costs, _heading(a, names[a.model] if several else "", variants))
                for a in answers[:MAX_ANSWERS]
            ]
            omitted = len(answers) - len(items)
            answered = any(a.verdict in (RECOMMENDED, NOTHING_TO_GAIN) for a in answers)
            questions.append(AnsweredQuestion(question.title, question.text, items, omitted, answered))
    chooses_best = any(QUESTIONS[answer.question].chooses_best for answer in result.answers)
    return RecommendationSection(
        questions, [q.topic for q in result.unasked], format_score(TOLERANCE), chooses_best
    )


def _unfinished_experiments(folder: Path) -> set[str]:
    """Experiments of the study with trials that are not done."""
    query = "SELECT DISTINCT p.experiment FROM points p JOIN trials t ON t.id = p.trial_id WHERE t.status != 'done'"
    with read_snapshot(folder / DATABASE) as db:
        return {experiment for (experiment,) in db.execute(query)}


def _item(answer: Answer, costs: Sequence[ModelCost], heading: str) -> AnswerItem:
    summary = f"{answer.text.partition('. ')[0].removesuffix('.')}."
    cost, table = cost_text(answer, costs), _table(answer)
    return AnswerItem(heading, answer.verdict, answer.text, summary, cost, answer.outlook, table)


def _heading(answer: Answer, model: str, with_variant: bool) -> str:
    """Model, task, training size and settings; settings only if the answers to the question differ in them."""
    title = answer.title if with_variant else replace(answer, variant="").title
    return f"{model}, {title}" if model else title


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
