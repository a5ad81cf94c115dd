"""Summary tables: summary.csv, and the grid (one row per curve, one column per x) for page and terminal."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from whichlayers.analysis.baseline_differences import BASELINES
from whichlayers.analysis.intervals import summarize
from whichlayers.experiments import display_of
from whichlayers.plots.display_names import short_names, size_name
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.results.frames import CURVE
from whichlayers.text import format_half_width, format_score, in_points

CELL = ["experiment", "condition", "model", "task", "train_size", "recipe", "x"]
STATISTICS = ["mean", "low", "high", "sd", "n"]
FURTHER = ["metric", "variant", "head", "keep_layer_norm", "reinit_lr_factor", "model_fingerprint"]


@dataclass(frozen=True)
class GridCell:
    """Mean and half of the 95% t interval of one point, as numbers and as text."""

    mean: float
    half_width: float  # NaN if there is a single trial
    metric: str

    @property
    def text(self) -> str:
        return format_score(self.mean, self.metric)

    @property
    def half_text(self) -> str:
        return format_half_width(self.half_width, self.metric)


@dataclass(frozen=True)
class GridRow:
    """One curve: its labels, and one cell per value column."""

    labels: tuple[str, ...]  # values of the label columns
    cells: tuple[GridCell | None, ...]  # None: no trial has finished


@dataclass(frozen=True)
class SummaryGrid:
    """All curves of an experiment as a table."""

    label_columns: tuple[str, ...]  # names of the columns that identify a curve: task, examples ...
    columns: tuple[str, ...]  # names of the value columns: baselines, then values of x
    rows: tuple[GridRow, ...]
    x_label: str = ""
    n_baselines: int = 0  # number of leading value columns that hold baselines
    in_points: bool = True  # whether the values are shown × 100


def summary(points: pd.DataFrame) -> pd.DataFrame:
    """Content of summary.csv: one row per point with a finished trial."""
    order = points[CELL + FURTHER].drop_duplicates().reset_index(drop=True).reset_index(names="position")
    table = summarize(points, CELL + FURTHER).merge(order, on=CELL + FURTHER, how="left")
    table = table.sort_values(["experiment", "position"], kind="stable")
    return table[CELL + STATISTICS + FURTHER].reset_index(drop=True)


def summary_grid(points: pd.DataFrame, experiment: str) -> SummaryGrid:
    """Summary of an experiment with baselines first, then x from left to right.

    The label columns are the task, the training size if the model is finetuned, and whatever else varies.
    """
    display, chosen = display_of(experiment), points[points["experiment"] == experiment]
    is_baseline = chosen["condition"].isin(BASELINES)
    cells = chosen[~is_baseline]
    keys = [b for b in BASELINES if (chosen["condition"] == b).any()] + sorted(set(cells["x"]))
    columns = tuple(key.split()[0] if isinstance(key, str) else display.x_name(key) for key in keys)
    conditions = list(dict.fromkeys(cells["condition"])) or [""]
    included = {
        "model": chosen["model"].nunique() > 1,
        display.task_noun: True,
        "examples": bool((chosen["train_size"] > 0).any()),
        "variant": chosen["variant"].nunique() > 1,
        "condition": len(conditions) > 1,
    }
    models, tasks = short_names(chosen["model"]), short_names(chosen["task"])
    rows = []
    for (_, model, _, task, size, variant), curve in each_group(chosen, CURVE):
        metric = str(curve["metric"].iloc[0])
        for condition in conditions:
            part = curve[curve["condition"].isin([condition, *BASELINES])]
            if not (part["condition"] == condition).any() and len(conditions) > 1:
                continue
            row_keys = part["x"].astype(object).where(~part["condition"].isin(BASELINES), part["condition"])
            found = {
                row.key: GridCell(row.mean, (row.high - row.low) / 2, metric)
                for row in each_row(summarize(part.assign(key=row_keys), ["key"]))
            }
            named = {
                "model": models[model],
                display.task_noun: tasks[task],
                "examples": size_name(size),
                "variant": variant,
                "condition": display.condition_name(condition),
            }
            labels = tuple(named[name] for name, include in included.items() if include)
            rows.append(GridRow(labels, tuple(found.get(key) for key in keys)))
    label_columns = tuple(name for name, include in included.items() if include)
    n_baselines = sum(isinstance(key, str) for key in keys)
    scaled = all(map(in_points, chosen["metric"]))
    return SummaryGrid(label_columns, columns, tuple(rows), display.x_header, n_baselines, scaled)
