"""Two studies point by point: what B scores minus what A scores, paired by seed.

A pair is one trial of each study at the same experiment, condition, x, task, size and seed: the same examples in the
same order. What the studies have one value each of (a model, a recipe, a learning rate) is what is compared; what
both have several of must be equal. What finds no partner is counted, with the reason, and left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from whichlayers.analysis.frame_utils import each_group, each_row
from whichlayers.analysis.intervals import PairedDifference, holm, paired_difference
from whichlayers.errors import WhichlayersError
from whichlayers.results.frames import finished, in_words, load_points, load_runs, study_facts

CELL = ["experiment", "condition", "task", "train_size", "x"]
SETTINGS = ("model", "recipe", "keep_layer_norm", "reinit_lr_factor", "head")
TRAINING = "training "  # before the name of a column that holds one of its settings
SIZED = (f"{TRAINING}epochs",)  # goes with the size, which every curve tells
CURVE = ["experiment", "condition", "task", "train_size", "setting"]
NUMBERS = ["mean", "low", "high", "sd", "n", "p", "p_adjusted"]


@dataclass(frozen=True)
class Side:
    """One of the two studies, with what made it."""

    name: str
    folder: Path
    made: dict[str, str]  # whichlayers, torch, device, commit ... of its last run


@dataclass(frozen=True)
class Comparison:
    """B minus A, so that positive is in favour of B."""

    a: Side
    b: Side
    differs: list[tuple[str, str, str]]  # what, in A, in B
    curves: pd.DataFrame  # CURVE, metric, NUMBERS and points: each seed's differences averaged over x
    points: pd.DataFrame  # CURVE, x, metric, mean_a, mean_b, NUMBERS
    unpaired: list[tuple[str, int]]  # why, and how many points and trials that leaves out
    pairs: pd.DataFrame  # CURVE, x, seed, metric, a, b


def compare(first: Path, second: Path) -> Comparison:
    frames = [_with_settings(finished(load_points(folder))) for folder in (first, second)]
    a, b = _side(Path(first)), _side(Path(second))
    if a.name == b.name:  # two runs of one study are told apart by where they stand
        a, b = (replace(side, name=f"{side.name} ({place})") for side, place in ((a, "A"), (b, "B")))
    frames, reasons = _comparable(*frames)
    found, differs = [], dict.fromkeys(_files(*frames))
    for experiment in dict.fromkeys(pd.concat(frames)["experiment"]):
        mine = [frame[frame["experiment"] == experiment] for frame in frames]
        shared, told = _settings(*mine)
        differs |= dict.fromkeys(told)
        both = _paired(mine, [*CELL, "seed", *shared], (a, b))
        partners = both[both["found"] == "both"]
        found.append(partners.assign(setting=_in_words(partners, shared)))
        for side, which in ((a, "left_only"), (b, "right_only")):
            if alone := int((both["found"] == which).sum()):
                why = f"{experiment}, in {side.name}: the other has no trial of the same point, task, size and seed"
                reasons.append((why, alone))
    pairs = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    if pairs.empty:
        said = "; ".join(f"{why} ({count:,})" for why, count in reasons)
        raise WhichlayersError(f"{first} and {second} have no pair of trials. {said}")
    order = {task: place for place, task in enumerate(dict.fromkeys(frames[0]["task"]))}
    pairs = pairs[[*CURVE, "x", "seed", "metric", "a", "b"]]
    pairs = pairs.sort_values("task", key=lambda tasks: tasks.map(order), kind="stable", ignore_index=True)
    return Comparison(a, b, [*differs, *_made(a, b)], _curves(pairs), _points(pairs), reasons, pairs)


def _paired(frames: list[pd.DataFrame], keys: list[str], sides: tuple[Side, Side]) -> pd.DataFrame:
    kept = []
    for side, frame in zip(sides, frames, strict=True):
        frame = frame.drop_duplicates([*keys, "trial_id"])
        if (doubled := frame.duplicated(keys)).any():
            what = frame[doubled].iloc[0]
            raise WhichlayersError(
                f"{side.folder}: {what['experiment']} on {what['task']} has two trials of seed {what['seed']} at one "
                "point that nothing the other study has tells apart: what is to be paired?"
            )
        kept.append(frame[[*keys, "metric", "value"]])
    names = {"value_a": "a", "value_b": "b", "metric_a": "metric"}
    both = kept[0].merge(kept[1], on=keys, how="outer", suffixes=("_a", "_b"), indicator="found")
    return both.rename(columns=names)


def _with_settings(points: pd.DataFrame) -> pd.DataFrame:
    """Each training setting in a column of its own."""
    settings = pd.DataFrame([json.loads(text) for text in points["training"]], index=points.index)
    return pd.concat([points, settings.map(str).add_prefix(TRAINING)], axis=1)


def _settings(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], list[tuple[str, str, str]]]:
    """The columns in which pairs must agree, and what differs where each study has one value."""
    shared: list[str] = []
    differs: list[tuple[str, str, str]] = []
    trained = [str(name) for name in a if str(name).startswith(TRAINING) and name in b]
    for name in [*SETTINGS, *trained]:
        one, other = (list(dict.fromkeys(_surgical(frame, name))) for frame in (a, b))
        if max(len(one), len(other)) > 1:
            shared.append(name)
        elif one and other and one != other:
            differs.append((_called(name), _worded(name, one[0]), _worded(name, other[0])))
    return shared, differs


def _surgical(frame: pd.DataFrame, name: str) -> pd.Series:
    """A recipe counts where something was re-initialised."""
    rows = frame[~frame["untouched"]] if name in ("recipe", "keep_layer_norm", "reinit_lr_factor") else frame
    return rows[name]


def _called(name: str) -> str:
    return name.removeprefix(TRAINING).replace("_", " ")


def _worded(name: str, value: Any) -> str:
    plain = name in ("model", "head", "recipe") or name.startswith(TRAINING)
    return str(value) if plain else in_words(name, value)


def _files(a: pd.DataFrame, b: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Models that go by one name and are not the same, and depths."""
    prints = [dict(zip(frame["model"], frame["model_fingerprint"], strict=True)) for frame in (a, b)]
    changed = [m for m in prints[0] if m in prints[1] and prints[0][m] != prints[1][m]]
    found = [(f"files of {model}", prints[0][model], prints[1][model]) for model in changed]
    depths = [", ".join(str(n) for n in sorted({int(n) for n in frame["depth"]})) for frame in (a, b)]
    return found + ([("layers", depths[0], depths[1])] if depths[0] != depths[1] else [])


