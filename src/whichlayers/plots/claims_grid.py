"""The claims of the papers over several studies as one grid: claims by models and tasks, one symbol per verdict.

Verdicts differ in shape and in lightness as well as in color (Okabe-Ito), so that the grid reads in grayscale too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from whichlayers.analysis.claims.subjects import SubjectClaim
from whichlayers.analysis.verdicts import BELOW_MARGIN, FAILS, HOLDS, NOT_TESTABLE, NOT_TESTED, UNDECIDED
from whichlayers.errors import WhichlayersError
from whichlayers.plots.style import LIGHT, Theme
from whichlayers.text import short_names

ACROSS = "across tasks"
TITLES = {
    "T1": "Layer effects depend on the amount of data",
    "T2": "Probing does not predict layer effects",
    "T3": "Which block matters differs by task",
    "T4": "Permuted layers lose the gain",
    "T5": "A single layer hardly matters",
    "T6": "A higher lr for new layers does not help",
    "T7": "Kept layer norms do not help",
    "T8": "Early blocks matter more than late ones",
    "T9": "More epochs help, with little data only",
    "T10": "A higher lr increases the variance",
    "S1": "Upper layers move more than lower ones",
    "S2": "More data moves the weights more",
    "S3": "Pretraining is worth 10 times the data",
    "S4": "The top two layers hurt probes",
    "D1": "Upper layers forget linguistic knowledge",
    "D2": "Top neurons move down, except in BERT",
    "D3": "Bottom neurons lose more, except in BERT",
    "D4": "Bottom layers are worse to drop than top ones",
    "Z1": "Re-initialized top layers help",
    "Z2": "Bias correction helps",
    "Z3": "More epochs help",
    "L1": "The last fourth of the layers suffices",
    "P1": "40% of the layers can be dropped",
}  # of the claims, in at most 45 characters
CELL = 0.27  # inches
CHARACTER = 0.08  # inches, of a model's name
MIN_HEADER = 10  # characters in a line of a model's name


@dataclass(frozen=True)
class GridColumn:
    """A column of the grid."""

    model: str
    task: str  # empty: across tasks, or a model that no study has
    x: int  # position
    header: tuple[str, ...] = ()  # lines of the model's name, above the first of its columns
    tested: bool = True  # whether a study has the model


def grid_columns(subjects: Sequence[SubjectClaim], names: dict[str, str] | None = None) -> list[GridColumn]:
    """The columns: models in order of appearance, each with its tasks and the tests across tasks last.

    Models that no study has come last. A model with few columns leaves room for its name to the right.

    Args:
        subjects: From `claims_by_subject`.
        names: Names of the models to display.
    """
    tested = [one for one in subjects if one.test is not None]
    columns, x = list[GridColumn](), 0
    for model in dict.fromkeys(one.model for one in tested):
        tasks = sort_tasks(list(dict.fromkeys(one.task for one in tested if one.model == model)))
        room = max(int(len(tasks) * CELL / CHARACTER), MIN_HEADER)
        header = tuple(wrap((names or {}).get(model, model), room))
        for index, task in enumerate(tasks):
            columns.append(GridColumn(model, task, x + index, header if index == 0 else ()))
        x += max(len(tasks), math.ceil(max(map(len, header)) * CHARACTER / CELL))
    missing = dict.fromkeys(one.model for one in subjects if one.test is None)
    return columns + [GridColumn(model, "", x + index, tested=False) for index, model in enumerate(missing)]


def sort_tasks(tasks: Sequence[str]) -> list[str]:
    """Tasks in order of appearance, "QNLI rebuilt" after "QNLI", and the empty name of tests across tasks last."""
    bases = [task.partition(" ")[0] for task in tasks]
    return sorted(tasks, key=lambda task: (task == "", bases.index(task.partition(" ")[0]), task))


def draw_claims_grid(subjects: Sequence[SubjectClaim], theme: Theme = LIGHT) -> Figure:
    """Draw the grid.

    Args:
        subjects: From `claims_by_subject`. Several studies of one model and task are symbols side by side.
        theme: Colors.
    """
    if not subjects:
        raise WhichlayersError("the studies test no claim: there is nothing to draw")
    claims = list(dict.fromkeys(one.claim for one in subjects))
    names = short_names(name for one in subjects for name in (one.model, one.task) if name)
    columns = grid_columns(subjects, names)
    count = columns[-1].x + 1 if not columns[-1].tested else _end(columns)
    width, height = CELL * count + 3.7, CELL * len(claims) + 1.55
    height += 0.14 * max(len(column.header) for column in columns)
    with theme.applied():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes(
            (3.2 / width, 0.55 / height, CELL * count / width, CELL * len(claims) / height)
        )
        axes.set(xlim=(-0.5, count - 0.5), ylim=(len(claims) - 0.5, -0.5))
        _prepare(axes, columns, claims, names, theme)
        for row, claim in enumerate(claims):
            for place in columns:
                cell = [o for o in subjects if (o.claim, o.model, o.task) == (claim, place.model, place.task)]
                _draw_cell(axes, place.x, row, cell, theme)
        _legend(figure, subjects, theme)
    return figure


def _end(columns: Sequence[GridColumn]) -> int:
    """Columns of the grid up to the end of the last model, with the room for its name."""
    last = next(column for column in reversed(columns) if column.header)
    return max(columns[-1].x + 1, last.x + math.ceil(max(map(len, last.header)) * CHARACTER / CELL))


def _prepare(
    axes: Axes, columns: list[GridColumn], claims: list[str], names: dict[str, str], theme: Theme
) -> None:
    """Labels of rows and columns, names of models and lines between them."""
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False, pad=3)
    axes.set_yticks(range(len(claims)), [f"{TITLES.get(claim, claim)}  {claim}" for claim in claims])
    labels = [names.get(c.task, c.task) or ACROSS if c.tested else c.model for c in columns]
    axes.set_xticks([c.x for c in columns], labels, rotation=60, ha="left", rotation_mode="anchor")
    left, right = axes.get_xlim()
    for row in range(0, len(claims), 2):
        stripe = Rectangle((left, row - 0.5), right - left, 1, color=theme.grid, alpha=0.5, lw=0, zorder=0)
        axes.add_patch(stripe)
    missing = [column for column in columns if not column.tested]
    for column in [*(c for c in columns if c.header), *missing[:1]]:
        if column.x:
            axes.axvline(column.x - 0.5, color=theme.muted, lw=0.7)
        axes.annotate(
            "\n".join(column.header),
            (column.x - 0.35, -0.5),
            xytext=(0, 60),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontweight="bold",
            annotation_clip=False,
        )


def _draw_cell(axes: Axes, column: int, row: int, cell: list[SubjectClaim], theme: Theme) -> None:
    """The symbols of a cell, side by side and smaller if there are several."""
    for index, one in enumerate(cell):
        x = column + (index - (len(cell) - 1) / 2) * 0.94 / len(cell)
        style = symbol(one.verdict, theme) | {"markersize": 10.0 if len(cell) == 1 else 15.0 / len(cell)}
        if len(cell) > 2:
            style["markeredgewidth"] = 0.8
        axes.plot([x], [row], zorder=3, **style)


def symbol(verdict: str, theme: Theme) -> dict[str, Any]:
    """Marker of a verdict, as keyword arguments of `Axes.plot`."""
    blue, orange = theme.conditions[0], theme.conditions[1]
    base: dict[str, Any] = {"linestyle": "", "markeredgewidth": 1.2}
    styles: dict[str, dict[str, Any]] = {
        HOLDS: {"marker": "o", "color": blue},
        BELOW_MARGIN: {
            "marker": "o",
            "color": blue,
            "fillstyle": "left",
            "markerfacecoloralt": theme.background,
        },
        FAILS: {"marker": "X", "color": orange, "markeredgecolor": theme.background, "markeredgewidth": 0.5},
        UNDECIDED: {"marker": "o", "color": theme.muted, "markerfacecolor": "none"},
        NOT_TESTED: {"marker": "_", "color": theme.muted},
    }
    return base | styles[verdict]


def _legend(figure: Figure, subjects: Sequence[SubjectClaim], theme: Theme) -> None:
    present = {one.verdict for one in subjects}
    kinds = [v for v in (HOLDS, BELOW_MARGIN, FAILS, UNDECIDED, NOT_TESTED) if v in present]
    labels = [NOT_TESTABLE if v == NOT_TESTED else v for v in kinds]
    handles = [Line2D([], [], **symbol(v, theme), markersize=8) for v in kinds]
    figure.legend(handles, labels, loc="lower right", ncols=len(kinds), columnspacing=1.2, handletextpad=0.3)
