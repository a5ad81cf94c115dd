"""Claims over several studies as a table for the terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from whichlayers.analysis.claims.base import BELOW_MARGIN, FAILS, HOLDS, NOT_TESTED, UNDECIDED, Verdict
from whichlayers.analysis.claims.subjects import SubjectClaim
from whichlayers.analysis.verdicts import NO_SUCH_MODEL
from whichlayers.plots.claims_grid import ACROSS, TITLES, sort_tasks
from whichlayers.report.claim_table import STYLES, effect_text
from whichlayers.report.word_table import WordTable
from whichlayers.text import short_names

SYMBOLS: dict[Verdict, str] = {HOLDS: "●", BELOW_MARGIN: "◐", FAILS: "✗", UNDECIDED: "○", NOT_TESTED: "–"}
LEGEND = ", ".join(
    f"{symbol} {NO_SUCH_MODEL if verdict == NOT_TESTED else verdict}" for verdict, symbol in SYMBOLS.items()
)
ABSENT = "other models"  # column of the models that no study has


def subjects_table(subjects: Sequence[SubjectClaim]) -> Table:
    """Table with a row per claim and a column per model: the verdict on each task, once per study."""
    short = short_names(name for one in subjects for name in (one.model, one.task) if name)
    models = _models(subjects)
    table = WordTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("claim", overflow="fold", ratio=2)
    for model in models:
        table.add_column(escape(short.get(model, model)), overflow="fold", ratio=1)
    for id in dict.fromkeys(one.claim for one in subjects):
        of_claim = [one for one in subjects if one.claim == id]
        cells = ["\n".join(_rich_lines([o for o in of_claim if _column(o) == m], short)) for m in models]
        table.add_row(id, escape(TITLES.get(id, id)), *cells, end_section=True)
    return table


def _models(subjects: Sequence[SubjectClaim]) -> list[str]:
    """Names of the columns of models, those that no study has together and last."""
    return sorted(dict.fromkeys(map(_column, subjects)), key=lambda name: name == ABSENT)


def _column(one: SubjectClaim) -> str:
    return ABSENT if one.test is None else one.model


def _subject(one: SubjectClaim, short: dict[str, str]) -> str:
    """What a verdict is about, within the column of its model."""
    return one.model if one.test is None else short.get(one.task, one.task) or ACROSS


def _by_subject(subjects: Sequence[SubjectClaim], short: dict[str, str]) -> dict[str, list[Verdict]]:
    """Task (or model that no study has) -> the verdicts of all studies, for the entries of one claim and model."""
    found: dict[str, list[Verdict]] = {}
    order = sort_tasks(list(dict.fromkeys(one.task for one in subjects)))
    for one in sorted(subjects, key=lambda one: order.index(one.task)):
        found.setdefault(_subject(one, short), []).append(one.verdict)
    return found


def _rich_lines(subjects: Sequence[SubjectClaim], short: dict[str, str]) -> list[str]:
    return [
        f"{''.join(f'[{STYLES[v]}]{SYMBOLS[v]}[/]' for v in verdicts)} {escape(name)}"
        for name, verdicts in _by_subject(subjects, short).items()
    ]


def subjects_grid_markdown(subjects: Sequence[SubjectClaim]) -> str:
    """Markdown table with a row per claim and a column per model: a symbol and the task of each verdict."""
    short = short_names(name for one in subjects for name in (one.model, one.task) if name)
    models = _models(subjects)
    rows = [["claim", "statement", *(short.get(model, model) for model in models)]]
    for id in dict.fromkeys(one.claim for one in subjects):
        of_claim = [one for one in subjects if one.claim == id]
        cells = []
        for model in models:
            found = _by_subject([one for one in of_claim if _column(one) == model], short)
            parts = [f"{''.join(SYMBOLS[v] for v in verdicts)} {name}" for name, verdicts in found.items()]
            cells.append("<br>".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts))
        rows.append([id, of_claim[0].text, *cells])
    return _markdown(rows)


def subjects_markdown(subjects: Sequence[SubjectClaim]) -> str:
    """Markdown table with a row per claim, study, model and task: verdict, effect and interval, trials."""
    rows = [["claim", "model", "task", "verdict", "tests that hold", "decisive test", "effect", "n", "study"]]
    for one in subjects:
        numbers = ["", "", "", ""]
        if one.test is not None:
            holding = f"{one.tests_hold} of {one.tests}"
            numbers = [holding, one.test.about, effect_text(one.test), str(one.test.n)]
        task = one.task or ("" if one.test is None else ACROSS)
        rows.append([one.claim, one.model, task, one.verdict_label, *numbers, one.study])
    return _markdown(rows)


def _markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"
