"""`whichlayers export`: write the results of a study as CSV, Parquet or TensorBoard event files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichlayers.cli.options import Overwrite, StudyFolderPath, check_not_replaced
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import find_folder

if TYPE_CHECKING:
    from whichlayers.results.export import ExportRows, FileFormat


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
    neurons: Annotated[
        bool,
        typer.Option(
            "--neurons",
            help="One row per neuron of the top neurons and smallest sets that the experiment neurons selected.",
        ),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Export the results as a table with one row per point and finished trial, or as TensorBoard event files."""
    if neurons and (epochs or output_format is ExportFormat.tensorboard):
        other = "--epochs" if epochs else "--format tensorboard"
        raise WhichlayersError(f"--neurons and {other} exclude each other: export one after the other")
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
    rows: ExportRows = "neurons" if neurons else "epochs" if epochs else "points"
    typer.echo(f"wrote {write(find_folder(folder), chosen, out, rows)}")
