"""Comparison of two studies, as a page and for the terminal: paired differences, both curves, differing settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator
from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.markup import escape
from rich.text import Text

from whichlayers.analysis.compare_studies import StudyComparison
from whichlayers.analysis.intervals import SIGNIFICANT
from whichlayers.catalog import DIFFERENCE
from whichlayers.experiments import display_of, sort_experiments
from whichlayers.files import atomic_write
from whichlayers.plots.artists import DrawnValues, category_style, draw_line, line_style
from whichlayers.plots.captions import context_of_words
from whichlayers.plots.chart_data import chart_of
from whichlayers.plots.display_names import size_name
from whichlayers.plots.facets import Mark, Panel, label_x_axis, make_panels, set_layer_ticks, set_y_limits
from whichlayers.plots.style import LIGHT, Theme
from whichlayers.plots.word_figures import LCA, MAX_CURVES_WITH_BARS, PRETRAINED, set_model_ticks
from whichlayers.report.page import ReportFigure, render
from whichlayers.report.tables import TextTable
from whichlayers.report.word_table import WordTable
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.text import counted, format_p, format_range, format_score, join_list, short_names
from whichlayers.trial import BASELINES

LABELS = ("experiment", "task", "examples", "curve", "points")
NUMBERS = ("difference", "95% interval", "seeds", "p", "p (Holm)")
SHORT_NAME = (
    20  # names of curves that are on one line in a terminal of 80 columns, such as "top layers dropped"
)
TERMINAL_COLUMNS = ("task", "examples", "curve", "difference", "95% interval", "seeds", "p (Holm)")


def write_comparison(comparison: StudyComparison, target: Path) -> Path:
    """Write the comparison of two studies as a self-contained HTML page; returns its path."""
    charts, sections = {}, []
    for experiment in sort_experiments(comparison.pairs["experiment"]):
        frame = _panel_frame(comparison, experiment)
        title, key = display_of(experiment).title, experiment.replace(" ", "_")
        figures, difference = [], f"{comparison.b.name} minus {comparison.a.name}"
        notes = notes_on_models(comparison, experiment)
        for name, heading, caption, figure in (
            (f"{key}_difference", difference, DIFFERENCE_CAPTION, draw_differences(frame, experiment)),
            (f"{key}_both", "Both studies", BOTH_CAPTION, draw_both(frame, experiment, comparison)),
        ):
            caption = " ".join([caption, *notes])
            chart = chart_of(figure, name, f"{title}: {heading}", caption)
            charts[name] = chart
            figures.append(ReportFigure(name, heading, caption, figure, chart, files=False))
        points = comparison.points[comparison.points["experiment"] == experiment]
        table = _points_table(points, title, is_relative(comparison, experiment))
        sections.append({"key": key, "title": title, "figures": figures, "table": table})
    text = render(
        "compare.html",
        {"charts": charts, "layers": []},
        comparison=comparison,
        verdict=verdict(comparison),
        differs=comparison.differs,
        curves=_curves_table(comparison),
        sections=sections,
        pairs=len(comparison.pairs),
    )
    with atomic_write(target) as partial:
        partial.write_text(text, encoding="utf-8")
    return target


DIFFERENCE_CAPTION = (
    "Differences paired by seed and averaged over seeds, with 95% t intervals (not adjusted for multiple comparisons). "
    "Above zero, the second study scores higher."
)
BOTH_CAPTION = (
    "Means over the paired trials, with 95% t intervals. The paired differences above are more precise than a "
    "comparison of these intervals."
)


def is_relative(comparison: StudyComparison, experiment: str) -> bool:
    """Whether x of an experiment is in percent of the layers."""
    return comparison.lowest_depth is not None and display_of(experiment).relative_depth


def notes_on_models(comparison: StudyComparison, experiment: str) -> list[str]:
    """Sentences on what differs between the models besides their weights: depth, context of words."""
    notes = []
    if is_relative(comparison, experiment):
        depths = join_list(sorted({int(n) for n in comparison.models["depth"]}))
        notes.append(f"The models have {depths} layers: points at the same share of the layers are compared.")
    if display_of(experiment).word_level and (context := context_of_words(comparison.models)):
        notes.append(context)
    return notes


def verdict(comparison: StudyComparison) -> str:
    """One sentence: how many curves differ significantly, after correction for their number."""
    tested = comparison.curves[comparison.curves["p"].notna()]
    if (comparison.pairs["a"] == comparison.pairs["b"]).all():
        pairs = counted(len(comparison.pairs), "pair")
        return f"The studies agree: in all {pairs} of trials, both have exactly the same score."
    if tested.empty:
        return (
            "No curve can be tested: that requires at least two pairs of trials with different differences."
        )
    clear = tested[tested["p_adjusted"] < SIGNIFICANT]
    up, down = int((clear["mean"] > 0).sum()), int((clear["mean"] < 0).sum())
    return (
        f"Of {counted(len(tested), 'tested curve')}, {comparison.b.name} is significantly higher in {up} and lower in "
        f"{down} (Holm-adjusted p below {SIGNIFICANT}), and {len(tested) - len(clear)} "
        f"{'does' if len(tested) - len(clear) == 1 else 'do'} not differ significantly."
    )


def comparison_table(comparison: StudyComparison) -> Group:
    """Tables for the terminal: one per experiment, one row per curve."""
    whole = _curves_table(comparison)
    parts: list[RenderableType] = []
    for experiment in dict.fromkeys(row["experiment"] for row in whole.rows):
        rows = [row for row in whole.rows if row["experiment"] == experiment]
        included = [name for name in TERMINAL_COLUMNS if name != "curve" or any(row[name] for row in rows)]
        table = WordTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in included:
            is_text = name in ("task", "curve")
            is_short = name == "curve" and max(len(row[name]) for row in rows) <= SHORT_NAME
            justify: JustifyMethod = "left" if is_text else "right"
            table.add_column(name, justify=justify, no_wrap=is_short or not is_text, overflow="fold")
        for row in rows:
            table.add_row(*(escape(row[name]) for name in included))
        parts += [Text(experiment, style="bold"), table, ""]
    return Group(*parts)


def draw_differences(frame: pd.DataFrame, experiment: str, theme: Theme = LIGHT) -> Figure:
    """Draw B minus A over x, one curve per training size and condition, with a dashed line at zero."""
    with theme.applied():
        points = frame.assign(value=frame["b"] - frame["a"], metric=DIFFERENCE + frame["metric"])
        names = tick_names(frame, experiment)
        figure, panels = make_panels(points, ["variant"])
        series = list(dict.fromkeys(zip(points["train_size"], points["condition"], strict=True)))
        figure.show_trials = None if len(series) <= MAX_CURVES_WITH_BARS else False
        sizes = sorted(set(points["train_size"]))
        ramp = dict(zip(sizes, theme.sizes(len(sizes)), strict=True))
        conditions = list(dict.fromkeys(points["condition"]))
        drawn_values: DrawnValues = {panel.task: [] for panel in panels}
        for panel in panels:
            present = [key for key in series if _rows(panel.points, *key).shape[0]]
            for index, (size, condition) in enumerate(present):
                style = line_style(theme, ramp[size], 0)
                if len(conditions) > 1:
                    style = category_style(theme, conditions.index(condition), sizes.index(size))
                rows, place = _rows(panel.points, size, condition), (index, len(present))
                draw_line(panel, rows, place, _unjoin(style, experiment), drawn_values)
            zero: dict[str, Any] = {"color": theme.ink, "linestyle": (0, (2, 2)), "linewidth": 1.0}
            panel.axes.axhline(0, **zero)
            table = pd.DataFrame({"x": [float("nan")], "mean": [0.0]})
            panel.marks.append(Mark("level", zero, {"task": panel.task}, table, name="no difference"))
            drawn_values[panel.task].append((0.0, 0.0, 0.0))
            _set_ticks(panel, names)
        set_y_limits(panels, drawn_values)
        label_x_axis(panels, _x_label(experiment, "share" in frame))
    return figure


def draw_both(
    frame: pd.DataFrame, experiment: str, comparison: StudyComparison, theme: Theme = LIGHT
) -> Figure:
    """Draw one curve per study, with separate panels for every training size, condition and setting."""
    with theme.applied():
        studies, ticks = {"a": comparison.a.name, "b": comparison.b.name}, tick_names(frame, experiment)
        long = pd.concat([frame.assign(value=frame[side], setting=name) for side, name in studies.items()])
        long["condition"] = [
            ", ".join(filter(None, [display_of(experiment).condition_name(c) if c else "", v]))
            for c, v in zip(long["condition"], long.pop("variant"), strict=True)
        ]
        figure, panels = make_panels(long, ["train_size", "condition"])
        drawn_values: DrawnValues = {panel.task: [] for panel in panels}
        for panel in panels:
            for i, name in enumerate(studies.values()):
                rows = panel.points[panel.points["setting"] == name]
                style = _unjoin(category_style(theme, i, i), experiment)
                draw_line(panel, rows, (i, 2), style, drawn_values)
            _set_ticks(panel, ticks)
        set_y_limits(panels, drawn_values)
        label_x_axis(panels, _x_label(experiment, "share" in frame))
    return figure


def tick_names(frame: pd.DataFrame, experiment: str) -> dict[float, str]:
    """Tick labels by x: all integers from first to last, shares of the layers, or models for sets of neurons."""
    if "model_label" in frame:
        return dict(sorted(zip(frame["x"], frame["model_label"], strict=True)))
    if "share" in frame:
        return dict(sorted(zip(frame["x"], frame["share"], strict=True)))
    return {
        float(x): display_of(experiment).x_name(x)
        for x in range(int(frame["x"].min()), int(frame["x"].max()) + 1)
    }


def _set_ticks(panel: Panel, names: dict[float, str]) -> None:
    if all(name.isdigit() for name in names.values()):
        set_layer_ticks(panel.axes, int(min(names)), int(max(names)))
    elif all(name.endswith("%") for name in names.values()):
        panel.axes.xaxis.set_major_locator(FixedLocator(list(names)))
        panel.axes.xaxis.set_major_formatter(FixedFormatter(list(names.values())))
        panel.axes.set_xlim(min(names) - 0.5, max(names) + 0.5)
    else:
        set_model_ticks(panel, list(names.values()))


def _unjoin(style: dict[str, Any], experiment: str) -> dict[str, Any]:
    """The style without a line if x is a category."""
    return style | ({"linestyle": ""} if display_of(experiment).categorical_x else {})


def _rows(points: pd.DataFrame, size: int, condition: str) -> pd.DataFrame:
    return points[(points["train_size"] == size) & (points["condition"] == condition)]


def _x_label(experiment: str, relative: bool = False) -> str:
    display = display_of(experiment)
    label = display.x_label if display.plot == "by_model" else display.x_header
    return f"{label}, share of all layers" if relative else label


def _panel_frame(comparison: StudyComparison, experiment: str) -> pd.DataFrame:
    """Pairs of an experiment in the format of `make_panels`, without baselines, whose x has no meaning."""
    pairs = comparison.pairs[comparison.pairs["experiment"] == experiment]
    curves = pairs[~pairs["condition"].isin(BASELINES)]
    rows = (curves if len(curves) else pairs).rename(columns={"setting": "variant"})
    rows = rows.assign(model="", depth=int(pairs["x"].max()))
    if is_relative(comparison, experiment):  # drawn in units of the layers of the shallowest model
        lowest = comparison.lowest_depth or 1
        rows = rows.assign(share=[_percent(x) for x in rows["x"]], x=rows["x"] * lowest / 100, depth=lowest)
    if not display_of(experiment).word_level:
        return rows
    rows = _by_model(rows) if display_of(experiment).plot == "by_model" else rows
    # models before and after finetuning differ in training size and settings, but belong to the same curve
    one_curve = not rows.duplicated(["task", "condition", "x", "seed"]).any()
    return rows.assign(variant="", train_size=rows["train_size"].max()) if one_curve else rows


def _percent(x: float) -> str:
    return f"{x:.0f}%"


def _by_model(rows: pd.DataFrame) -> pd.DataFrame:
    """Sets of neurons as conditions over the models, as in the figure of a single study."""
    parts = rows["condition"].str.partition(": ")
    sets = parts[2] + rows["x"].map(lambda x: "" if x == 100 else f" {x:g}%")
    if display_of(rows["experiment"].iloc[0]).sets == "ranking":
        sets = parts[2].where(parts[2] != "", LCA)
    names = sorted(dict.fromkeys(parts[0]), key=lambda name: name != PRETRAINED)
    positions = {name: float(i) for i, name in enumerate(names)}
    return rows.assign(model_label=parts[0], x=parts[0].map(positions), condition=sets)


def _curve_name(row: Any) -> str:
    named = display_of(row.experiment).condition_name(row.condition) if row.condition else ""
    return ", ".join(filter(None, [named, row.setting]))


def _curves_table(comparison: StudyComparison) -> TextTable:
    tasks, rows = short_names(comparison.curves["task"]), []
    for row in each_row(comparison.curves):
        title, size = display_of(row.experiment).title, size_name(row.train_size)
        labels = (title, tasks[row.task], size, _curve_name(row), str(row.points))
        rows.append(dict(zip(LABELS, labels, strict=True)) | _numbers(row))
    nouns = dict.fromkeys(display_of(experiment).task_noun for experiment in comparison.curves["experiment"])
    headers = {name: name for name in (*LABELS, *NUMBERS)} | {"task": " or ".join(nouns)}
    return TextTable("Curves", headers, rows, frozenset({"experiment", "task", "curve"}))


def _points_table(points: pd.DataFrame, title: str, relative: bool) -> TextTable:
    tasks, rows = short_names(points["task"]), []
    display = display_of(str(points["experiment"].iloc[0]))
    for _, curve in each_group(points, ["condition", "task", "train_size", "setting"]):
        for row in each_row(curve):
            labels = {"task": tasks[row.task], "examples": size_name(row.train_size)}
            labels |= {"curve": _curve_name(row), "x": _percent(row.x) if relative else display.x_name(row.x)}
            scores = {"A": format_score(row.mean_a, row.metric), "B": format_score(row.mean_b, row.metric)}
            rows.append(labels | scores | _numbers(row))
    names = ("task", "examples", "curve", "x", "A", "B", *NUMBERS)
    headers = {name: name for name in names} | {"task": display.task_noun}
    headers["x"] = f"{display.x_header}, share of all layers" if relative else display.x_header
    return TextTable(f"All points: {title}", headers, rows, frozenset({"task", "curve"}))


def _numbers(row: Any) -> dict[str, str]:
    """Cells of the columns `NUMBERS`."""
    difference = format_score(row.mean, row.metric, signed=True)
    interval = format_range(row.low, row.high, row.metric, signed=True)
    cells = (difference, interval, str(row.n), format_p(row.p), format_p(row.p_adjusted))
    return dict(zip(NUMBERS, cells, strict=True))
