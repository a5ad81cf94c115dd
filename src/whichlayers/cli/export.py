"""`whichlayers export`: write the results of a study as CSV, Parquet or TensorBoard event files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichlayers.cli.options import Overwrite, StudyFolderPath, check_not_replaced
from whichlayers.results.folder import find_folder

if TYPE_CHECKING:
    from whichlayers.results.export import FileFormat


class ExportFormat(StrEnum):
    """File formats of the command."""

    csv = "csv"
    parquet = "parquet"
    tensorboard = "tensorboard"


def export(
    folder: StudyFolderPath,
    output_format: Annotated[
        ExportFormat | None,
        typer.Option(
            "--format",
            help="csv, parquet, or tensorboard (event files, one run per trial). Default: chosen from the"
            " extension of --out, or csv.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File (or folder, for tensorboard) to write. Default: a file in the study folder, which is replaced.",
        ),
    ] = None,
    epochs: Annotated[
        bool, typer.Option("--epochs", help="One row per epoch and metric, instead of the last epoch only.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Export the results as a table with one row per point and finished trial, or as TensorBoard event files."""
    if output_format is ExportFormat.tensorboard:
        from whichlayers.results.tensorboard import export_tensorboard

        typer.echo(f"wrote {export_tensorboard(find_folder(folder), out)}")
        return
    from whichlayers.results.export import export as write

    if out is not None:
        check_not_replaced("--out", out, overwrite)
    chosen: FileFormat | None = None
    if output_format is not None:
        chosen = "csv" if output_format is ExportFormat.csv else "parquet"
    typer.echo(f"wrote {write(find_folder(folder), chosen, out, by_epoch=epochs)}")
