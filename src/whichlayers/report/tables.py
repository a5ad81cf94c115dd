"""Summaries as tables: summary.csv, and the grid (a row a curve, a column an x) of page and terminal."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from whichlayers.analysis.baseline_differences import BASELINES
from whichlayers.analysis.frame_utils import each_group, each_row
from whichlayers.analysis.intervals import summarise
from whichlayers.plots.display_names import condition_name, short_names, size_name, task_word, x_name, x_value
from whichlayers.results.frames import CURVE

CELL = ["experiment", "condition", "model", "task", "train_size", "recipe", "x"]
STATISTICS = ["mean", "low", "high", "sd", "n"]
NOT_SHARES = {"compression"}  # metrics that are no shares of 1: times
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
    x: str = ""  # what the columns stand for
    first: int = 0  # the columns before it that stand for none: of the baselines
    share: bool = True  # whether its values are shares of 1, which may be told × 100


def summary(points: pd.DataFrame) -> pd.DataFrame:
    """A row for every cell that has a finished trial: what summary.csv holds."""
    order = points[CELL + FURTHER].drop_duplicates().reset_index(drop=True).reset_index(names="place")
    table = summarise(points, CELL + FURTHER).merge(order, on=CELL + FURTHER, how="left")
    table = table.sort_values(["experiment", "place"], kind="stable")
    return table[CELL + STATISTICS + FURTHER].reset_index(drop=True)


def grid(points: pd.DataFrame, experiment: str) -> Grid:
    """Baselines first, then x from left to right; heads name what varies, always the task, and the size where there
    is one."""
    chosen = points[points["experiment"] == experiment]
    is_baseline = chosen["condition"].isin(BASELINES)
    cells = chosen[~is_baseline]
    marks = [b for b in BASELINES if (chosen["condition"] == b).any()] + sorted(set(cells["x"]))
    columns = tuple(mark.split()[0] if isinstance(mark, str) else x_value(experiment, mark) for mark in marks)
    conditions = list(dict.fromkeys(cells["condition"])) or [""]
    several = {
        "model": chosen["model"].nunique() > 1,
        task_word(experiment): True,
        "examples": bool((chosen["train_size"] > 0).any()),
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
                task_word(experiment): tasks[task],
                "examples": size_name(size),
                "variant": variant,
                "condition": condition_name(experiment, condition),
            }
            heads = tuple(named[head] for head, wanted in several.items() if wanted)
            rows.append(Row(heads, tuple(found.get(mark) for mark in marks)))
    heads = tuple(head for head, wanted in several.items() if wanted)
    before = sum(isinstance(mark, str) for mark in marks)
    share = not set(chosen["metric"]) & NOT_SHARES
    return Grid(heads, columns, tuple(rows), x_name(experiment), before, share)
