"""Comparison of two studies point by point: scores of B minus scores of A, paired by seed.

A pair is one trial of each study with the same experiment, condition, x, task, training size and seed, and thus the
same examples in the same order. Settings (model, recipe, learning rate, rank of adapters, pooling of probes ...) of
which each study has a single value are what is compared, and may differ; where a study has several values, the trials
of a pair must have the same one.
In models of different depth, points at the same share of the layers are paired. Unpaired trials are counted, with the
reason, and left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from whichlayers.analysis.intervals import PairedDifference, holm, paired_difference
from whichlayers.analysis.paired_settings import (
    SettingDifference,
    effective_values,
    setting_labels,
    setting_name,
    split_settings,
    with_setting_columns,
)
from whichlayers.errors import WhichlayersError
from whichlayers.experiments import display_of
from whichlayers.results.frame_utils import each_group
from whichlayers.results.frames import SEED_COLUMNS, finished, load_points, load_runs, load_study_summary
from whichlayers.results.probes import load_probe_settings
from whichlayers.results.shared_seeds import named_notes, seed_notes
from whichlayers.text import counted, join_list
from whichlayers.trial import BASELINES

CELL = ["experiment", "condition", "task", "train_size", "x"]
COMPARED_CURVE = ["experiment", "condition", "task", "train_size", "setting"]
STATISTICS = ["mean", "low", "high", "sd", "n", "p", "p_adjusted"]


@dataclass(frozen=True)
class ComparedStudy:
    """One of the two studies."""

    name: str
    folder: Path
    environment: dict[str, str]  # versions of whichlayers, torch ..., device and commit of its last run


@dataclass(frozen=True)
class StudyComparison:
    """All differences are B minus A, so that positive means that B scores higher."""

    a: ComparedStudy
    b: ComparedStudy
    differs: list[SettingDifference]  # settings, models and versions that differ
    # COMPARED_CURVE, metric, points (number of x), STATISTICS of the seeds' means over x
    curves: pd.DataFrame
    points: pd.DataFrame  # COMPARED_CURVE, x, metric, mean_a, mean_b, STATISTICS
    unpaired: list[tuple[str, int]]  # reason, number of unpaired results
    pairs: pd.DataFrame  # COMPARED_CURVE, x, seed, metric, a, b
    models: pd.DataFrame  # model, family, depth of all models
    # if the models differ in depth: that of the shallowest; x of layers is then in percent of the layers
    lowest_depth: int | None = None
    notes: tuple[str, ...] = ()  # on the seeds of the studies, see `results.shared_seeds`


def compare_studies(first: Path, second: Path) -> StudyComparison:
    """Pair the finished trials of two study folders; WhichlayersError if they have no pair."""
    folders = (Path(first), Path(second))
    loaded = [load_points(folder) for folder in folders]
    frames = with_setting_columns(
        [finished(points) for points in loaded], [load_probe_settings(folder) for folder in folders]
    )
    a, b = _compared_study(Path(first)), _compared_study(Path(second))
    if a.name == b.name:  # two runs of one study
        a, b = (
            replace(one, name=name)
            for one, name in zip((a, b), _folder_names(a.folder, b.folder), strict=True)
        )
    models = pd.concat(frames)[["model", "family", "depth"]].drop_duplicates(ignore_index=True)
    other_depths = len({frozenset(frame["depth"]) for frame in frames}) > 1
    found, differs = [], dict.fromkeys(_model_differences(*frames))
    frames, reasons = _drop_incomparable(frames, other_depths)
    for experiment in dict.fromkeys(pd.concat(frames)["experiment"]):
        rows = [frame[frame["experiment"] == experiment] for frame in frames]
        matched, differing = split_settings(*rows)
        differs |= dict.fromkeys(differing)
        merged = _merge_pairs(rows, [*CELL, "seed", *SEED_COLUMNS, *matched], (a, b))
        paired = merged[merged["found"] == "both"]
        found.append(paired.assign(setting=setting_labels(paired, matched)))
        for study, side in ((a, "left_only"), (b, "right_only")):
            if alone := int((merged["found"] == side).sum()):
                others = [{*effective_values(frame, name)} for name in matched for frame in rows]
                same = [
                    setting_name(name)
                    for name, one, other in zip(matched, others[::2], others[1::2], strict=True)
                    if name == "model" or one != other
                ]
                same += ["curve"] if set(rows[0]["condition"]) != set(rows[1]["condition"]) else []
                same += ["share of the layers" if _is_relative(experiment, other_depths) else "point"]
                same += ["task", "training size", "seed"]
                reason = f"{experiment}, in {study.name}: the other study has no finished trial of the same"
                reasons.append((f"{reason} {join_list(same)}", alone))
    pairs = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    if pairs.empty:
        details = "".join(f"\n- {reason} ({counted(count, 'result')})" for reason, count in reasons)
        raise WhichlayersError(
            f"{first} and {second} have no pair of trials:{details}\nRun both studies with the same tasks and data,"
            " experiments, train_sizes and seed; models and training settings may differ"
        )
    order = {task: position for position, task in enumerate(dict.fromkeys(frames[0]["task"]))}
    pairs = pairs[[*COMPARED_CURVE, "x", "seed", "metric", "a", "b"]]
    pairs = pairs.sort_values("task", key=lambda tasks: tasks.map(order), kind="stable", ignore_index=True)
    all_differences = [*differs, *_environment_differences(a, b)]
    curves, points = _curve_differences(pairs), _point_differences(pairs)
    lowest = int(models["depth"].min()) if other_depths else None
    notes = named_notes([(one.name, seed_notes(points)) for one, points in zip((a, b), loaded, strict=True)])
    return StudyComparison(
        a, b, all_differences, curves, points, reasons, pairs, models, lowest, tuple(notes)
    )


def _folder_names(a: Path, b: Path) -> tuple[str, str]:
    """The shortest ends of two paths that tell the folders apart: "rev" and "rev-2", "monday/rev" and "friday/rev"."""
    one, other = a.resolve().parts, b.resolve().parts
    for count in range(1, max(len(one), len(other))):
        names = "/".join(one[-count:]), "/".join(other[-count:])
        if names[0] != names[1]:
            return names
    raise WhichlayersError(f"{a} and {b} are the same folder: give two studies")


def _merge_pairs(
    frames: list[pd.DataFrame], keys: list[str], studies: tuple[ComparedStudy, ComparedStudy]
) -> pd.DataFrame:
    """Outer join of both studies on `keys`, in the order of the first: keys, metric, a, b, and found.

    `found` is "both", "left_only" or "right_only".
    """
    sides = []
    for study, frame in zip(studies, frames, strict=True):
        frame = frame.drop_duplicates([*keys, "trial_id"])
        if (duplicated := frame.duplicated(keys)).any():
            row = frame[duplicated].iloc[0]
            raise WhichlayersError(
                f"{study.folder}: {row['experiment']} on {row['task']} has two trials of seed {row['seed']} at one "
                "point that their settings do not match to trials of the other study; compare studies that have one "
                "trial per point and seed"
            )
        sides.append(frame[[*keys, "metric", "value"]])
    names = {"value_a": "a", "value_b": "b", "metric_a": "metric"}
    first = sides[0].assign(place=range(len(sides[0])))
    both = first.merge(sides[1], on=keys, how="outer", suffixes=("_a", "_b"), indicator="found")
    return both.sort_values("place", kind="stable").drop(columns="place").rename(columns=names)


def _model_differences(a: pd.DataFrame, b: pd.DataFrame) -> list[SettingDifference]:
    """Models with the same name but other files, and other depths."""
    fingerprints = [dict(zip(frame["model"], frame["model_fingerprint"], strict=True)) for frame in (a, b)]
    in_a, in_b = fingerprints
    changed = [model for model in in_a if model in in_b and in_a[model] != in_b[model]]
    found = [(f"files of {model}", in_a[model], in_b[model]) for model in changed]
    depths = [", ".join(str(n) for n in sorted({int(n) for n in frame["depth"]})) for frame in (a, b)]
    return found + ([("layers", depths[0], depths[1])] if depths[0] != depths[1] else [])


def _drop_incomparable(
    frames: list[pd.DataFrame], other_depths: bool
) -> tuple[list[pd.DataFrame], list[tuple[str, int]]]:
    """Both frames without tasks whose data differ and, if depths differ, without points that do not correspond.

    Returns:
        The two frames, and for each reason how many results were dropped. If depths differ, x is in percent of the
        layers where it counts them.
    """
    reasons = []
    fingerprints = [dict(zip(frame["task"], frame["task_fingerprint"], strict=True)) for frame in frames]
    in_a, in_b = fingerprints
    changed = {task for task in set(in_a) & set(in_b) if in_a[task] != in_b[task]}
    for task in sorted(changed):
        count = sum(int((frame["task"] == task).sum()) for frame in frames)
        reasons.append((f"{task} has other examples, labels or another metric in A than in B", count))
    frames = [frame[~frame["task"].isin(changed)] for frame in frames]
    if other_depths:
        kept = [_at_shares_of_layers(frame) for frame in frames]
        if count := sum(map(len, frames)) - sum(map(len, kept)):
            left_out = [
                set(frame["experiment"][~frame.index.isin(k.index)])
                for frame, k in zip(frames, kept, strict=True)
            ]
            names = join_list(sorted(set.union(*left_out)))
            reasons.append((f"the models differ in depth: the points of {names} do not correspond", count))
        frames = kept
    return frames, reasons


def _at_shares_of_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """The points that correspond to points of models of another depth, with x in percent where it counts layers."""
    relative = frame["experiment"].map(lambda name: _is_relative(name, True))
    by_model = frame["experiment"].map(lambda name: display_of(name).plot == "by_model")
    kept = frame[relative | by_model | frame["condition"].isin(BASELINES)]
    share = (100 * kept["x"] / kept["depth"]).round(6)
    return kept.assign(x=share.where(relative[kept.index], kept["x"]))


def _is_relative(experiment: str, other_depths: bool) -> bool:
    """Whether x of this experiment is compared as a share of the layers."""
    return other_depths and display_of(experiment).relative_depth


def _point_differences(pairs: pd.DataFrame) -> pd.DataFrame:
    """`StudyComparison.points`: a paired t test at each x; p_adjusted is Holm-adjusted within the curve."""
    tables = []
    for key, curve in each_group(pairs, COMPARED_CURVE):
        rows = []
        for (x,), cell in each_group(curve.sort_values("x", kind="stable"), ["x"]):
            d = _difference(cell.set_index("seed"))
            rows.append((*key, x, cell["metric"].iloc[0], cell["a"].mean(), cell["b"].mean(), *d))
        table = pd.DataFrame(
            rows, columns=[*COMPARED_CURVE, "x", "metric", "mean_a", "mean_b", *STATISTICS[:-1]]
        )
        tables.append(table.assign(p_adjusted=holm(table["p"])))
    return pd.concat(tables, ignore_index=True)


def _curve_differences(pairs: pd.DataFrame) -> pd.DataFrame:
    """`StudyComparison.curves`: one paired t test per curve, on each seed's mean over the x that all its seeds have.

    p_adjusted is Holm-adjusted over all curves.
    """
    rows = []
    for key, curve in each_group(pairs, COMPARED_CURVE):
        tables = {side: curve.pivot_table(index="seed", columns="x", values=side) for side in ("a", "b")}
        present = tables["a"].notna() & tables["b"].notna()  # (seeds, x)
        common = [x for x in present if present[x].sum() == present.any(axis=1).sum()]
        common = common or [present.sum().idxmax()]
        means = pd.DataFrame({side: table[common].dropna().mean(axis=1) for side, table in tables.items()})
        rows.append((*key, curve["metric"].iloc[0], len(common), *_difference(means)))
    table = pd.DataFrame(rows, columns=[*COMPARED_CURVE, "metric", "points", *STATISTICS[:-1]])
    return table.assign(p_adjusted=holm(table["p"]))


def _difference(by_seed: pd.DataFrame) -> tuple[float, float, float, float, int, float]:
    """Paired b - a of a frame indexed by seed: mean, low, high, sd, n, p."""
    d: PairedDifference | None = paired_difference(by_seed["b"], by_seed["a"])
    assert d is not None, "every pair has both sides"
    return d.mean, d.low, d.high, d.sd, d.n, d.p


def _compared_study(folder: Path) -> ComparedStudy:
    summary, runs = load_study_summary(folder), load_runs(folder)
    environment = {"whichlayers": summary.whichlayers_version}
    if len(runs):
        last = runs.iloc[-1]
        environment |= {str(name): str(version) for name, version in last["versions"].items()}
        for name, column in (("device", "device"), ("commit", "git_commit")):
            environment[name] = "" if pd.isna(last[column]) else str(last[column])
    return ComparedStudy(summary.name, folder, environment)


def _environment_differences(a: ComparedStudy, b: ComparedStudy) -> list[SettingDifference]:
    names = sorted({**a.environment, **b.environment})
    values = [(name, a.environment.get(name, ""), b.environment.get(name, "")) for name in names]
    return [(name, one, other) for name, one, other in values if one != other]
