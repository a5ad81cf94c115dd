"""`whichlayers recommend`: say what to do, from the results of a study."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whichlayers.analysis.verdicts import ANSWER_VERDICTS
from whichlayers.cli.format import console, make_table, print_line
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder
from whichlayers.text import format_range, format_score

if TYPE_CHECKING:
    from whichlayers.analysis.recommend import Answer

STYLES = dict(zip(ANSWER_VERDICTS, ("green", "blue", "yellow", "red"), strict=True))


class GoalOption(StrEnum):
    """Values of --for."""

    size = "size"
    speed = "speed"
    accuracy = "accuracy"
    features = "features"


Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance",
        min=1e-6,
        help="Largest drop of the score that you accept, and smallest gain that matters, in units of the metric: 0.01"
        " is one point.",
    ),
]
For = Annotated[
    GoalOption | None,
    typer.Option("--for", help="Only answer what serves this goal. Default: all questions."),
]


def recommend(
    folder: StudyFolderPath,
    tolerance: Tolerance = 0.01,
    goal: For = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also show every comparison that was made.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Say what to do: the smallest model, the layers to re-initialize, the best features, and how sure that is."""
    from whichlayers.deploy.recommend import recommend_study

    result = recommend_study(find_folder(folder), tolerance, None if goal is None else goal.value)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
        return
    out, previous = console(), None
    if progress := result.progress():
        print_line(progress, "yellow")
    for note in result.notes:
        print_line(note, "yellow")
    for answer in result.recommendation.answers:
        if answer.question != previous:
            previous = answer.question
            question = result.question(answer)
            out.print(Text(question.title, style="bold").append(f"  {question.text}", style="dim"))
        heading = Text(result.heading(answer), style="underline").append(": ")
        out.print(Padding(heading.append(answer.verdict, style=STYLES[answer.verdict]), (0, 0, 0, 2)))
        for paragraph in result.paragraphs(answer):
            out.print(Padding(Text(paragraph), (0, 0, 0, 4)))
        if details and answer.compared:
            out.print(Padding(_comparison_table(answer), (0, 0, 0, 4)))
        out.print()
    if not result.recommendation.answers and result.complete:
        goal_text = "" if goal is None else f" for {goal.value}"
        print_line(f"This study asked no question that a recommendation{goal_text} answers.")
    for line in result.next_steps():
        print_line(line)


def _comparison_table(answer: Answer) -> Table:
    """One row per comparison of an answer."""
    level = f"{100 * answer.compared[0].level:.4g}% interval"
    numbers = ("score", "difference", level, "trials")
    table = make_table("compared", *numbers, "result", right=numbers)
    for c in answer.compared:
        table.add_row(
            c.name,
            format_score(c.score, answer.metric),
            format_score(c.difference, answer.metric, signed=True),
            format_range(c.low, c.high, answer.metric, signed=True),
            str(c.n),
            c.result,
        )
    return table
