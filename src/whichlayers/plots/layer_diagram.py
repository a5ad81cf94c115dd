"""The model as a stack of layers, each shaded by what its pretrained weights were worth: the picture for a slide.

One stack a task and size. The number in a box is the worth in points (× 100 of the metric) with half of its 95%
interval; a hatched box cannot be told from zero. Below the stack stands the score with no pretrained layer, above
it that with all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from whichlayers.analysis.frame_utils import each_group, each_row
from whichlayers.analysis.layer_effects import INCREMENTAL, PRESERVED, REDRAWN, SINGLE, ends, layer_values
from whichlayers.plots.display_names import listing, metric_name, short_names, size_name
from whichlayers.plots.style import LIGHT, Theme

SIGNIFICANT = 0.05
WORDS = {
    INCREMENTAL: "What each layer adds on top of those below it",
    SINGLE: "What is lost when this layer alone is re-initialised",
    REDRAWN: "What is lost when a block around the layer is re-initialised",
    PRESERVED: "What a block around the layer brings when only the block is kept",
}
MEANT = {
    INCREMENTAL: "the paired step from k − 1 to k pretrained layers, those above being re-initialised",
    SINGLE: "all layers pretrained minus this one re-initialised, paired by seed",
    REDRAWN: "all layers pretrained minus a block re-initialised, paired by seed, mean over the blocks it lies in",
    PRESERVED: "a block preserved minus no layer pretrained, paired by seed, mean over the blocks it lies in",
}
MOST_STACKS = 12  # side by side
SHADES = {  # for worth below, of and above nothing; the ends differ in lightness from the middle in both themes
    "light": ("#b85000", "#f3f5f8", "#0b5394"),
    "dark": ("#f08a3c", "#222933", "#62b6f0"),
}


@dataclass(frozen=True)
class Box:
    first: int
    last: int
    mean: float
    half: float  # NaN where there is one trial
    n: int
    clear: bool  # adjusted p below 0.05 within its stack

    @property
    def each(self) -> float:
        """Worth a layer, which decides the shade of a box that stands for several."""
        return self.mean / (self.last - self.first + 1)


@dataclass(frozen=True)
class Stack:
    task: str
    size: int
    metric: str
    none: float  # NaN where it was not run
    all: float
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Picture:
    """The stacks of one model and variant, by one source."""

    source: str
    model: str
    variant: str
    depth: int
    stacks: tuple[Stack, ...]

    @property
    def most(self) -> float:
        """The end of the scale: the largest worth of a layer, in either direction."""
        return max(abs(box.each) for stack in self.stacks for box in stack.boxes) or 1.0

    @property
    def kind(self) -> str:
        return next(kind for kind in WORDS if self.source.startswith(kind))

    @property
    def caption(self) -> str:
        metrics = listing(dict.fromkeys(metric_name(stack.metric) for stack in self.stacks))
        ns = sorted({box.n for stack in self.stacks for box in stack.boxes})
        pairs = f"{ns[0]} paired trials" if len(ns) == 1 else f"{ns[0]} to {ns[-1]} paired trials"
        wide = any(box.first != box.last for stack in self.stacks for box in stack.boxes)
        return (
            f"{WORDS[self.kind]}, in points ({metrics} × 100), ± half of its 95% interval: {MEANT[self.kind]}; "
            f"{pairs}. Hatched: cannot be told from zero (adjusted p of 0.05 or more within the stack). "
            "The intervals are of one layer each and not adjusted: that of a hatched layer may leave zero out. "
            "Below each stack the score with no pretrained layer, above it that with all."
            + (" A box over several layers is shaded by its worth a layer." if wide else "")
        )

    def in_words(self) -> str:
        """For those who cannot see it: the layers that can be told from zero, stack by stack."""
        told = [f"{WORDS[self.kind]}."]
        for stack in self.stacks:
            clear = sorted((box for box in stack.boxes if box.clear), key=lambda box: -abs(box.mean))
            named = listing(f"{span(box)} ({points_text(box.mean)})" for box in clear[:4])
            many = f" and {len(clear) - 4} more" if len(clear) > 4 else ""
            name = short_names([s.task for s in self.stacks])[stack.task]
            which = f"layer {named}{many}" if named else "no layer"
            told.append(f"{name}, {size_name(stack.size)} examples: {which} can be told from zero.")
        return " ".join(told)


def pictures(points: pd.DataFrame) -> list[Picture]:
    """From finished points; the most direct source first. Empty where no experiment tells of single layers."""
    values, found = layer_values(points), []
    order = {task: place for place, task in enumerate(dict.fromkeys(points["task"]))}
    for (source, model, variant), rows in each_group(values, ["source", "model", "variant"]):
        kind = next(kind for kind in WORDS if str(source).startswith(kind))
        scores = {
            (r.model, r.task, r.train_size, r.variant): (r.none, r.all) for r in each_row(ends(points, kind))
        }
        stacks = []
        for (task, size, metric), mine in each_group(rows, ["task", "train_size", "metric"]):
            none, every = scores.get((model, task, size, variant), (math.nan, math.nan))
            boxes = [
                Box(
                    int(r.first),
                    int(r.last),
                    r.mean,
                    (r.high - r.low) / 2,
                    int(r.n),
                    bool(r.p_adjusted < SIGNIFICANT),
                )
                for r in each_row(mine)
            ]
            stacks.append(Stack(str(task), int(size), str(metric), float(none), float(every), tuple(boxes)))
        stacks.sort(key=lambda stack: (order[stack.task], stack.size))
        found.append(
            Picture(str(source), str(model), str(variant), int(rows["depth"].iloc[0]), tuple(stacks))
        )
    return found


def file_names(found: Sequence[Picture]) -> dict[str, Picture]:
    """The first is called layers, the others say by which source, and count where there are several."""
    named: dict[str, Picture] = {}
    for picture in found:
        base = "layers" if not named else f"layers_{picture.kind.replace(' ', '_')}"
        count = sum(name == base or name.startswith(f"{base}_v") for name in named)
        named[f"{base}_v{count + 1}" if count else base] = picture
    return named


def picture_data(found: Sequence[Picture]) -> list[dict[str, Any]]:
    """For the page, which draws them and lets a reader choose."""
    models = short_names([p.model for p in found])
    tasks = short_names([stack.task for p in found for stack in p.stacks])
    return [
        {
            "source": WORDS[p.kind] + (p.source.removeprefix(p.kind)),
            "model": models[p.model],
            "variant": p.variant,
            "depth": p.depth,
            "most": 100 * p.most,
            "caption": p.caption,
            "alt": p.in_words(),
            "stacks": [
                {
                    "task": tasks[s.task],
                    "size": size_name(s.size),
                    "metric": metric_name(s.metric),
                    "none": _points(s.none),
                    "all": _points(s.all),
                    "boxes": [
                        [b.first, b.last, _points(b.mean), _points(b.half), b.n, b.clear] for b in s.boxes
                    ],
                }
                for s in p.stacks
            ],
        }
        for p in found
    ]


def draw_layers(picture: Picture, theme: Theme = LIGHT) -> Figure:
    """The stacks side by side, tasks apart from one another and broken into rows; layer 1 is the lowest."""
    rows = _in_rows(picture.stacks)
    widest = max(len(row) + 0.35 * len({s.task for s in row}) for row in rows)
    width, height = max(4.6, 0.72 * widest + 1.0), 0.27 * (picture.depth + 4.2)
    spare = width - (0.72 * widest + 1.0)  # beside few stacks: what the note below them needs
    tall = height * len(rows) + 0.3
    with theme.applied():
        figure = Figure(figsize=(width, tall))
        for place, row in enumerate(rows):
            bottom = (0.3 + height * (len(rows) - 1 - place)) / tall
            left = 0.86 + spare / 2
            axes = figure.add_axes((left / width, bottom, 1 - (left + 0.04) / width, height / tall))
            axes.set_xlim(-0.06, max(widest, (width - left - 0.04) / 0.72) - 0.3)
            _row(axes, row, picture, theme)
        note = f"{WORDS[picture.kind]}: points ± half of the 95% interval; hatched: not told from zero"
        note = note if width > 6.6 else note.replace(": ", ":\n", 1)
        figure.text(0.5, 0.13 / tall, note, ha="center", va="center", size=6.4, color=theme.ink)
    return figure


def _in_rows(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """Tasks stay whole; a row has up to MOST_STACKS, or one task that has more."""
    rows: list[list[Stack]] = [[]]
    for task in dict.fromkeys(stack.task for stack in stacks):
        mine = [stack for stack in stacks if stack.task == task]
        if rows[-1] and len(rows[-1]) + len(mine) > MOST_STACKS:
            rows.append([])
        rows[-1] += mine
    return rows


def _row(axes: Axes, stacks: Sequence[Stack], picture: Picture, theme: Theme) -> None:
    tasks = list(dict.fromkeys(stack.task for stack in stacks))
    short, depth = short_names([stack.task for stack in picture.stacks]), picture.depth
    places = [i + 0.35 * tasks.index(stack.task) for i, stack in enumerate(stacks)]
    axes.set_ylim(-0.3, depth + 3.9)
    axes.set_axis_off()
    for place, stack in zip(places, stacks, strict=True):
        _stack(axes, place, stack, picture, theme)
    for task in tasks:
        mine = [place for place, stack in zip(places, stacks, strict=True) if stack.task == task]
        middle = (mine[0] + mine[-1] + 0.94) / 2
        axes.text(middle, depth + 3.2, short[task], ha="center", va="center", weight="bold", size=9)
    heads = {0.35: "none kept", depth + 1.65: "all kept", depth + 2.4: "examples"}
    heads |= {
        layer + 0.5: f"layer {layer}" if layer in (1, depth) else str(layer) for layer in range(1, depth + 1)
    }
    for height, text in heads.items():
        quiet = theme.muted if text[0] in "nae" else theme.ink
        axes.text(-0.12, height, text, ha="right", va="center", size=7.5, color=quiet)


def _stack(axes: Axes, place: float, stack: Stack, picture: Picture, theme: Theme) -> None:
    middle = place + 0.47
    axes.text(middle, picture.depth + 2.4, size_name(stack.size), ha="center", va="center", size=7.5)
    for height, score in ((0.35, stack.none), (picture.depth + 1.65, stack.all)):
        if not math.isnan(score):
            axes.text(
                middle, height, f"{100 * score:.1f}", ha="center", va="center", size=7.5, color=theme.ink
            )
    for box in stack.boxes:
        colour = shade(box.each / picture.most, theme)
        axes.add_patch(
            FancyBboxPatch(
                (place + 0.03, box.first + 0.06),
                0.88,
                box.last - box.first + 0.88,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=colour,
                edgecolor=theme.muted if box.clear else (*to_rgb(ink_on(colour)), 0.35),
                linewidth=0.5 if box.clear else 0.0,
                hatch=None if box.clear else "/////",
                hatch_linewidth=0.4,
            )
        )
        text = points_text(box.mean) + ("" if math.isnan(box.half) else f" ±{100 * box.half:.1f}")
        axes.text(
            middle,
            (box.first + box.last + 1) / 2,
            text,
            ha="center",
            va="center",
            size=6.2,
            weight="bold" if box.clear else "normal",
            color=ink_on(colour),
            bbox=None if box.clear else {"facecolor": colour, "edgecolor": "none", "pad": 0.8},
        )


def shade(share: float, theme: Theme) -> str:
    """From -1 (harms most) through 0 to 1 (helps most)."""
    scale = LinearSegmentedColormap.from_list("worth", SHADES[theme.name])
    return to_hex(scale(0.5 + 0.5 * max(-1.0, min(1.0, share))))


def ink_on(colour: str) -> str:
    """Black or white, whichever stands out more."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#ffffff" if luminance < 0.179 else "#000000"


def span(box: Box) -> str:
    return str(box.first) if box.first == box.last else f"{box.first}–{box.last}"


def points_text(value: float) -> str:
    """+3.2, in points."""
    return f"{round(100 * value, 1) + 0.0:+.1f}".replace("-", "−")


def _points(value: float) -> float | None:
    return None if math.isnan(value) else round(100 * value, 3)
