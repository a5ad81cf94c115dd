"""Convert figures to JSON-serializable charts, which the report page draws itself.

    chart = chart_of(figure, "incremental", "Incremental re-initialization", caption)

The drawing functions record everything they draw as marks of the panels. So every figure with panels has a chart,
files and page show the same numbers, and a new experiment needs no code here. A figure without panels has no chart
and is embedded in the page as an image.

A chart holds everything the page draws: positions and shifts in units of the axes, y ranges with their ticks, legend
entries, and all numbers as text. The script of the page (web/chart.js, web/drawing.js) maps units to pixels, and shows
and hides marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.experiments import display_of
from whichlayers.plots.display_names import metric_name, size_name
from whichlayers.plots.facets import Mark, Panel, PanelFigure, widen_y_limits
from whichlayers.plots.style import DARK, LIGHT, MAX_SINGLE_TRIALS, dark_color
from whichlayers.plots.tooltips import point_lines
from whichlayers.plots.word_figures import MAX_CURVES_WITH_BARS
from whichlayers.text import format_score, short_names

# What can be switched on and off on the page, in this order; "reference": baselines, probes and published results.
DIMENSIONS = {
    "task": "task",
    "model": "model",
    "train_size": "examples",
    "condition": "condition",
    "variant": "variant",
    "setting": "setting",
    "curve": "curve",
    "reference": "reference",
}
MAX_TRIALS = 40_000  # in a chart; with more the page would become too large
TRIALS_OMITTED = f"Single trials are not shown because there are more than {MAX_TRIALS:,}; see results.csv."
DIGITS = 6  # significant digits of the numbers in a chart
MAX_DESCRIBED = 6  # curves that the alt text of a panel describes

Chart = dict[str, Any]


def chart_of(figure: Figure, key: str, title: str, caption: str, overlay: bool = False) -> Chart | None:
    """Convert a figure to a chart.

    Args:
        figure: A `PanelFigure`, already drawn.
        key: Name of the chart on the page and of files saved from it.
        title: Title of the chart.
        caption: Caption of the chart.
        overlay: Whether published curves are initially visible.

    Returns:
        JSON-serializable data, or None if the figure has no panels.
    """
    panels = [p for p in figure.panels if p.marks] if isinstance(figure, PanelFigure) else []
    if not panels:
        return None
    marks = [(index, mark) for index, panel in enumerate(panels) for mark in panel.marks]
    named = _names(mark for _, mark in marks)
    dims = [name for name in DIMENSIONS if len(named[name]) > 1 or (name == "reference" and named[name])]
    within = [
        name for name in dims if _varies_in_a_panel(panels, name) or _missing_in_subtitles(panels, name)
    ]
    count = sum(0 if mark.trials is None else len(mark.trials) for _, mark in marks)
    x_label = next((p.axes.get_xlabel() for p in reversed(panels) if p.axes.get_xlabel()), "x")
    experiment = next((str(m.attributes["experiment"]) for _, m in marks if "experiment" in m.attributes), "")
    drawn = [
        _mark(mark, index, panels[index].metric, dims, within, named, count <= MAX_TRIALS)
        for index, mark in marks
    ]
    for data, (index, mark) in zip(drawn, marks, strict=True):
        data["of"] = _owner(mark, index, marks)
    tooltips = [
        _tooltip(mark, data, drawn, panels[index], x_label)
        for data, (index, mark) in zip(drawn, marks, strict=True)
    ]
    shared_y, show_trials = bool(getattr(figure, "shared_y", False)), getattr(figure, "show_trials", None)
    most = max((row[5] or 0 for data in drawn for row in data["rows"]), default=0)
    hidden = [] if overlay else [name for name in named["reference"] if name.startswith("published")]
    charted = [
        _panel(panel, x_label, [m for m in drawn if m["panel"] == i], drawn)
        | {"scales": _scales(panel, [p for p in panels if shared_y or p.task == panel.task])}
        for i, panel in enumerate(panels)
    ]
    for data, tooltip in zip(drawn, tooltips, strict=True):
        data["tooltip"] = tooltip
        del data["texts"]  # the page shows them in tooltips only
    return {
        "key": key,
        "title": title,
        "caption": f"{caption} {TRIALS_OMITTED}" if count > MAX_TRIALS else caption,
        "x": x_label,
        "single": "permutation" if any(mark.kind == "strip" for _, mark in marks) else "seed",
        "trials": 1 < most <= MAX_SINGLE_TRIALS if show_trials is None else show_trials,
        "maxBars": MAX_CURVES_WITH_BARS,
        "dims": [
            {"name": name, "label": _dimension_label(name, experiment), "values": list(named[name].values())}
            for name in dims
        ],
        "hidden": [named["reference"][name] for name in hidden],
        "panels": charted,
        "marks": drawn,
        "legend": _legend(drawn),
    }


def _names(marks: Iterable[Mark]) -> dict[str, dict[Any, str]]:
    """Map dimension -> value -> display name, in order of first appearance; training sizes in increasing order."""
    found: dict[str, dict[Any, str]] = {name: {} for name in DIMENSIONS}
    for mark in marks:
        for name, value in _dimension_values(mark).items():
            text = str(value)
            if name == "train_size":
                text = size_name(value)
            elif name == "condition":
                text = display_of(str(mark.attributes.get("experiment", ""))).condition_name(str(value))
            elif name == "variant":
                text = str(value) or "default"
            found[name].setdefault(value, text)
    for name in ("task", "model"):
        short = short_names(map(str, found[name]))
        found[name] = {value: short[str(value)] for value in found[name]}
    found["train_size"] = dict(sorted(found["train_size"].items()))
    return found


def _dimension_label(name: str, experiment: str) -> str:
    """Label of a group of switches."""
    display = display_of(experiment)
    if name == "task":
        return display.task_noun
    if name == "condition" and display.plot == "by_layer":
        return "finetuned on"
    if name == "condition" and display.plot == "by_model":
        return display.sets
    return "ranking" if name == "variant" and display.plot == "by_layer" else DIMENSIONS[name]


def _owner(mark: Mark, panel: int, marks: Sequence[tuple[int, Mark]]) -> int:
    """Index of the curve that a published mark belongs to; -1 if the mark is not a published one."""
    if mark.kind != "published":
        return -1
    candidates = (
        i
        for i, (at, one) in enumerate(marks)
        if at == panel and one.kind == "line" and one.attributes == mark.attributes
    )
    return next(candidates, -1)


def _dimension_values(mark: Mark) -> dict[str, Any]:
    """Value of a mark in each dimension. For references, dimensions that do not apply to them are omitted."""
    values = {name: mark.attributes[name] for name in DIMENSIONS if name in mark.attributes}
    if not mark.name:
        return values
    applicable = ["task", "model"] if mark.kind == "line" else ["task", "model", "train_size", "variant"]
    applicable += ["condition"] if mark.kind == "published" else []
    return {name: values[name] for name in applicable if name in values} | {"reference": mark.name}


def _varies_in_a_panel(panels: Sequence[Panel], name: str) -> bool:
    return any(
        len({_dimension_values(mark)[name] for mark in panel.marks if name in _dimension_values(mark)}) > 1
        for panel in panels
    )


def _missing_in_subtitles(panels: Sequence[Panel], name: str) -> bool:
    """Whether the legend has to state the training size because no subtitle does, e.g. if each task has its own."""
    return name == "train_size" and not any(panel.subtitle for panel in panels)


def _mark(
    mark: Mark,
    panel: int,
    metric: str,
    dims: Sequence[str],
    within: Sequence[str],
    named: dict[str, dict[Any, str]],
    with_trials: bool,
) -> dict[str, Any]:
    """A mark as JSON-serializable data.

    Args:
        mark: The mark.
        panel: Index of its panel.
        metric: Metric of its panel.
        dims: Dimensions of the chart.
        within: Dimensions that belong in the legend.
        named: Display names, from `_names`.
        with_trials: Whether to include single trials.
    """
    values = _dimension_values(mark)
    in_legend = [name for name in within if name in values and (not mark.name or name == "reference")]
    parts = [_legend_text(name, named[name][values[name]]) for name in in_legend]
    style, trials = mark.style, mark.trials if with_trials else None
    color = style["color"]
    rows = mark.table.reindex(columns=["x", "mean", "low", "high", "sd", "n"]).to_numpy(dtype=float).tolist()
    return {
        "panel": panel,
        "kind": mark.kind,
        "dims": [list(named[name]).index(values[name]) if name in values else -1 for name in dims],
        "label": ", ".join(parts) or mark.name or _default_label(mark),
        "color": [color, dark_color(color)],
        "single": [style.get("single", color), dark_color(style.get("single", color))],
        "dash": _dash(style),
        "marker": style.get("marker", ""),
        "bars": mark.bars,
        "open": style.get("markerfacecolor") in (LIGHT.background, DARK.background),
        "rows": [[_round(value) for value in row] for row in rows],
        "texts": [format_score(mean, metric) for _, mean, *_ in rows],
        "trials": [] if trials is None else _trials(trials, metric if mark.kind == "strip" else None),
        "shift": _round(mark.shift),
        "offsets": {seed: round(offset, 3) for seed, offset in mark.offsets.items()}
        if trials is not None
        else {},
        "span": None if mark.span is None else list(map(_round, mark.span)),
        "labels": list(mark.labels),
        "outline": [[_round(x), _round(y)] for x, y in mark.outline],
    }


def _tooltip(
    mark: Mark, data: dict[str, Any], all_marks: Sequence[dict[str, Any]], panel: Panel, x_label: str
) -> dict[str, Any]:
    """Title of the tooltips of a mark, and the lines of each of its rows."""
    of = all_marks[data["of"]]["label"] if data["of"] >= 0 else ""
    curves = [label for label in (of, data["label"]) if label not in ("", "mean")]
    parts = [panel.axes.get_title(loc="left") or panel.task, panel.subtitle, *curves]
    names, lines = _tick_names(panel), []
    table = mark.table.reindex(columns=["x", "mean", "low", "high", "sd", "n"])
    for x, mean, low, high, sd, n in table.to_numpy(dtype=float).tolist():
        position = "" if math.isnan(x) else f"{x_label}: {names.get(x, _round(x))}"
        lines.append(point_lines(position, panel.metric, mean, (low, high), mark.bounds, sd, n))
    return {"title": " · ".join(part for part in parts if part), "lines": lines}


def _default_label(mark: Mark) -> str:
    """Legend entry of a curve that is the only one of its panel."""
    display = display_of(str(mark.attributes.get("experiment", "")))
    condition = str(mark.attributes.get("condition", ""))
    if condition or condition in display.conditions:
        return display.condition_name(condition)
    # as in the legend of the files; "mean" is also the name of a head
    size = mark.attributes.get("train_size")
    return _legend_text("train_size", size_name(size)) if size else "mean"


def _legend_text(name: str, text: str) -> str:
    return f"{text} examples" if name == "train_size" else text


def _trials(trials: pd.DataFrame, metric: str | None) -> list[list[Any]]:
    """[x, seed, value] of each trial; with `metric`, for permutations, also a line of its tooltip."""
    columns = [trials[name].tolist() for name in ("x", "seed", "value")]
    rows: list[list[Any]] = [
        [_round(x), int(seed), _round(value)] for x, seed, value in zip(*columns, strict=True)
    ]
    if metric is None:
        return rows
    values = [format_score(value, metric) for value in columns[2]]
    return [[*row, f"permutation {row[1]}: {value}"] for row, value in zip(rows, values, strict=True)]


def _dash(style: dict[str, Any]) -> list[float] | None:
    """Dash pattern in points: [] for a solid line, None for no line."""
    pattern, width = style.get("linestyle", "-"), style.get("linewidth", 1.5)
    if pattern == "":
        return None
    return [] if pattern == "-" else [round(part * width, 2) for part in pattern[1]]


def _panel(
    panel: Panel,
    x_label: str,
    marks: Sequence[dict[str, Any]],
    all_marks: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """A panel as JSON-serializable data; `marks` are its own, `all_marks` those of the whole chart."""
    axes = panel.axes
    low, high = axes.get_xlim()
    names = _tick_names(panel)
    title, y = axes.get_title(loc="left") or panel.task, axes.get_ylabel()
    quantity = metric_name(panel.metric)
    headings = {"title": title, "sub": panel.subtitle, "y": y, "quantity": quantity}
    return headings | {
        "xlim": [_round(low), _round(high)],
        "ticks": [[_round(tick), text] for tick, text in names.items()],
        "alt": _alt_text(title, panel.subtitle, x_label, quantity, marks, all_marks, names),
    }


def _tick_names(panel: Panel) -> dict[float, str]:
    """Map the visible ticks of the x axis to their labels."""
    low, high = panel.axes.get_xlim()
    ticks = [float(tick) for tick in panel.axes.get_xticks() if low <= tick <= high]
    texts = panel.axes.xaxis.get_major_formatter().format_ticks(ticks)
    return {tick: text.replace("−", "-") for tick, text in zip(ticks, texts, strict=True)}


def _scales(panel: Panel, group: Sequence[Panel]) -> list[dict[str, Any] | None]:
    """The y range of a panel and its ticks: as drawn, with single trials, with published results, with both.

    None stands for the first one.

    Args:
        panel: The panel.
        group: All panels with the same y range.
    """
    marks = [mark for one in group for mark in one.marks]
    trials = [
        v for m in marks if m.kind == "line" and m.trials is not None for v in m.trials["value"].dropna()
    ]
    published = [value for m in marks if m.kind == "published" for value in m.table["mean"].dropna()]
    axis = panel.axes.yaxis
    scales: list[dict[str, Any]] = []
    for values in ([], trials, published, trials + published):
        low, high = widen_y_limits(panel.axes.get_ylim(), values)
        ticks = [
            float(tick) for tick in axis.get_major_locator().tick_values(low, high) if low <= tick <= high
        ]
        texts = axis.get_major_formatter().format_ticks(ticks)
        named = [[_round(tick), text] for tick, text in zip(ticks, texts, strict=True)]
        scales.append({"range": [_round(low), _round(high)], "ticks": named})
    return [scales[0], *(None if scale == scales[0] else scale for scale in scales[1:])]


def _legend(marks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Legend entries with the indices of their marks; published results last.

    Published results have the color of their curve: there is one entry for all of them, in a neutral color.
    """
    entries: dict[tuple[Any, ...], dict[str, Any]] = {}
    for index, mark in sorted(enumerate(marks), key=lambda one: one[1]["kind"] == "published"):
        entry = {name: mark[name] for name in ("label", "color", "dash", "marker", "open")}
        if mark["kind"] == "published":
            entry["color"] = [LIGHT.muted, DARK.muted]
            entry["label"] += f" (same color as its {'set' if mark['dash'] is None else 'curve'})"
        key = (entry["label"], entry["color"][0], entry["marker"], str(entry["dash"]))
        entries.setdefault(key, entry | {"marks": []})["marks"].append(index)
    return list(entries.values())


