"""`whichlayers run`: run a study and print a summary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichlayers.cli.format import console, print_line, stderr_console
from whichlayers.cli.options import StudyOptions, with_study_options
from whichlayers.cli.progress import ProgressDisplay
from whichlayers.engine.settings import CHECKPOINT_MINUTES
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.scheduler import RETRIES
from whichlayers.text import counted, format_duration

if TYPE_CHECKING:
    from whichlayers.runs.events import RunSummary


@with_study_options
def run(
    options: StudyOptions,
    on: Annotated[
        str,
        typer.Option(
            "--on", help="Where to train: this (this machine), ray (Ray on this machine) or ray://HOST:PORT."
        ),
    ] = "this",
    checkpoint_minutes: Annotated[
        float,
        typer.Option(
            "--checkpoint-minutes", help="Minutes between checkpoints of running stacks; 0: no checkpoints."
        ),
    ] = CHECKPOINT_MINUTES,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", help="Folder for checkpoints. Default: in the study folder."),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            "--retries", help="How often a stack is retried after its worker died, before it is split."
        ),
    ] = RETRIES,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry trials that failed in an earlier run.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show only failures and the final summary.")
    ] = False,
) -> None:
    """Run a study, or resume an interrupted one. Finished trials are kept and not run again."""
    from whichlayers.runs.run_study import run as run_study

    study, folder = options.select()
    err = stderr_console()
    try:
        with ProgressDisplay(err, quiet) as display:
            summary = run_study(
                study,
                folder,
                device=options.device,
                workers=options.workers,
                max_stack=options.max_stack,
                on=on,
                checkpoint_minutes=checkpoint_minutes,
                checkpoints=checkpoints,
                retries=retries,
                retry_failed=retry_failed,
                on_event=display,
            )
    except KeyboardInterrupt:
        text = f"interrupted; finished trials are kept. Resume with: whichlayers run {folder}"
        if not StudyFolder(folder).has_results:
            text = f"interrupted before the first trial; start again with: whichlayers run {options.study}"
        print_line(text, "yellow", err)
        raise typer.Exit(130) from None
    _print_summary(summary, quiet)
    if summary.failed:
        raise typer.Exit(1)


def _print_summary(summary: RunSummary, quiet: bool) -> None:
    """Print the table of results, the number of trials done and failed, and what to do next."""
    from whichlayers.report.terminal import summary_table

    if summary.done and not quiet:
        console().print(summary_table(summary.folder))
    text = "nothing to run"
    if summary.ran:
        text = f"ran {counted(summary.ran, 'trial')} in {format_duration(summary.seconds)}, including loading"
    total, verb = counted(summary.trials, "trial"), "is" if summary.trials == 1 else "are"
    print_line(f"{text}; {summary.done:,} of {total} of the study {verb} done")
    if summary.failed:
        print_line(
            f"{counted(summary.failed, 'trial')} failed; for the errors: whichlayers status {summary.folder}; to"
            f" retry: whichlayers run {summary.folder} --retry-failed",
            "red",
        )
    if summary.done:
        print_line(f"for a report: whichlayers report {summary.folder}")
