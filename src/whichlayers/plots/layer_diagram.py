"""Layer diagram: the model as columns of layers, each colored by the effect of its pretrained weights.

There is one column per task and training size. The number in a box is the effect of a layer in points (100 times the
metric) ± half of its 95% interval. The color is that of the bound of the interval nearer to zero: what is certain of
the effect, not its estimate. Hatched boxes are not significantly different from zero. With a single trial there are no
intervals, and therefore neither colors nor hatching. The score with no layer pretrained is below each column, the score
with all layers pretrained above it. `draw_layers` draws a diagram into a file, the script of the page (web/layers.js)
draws `diagram_data`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb

from whichlayers.analysis.intervals import SIGNIFICANT
from whichlayers.analysis.layer_effects import (
    BLOCK_PRESERVED,
    BLOCK_REINITIALIZED,
    INCREMENTAL,
    SINGLE_LAYER,
    baseline_scores,
    layer_effects,
)
from whichlayers.plots.display_names import metric_name, size_name
from whichlayers.plots.style import DARK, LIGHT, Theme
from whichlayers.plots.tooltips import box_lines
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.text import counted, format_half_width, format_score, join_list, short_names

TITLES = {
    INCREMENTAL: "Effect of adding each pretrained layer to those below it",
    SINGLE_LAYER: "Drop from re-initializing a single layer",
    BLOCK_REINITIALIZED: "Drop from re-initializing a block that contains the layer",
    BLOCK_PRESERVED: "Gain from keeping only a block that contains the layer",
}
DEFINITIONS = {
    INCREMENTAL: "k minus k − 1 pretrained layers, paired by seed, with all layers above re-initialized",
    SINGLE_LAYER: "all layers pretrained minus this layer re-initialized, paired by seed",
    BLOCK_REINITIALIZED: "all layers pretrained minus one block re-initialized, paired by seed, averaged over the "
    "blocks that contain the layer",
    BLOCK_PRESERVED: "one block pretrained minus no layer pretrained, paired by seed, averaged over the blocks "
    "that contain the layer",
}
LEGEND_TITLE = "bound of the 95% interval nearer to zero, in points"
# Geometry, in units of the width of a column and of the height of a layer. Layer n spans n to n + 1; heights above the
# layers are measured from the upper edge of the last layer.
TASK_GAP = 0.15  # between the columns of two tasks
INSET = (0.02, 0.07)  # of a box in its column and layer
NONE_HEIGHT = 0.48  # score with no layer pretrained
ALL_HEIGHT, SIZE_HEIGHT, TASK_HEIGHT = 0.52, 1.19, 1.96  # above the layers
BOTTOM, TOP = -0.11, 2.4  # TOP: above the layers
SHADES = {  # for negative, zero and positive effects; the ends differ in lightness from the middle in both themes
    "light": ("#b85000", "#f3f5f8", "#0b5394"),
    "dark": ("#f08a3c", "#222933", "#62b6f0"),
}


@dataclass(frozen=True)
class Box:
    """Effect of one layer, or of several consecutive layers together."""

    first: int
    last: int
    mean: float
    half: float  # half of the 95% interval; NaN if there is a single trial
    n: int
    significant: bool  # adjusted p below 0.05 within its column

    @property
    def certain(self) -> float:
        """The bound of the interval nearer to zero, per layer, which determines the color.

        0 if the interval contains zero, or if there is none.
        """
        if math.isnan(self.half) or abs(self.mean) <= self.half:
            return 0.0
        return math.copysign(abs(self.mean) - self.half, self.mean) / (self.last - self.first + 1)


@dataclass(frozen=True)
class LayerColumn:
    """The layers of the model for one task and training size."""

    task: str
    size: int
    metric: str
    none: float  # score with no layer pretrained; NaN if it was not run
    all: float  # score with all layers pretrained
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class LayerDiagram:
    """The columns of one model and variant, with effects measured by one experiment."""

    source: str
    model: str
    variant: str
    depth: int
    columns: tuple[LayerColumn, ...]

    @property
    def boxes(self) -> list[Box]:
        """The boxes of all columns."""
        return [box for column in self.columns for box in column.boxes]

    @property
    def max_effect(self) -> float:
        """End of the color scale: the largest absolute bound nearer to zero, per layer."""
        return max(abs(box.certain) for box in self.boxes) or 1.0

    @property
    def single_trials(self) -> bool:
        """Whether no box has an interval."""
        return all(math.isnan(box.half) for box in self.boxes)

    @property
    def wide(self) -> bool:
        """Whether a box spans several layers."""
        return any(box.first != box.last for box in self.boxes)

    @property
    def legend_title(self) -> str:
        """What the colors mean."""
        return f"{LEGEND_TITLE} per layer" if self.wide else LEGEND_TITLE

    @property
    def legend(self) -> list[tuple[str, float]]:
        """Colors to explain: text in points and value relative to `max_effect`; empty if no box has a color."""
        certain = [box.certain for box in self.boxes]
        if not any(certain):
            return []
        values = [-1.0, -0.5] if min(certain) < 0 else []
        values += [0.0] + ([0.5, 1.0] if max(certain) > 0 else [])
        return [(format_score(value * self.max_effect, signed=True), value) for value in values]

    @property
    def end(self) -> int:
        """Height of the upper edge of the last layer."""
        return self.depth + 1

    @property
    def row_labels(self) -> list[tuple[float, str, bool]]:
        """Labels to the left of the columns: height, text, and whether it is a layer."""
        scores = {
            NONE_HEIGHT: "none kept",
            self.end + ALL_HEIGHT: "all kept",
            self.end + SIZE_HEIGHT: "examples",
        }
        layers = {n + 0.5: f"layer {n}" if n in (1, self.depth) else str(n) for n in range(1, self.end)}
        return [(y, text, False) for y, text in scores.items()] + [(y, t, True) for y, t in layers.items()]

    def column_labels(self, column: LayerColumn) -> list[tuple[float, str, str]]:
        """Height, text and font weight of the training size and of the scores with all and no layers pretrained."""
        size = (self.end + SIZE_HEIGHT, size_name(column.size), "normal")
        scores = (self.end + ALL_HEIGHT, format_score(column.all), "bold")
        return [
            label for label in (size, scores, (NONE_HEIGHT, format_score(column.none), "normal")) if label[1]
        ]

    def colors(self, box: Box, theme: Theme) -> tuple[str, str]:
        """Fill and text color of a box."""
        fill = shade(box.certain / self.max_effect, theme)
        return fill, text_color_on(fill)

    @property
    def kind(self) -> str:
        """The key of `TITLES` that the source belongs to."""
        return next(kind for kind in TITLES if self.source.startswith(kind))

    @property
    def caption(self) -> str:
        metrics = join_list(dict.fromkeys(metric_name(column.metric) for column in self.columns))
        ns = sorted({box.n for column in self.columns for box in column.boxes})
        pairs = counted(ns[0], "paired trial") if len(ns) == 1 else f"{ns[0]} to {ns[-1]} paired trials"
        scores = (
            "The score with no layer pretrained is below each column, the score with all layers above it."
        )
        start, definition = f"{TITLES[self.kind]}, in points ({metrics} × 100)", DEFINITIONS[self.kind]
        if self.single_trials:
            return (
                f"{start}: {definition}; {pairs}, so there are no intervals, no tests and no colors. {scores}"
            )
        colors = (
            "The color is that of the bound of the interval nearer to zero"
            + (", per layer if a box spans several layers" if self.wide else "")
            + ("" if self.legend else "; no interval excludes zero")
        )
        return (
            f"{start} ± half of the 95% interval: {definition}; {pairs}. {colors}. "
            f"Hatched: not significantly different from zero (adjusted p ≥ {SIGNIFICANT} within the column). "
            "Intervals are not adjusted for multiple comparisons, so that of a hatched layer may exclude zero. "
            f"{scores}"
        )

    @property
    def alt_text(self) -> str:
        """Text alternative for screen readers: the layers with a significant effect, column by column."""
        sentences = [f"{TITLES[self.kind]}."]
        if self.single_trials:
            sentences.append("Single trials, so there are no tests.")
        short = short_names([column.task for column in self.columns])
        for column in () if self.single_trials else self.columns:
            boxes = sorted((box for box in column.boxes if box.significant), key=lambda box: -abs(box.mean))
            names = [f"{layer_label(box)} ({format_score(box.mean, signed=True)})" for box in boxes[:4]]
            names += [f"{len(boxes) - 4} more"] if len(boxes) > 4 else []
            if not boxes:
                text = "no layer has an effect significantly different from zero"
            elif len(boxes) == 1 and boxes[0].first == boxes[0].last:
                text = f"the effect of layer {names[0]} is significantly different from zero"
            else:
                text = f"the effects of layers {join_list(names)} are significantly different from zero"
            sentences.append(f"{short[column.task]}, {size_name(column.size)} examples: {text}.")
        return " ".join(sentences)


def layer_diagrams(points: pd.DataFrame) -> list[LayerDiagram]:
    """All layer diagrams that finished points allow, one per experiment, model and variant; the most direct first."""
    values, found = layer_effects(points), []
    order = {task: index for index, task in enumerate(dict.fromkeys(points["task"]))}
    for (source, model, variant), rows in each_group(values, ["source", "model", "variant"]):
        kind = next(kind for kind in TITLES if str(source).startswith(kind))
        scores = {
            (r.model, r.task, r.train_size, r.variant): (r.none, r.all)
            for r in each_row(baseline_scores(points, kind))
        }
        columns = []
        for (task, size, metric), layers in each_group(rows, ["task", "train_size", "metric"]):
            none, all_layers = scores.get((model, task, size, variant), (math.nan, math.nan))
            boxes = [
                Box(
                    int(r.first),
                    int(r.last),
                    r.mean,
                    (r.high - r.low) / 2,
                    int(r.n),
                    bool(r.p_adjusted < SIGNIFICANT),
                )
                for r in each_row(layers)
            ]
            columns.append(
                LayerColumn(str(task), int(size), str(metric), float(none), float(all_layers), tuple(boxes))
            )
        columns.sort(key=lambda column: (order[column.task], column.size))
        found.append(
            LayerDiagram(str(source), str(model), str(variant), int(rows["depth"].iloc[0]), tuple(columns))
        )
    return found


def diagram_file_names(diagrams: Sequence[LayerDiagram]) -> dict[str, LayerDiagram]:
    """Name each diagram: "layers" for the first, then "layers_SOURCE" and, if there are several, "_v2", "_v3" ..."""
    named: dict[str, LayerDiagram] = {}
    for diagram in diagrams:
        base = "layers" if not named else f"layers_{diagram.kind.replace(' ', '_')}"
        count = sum(name == base or name.startswith(f"{base}_v") for name in named)
        named[f"{base}_v{count + 1}" if count else base] = diagram
    return named


def diagram_data(diagrams: Sequence[LayerDiagram]) -> list[dict[str, Any]]:
    """JSON-serializable data from which the page (web/layers.js) draws the diagrams."""
    models = short_names([diagram.model for diagram in diagrams])
    tasks = short_names([column.task for diagram in diagrams for column in diagram.columns])
    return [
        {
            "source": TITLES[d.kind] + (d.source.removeprefix(d.kind)),
            "model": models[d.model],
            "variant": d.variant,
            "height": [BOTTOM, d.end + TOP],
            "labels": d.row_labels,
            "taskHeight": d.end + TASK_HEIGHT,
            "gap": TASK_GAP,
            "inset": INSET,
            "caption": d.caption,
            "alt": d.alt_text,
            "tested": not d.single_trials,
            "legendTitle": d.legend_title,
            "legend": [
                [text, [(color := shade(value, theme), text_color_on(color)) for theme in (LIGHT, DARK)]]
                for text, value in d.legend
            ],
            "columns": [
                {
                    "task": tasks[c.task],
                    "size": size_name(c.size),
                    "metric": metric_name(c.metric),
                    "labels": d.column_labels(c),
                    "boxes": [
                        [b.first, b.last, _points(b.mean), _points(b.half), b.n, b.significant]
                        for b in c.boxes
                    ],
                    "texts": [
                        [format_score(b.mean, signed=True), format_half_width(b.half)] for b in c.boxes
                    ],
                    "tooltips": [
                        [
                            f"{tasks[c.task]} · {size_name(c.size)} examples · {_box_name(b)}",
                            box_lines(b.mean, b.half, b.n, b.significant, c.metric),
                        ]
                        for b in c.boxes
                    ],
                    "colors": [[d.colors(b, theme) for theme in (LIGHT, DARK)] for b in c.boxes],
                }
                for c in d.columns
            ],
        }
        for d in diagrams
    ]


def shade(relative_effect: float, theme: Theme) -> str:
    """Color of an effect relative to the largest one, from -1 to 1."""
    scale = LinearSegmentedColormap.from_list("effect", SHADES[theme.name])
    return to_hex(scale(0.5 + 0.5 * max(-1.0, min(1.0, relative_effect))))


def text_color_on(color: str) -> str:
    """Black or white, whichever has more contrast on this color."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#ffffff" if luminance < 0.179 else "#000000"


def layer_label(box: Box) -> str:
    """Layer number, or range of layer numbers, of a box."""
    return str(box.first) if box.first == box.last else f"{box.first}–{box.last}"


def _box_name(box: Box) -> str:
    """Name of the layers of a box in a tooltip."""
    if box.first == box.last:
        return f"layer {box.first}"
    return f"layers {box.first} to {box.last}"


def _points(value: float) -> float | None:
    """A score in points, rounded; None for NaN, which JSON does not have."""
    return None if math.isnan(value) else round(100 * value, 3)
