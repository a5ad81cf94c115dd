"""whichlayers export: write the results as CSV or Parquet."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder

if TYPE_CHECKING:
    from whichlayers.results.export import Format


class Form(StrEnum):
    csv = "csv"
    parquet = "parquet"


def export(
    folder: StudyFolderPath,
    form: Annotated[
        Form | None, typer.Option("--format", help="csv or parquet. By default what --out ends in, or csv.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write. By default in the study folder.")
    ] = None,
    epochs: Annotated[
        bool, typer.Option("--epochs", help="One row per epoch and metric, in place of the last epoch's.")
    ] = False,
) -> None:
    """Write the results as a table for other programs: one row per point and trial that is done."""
    from whichlayers.results.export import export as write

    chosen: Format | None = None if form is None else form.value
    typer.echo(f"wrote {write(find_folder(folder), chosen, out, by_epoch=epochs)}")
