"""Two studies on one page: paired differences with their intervals, both curves, what differs, what has no partner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from whichlayers.analysis.baseline_differences import BASELINES
from whichlayers.analysis.compare import Comparison
from whichlayers.analysis.frame_utils import each_group, each_row
from whichlayers.plots.artists import Shown, line, look
from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.display_names import (
    BY_MODEL,
    LINGUISTIC,
    UNJOINED,
    condition_name,
    experiment_name,
    in_order,
    metric_name,
    number,
    short_names,
    size_name,
    task_word,
    x_axis,
    x_name,
    x_value,
)
from whichlayers.plots.facets import Mark, Panel, layer_ticks, limit_y, make_panels, name_x
from whichlayers.plots.style import LIGHT, MARKERS, Theme
from whichlayers.plots.word_figures import LCA, MOST_BARS, PRETRAINED, name_models
from whichlayers.report.page import render
from whichlayers.report.sections import Shown as ShownFigure
from whichlayers.report.sections import TextTable

SIGNIFICANT = 0.05
HEADS = (
    "experiment",
    "task",
    "examples",
    "curve",
    "points",
    "difference",
    "95% interval",
    "seeds",
    "p",
    "p (Holm)",
)

IN_TERMINAL = (1, 2, 3, 5, 6, 7, 9)


def write_comparison(found: Comparison, target: Path) -> Path:
    charts, sections = {}, []
    for experiment in in_order(found.pairs["experiment"]):
        mine = _frame(found, experiment)
        title, key = experiment_name(experiment), experiment.replace(" ", "_")
        shown, minus = [], f"{found.b.name} minus {found.a.name}"
        for name, heading, told, figure in (
            (f"{key}_difference", minus, DIFFERENCE, draw_differences(mine, experiment)),
            (f"{key}_both", "Both studies", BOTH, draw_both(mine, experiment, found)),
        ):
            chart = chart_of(figure, name, f"{title}: {heading}", told)
            charts[name] = chart
            shown.append(ShownFigure(name, heading, told, figure, chart, files=False))
        points = found.points[found.points["experiment"] == experiment]
        sections.append({"key": key, "title": title, "figures": shown, "table": _points_table(points, title)})
    text = render(
        "compare.html",
        {"charts": charts, "layers": []},
        found=found,
        verdict=verdict(found),
        differs=found.differs,
        curves=_curves_table(found),
        sections=sections,
        pairs=len(found.pairs),
    )
    draft = target.with_name(f"{target.name}.part")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, target)
    return target


DIFFERENCE = (
    "Differences within a seed, then averaged, with their 95% t intervals, each for one point at a time. "
    "Above zero the second study scores higher."
)
BOTH = "Means of the trials that have a partner, with 95% t intervals. The differences above are more exact than these."


def verdict(found: Comparison) -> str:
    """One sentence: how many curves differ, after correction for their number."""
    tested = found.curves[found.curves["p"].notna()]
    if tested.empty:
        return "A single pair of trials a point gives no interval: run more trials in both studies."
    clear = tested[tested["p_adjusted"] < SIGNIFICANT]
    up, down = int((clear["mean"] > 0).sum()), int((clear["mean"] < 0).sum())
    what = "curve" if len(tested) == 1 else "curves"
    return (
        f"Of {len(tested)} {what} that can be tested, {found.b.name} is higher in {up} and lower in {down} "
        f"(adjusted p below 0.05, Holm), and {len(tested) - len(clear)} cannot be told apart."
    )


def comparison_table(found: Comparison) -> Group:
    """For the terminal: a table an experiment, a row a curve."""
    whole = _curves_table(found)
    shown: list[RenderableType] = []
    for experiment in dict.fromkeys(row[0] for row in whole.rows):
        rows = [row for row in whole.rows if row[0] == experiment]
        kept = [i for i in IN_TERMINAL if HEADS[i] != "curve" or any(row[i] for row in rows)]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
        for i in kept:
            words = HEADS[i] in ("task", "curve")
            table.add_column(
                HEADS[i], justify="left" if words else "right", no_wrap=not words, overflow="fold"
            )
        for row in rows:
            table.add_row(*(escape(row[i]) for i in kept))
        shown += [Text(experiment, style="bold"), table]
    return Group(*shown)


def draw_differences(frame: pd.DataFrame, experiment: str, theme: Theme = LIGHT) -> Figure:
    """B minus A over x: a line a size and condition, about a broken line at zero."""
    with theme.applied():
        points = frame.assign(
            value=frame["b"] - frame["a"], metric="difference in " + frame["metric"].map(metric_name)
        )
        names = tick_names(frame, experiment)
        figure, panels = make_panels(points, ["variant"])
        series = list(dict.fromkeys(zip(points["train_size"], points["condition"], strict=True)))
        figure.trials_first = None if len(series) <= MOST_BARS else False
        sizes = sorted(set(points["train_size"]))
        ramp = dict(zip(sizes, theme.sizes(len(sizes)), strict=True))
        conditions = list(dict.fromkeys(points["condition"]))
        shown: Shown = {panel.task: [] for panel in panels}
        for panel in panels:
            present = [key for key in series if _rows(panel.points, *key).shape[0]]
            for place, (size, condition) in enumerate(present):
                i = conditions.index(condition)
                colour = ramp[size] if len(conditions) == 1 else theme.conditions[i % len(theme.conditions)]
                dash = sizes.index(size) if len(conditions) > 1 else 0
                marker = MARKERS[
                    (i + i // len(theme.conditions)) % len(MARKERS)
                ]  # a colour that comes again: another
                drawn = _joined(look(theme, colour, dash, marker), experiment)
                line(panel, _rows(panel.points, size, condition), (place, len(present)), drawn, shown)
            zero: dict[str, Any] = {"color": theme.ink, "linestyle": (0, (2, 2)), "linewidth": 1.0}
            panel.axes.axhline(0, **zero)
            table = pd.DataFrame({"x": [float("nan")], "mean": [0.0]})
            panel.marks.append(Mark("level", zero, {"task": panel.task}, table, name="no difference"))
            shown[panel.task].append((0.0, 0.0, 0.0))
            _ticks(panel, names)
        limit_y(panels, shown)
        name_x(panels, _x_label(experiment))
    return figure


def draw_both(frame: pd.DataFrame, experiment: str, found: Comparison, theme: Theme = LIGHT) -> Figure:
    """A line a study, in panels of their own for every size, condition and setting."""
    with theme.applied():
        studies, ticks = {"a": found.a.name, "b": found.b.name}, tick_names(frame, experiment)
        long = pd.concat([frame.assign(value=frame[side], setting=name) for side, name in studies.items()])
        long["condition"] = [
            ", ".join(filter(None, [condition_name(experiment, c) if c else "", v]))
            for c, v in zip(long["condition"], long.pop("variant"), strict=True)
        ]
        figure, panels = make_panels(long, ["train_size", "condition"])
        shown: Shown = {panel.task: [] for panel in panels}
        for panel in panels:
            for i, name in enumerate(studies.values()):
                mine = panel.points[panel.points["setting"] == name]
                drawn = _joined(look(theme, theme.conditions[i], i, MARKERS[i]), experiment)
                line(panel, mine, (i, 2), drawn, shown)
            _ticks(panel, ticks)
        limit_y(panels, shown)
        name_x(panels, _x_label(experiment))
    return figure


def tick_names(frame: pd.DataFrame, experiment: str) -> dict[float, str]:
    """Every layer from first to last, every order; of questions about sets of neurons the models that were asked."""
    if "whose" in frame:
        return dict(sorted(zip(frame["x"], frame["whose"], strict=True)))
    return {float(x): x_value(experiment, x) for x in range(int(frame["x"].min()), int(frame["x"].max()) + 1)}


def _ticks(panel: Panel, names: dict[float, str]) -> None:
    if all(name.isdigit() for name in names.values()):
        layer_ticks(panel.axes, int(min(names)), int(max(names)))
    else:
        name_models(panel, list(names.values()))


def _joined(drawn: dict[str, Any], experiment: str) -> dict[str, Any]:
    return drawn | ({"linestyle": ""} if experiment in UNJOINED else {})


def _rows(points: pd.DataFrame, size: int, condition: str) -> pd.DataFrame:
    return points[(points["train_size"] == size) & (points["condition"] == condition)]


def _x_label(experiment: str) -> str:
    return x_axis(experiment) if experiment in BY_MODEL else x_name(experiment)


def _frame(found: Comparison, experiment: str) -> pd.DataFrame:
    """Pairs in the shape that panels take. Baselines stand at an x of no meaning: they are in the tables."""
    mine = found.pairs[found.pairs["experiment"] == experiment]
    curves = mine[~mine["condition"].isin(BASELINES)]
    rows = (curves if len(curves) else mine).rename(columns={"setting": "variant"})
    rows = rows.assign(model="", depth=int(mine["x"].max()))
    if experiment not in LINGUISTIC:
        return rows
    rows = _by_model(rows) if experiment in BY_MODEL else rows
    # models before and after finetuning differ in size and settings: that they do is no further curve
    alone = not rows.duplicated(["task", "condition", "x", "seed"]).any()
    return rows.assign(variant="", train_size=rows["train_size"].max()) if alone else rows


def _by_model(rows: pd.DataFrame) -> pd.DataFrame:
    """Sets of neurons as conditions over the models that were asked, as in a study's own figure."""
    parts = rows["condition"].str.partition(": ")
    sets = parts[2] + rows["x"].map(lambda x: "" if x == 100 else f" {x:g}%")
    if rows["experiment"].iloc[0] == "smallest_set":
        sets = parts[2].where(parts[2] != "", LCA)
    names = sorted(dict.fromkeys(parts[0]), key=lambda name: name != PRETRAINED)
    where = {name: float(place) for place, name in enumerate(names)}
    return rows.assign(whose=parts[0], x=parts[0].map(where), condition=sets)


