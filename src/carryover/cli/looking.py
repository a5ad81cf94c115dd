"""The commands that start nothing: models, presets, new, status, report, export."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from carryover.cli.show import bytes_text, console, duration, table, trial_text
from carryover.runs.folder import find_folder
from carryover.trial import counted

if TYPE_CHECKING:
    from carryover.runs.export import Format

FAILURES_SHOWN = 10

StudyFolderPath = Annotated[
    Path,
    typer.Argument(metavar="STUDY", help="The folder of a study, a file in it, or the study file beside it."),
]


class Form(StrEnum):
    csv = "csv"
    parquet = "parquet"


def models() -> None:
    """List the models there are, and how to name others."""
    from carryover.models.load import known_models

    shown = table("name", "what it is")
    for name, description in known_models():
        shown.add_row(Text(name), Text(description))
    console().print(shown)


def presets(
    name: Annotated[str | None, typer.Argument(help="Show this preset's study file.")] = None,
) -> None:
    """List the studies that come with carryover, or show one."""
    from carryover.study.preset import list_presets, preset_text

    if name is not None:
        typer.echo(preset_text(name), nl=False)
        return
    shown = table("preset", "what it asks")
    for preset, description in list_presets().items():
        shown.add_row(Text(preset), Text(description))
    console().print(shown)


def new(
    file: Annotated[Path, typer.Argument(help="The study file to write, such as my-study.toml.")],
    model: Annotated[str | None, typer.Option(help="The model to study.")] = None,
    train: Annotated[
        Path | None,
        typer.Option(help="Your training file: .tsv, .csv, .jsonl (these also .gz) or .parquet."),
    ] = None,
    dev: Annotated[Path | None, typer.Option(help="The file to evaluate on.")] = None,
    text: Annotated[str | None, typer.Option(help="Its column with the text.")] = None,
    label: Annotated[str | None, typer.Option(help="Its column with the label.")] = None,
    pair: Annotated[
        str | None, typer.Option(help="Its column with the second text, if there are two.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="classification or regression. By default the labels decide.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="accuracy, f1, macro_f1, mcc, pearson or spearman. By default what suits."),
    ] = None,
) -> None:
    """Write a study file with every setting explained, ready to run."""
    from carryover.data.rows import check_columns, count_rows
    from carryover.study.new import write_template

    rows = None if train is None else count_rows(train)
    if text is not None and label is not None:
        for data in (path for path in (train, dev) if path is not None):
            check_columns(data, [text, label] if pair is None else [text, label, pair])
    written = write_template(
        file, model, train, dev, text, label, pair=pair, kind=kind, metric=metric, rows=rows
    )
    typer.echo(f"wrote {written}; edit it, then: carryover plan {written}, carryover run {written}")


def status(
    folder: StudyFolderPath,
    errors: Annotated[
        bool, typer.Option("--errors", help="Show every failure with all that is known.")
    ] = False,
) -> None:
    """Show how far a study is, what failed, how long it will take and what it takes on the disk."""
    from carryover.runs.status import status as look

    now = look(find_folder(folder))
    out = console()

    def say(text: str, style: str = "") -> None:
        out.print(Text(text, style=style), soft_wrap=True)

    counts = now.counts
    say(f"{now.study}: {counts.done:,} of {counted(counts.total, 'trial')} done", "bold")
    under_way = "running" if now.running else "broken off"
    rest = {under_way: counts.running, "pending": counts.pending, "failed": counts.failed}
    if any(rest.values()):
        say(", ".join(f"{number:,} {name}" for name, number in rest.items() if number))
    if now.running:
        left = f"; about {duration(now.seconds_left)} left" if now.seconds_left is not None else ""
        say(f"run by {now.running}{left}")
    elif counts.pending or counts.running:
        last = f" (the last run: {now.last_outcome})" if now.last_outcome else ""
        say(f"nobody runs it{last}; go on with: carryover run {now.folder}")
    for note in now.notes:
        say(note, "yellow")
    for failure in now.failures if errors else now.failures[:FAILURES_SHOWN]:
        error = failure.error if errors else failure.error.partition("\n")[0]
        say(f"failed: {trial_text(failure.trial)}: {error}", "red")
    if len(now.failures) > FAILURES_SHOWN and not errors:
        say(f"and {len(now.failures) - FAILURES_SHOWN:,} more: --errors shows all", "red")
    parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in now.disk.items() if size)
    say(f"on disk: {bytes_text(sum(now.disk.values()))} ({parts})")


def report(
    folder: StudyFolderPath,
    overlay: Annotated[
        bool,
        typer.Option("--overlay", help="Draw the papers' curves beside yours, where task and size agree."),
    ] = False,
) -> None:
    """Write the report of a study: its page, figures and tables. Works while the study runs, too."""
    from carryover.report.build import write_report
    from carryover.report.terminal import summary_table
    from carryover.study.describe import describe_file

    found = find_folder(folder)
    written = write_report(found.path, overlay, describe_file(found.study_file))
    out = console()
    out.print(summary_table(found.path))
    out.print(Text(f"wrote {written}"), soft_wrap=True)


def export(
    folder: StudyFolderPath,
    form: Annotated[
        Form | None, typer.Option("--format", help="csv or parquet. By default what --out ends in, or csv.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write. By default in the study folder.")
    ] = None,
    epochs: Annotated[
        bool, typer.Option("--epochs", help="One row per epoch and metric, in place of the last epoch's.")
    ] = False,
) -> None:
    """Write the results as a table for other programs: one row per point and trial that is done."""
    from carryover.runs.export import export as write

    chosen: Format | None = None if form is None else form.value
    typer.echo(f"wrote {write(find_folder(folder), chosen, out, by_epoch=epochs)}")
