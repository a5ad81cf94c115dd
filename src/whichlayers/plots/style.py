"""Colors, line styles and sizes of the figures, for light and dark pages.

Training set sizes use a color ramp that varies in both lightness and hue, so that its order is visible in grayscale
and with any color vision deficiency. Conditions use the Okabe-Ito colors and one marker each. Variants (recipes and
other settings) differ only by line style and marker.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_hex

LINES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (5, 1.4, 1.2, 1.4)))
# one more than colors: a color that is used again has another marker
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINE_WIDTH = 1.5
MARKER_SIZE = 4.0
CAP_SIZE = 2.0
MAX_SINGLE_TRIALS = 10  # points with at most this many trials also show each trial


@dataclass(frozen=True)
class Theme:
    """Colors of a light or dark figure."""

    name: str
    ink: str
    muted: str
    grid: str
    background: str
    ramp: tuple[str, ...]  # from few to many training examples
    conditions: tuple[str, ...]  # also of tasks, settings and studies that share a figure

    def sizes(self, n: int) -> list[str]:
        """n colors of the ramp, from few to many training examples."""
        ramp = LinearSegmentedColormap.from_list("sizes", self.ramp)
        positions = np.linspace(0.0, 1.0, n) if n > 2 else np.linspace(0.25, 0.85, n) if n == 2 else [0.75]
        return [to_hex(ramp(float(position))) for position in positions]

    def applied(self) -> AbstractContextManager[None]:
        """Context manager that applies the matplotlib settings of this theme."""
        settings: Any = {
            "font.family": "DejaVu Sans",  # shipped with matplotlib: figures are the same on every machine
            "font.size": 8.0,
            "axes.titlesize": 9.0,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 8.0,
            "axes.edgecolor": self.muted,
            "axes.labelcolor": self.ink,
            "axes.titlecolor": self.ink,
            "axes.facecolor": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.7,
            "axes.axisbelow": True,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": self.grid,
            "grid.linewidth": 0.6,
            "text.color": self.ink,
            "xtick.color": self.muted,
            "ytick.color": self.muted,
            "xtick.labelcolor": self.ink,
            "ytick.labelcolor": self.ink,
            "xtick.labelsize": 7.5,
            "ytick.labelsize": 7.5,
            "xtick.major.width": 0.7,
            "ytick.major.width": 0.7,
            "xtick.major.size": 3.0,
            "ytick.major.size": 0.0,
            "legend.frameon": False,
            "legend.fontsize": 8.0,
            "legend.handlelength": 2.4,
            "legend.columnspacing": 1.8,
            "figure.facecolor": self.background,
            "savefig.facecolor": self.background,
            "svg.fonttype": "path",
            "svg.hashsalt": "whichlayers",  # makes files reproducible byte for byte
            "pdf.fonttype": 42,
        }
        return matplotlib.rc_context(settings)


LIGHT = Theme(
    name="light",
    ink="#1c2430",
    muted="#8a94a3",
    grid="#e6e9ee",
    background="#ffffff",
    ramp=("#7fcdae", "#2b9fb3", "#2467a6", "#1d2a63"),
    conditions=("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#555555"),
)
DARK = Theme(
    name="dark",
    ink="#e8ebf0",
    muted="#7c8798",
    grid="#2b323d",
    background="#171b22",
    ramp=("#3d63a8", "#2f97b8", "#5fcbae", "#e3f5c4"),
    conditions=("#56b4e9", "#f08a3c", "#3fc79a", "#d884c4", "#e6c65c", "#b0b8c4"),
)


@cache
def _dark_colors() -> dict[str, str]:
    pairs = list(zip(LIGHT.conditions, DARK.conditions, strict=True))
    pairs += [(LIGHT.ink, DARK.ink), (LIGHT.muted, DARK.muted), (LIGHT.background, DARK.background)]
    for n in range(1, 41):
        pairs += list(zip(LIGHT.sizes(n), DARK.sizes(n), strict=True))
    return dict(pairs)


def dark_color(color: str) -> str:
    """The color of the dark theme that corresponds to a color of the light theme."""
    return _dark_colors().get(color, color)
