"""`whichlayers status`: show progress, failures, time left and disk usage of a study."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from whichlayers.cli.format import console, describe_trial
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder
from whichlayers.text import counted, format_bytes, format_duration

FAILURES_SHOWN = 10


def status(
    folder: StudyFolderPath,
    errors: Annotated[
        bool, typer.Option("--errors", help="Show all failures with their tracebacks.")
    ] = False,
) -> None:
    """Show progress, failures, time left and disk usage of a study."""
    from whichlayers.runs.status import status as read_status

    current = read_status(find_folder(folder))
    out = console()

    def show(text: str, style: str = "") -> None:
        out.print(Text(text, style=style), soft_wrap=True)

    counts = current.counts
    show(f"{current.study}: {counts.done:,} of {counted(counts.total, 'trial')} done", "bold")
    running = "running" if current.running else "interrupted"
    rest = {running: counts.running, "pending": counts.pending, "failed": counts.failed}
    if any(rest.values()):
        show(", ".join(f"{number:,} {name}" for name, number in rest.items() if number))
    if current.running:
        left = (
            f"; about {format_duration(current.seconds_left)} left"
            if current.seconds_left is not None
            else ""
        )
        show(f"running: {current.running}{left}")
    elif counts.pending or counts.running:
        last = f" (last run: {current.last_outcome})" if current.last_outcome else ""
        show(f"not running{last}; resume with: whichlayers run {current.folder}")
    for note in current.notes:
        show(note, "yellow")
    for failure in current.failures if errors else current.failures[:FAILURES_SHOWN]:
        error = failure.error if errors else failure.error.partition("\n")[0]
        show(f"failed: {describe_trial(failure.trial)}: {error}", "red")
    if len(current.failures) > FAILURES_SHOWN and not errors:
        show(f"and {len(current.failures) - FAILURES_SHOWN:,} more; show all with --errors", "red")
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in current.disk.items() if size)
    show(f"disk space: {format_bytes(sum(current.disk.values()))} ({parts})")
