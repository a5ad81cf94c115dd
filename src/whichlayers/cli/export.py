"""`whichlayers export`: write the results of a study as CSV or Parquet."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder

if TYPE_CHECKING:
    from whichlayers.results.export import FileFormat


class ExportFormat(StrEnum):
    """File formats of the command."""

    csv = "csv"
    parquet = "parquet"


def export(
    folder: StudyFolderPath,
    output_format: Annotated[
        ExportFormat | None,
        typer.Option("--format", help="Default: chosen from the extension of --out, or csv."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write. Default: a file in the study folder."),
    ] = None,
    epochs: Annotated[
        bool, typer.Option("--epochs", help="One row per epoch and metric, instead of the last epoch only.")
    ] = False,
) -> None:
    """Export the results as a table, with one row per point and finished trial."""
    from whichlayers.results.export import export as write

    chosen: FileFormat | None = None if output_format is None else output_format.value
    typer.echo(f"wrote {write(find_folder(folder), chosen, out, by_epoch=epochs)}")
