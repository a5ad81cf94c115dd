"""Colours, lines and sizes of the figures, for light and for dark pages.

Sizes of data are one ramp that changes in lightness and hue together, so that its order survives grey print
and any colour blindness. Conditions take colours of Okabe and Ito, and a marker each. Variants (recipes and
the like) differ by line and marker alone.
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
MARKERS = ("o", "s", "^", "D", "v", "P")
LINE_WIDTH = 1.5
MARKER_SIZE = 4.0
CAP_SIZE = 2.0
FEW = 10  # up to so many trials in a cell are shown one by one


@dataclass(frozen=True)
class Theme:
    name: str
    ink: str
    muted: str
    grid: str
    background: str
    ramp: tuple[str, ...]  # from little data to much
    conditions: tuple[str, ...]

    def sizes(self, n: int) -> list[str]:
        """n colours from little data to much; a single one is the far end."""
        ramp = LinearSegmentedColormap.from_list("sizes", self.ramp)
        places = np.linspace(0.0, 1.0, n) if n > 2 else np.linspace(0.25, 0.85, n) if n == 2 else [0.75]
        return [to_hex(ramp(float(place))) for place in places]

    def applied(self) -> AbstractContextManager[None]:
        """matplotlib's settings for this theme, inside a `with` and nowhere else."""
        settings: Any = {
            "font.family": "DejaVu Sans",  # comes with matplotlib: the same figure on every machine
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
            "svg.hashsalt": "whichlayers",  # the same results give the same file, byte for byte
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
def _twins() -> dict[str, str]:
    pairs = list(zip(LIGHT.conditions, DARK.conditions, strict=True))
    pairs += [(LIGHT.ink, DARK.ink), (LIGHT.muted, DARK.muted), (LIGHT.background, DARK.background)]
    for n in range(1, 41):
        pairs += list(zip(LIGHT.sizes(n), DARK.sizes(n), strict=True))
    return dict(pairs)


def dark_twin(colour: str) -> str:
    """What a colour of the light theme is in the dark one."""
    return _twins().get(colour, colour)
