"""Summaries as tables: summary.csv, and the grid (a row a curve, a column an x) of page and terminal."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from carryover.analysis.contrasts import BASELINES
from carryover.analysis.frame import CURVE
from carryover.analysis.intervals import summarise
from carryover.analysis.walk import each_group, each_row
from carryover.report.labels import condition_name, short_names, size_name

CELL = ["experiment", "condition", "model", "task", "train_size", "recipe", "x"]
STATISTICS = ["mean", "low", "high", "sd", "n"]
FURTHER = ["metric", "variant", "head", "keep_layer_norm", "reinit_lr_factor", "model_fingerprint"]


@dataclass(frozen=True)
class Cell:
    mean: float
    half_width: float  # NaN where there is one trial
    n: int


@dataclass(frozen=True)
class Row:
    heads: tuple[str, ...]
    cells: tuple[Cell | None, ...]  # None: nothing finished there


@dataclass(frozen=True)
class Grid:
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def summary(points: pd.DataFrame) -> pd.DataFrame:
    """A row for every cell that has a finished trial: what summary.csv holds."""
    order = points[CELL + FURTHER].drop_duplicates().reset_index(drop=True).reset_index(names="place")
    table = summarise(points, CELL + FURTHER).merge(order, on=CELL + FURTHER, how="left")
    table = table.sort_values(["experiment", "place"], kind="stable")
    return table[CELL + STATISTICS + FURTHER].reset_index(drop=True)


def grid(points: pd.DataFrame, experiment: str) -> Grid:
    """Baselines first, then x from left to right; heads name what varies, and always task and size."""
    chosen = points[points["experiment"] == experiment]
    is_baseline = chosen["condition"].isin(BASELINES)
    cells = chosen[~is_baseline]
    marks = [b for b in BASELINES if (chosen["condition"] == b).any()] + sorted(set(cells["x"]))
    columns = tuple(mark.split()[0] if isinstance(mark, str) else f"{mark:g}" for mark in marks)
    conditions = list(dict.fromkeys(cells["condition"])) or [""]
    several = {
        "model": chosen["model"].nunique() > 1,
        "task": True,
        "examples": True,
        "variant": chosen["variant"].nunique() > 1,
        "condition": len(conditions) > 1,
    }
    models, tasks = short_names(chosen["model"]), short_names(chosen["task"])
    rows = []
    for (_, model, _, task, size, variant), curve in each_group(chosen, CURVE):
        for condition in conditions:
            mine = curve[curve["condition"].isin([condition, *BASELINES])]
            if not (mine["condition"] == condition).any() and len(conditions) > 1:
                continue
            keys = mine["x"].astype(object).where(~mine["condition"].isin(BASELINES), mine["condition"])
            found = {
                row.key: Cell(row.mean, (row.high - row.low) / 2, row.n)
                for row in each_row(summarise(mine.assign(key=keys), ["key"]))
            }
            named = {
                "model": models[model],
                "task": tasks[task],
                "examples": size_name(size),
                "variant": variant,
                "condition": condition_name(experiment, condition),
            }
            heads = tuple(named[head] for head, wanted in several.items() if wanted)
            rows.append(Row(heads, tuple(found.get(mark) for mark in marks)))
    return Grid(tuple(head for head, wanted in several.items() if wanted), columns, tuple(rows))
