"""`whichlayers report`: write the report of a study: HTML page, figures and tables."""

from __future__ import annotations

from typing import Annotated

import typer

from whichlayers.cli.format import console, print_line
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder


def report(
    folder: StudyFolderPath,
    overlay: Annotated[
        bool,
        typer.Option(
            "--overlay", help="Also draw the curves of the papers, where task and training size match."
        ),
    ] = False,
) -> None:
    """Write the report of a study: HTML page, figures and tables. Also works while the study is running."""
    from whichlayers.report.build import write_report
    from whichlayers.report.terminal import summary_table
    from whichlayers.study.describe import describe_file

    study_folder = find_folder(folder)
    written = write_report(study_folder.path, overlay, describe_file(study_folder.study_file))
    console().print(summary_table(study_folder.path))
    print_line(f"wrote {written}")