def _alt_text(
    title: str,
    sub: str,
    x_label: str,
    y_label: str,
    marks: Sequence[dict[str, Any]],
    all_marks: Sequence[dict[str, Any]],
    names: dict[float, str],
) -> str:
    """Text alternative of a panel for screen readers: first, last, lowest and highest point of each curve."""
    where = f"{title}{f', {sub}' if sub else ''}"
    sentences = [f"{where}: {y_label} against {x_label}."]
    for mark in marks[:MAX_DESCRIBED]:
        rows = [
            (row, text) for row, text in zip(mark["rows"], mark["texts"], strict=True) if row[1] is not None
        ]
        if not rows:
            continue
        of = all_marks[mark["of"]]["label"] if mark["of"] >= 0 else ""
        label = mark["label"] + (f" ({of})" if of and of != "mean" else "")
        points = [
            f"{text} at {names.get(row[0], f'{row[0]:g}')}" if row[0] is not None else text
            for row, text in rows
        ]
        if mark["dash"] is None and mark["kind"] != "strip":  # unordered: list all points
            sentences.append(f"{label}: {', '.join(points)}.")
        elif len(rows) == 1:
            sentences.append(f"{label}: {rows[0][1]}.")
        else:
            means = [row[1] for row, _ in rows]
            parts = [f"{label}: from {points[0]} to {points[-1]}"]
            for name, extreme in (("lowest", min(means)), ("highest", max(means))):
                if (at := means.index(extreme)) not in (0, len(rows) - 1):
                    parts.append(f"{name} {points[at]}")
            sentences.append(", ".join(parts) + ".")
    if len(marks) > MAX_DESCRIBED:
        sentences.append(f"{len(marks) - MAX_DESCRIBED} more in the table below.")
    return " ".join(sentences)


def _round(value: float) -> float | int | None:
    """Round to `DIGITS` significant digits; None for NaN and infinity, which JSON does not have."""
    if value is None or not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
