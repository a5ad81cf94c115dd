"""whichlayers status: progress, failures, time left and disk use of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from whichlayers.cli.format import bytes_text, console, duration, trial_text
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder
from whichlayers.text import counted

if TYPE_CHECKING:
    pass

FAILURES_SHOWN = 10


def status(
    folder: StudyFolderPath,
    errors: Annotated[
        bool, typer.Option("--errors", help="Show every failure with all that is known.")
    ] = False,
) -> None:
    """Show how far a study is, what failed, how long it will take and what it takes on the disk."""
    from whichlayers.runs.status import status as look

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
        say(f"nobody runs it{last}; go on with: whichlayers run {now.folder}")
    for note in now.notes:
        say(note, "yellow")
    for failure in now.failures if errors else now.failures[:FAILURES_SHOWN]:
        error = failure.error if errors else failure.error.partition("\n")[0]
        say(f"failed: {trial_text(failure.trial)}: {error}", "red")
    if len(now.failures) > FAILURES_SHOWN and not errors:
        say(f"and {len(now.failures) - FAILURES_SHOWN:,} more: --errors shows all", "red")
    parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in now.disk.items() if size)
    say(f"on disk: {bytes_text(sum(now.disk.values()))} ({parts})")