def _comparable(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[pd.DataFrame], list[tuple[str, int]]]:
    """Both without what cannot be paired whatever its seed: tasks with other data, layers that mean other things."""
    frames, reasons = [a, b], []
    prints = [dict(zip(frame["task"], frame["task_fingerprint"], strict=True)) for frame in frames]
    changed = {task for task in set(prints[0]) & set(prints[1]) if prints[0][task] != prints[1][task]}
    for task in sorted(changed):
        count = sum(int((frame["task"] == task).sum()) for frame in frames)
        reasons.append((f"{task} has other examples, labels or another metric in A than in B", count))
    frames = [frame[~frame["task"].isin(changed)] for frame in frames]
    if {int(n) for n in a["depth"]} != {int(n) for n in b["depth"]}:
        kept = [frame[_ends(frame)] for frame in frames]
        kept = [frame.assign(x=(frame["x"] == frame["depth"]).astype(float)) for frame in kept]
        if count := sum(map(len, frames)) - sum(map(len, kept)):
            reasons.append(
                ("the models differ in depth: only all and none of their layers can be paired", count)
            )
        frames = kept
    return frames, reasons


def _ends(frame: pd.DataFrame) -> pd.Series:
    """What means the same for models of any depth: no layer kept, and all of them."""
    curve_ends = (frame["experiment"] == "incremental") & ((frame["x"] == 0) | (frame["x"] == frame["depth"]))
    return curve_ends | frame["condition"].isin(["all pretrained", "none pretrained"])


def _in_words(pairs: pd.DataFrame, shared: list[str]) -> list[str]:
    """What tells the curves of one experiment, task and size apart."""
    told = [name for name in shared if pairs[name].nunique() > 1 and name not in SIZED]
    if not told:
        return [""] * len(pairs)
    words = [[_spoken(n, v) for n, v in zip(told, row, strict=True)] for row in each_row(pairs[told])]
    return [", ".join(parts) for parts in words]


def _spoken(name: str, value: Any) -> str:
    return f"{_called(name)} {value}" if name.startswith(TRAINING) else _worded(name, value)


def _points(pairs: pd.DataFrame) -> pd.DataFrame:
    """p is adjusted within each curve, by Holm's method."""
    tables = []
    for key, curve in each_group(pairs, CURVE):
        rows = []
        for (x,), cell in each_group(curve.sort_values("x", kind="stable"), ["x"]):
            d = _difference(cell.set_index("seed"))
            rows.append((*key, x, cell["metric"].iloc[0], cell["a"].mean(), cell["b"].mean(), *d))
        table = pd.DataFrame(rows, columns=[*CURVE, "x", "metric", "mean_a", "mean_b", *NUMBERS[:-1]])
        tables.append(table.assign(p_adjusted=holm(table["p"])))
    return pd.concat(tables, ignore_index=True)


def _curves(pairs: pd.DataFrame) -> pd.DataFrame:
    """One difference a curve: the seed is what is drawn at random, so each counts once, averaged over the x that
    all its seeds have. p is adjusted over all curves, by Holm's method."""
    rows = []
    for key, curve in each_group(pairs, CURVE):
        tables = {side: curve.pivot_table(index="seed", columns="x", values=side) for side in ("a", "b")}
        whole = tables["a"].notna() & tables["b"].notna()
        common = [x for x in whole if whole[x].sum() == whole.any(axis=1).sum()] or [whole.sum().idxmax()]
        means = pd.DataFrame({side: table[common].dropna().mean(axis=1) for side, table in tables.items()})
        rows.append((*key, curve["metric"].iloc[0], len(common), *_difference(means)))
    table = pd.DataFrame(rows, columns=[*CURVE, "metric", "points", *NUMBERS[:-1]])
    return table.assign(p_adjusted=holm(table["p"]))


def _difference(by_seed: pd.DataFrame) -> tuple[float, float, float, float, int, float]:
    d: PairedDifference | None = paired_difference(by_seed["b"], by_seed["a"])
    assert d is not None, "pairs have both their sides"
    return d.mean, d.low, d.high, d.sd, d.n, d.p


def _side(folder: Path) -> Side:
    facts, runs = study_facts(folder), load_runs(folder)
    made = {"whichlayers": facts.whichlayers_version}
    if len(runs):
        last = runs.iloc[-1]
        made |= {str(name): str(version) for name, version in last["versions"].items()}
        made |= {"device": str(last["device"] or ""), "commit": str(last["git_commit"] or "")}
    return Side(facts.name, folder, made)


def _made(a: Side, b: Side) -> list[tuple[str, str, str]]:
    found = [(name, a.made.get(name, ""), b.made.get(name, "")) for name in sorted({**a.made, **b.made})]
    return [(name, one, other) for name, one, other in found if one != other]
