"""whichlayers report: write the report page, figures and tables of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from whichlayers.cli.format import console
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder

if TYPE_CHECKING:
    pass


def report(
    folder: StudyFolderPath,
    overlay: Annotated[
        bool,
        typer.Option("--overlay", help="Draw the papers' curves beside yours, where task and size agree."),
    ] = False,
) -> None:
    """Write the report of a study: its page, figures and tables. Works while the study runs, too."""
    from whichlayers.report.build import write_report
    from whichlayers.report.terminal import summary_table
    from whichlayers.study.describe import describe_file

    found = find_folder(folder)
    written = write_report(found.path, overlay, describe_file(found.study_file))
    out = console()
    out.print(summary_table(found.path))
    out.print(Text(f"wrote {written}"), soft_wrap=True)
