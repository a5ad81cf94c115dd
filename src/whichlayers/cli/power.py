"""`whichlayers power`: estimate how many trials a study needs, and add trials to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from whichlayers.cli.as_json import AsJson, power_data, print_json
from whichlayers.cli.format import console, make_table, print_line
from whichlayers.cli.options import StudyFolderPath
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder, find_folder
from whichlayers.text import counted, format_score, short_names

if TYPE_CHECKING:
    import pandas as pd

    from whichlayers.analysis.power import PowerEstimate


def power(
    study: StudyFolderPath,
    difference: Annotated[
        float,
        typer.Option("--difference", min=1e-6, help="Difference to detect, in units of the metric."),
    ] = 0.01,
    all_comparisons: Annotated[
        bool, typer.Option("--all", help="One row per comparison instead of one per curve.")
    ] = False,
    add: Annotated[
        int | None, typer.Option("--add", min=1, help="Add this many trials of every point to the study.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate how many trials each comparison needs to detect a difference (80% power, paired t test)."""
    from whichlayers.analysis.power import minutes_per_added_trial, power_estimates
    from whichlayers.results.frames import finished, load_points, load_runs
    from whichlayers.results.shared_seeds import seed_notes

    folder = find_folder(study)
    every = load_points(folder.path)
    points = finished(every)
    estimates = power_estimates(points, difference)
    if not estimates:
        raise WhichlayersError(
            f"{folder.path} has nothing to compare yet: incremental curves need finished trials of two values of"
            ' k, other experiments finished trials of their baseline, such as "all pretrained"'
        )
    runs = load_runs(folder.path)
    on_gpu = bool(len(runs)) and "cuda" in str(runs["device"].iloc[-1])
    unit = "GPU-min" if on_gpu else "process-min"
    if as_json:
        print_json(power_data(estimates, difference, unit, seed_notes(every)))
        if add is not None:
            _add(folder, add)
        return
    console().print(
        _comparison_table(estimates, points, unit)
        if all_comparisons
        else _curve_table(estimates, points, unit)
    )
    known = [c for c in estimates if c.additional is not None]
    underpowered = [c for c in known if c.additional]
    enough = len(known) - len(underpowered)
    verb = "has" if len(estimates) == 1 else "have"
    print_line(
        f"{enough:,} of {counted(len(estimates), 'comparison')} {verb} enough trials to detect a difference of"
        f" {format_score(difference)} points (metric × 100)"
    )
    if underpowered:
        additional = max(c.additional or 0 for c in underpowered)
        cost = additional * minutes_per_added_trial(points)
        trials = counted(additional, "additional trial")
        others = counted(len(underpowered), "other comparison" if enough else "comparison")
        print_line(f"{trials} of every point would be enough for {others}: about {cost:,.0f} {unit}")
    if unknown := [c for c in estimates if not c.estimable]:
        one = len(unknown) == 1
        print_line(
            f"{counted(len(unknown), 'comparison')} cannot be estimated: {'it has' if one else 'they have'} a single"
            " pair of trials, or the differences of all pairs are equal; add a few trials first",
            "yellow",
        )
    if too_noisy := [c for c in estimates if c.estimable and c.needed is None]:
        print_line(
            f"{counted(len(too_noisy), 'comparison')} too noisy: more than 1,000 trials needed", "yellow"
        )
    print_line(
        "standard deviations are estimated from the finished trials: with few trials, they are rough", "dim"
    )
    for note in seed_notes(every):
        print_line(note, "yellow")
    if add is not None:
        print_line(_add(folder, add))


def _add(folder: StudyFolder, more: int) -> str:
    """Add trials to the study file in the folder; returns a message."""
    from whichlayers.results.lock import study_lock
    from whichlayers.study.study_file import load_study

    with study_lock(folder.path):
        folder.write_study(load_study(folder.study_file).with_more_trials(more).to_toml(folder.path))
    return (
        f"added {counted(more, 'trial')} of every point to {folder.study_file}; existing results are kept. Run the"
        f" new trials with: whichlayers run {folder.path}"
    )


def _curve_table(estimates: Sequence[PowerEstimate], points: pd.DataFrame, unit: str) -> Table:
    """One row per curve: comparisons with enough trials, and the trials needed by the most demanding one."""
    from whichlayers.analysis.power import minutes_per_added_trial
    from whichlayers.results.frame_utils import each_group
    from whichlayers.results.frames import CURVE

    numbers, names = ("enough", "trials", "needed", unit), curve_names(points)
    table = make_table("curve", *numbers, right=numbers)
    for key, rows in each_group(points, CURVE):
        on_curve = [c for c in estimates if c.curve == key]
        if on_curve:
            estimable = [c for c in on_curve if c.estimable] or on_curve
            hardest = max(estimable, key=lambda c: math.inf if c.additional is None else c.additional)
            cost = _format_cost(hardest, minutes_per_added_trial(rows))
            enough = f"{sum(c.additional == 0 for c in on_curve)} of {len(on_curve)}"
            needed = _format_needed(hardest)
            if 0 < len(estimable) < len(on_curve):
                needed = f"{needed}, {len(on_curve) - len(estimable)} unknown"
            table.add_row(names[key], enough, f"{hardest.n}", needed, cost)
    return table


def _comparison_table(estimates: Sequence[PowerEstimate], points: pd.DataFrame, unit: str) -> Table:
    """One row per comparison."""
    numbers, names = ("difference", "sd", "trials", "needed", unit), curve_names(points)
    table = make_table("comparison", *numbers, right=numbers)
    for c in estimates:
        sd, cost = format_score(c.sd) if c.estimable else "?", _format_cost(c, c.minutes_per_trial, digits=1)
        name = f"{names[c.curve]}: {c.about}"
        table.add_row(name, format_score(c.mean, signed=True), sd, f"{c.n}", _format_needed(c), cost)
    return table


def curve_names(points: pd.DataFrame) -> dict[tuple[object, ...], str]:
    """The name of each curve: experiment, model if the study has several, task, examples and variant."""
    from whichlayers.plots.display_names import size_name
    from whichlayers.results.frame_utils import each_group
    from whichlayers.results.frames import CURVE

    models, tasks = short_names(points["model"]), short_names(points["task"])
    found = {}
    for key, _ in each_group(points, CURVE):
        experiment, model, _, task, size, variant = key
        parts = (experiment, models[model] if len(models) > 1 else "", tasks[task], size_name(size), variant)
        found[key] = ", ".join(str(part) for part in parts if part)
    return found


def _format_cost(c: PowerEstimate, minutes: float, digits: int = 0) -> str:
    """Minutes of the additional trials, "?" if their number cannot be estimated."""
    from whichlayers.analysis.power import MAX_TRIALS

    if c.additional is not None:
        return f"{c.additional * minutes:,.{digits}f}"
    return f"over {max(MAX_TRIALS - c.n, 0) * minutes:,.{digits}f}" if c.estimable else "?"


def _format_needed(c: PowerEstimate) -> str:
    return "?" if not c.estimable else f"{c.needed:,}" if c.needed is not None else "over 1,000"
