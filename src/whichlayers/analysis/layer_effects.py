"""Effect of each layer's pretrained weights, estimated from the experiments of a study.

Three experiments give an estimate, each of a different effect:

- `incremental`: the step from k - 1 to k pretrained layers, with all layers above re-initialized.
- `single_layer`: all layers pretrained minus this layer re-initialized.
- `localized`: all layers pretrained minus a block re-initialized, and a block preserved minus no layer pretrained;
  the effect of a layer is the mean over the blocks that contain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.incremental_curves import incremental_steps
from whichlayers.analysis.intervals import benjamini_yekutieli, paired_difference
from whichlayers.results.frame_utils import each_group, each_row
from whichlayers.results.frames import CURVE
from whichlayers.trial import ALL_PRETRAINED, BASELINES, NONE_PRETRAINED

INCREMENTAL, SINGLE_LAYER = "incremental", "single_layer"
BLOCK_REINITIALIZED, BLOCK_PRESERVED = "block reinitialized", "block preserved"
SOURCES = (INCREMENTAL, SINGLE_LAYER, BLOCK_REINITIALIZED, BLOCK_PRESERVED)
GROUP = ["model", "task", "train_size", "variant"]
COLUMNS = [
    *("source", *GROUP, "metric", "depth"),
    *("first", "last", "mean", "low", "high", "n", "p", "p_adjusted"),
]


def layer_effects(points: pd.DataFrame) -> pd.DataFrame:
    """Effect of every layer, or run of layers, by each source that the study has.

    Args:
        points: Finished points, as from `finished(load_points(folder))`.

    Returns:
        A frame with `COLUMNS`. `first` to `last` are the layers of a row, more than one if k were skipped; mean, low
        and high are their joint effect (paired difference, 95% interval), positive if pretraining helped; n is the
        number of paired trials; p_adjusted is Benjamini-Yekutieli within the curve.
    """
    rows = [*_incremental(points), *_single_layer(points), *_blocks(points)]
    return pd.DataFrame(rows, columns=COLUMNS)


def baseline_scores(points: pd.DataFrame, source: str) -> pd.DataFrame:
    """Mean scores with no layer and with all layers pretrained, in the experiment of `source`.

    Returns:
        One row per curve: model, task, train_size, variant, none, all.
    """
    if source == INCREMENTAL:
        rows = points[points["experiment"] == source]
        none, every = rows["x"] == 0, rows["x"] == rows["depth"]
    else:
        rows = points[points["experiment"] == (SINGLE_LAYER if source == SINGLE_LAYER else "localized")]
        none, every = rows["condition"] == NONE_PRETRAINED, rows["condition"] == ALL_PRETRAINED
    means = {
        "none": rows[none].groupby(GROUP)["value"].mean(),
        "all": rows[every].groupby(GROUP)["value"].mean(),
    }
    return pd.DataFrame(means).reset_index()


def _incremental(points: pd.DataFrame) -> Iterator[dict[str, Any]]:
    metric_and_depth = _metric_and_depth(points)
    for step in each_row(incremental_steps(points)):
        yield {
            "source": INCREMENTAL,
            **_group_of(step),
            **metric_and_depth[step.model, step.task],
            "first": step.from_k + 1,
            "last": step.to_k,
            **{name: getattr(step, name) for name in ("mean", "low", "high", "n", "p", "p_adjusted")},
        }


def _single_layer(points: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The effect is the negated difference from "all pretrained"."""
    rows, metric_and_depth = points[points["experiment"] == SINGLE_LAYER], _metric_and_depth(points)
    table = differences_from_baseline(rows, ALL_PRETRAINED) if len(rows) else pd.DataFrame()
    for layer in each_row(table):
        yield {
            "source": SINGLE_LAYER,
            **_group_of(layer),
            **metric_and_depth[layer.model, layer.task],
            "first": int(layer.x),
            "last": int(layer.x),
            **{"mean": -layer.mean, "low": -layer.high, "high": -layer.low},
            **{name: getattr(layer, name) for name in ("n", "p", "p_adjusted")},
        }


def _blocks(points: pd.DataFrame) -> Iterator[dict[str, Any]]:
    metric_and_depth = _metric_and_depth(points)
    for key, curve in each_group(points[points["experiment"] == "localized"], CURVE):
        group = dict(zip(CURVE, key, strict=True))
        blocks = curve[~curve["condition"].isin(BASELINES)]
        for (condition,), rows in each_group(blocks, ["condition"]):
            reinitialized = str(condition).startswith(BLOCK_REINITIALIZED)
            baseline = curve[curve["condition"] == (ALL_PRETRAINED if reinitialized else NONE_PRETRAINED)]
            reference = baseline.set_index("seed")["value"]
            curve_info = metric_and_depth[group["model"], group["task"]]
            found = []
            for layer in range(1, curve_info["depth"] + 1):
                mean = _mean_over_blocks(rows, layer, reinitialized)
                pair = (reference, mean) if reinitialized else (mean, reference)
                d = paired_difference(*pair)
                if d is not None:
                    found.append((layer, d))
            adjusted = benjamini_yekutieli([d.p for _, d in found])
            for (layer, d), p in zip(found, adjusted, strict=True):
                yield {
                    "source": str(condition),
                    **{name: group[name] for name in GROUP},
                    **curve_info,
                    **{"first": layer, "last": layer, "p_adjusted": float(p)},
                    **{name: getattr(d, name) for name in ("mean", "low", "high", "n", "p")},
                }


def _mean_over_blocks(rows: pd.DataFrame, layer: int, reinitialized: bool) -> pd.Series:
    """Mean score of the blocks that contain the layer, one value per seed that has all of them, indexed by seed.

    A block is the set of re-initialized layers, or of all other layers if the block is preserved.
    """
    is_reinitialized = rows["reinit"].map(lambda layers: layer in layers)
    chosen = rows[is_reinitialized if reinitialized else ~is_reinitialized]
    table = chosen.pivot_table(index="seed", columns="x", values="value")
    return table.dropna().mean(axis=1) if len(table.columns) else pd.Series(dtype=float)


def _group_of(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in GROUP}


def _metric_and_depth(points: pd.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """(model, task) -> its metric and the model's depth."""
    pairs = points.drop_duplicates(["model", "task"])
    return {(row.model, row.task): {"metric": row.metric, "depth": int(row.depth)} for row in each_row(pairs)}
