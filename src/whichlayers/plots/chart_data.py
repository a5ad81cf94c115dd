"""A figure as data, for the page to draw anew: its panels, the marks on them, and what they can be told apart by.

    chart = chart_of(figure, "incremental", "Incremental re-initialisation", caption)

Painters draw once, on matplotlib's axes; each panel remembers its marks. So whatever has a figure has a chart, the
files and the page show the same numbers, and a new kind of experiment needs nothing here. A figure that was
painted in another way has no chart, and stands on the page as a picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from whichlayers.plots.display_names import (
    BY_LAYER,
    BY_MODEL,
    CONDITIONS,
    condition_name,
    number,
    short_names,
    size_name,
    task_word,
)
from whichlayers.plots.facets import Mark, Panel, PanelFigure, range_of
from whichlayers.plots.style import DARK, LIGHT, dark_twin

# What a reader may switch on and off, in this order; "beside": what is drawn for comparison, by its name.
DIMENSIONS = {
    "task": "task",
    "model": "model",
    "train_size": "examples",
    "condition": "condition",
    "variant": "variant",
    "setting": "setting",
    "kept": "curve",
    "beside": "beside it",
}
MOST_TRIALS = 40_000  # in a chart; more would make the page heavy, and are in results.csv
LEFT_OUT = f"Single trials are not on this page, being more than {MOST_TRIALS:,}; results.csv has them."
DIGITS = 6
SPOKEN = 6  # lines of a panel that its description tells of

Chart = dict[str, Any]


def chart_of(figure: Figure, key: str, title: str, caption: str, overlay: bool = False) -> Chart | None:
    """JSON-ready; None where the figure was not drawn with panels. `overlay`: published curves shown at first."""
    panels = [p for p in figure.panels if p.marks] if isinstance(figure, PanelFigure) else []
    if not panels:
        return None
    marks = [(place, mark) for place, panel in enumerate(panels) for mark in panel.marks]
    named = _names(mark for _, mark in marks)
    dims = [name for name in DIMENSIONS if len(named[name]) > 1 or (name == "beside" and named[name])]
    within = [name for name in dims if _varies_in_a_panel(panels, name) or _told_nowhere(panels, name)]
    count = sum(0 if mark.trials is None else len(mark.trials) for _, mark in marks)
    x_label = next((p.axes.get_xlabel() for p in reversed(panels) if p.axes.get_xlabel()), "x")
    experiment = next((str(m.about["experiment"]) for _, m in marks if "experiment" in m.about), "")
    drawn = [_mark(mark, place, dims, within, named, count <= MOST_TRIALS) for place, mark in marks]
    for made, (place, mark) in zip(drawn, marks, strict=True):
        made["of"] = _owner(mark, place, marks)
    together = bool(getattr(figure, "together", False))
    hidden = [] if overlay else [name for name in named["beside"] if name.startswith("published")]
    return {
        "key": key,
        "title": title,
        "caption": f"{caption} {LEFT_OUT}" if count > MOST_TRIALS else caption,
        "x": x_label,
        "single": "permutation" if any(mark.kind == "strip" for _, mark in marks) else "seed",
        "trials": getattr(figure, "trials_first", None),
        "tooMany": count > MOST_TRIALS,
        "dims": [
            {"name": name, "label": _dimension(name, experiment), "values": list(named[name].values())}
            for name in dims
        ],
        "hidden": [named["beside"][name] for name in hidden],
        "panels": [
            _panel(panel, x_label, [m for m in drawn if m["panel"] == i], drawn, together)
            for i, panel in enumerate(panels)
        ],
        "marks": drawn,
    }


def _names(marks: Iterable[Mark]) -> dict[str, dict[Any, str]]:
    """dimension -> value -> how it is called, in order of first appearance; sizes by their size."""
    found: dict[str, dict[Any, str]] = {name: {} for name in DIMENSIONS}
    kept = list(marks)
    for mark in kept:
        for name, value in _place(mark).items():
            text = str(value)
            if name == "train_size":
                text = size_name(value)
            elif name == "condition":
                text = condition_name(str(mark.about.get("experiment", "")), str(value))
            elif name == "variant":
                text = str(value) or "as usual"
            found[name].setdefault(value, text)
    for name in ("task", "model"):
        short = short_names(map(str, found[name]))
        found[name] = {value: short[str(value)] for value in found[name]}
    found["train_size"] = dict(sorted(found["train_size"].items()))
    return found


def _dimension(name: str, experiment: str) -> str:
    if name == "task":
        return task_word(experiment)
    if name == "condition" and experiment in BY_LAYER:
        return "finetuned on"
    if name == "condition" and experiment in BY_MODEL:
        return "ranking" if experiment == "smallest_set" else "neurons"
    return "ranking" if name == "variant" and experiment in BY_LAYER else DIMENSIONS[name]


def _owner(mark: Mark, place: int, marks: Sequence[tuple[int, Mark]]) -> int:
    """The line of ours that a published one belongs to; -1 for all that is ours."""
    if mark.kind != "published":
        return -1
    alike = (
        i
        for i, (at, one) in enumerate(marks)
        if at == place and one.kind == "line" and one.about == mark.about
    )
    return next(alike, -1)


def _place(mark: Mark) -> dict[str, Any]:
    """Where a mark stands in each dimension. Of what stands beside, its own size or condition says nothing."""
    told = {name: mark.about[name] for name in DIMENSIONS if name in mark.about}
    if not mark.name:
        return told
    kept = ["task", "model"] if mark.kind == "line" else ["task", "model", "train_size", "variant"]
    kept += ["condition"] if mark.kind == "published" else []
    return {name: told[name] for name in kept if name in told} | {"beside": mark.name}


def _varies_in_a_panel(panels: Sequence[Panel], name: str) -> bool:
    return any(
        len({_place(mark)[name] for mark in panel.marks if name in _place(mark)}) > 1 for panel in panels
    )


def _told_nowhere(panels: Sequence[Panel], name: str) -> bool:
    """A size for each task, say, where the panels' headings leave it out: then the legend has it."""
    return name == "train_size" and not any(panel.subtitle for panel in panels)


