"""What each layer's pretrained weights were worth: one number a layer, with its interval, from what a study has.

Three experiments answer it, each in its own sense. `incremental`: what the layer adds on top of those below it, the
others above being random. `single_layer`: what is lost when this layer alone is random. `localized`: what is lost
when a block around it is random, or gained when only the block is kept, as a mean over the blocks it lies in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from whichlayers.analysis.baseline_differences import ALL, BASELINES, NONE, against
from whichlayers.analysis.frame_utils import each_group, each_row
from whichlayers.analysis.incremental_curves import layer_worth
from whichlayers.analysis.intervals import false_discovery, paired_difference
from whichlayers.results.frames import CURVE

INCREMENTAL, SINGLE = "incremental", "single_layer"
REDRAWN, PRESERVED = "block reinitialized", "block preserved"
SOURCES = (INCREMENTAL, SINGLE, REDRAWN, PRESERVED)
COLUMNS = [
    *("source", "model", "task", "train_size", "variant", "metric", "depth"),
    *("first", "last", "mean", "low", "high", "n", "p", "p_adjusted"),
]


def layer_values(points: pd.DataFrame) -> pd.DataFrame:
    """A row for every layer, or run of layers, that a source tells of; from finished points.

    `first` to `last` are the layers; mean, low and high are for all of them together, positive where pretraining
    helped. p is adjusted within the curve.
    """
    rows = [*_incremental(points), *_single(points), *_blocks(points)]
    return pd.DataFrame(rows, columns=COLUMNS)


def ends(points: pd.DataFrame, source: str) -> pd.DataFrame:
    """model, task, train_size, variant, none, all: the mean scores between which a source's layers lie."""
    if source == INCREMENTAL:
        mine = points[points["experiment"] == source]
        none, every = mine["x"] == 0, mine["x"] == mine["depth"]
    else:
        mine = points[points["experiment"] == (SINGLE if source == SINGLE else "localized")]
        none, every = mine["condition"] == NONE, mine["condition"] == ALL
    keys = ["model", "task", "train_size", "variant"]
    means = {
        "none": mine[none].groupby(keys)["value"].mean(),
        "all": mine[every].groupby(keys)["value"].mean(),
    }
    return pd.DataFrame(means).reset_index()


def _incremental(points: pd.DataFrame) -> Iterator[dict[str, Any]]:
    facts = _facts(points)
    for step in each_row(layer_worth(points)):
        yield {
            "source": INCREMENTAL,
            **_where(step),
            **facts[step.model, step.task],
            "first": step.from_k + 1,
            "last": step.to_k,
            **{name: getattr(step, name) for name in ("mean", "low", "high", "n", "p", "p_adjusted")},
        }


def _single(points: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Lost, and so worth, is the opposite of the difference from the whole model."""
    rows, facts = points[points["experiment"] == SINGLE], _facts(points)
    for layer in each_row(against(rows, ALL) if len(rows) else pd.DataFrame()):
        yield {
            "source": SINGLE,
            **_where(layer),
            **facts[layer.model, layer.task],
            "first": int(layer.x),
            "last": int(layer.x),
            **{"mean": -layer.mean, "low": -layer.high, "high": -layer.low},
            **{name: getattr(layer, name) for name in ("n", "p", "p_adjusted")},
        }


def _blocks(points: pd.DataFrame) -> Iterator[dict[str, Any]]:
    facts = _facts(points)
    for key, curve in each_group(points[points["experiment"] == "localized"], CURVE):
        where = dict(zip(CURVE, key, strict=True))
        blocks = curve[~curve["condition"].isin(BASELINES)]
        for (condition,), rows in each_group(blocks, ["condition"]):
            source = REDRAWN if str(condition).startswith(REDRAWN) else PRESERVED
            baseline = curve[curve["condition"] == (ALL if source == REDRAWN else NONE)]
            reference = baseline.set_index("seed")["value"]
            fact = facts[where["model"], where["task"]]
            found = []
            for layer in range(1, fact["depth"] + 1):
                mean = _mean_of_blocks(rows, layer, source)
                pair = (reference, mean) if source == REDRAWN else (mean, reference)
                d = paired_difference(*pair)
                if d is not None:
                    found.append((layer, d))
            adjusted = false_discovery([d.p for _, d in found])
            for (layer, d), p in zip(found, adjusted, strict=True):
                yield {
                    "source": str(condition),
                    **{name: where[name] for name in ("model", "task", "train_size", "variant")},
                    **fact,
                    **{"first": layer, "last": layer, "p_adjusted": float(p)},
                    **{name: getattr(d, name) for name in ("mean", "low", "high", "n", "p")},
                }


def _mean_of_blocks(rows: pd.DataFrame, layer: int, source: str) -> pd.Series:
    """A value a seed: the mean over the blocks that contain the layer, of seeds that have them all."""
    redrawn = rows["reinit"].map(lambda layers: layer in layers)
    mine = rows[redrawn if source == REDRAWN else ~redrawn]
    table = mine.pivot_table(index="seed", columns="x", values="value")
    return table.dropna().mean(axis=1) if len(table.columns) else pd.Series(dtype=float)


def _where(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("model", "task", "train_size", "variant")}


def _facts(points: pd.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    kinds = points.drop_duplicates(["model", "task"])
    return {(row.model, row.task): {"metric": row.metric, "depth": int(row.depth)} for row in each_row(kinds)}
