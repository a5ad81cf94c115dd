"""`whichlayers status`: show progress, failures, time left and disk usage of a study."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from whichlayers.cli.format import console, describe_trial, format_bytes, format_duration
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder
from whichlayers.text import counted

FAILURES_SHOWN = 10


def status(
    folder: StudyFolderPath,
    errors: Annotated[
        bool, typer.Option("--errors", help="Show all failures with their tracebacks.")
    ] = False,
) -> None:
    """Show progress, failures, time left and disk usage of a study."""
    from whichlayers.runs.status import status as read_status

    now = read_status(find_folder(folder))
    out = console()

    def show(text: str, style: str = "") -> None:
        out.print(Text(text, style=style), soft_wrap=True)

    counts = now.counts
    show(f"{now.study}: {counts.done:,} of {counted(counts.total, 'trial')} done", "bold")
    running = "running" if now.running else "interrupted"
    rest = {running: counts.running, "pending": counts.pending, "failed": counts.failed}
    if any(rest.values()):
        show(", ".join(f"{number:,} {name}" for name, number in rest.items() if number))
    if now.running:
        left = f"; about {format_duration(now.seconds_left)} left" if now.seconds_left is not None else ""
        show(f"running: {now.running}{left}")
    elif counts.pending or counts.running:
        last = f" (last run: {now.last_outcome})" if now.last_outcome else ""
        show(f"not running{last}; resume with: whichlayers run {now.folder}")
    for note in now.notes:
        show(note, "yellow")
    for failure in now.failures if errors else now.failures[:FAILURES_SHOWN]:
        error = failure.error if errors else failure.error.partition("\n")[0]
        show(f"failed: {describe_trial(failure.trial)}: {error}", "red")
    if len(now.failures) > FAILURES_SHOWN and not errors:
        show(f"and {len(now.failures) - FAILURES_SHOWN:,} more; show all with --errors", "red")
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in now.disk.items() if size)
    show(f"disk space: {format_bytes(sum(now.disk.values()))} ({parts})")