def _mark(
    mark: Mark,
    place: int,
    dims: Sequence[str],
    within: Sequence[str],
    named: dict[str, dict[Any, str]],
    with_trials: bool,
) -> dict[str, Any]:
    stands = _place(mark)
    telling = [name for name in within if name in stands and (not mark.name or name == "beside")]
    words = [_in_legend(name, named[name][stands[name]]) for name in telling]
    look, trials = mark.look, mark.trials if with_trials else None
    colour = look["color"]
    return {
        "panel": place,
        "kind": mark.kind,
        "dims": [list(named[name]).index(stands[name]) if name in stands else -1 for name in dims],
        "label": ", ".join(words) or mark.name or _alone(mark),
        "colour": [colour, dark_twin(colour)],
        "single": [look.get("single", colour), dark_twin(look.get("single", colour))],
        "dash": _dash(look),
        "marker": look.get("marker", ""),
        "bars": mark.bars,
        "open": look.get("markerfacecolor") in (LIGHT.background, DARK.background),
        "rows": [
            [_short(value) for value in row]
            for row in mark.table.reindex(columns=["x", "mean", "low", "high", "sd", "n"]).itertuples(
                index=False
            )
        ],
        "trials": [] if trials is None else _triples(trials),
        "outline": [[_short(height), _short(width)] for height, width in mark.outline],
    }


def _alone(mark: Mark) -> str:
    """What a line is called where it is the only one of its panel."""
    key = (str(mark.about.get("experiment", "")), str(mark.about.get("condition", "")))
    return condition_name(*key) if key[1] or key in CONDITIONS else "mean"


def _in_legend(name: str, text: str) -> str:
    return f"{text} examples" if name == "train_size" else text


def _triples(trials: pd.DataFrame) -> list[list[Any]]:
    columns = [trials[name].tolist() for name in ("x", "seed", "value")]
    return [[_short(x), int(seed), _short(value)] for x, seed, value in zip(*columns, strict=True)]


def _dash(look: dict[str, Any]) -> list[float] | None:
    """[] for a line without gaps, None for no line."""
    style, width = look.get("linestyle", "-"), look.get("linewidth", 1.5)
    if style == "":
        return None
    return [] if style == "-" else [round(part * width, 2) for part in style[1]]


def _panel(
    panel: Panel,
    x_label: str,
    marks: Sequence[dict[str, Any]],
    every: Sequence[dict[str, Any]],
    together: bool,
) -> dict[str, Any]:
    axes = panel.axes
    low, high = axes.get_xlim()
    places = [float(tick) for tick in axes.get_xticks() if low <= tick <= high]
    texts = axes.xaxis.get_major_formatter().format_ticks(places)
    floor, ceiling = range_of(panel.metric)
    title, y = axes.get_title(loc="left") or panel.task, axes.get_ylabel()
    told = {"title": title, "sub": panel.subtitle, "y": y, "group": "" if together else panel.task}
    names = dict(zip(places, texts, strict=True))
    return told | {
        "zero": together,
        "range": [_short(floor), _short(ceiling)],
        "xlim": [_short(low), _short(high)],
        "ticks": [[_short(place), text.replace("−", "-")] for place, text in zip(places, texts, strict=True)],
        "alt": _in_words(title, panel.subtitle, x_label, y, marks, every, names),
    }


def _in_words(
    title: str,
    sub: str,
    x_label: str,
    y_label: str,
    marks: Sequence[dict[str, Any]],
    every: Sequence[dict[str, Any]],
    names: dict[float, str],
) -> str:
    """What a panel shows, for those who cannot see it: each line's ends, its lowest and its highest point."""
    where = f"{title}{f', {sub}' if sub else ''}"
    said = [f"{where}: {y_label} against {x_label}."]
    for mark in marks[:SPOKEN]:
        rows = [row for row in mark["rows"] if row[1] is not None]
        if not rows:
            continue
        of = every[mark["of"]]["label"] if mark["of"] >= 0 else ""
        label = mark["label"] + (f" ({of})" if of and of != "mean" else "")
        if mark["dash"] is None and mark["kind"] != "strip":  # no order: each by its name
            said.append(f"{label}: {', '.join(f'{number(row[1])} at {_at(row[0], names)}' for row in rows)}.")
            continue
        first, last = rows[0], rows[-1]
        if len(rows) == 1:
            said.append(f"{label}: {number(first[1])}.")
            continue
        text = f"{label}: from {number(first[1])} at {_at(first[0], names)}"
        text += f" to {number(last[1])} at {_at(last[0], names)}"
        least, most = min(rows, key=lambda row: row[1]), max(rows, key=lambda row: row[1])
        beyond = (
            [f"lowest {number(least[1])} at {_at(least[0], names)}"] if least not in (first, last) else []
        )
        beyond += [f"highest {number(most[1])} at {_at(most[0], names)}"] if most not in (first, last) else []
        said.append(", ".join([text, *beyond]) + ".")
    if len(marks) > SPOKEN:
        said.append(f"And {len(marks) - SPOKEN} more, in the table below.")
    return " ".join(said)


def _at(x: float, names: dict[float, str]) -> str:
    return names.get(x, f"{x:g}")


def _short(value: float) -> float | int | None:
    """To a few digits; whole numbers as such; None for what is not a number or has no end."""
    if value is None or not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