def _curve_name(row: Any) -> str:
    named = condition_name(row.experiment, row.condition) if row.condition else ""
    return ", ".join(filter(None, [named, row.setting]))


def _curves_table(found: Comparison) -> TextTable:
    tasks = short_names(found.curves["task"])
    rows = tuple(
        (
            experiment_name(row.experiment),
            tasks[row.task],
            size_name(row.train_size),
            ", ".join(
                filter(
                    None,
                    [condition_name(row.experiment, row.condition) if row.condition else "", row.setting],
                )
            ),
            str(row.points),
            *_numbers(row),
        )
        for row in each_row(found.curves)
    )
    words = dict.fromkeys(task_word(experiment) for experiment in found.curves["experiment"])
    heads = (HEADS[0], " or ".join(words), *HEADS[2:])
    return TextTable("Curve by curve", heads, rows, (0, 1, 3))


def _points_table(points: pd.DataFrame, title: str) -> TextTable:
    tasks = short_names(points["task"])
    experiment = str(points["experiment"].iloc[0])
    heads = (task_word(experiment), "examples", "curve", x_name(experiment), "A", "B", *HEADS[5:])
    rows = []
    for _, curve in each_group(points, ["condition", "task", "train_size", "setting"]):
        for row in each_row(curve):
            ends = (x_value(row.experiment, row.x), number(row.mean_a), number(row.mean_b))
            rows.append((tasks[row.task], size_name(row.train_size), _curve_name(row), *ends, *_numbers(row)))
    return TextTable(f"Every point of {title}", heads, tuple(rows), (0, 2))


def _numbers(row: Any) -> tuple[str, ...]:
    p = [
        "" if pd.isna(value) else "<0.001" if value < 0.001 else f"{value:.3f}"
        for value in (row.p, row.p_adjusted)
    ]
    interval = "" if pd.isna(row.low) else f"{number(row.low)} to {number(row.high)}"
    return (number(row.mean, signed=True), interval, str(row.n), *p)
