"""`whichlayers repair`: save everything that can be read from a damaged results.db."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichlayers.cli.format import print_line
from whichlayers.results.folder import find_folder
from whichlayers.text import counted


def repair(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a study whose results.db is damaged.")
    ],
) -> None:
    """Save everything that can be read from a damaged results.db into a new one. The damaged file is kept."""
    from whichlayers.results.repair import repair as repair_results

    study_folder = find_folder(folder)
    repaired = repair_results(study_folder)
    trials = counted(repaired.rows["trials"], "trial")
    if repaired.copy is None:
        print_line(
            f"{study_folder.database} is not damaged: {trials}, {repaired.done:,} done; nothing was changed"
        )
        return
    print_line(
        f"saved {trials}, {repaired.done:,} of them done, with {counted(repaired.rows['epochs'], 'value')}"
    )
    if repaired.reset:
        lost = counted(repaired.reset, "finished trial")
        print_line(f"{lost} lost results and will run again", "yellow")
    print_line(f"the damaged file is kept as {repaired.copy}")
    print_line(f"add the trials that are missing, and run them, with: whichlayers run {study_folder.path}")
