"""Text next to the points of a panel, placed so that labels cover neither each other nor other points.

The page places its labels by the same rule (`placeLabels` in report/web/drawing.js).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from whichlayers.plots.facets import Panel, PanelFigure

FONT_SIZE = 6.5
HEIGHT = 0.75 * FONT_SIZE  # of digits
CHARACTER = 0.65 * FONT_SIZE  # width of a digit
GAP = (4.0, 3.0)  # sideways and vertical distance of a label from the center of its point
RADIUS = 2.5  # of a point
LEVELS = 4  # distances that are tried

Box = tuple[float, float, float, float]  # left, bottom, right, top, in points


def draw_labels(figure: PanelFigure) -> None:
    """Draw the labels of all marks, in the colors of the marks; call it when the limits of all panels are set."""
    for panel in figure.panels:
        _draw_labels(panel, *figure.get_size_inches())


def _draw_labels(panel: Panel, figure_width: float, figure_height: float) -> None:
    """Draw the labels of a panel; the sizes are in inches."""
    axes = panel.axes
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    position = axes.get_position()  # the layout changes it a little
    across = 72 * figure_width * position.width / (right - left)  # points per unit
    up = 72 * figure_height * position.height / (top - bottom)
    points, texts, colors = [], [], []
    for mark in panel.marks:
        if mark.kind != "line":
            continue
        for i, (x, mean) in enumerate(zip(mark.table["x"], mark.table["mean"], strict=True)):
            points.append((across * (x + mark.shift), up * mean))
            texts.append(mark.labels[i] if mark.labels else "")
            colors.append(mark.style["color"])
    for (x, y), text, color, offset in zip(points, texts, colors, place_labels(points, texts), strict=True):
        if text:
            axes.annotate(
                text,
                (x / across, y / up),
                offset,
                textcoords="offset points",
                fontsize=FONT_SIZE,
                color=color,
            )


def place_labels(points: Sequence[tuple[float, float]], texts: Sequence[str]) -> list[tuple[float, float]]:
    """Where to put the label of each point, as the offset of its lower left corner from the point.

    Each label gets the first place, upper right before the others and near before far, where it covers no earlier
    label and no other point; if there is none, the first one where it covers no earlier label.

    Args:
        points: (x, y) of all points, in points (1/72 inch).
        texts: The label of each point; empty for those without.
    """
    markers = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in points]
    placed: list[Box] = []
    offsets = []
    for (x, y), text in zip(points, texts, strict=True):
        found = list(_places(CHARACTER * len(text)))
        boxes = [(x + dx, y + dy, x + dx + CHARACTER * len(text), y + dy + HEIGHT) for dx, dy in found]
        free = [i for i, box in enumerate(boxes) if not any(_overlap(box, other) for other in placed)]
        clear = [i for i in free if not any(_overlap(boxes[i], marker) for marker in markers)]
        best = (clear or free or [0])[0]
        offsets.append(found[best])
        if text:
            placed.append(boxes[best])
    return offsets


def _places(width: float) -> Iterator[tuple[float, float]]:
    """Offsets to try for a label of this width: right and left, above and below, near and far."""
    for level, sign in itertools.product(range(LEVELS), (1, -1)):
        distance = GAP[1] + level * (HEIGHT + 1)
        dy = distance if sign == 1 else -distance - HEIGHT
        yield from ((GAP[0], dy), (-GAP[0] - width, dy))


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
