"""Draw the figures of the studies in this folder anew, from their results.csv.gz.

    python results/draw.py                       # all studies
    python results/draw.py carryover-bert-small  # one of them

Writes FOLDER/figures/NAME.png, with the curves of the papers where task and training size match. Figures of weight
changes need weight_change.csv.gz, which the oldest studies do not have. Figures of run times are left out: they say
more about the machine than about the layers. Studies with a results.db.xz are drawn by add_study.py.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent))

from recompute import RESULTS, read_points, studies

from whichlayers.experiments import sort_experiments
from whichlayers.plots.draw_layers import draw_layers
from whichlayers.plots.extra_figures import extra_figures
from whichlayers.plots.figures import draw
from whichlayers.plots.layer_diagram import diagram_file_names, layer_diagrams

DPI = 150
# Training examples of each task by its fingerprint, which results.csv.gz does not have: published curves are matched by
# the share of the training set.
TRAIN_ROWS = {
    "5d5a8065726baec7": 67_349,  # SST-2
    "b2b67e0e0b330629": 10_000,  # SST-2, a subset
    "f28ed96ed8bc12a7": 8_551,  # CoLA
    "e6e21709097a2614": 12_096,  # QNLI, a subset
}


def figures(points: pd.DataFrame, weights: pd.DataFrame | None) -> dict[str, Callable[[], Figure]]:
    """Name of each figure that finished points and weight changes allow -> a function that draws it."""
    points = points.assign(train_rows=points["task_fingerprint"].map(TRAIN_ROWS))
    found: dict[str, Callable[[], Figure]] = {
        experiment: partial(draw, points, experiment, overlay=True)
        for experiment in sort_experiments(points["experiment"])
    }
    extras = extra_figures(points.assign(seconds=math.nan), weights=weights, overlay=True)
    found |= {extra.key: extra.draw for extra in extras}
    diagrams = diagram_file_names(layer_diagrams(points))
    return found | {name: partial(draw_layers, diagram) for name, diagram in diagrams.items()}


def main() -> int:
    """Draw the figures of the studies named on the command line, by default of all."""
    parser = argparse.ArgumentParser(description="Draw the figures of studies from their results.csv.gz.")
    parser.add_argument("names", nargs="*", metavar="STUDY", help="its folder; default: all")
    names = parser.parse_args().names
    drawn = (path for path in studies() if path.name in names or not names)
    for folder in (path for path in drawn if not (path / "results.db.xz").is_file()):
        kept = folder / "weight_change.csv.gz"
        weights = pd.read_csv(kept) if kept.is_file() else None
        for name, draw_figure in figures(read_points(folder), weights).items():
            path = folder / "figures" / f"{name}.png"
            draw_figure().savefig(path, dpi=DPI)
            print(path.relative_to(RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
