"""whichlayers power: how many more trials a study needs, what they cost, and adding them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from whichlayers.cli.format import console, table
from whichlayers.cli.options import StudyFolderPath
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder, find_folder
from whichlayers.text import counted

if TYPE_CHECKING:
    import pandas as pd

    from whichlayers.analysis.trials_needed import Comparison


def power(
    study: StudyFolderPath,
    difference: Annotated[
        float,
        typer.Option("--difference", min=1e-6, help="The difference to show, in units of the metric: 0.01."),
    ] = 0.01,
    every: Annotated[
        bool, typer.Option("--all", help="A row for every comparison, not for every curve.")
    ] = False,
    add: Annotated[
        int | None, typer.Option("--add", min=1, help="Extend the study with so many trials of every point.")
    ] = None,
) -> None:
    """Say how many more trials each comparison needs to show a difference (80% power, paired t test)."""
    from whichlayers.analysis.trials_needed import comparisons, minutes_of_a_trial_more
    from whichlayers.results.frames import finished, load_points, load_runs

    folder = find_folder(study)
    out = console()

    def say(text: str, style: str = "") -> None:
        out.print(Text(text, style=style), soft_wrap=True)

    points = finished(load_points(folder.path))
    found = comparisons(points, difference)
    if not found:
        raise WhichlayersError(
            f"{folder.path} has nothing to compare yet: incremental curves need two values of k, other"
            ' experiments their baseline "all pretrained"'
        )
    runs = load_runs(folder.path)
    on_gpu = bool(len(runs)) and "cuda" in str(runs["device"].iloc[-1])
    unit = "GPU-min" if on_gpu else "process-min"
    out.print(_each(found, unit) if every else _by_curve(found, points, unit))
    told = [c for c in found if c.more is not None]
    short = [c for c in told if c.more]
    say(f"{len(told) - len(short):,} of {counted(len(found), 'comparison')} can show {difference:g} already")
    if short:
        more = max(c.more or 0 for c in short)
        cost = more * minutes_of_a_trial_more(points)
        say(f"{counted(more, 'trial')} more of every point let all of them: about {cost:,.0f} {unit}")
    if unknown := [c for c in found if not c.known]:
        say(f"{counted(len(unknown), 'comparison')} need more trials before anything can be said", "yellow")
    if hopeless := [c for c in found if c.known and c.needed is None]:
        say(f"{counted(len(hopeless), 'comparison')} scatter too much for any number one would run", "yellow")
    say(
        "how much differences scatter is estimated from the trials there are: few trials, rough numbers",
        "dim",
    )
    if add is not None:
        say(_add(folder, add))


def _add(folder: StudyFolder, more: int) -> str:
    from whichlayers.results.lock import study_lock
    from whichlayers.study.add_trials import with_more_trials
    from whichlayers.study.file import load_study

    with study_lock(folder.path):
        extended = with_more_trials(load_study(folder.study_file), more)
        folder.write_study(extended.to_toml())
    return (
        f"{folder.study_file} asks for {counted(more, 'trial')} more of every point; those there are stay as they"
        f" are. Train the new ones with: whichlayers run {folder.path}"
    )


def _by_curve(found: Sequence[Comparison], points: pd.DataFrame, unit: str) -> Table:
    """One row a curve: how many of its comparisons have enough, and what the one that has least needs."""
    from whichlayers.analysis.frame_utils import each_group
    from whichlayers.analysis.trials_needed import minutes_of_a_trial_more
    from whichlayers.results.frames import CURVE

    numbers = ("enough", "trials", "needed", unit)
    shown = table("curve", *numbers, right=numbers)
    for key, rows in each_group(points, CURVE):
        mine = [c for c in found if c.curve == key]
        if mine:
            hardest = max(mine, key=lambda c: math.inf if c.more is None else c.more)
            cost = (hardest.more or 0) * minutes_of_a_trial_more(rows)
            enough = f"{sum(c.more == 0 for c in mine)} of {len(mine)}"
            shown.add_row(_curve(hardest), enough, f"{hardest.n}", _needed(hardest), f"{cost:,.0f}")
    return shown


def _each(found: Sequence[Comparison], unit: str) -> Table:
    numbers = ("difference", "sd", "trials", "needed", unit)
    shown = table("comparison", *numbers, right=numbers)
    for c in found:
        sd, cost = f"{c.sd:.4f}" if c.known else "?", (c.more or 0) * c.minutes
        about = f"{_curve(c)}: {c.about}"
        shown.add_row(about, f"{c.mean:+.4f}", sd, f"{c.n}", _needed(c), f"{cost:,.1f}")
    return shown


def _curve(c: Comparison) -> str:
    experiment, _, _, task, size, variant = c.curve
    return ", ".join(filter(None, (str(experiment), str(task), f"{int(str(size)):,}", str(variant))))


def _needed(c: Comparison) -> str:
    return "?" if not c.known else f"{c.needed:,}" if c.needed is not None else "over 1,000"
