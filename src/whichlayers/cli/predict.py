"""`whichlayers predict`: labels and probabilities for the texts in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from whichlayers.cli.format import print_line, progress_bar, stderr_console
from whichlayers.cli.options import Overwrite, check_not_replaced
from whichlayers.text import counted


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `whichlayers build` wrote.")],
    file: Annotated[
        Path, typer.Argument(help="File of texts: .tsv, .csv or .jsonl (also .gz), or .parquet.")
    ],
    text: Annotated[str, typer.Option("--text", help="Name of the text column.")],
    pair: Annotated[
        str | None,
        typer.Option("--pair", help="Name of the column with the second text, for sentence pairs."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", help="Further column to copy to the output; may be repeated: --keep id --keep date."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write: .tsv, .csv, .jsonl or .parquet. Default: CSV to stdout."),
    ] = None,
    overwrite: Overwrite = False,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Texts in a batch.")] = 32,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:N. Default: a GPU if there is one.")
    ] = None,
) -> None:
    """Predict labels and probabilities of the texts in a file. Large files are read and written in chunks."""
    from whichlayers.deploy.predict import TextColumns, check_output, predict_file
    from whichlayers.deploy.text_model import default_device, load_model

    columns = TextColumns(text, pair, tuple(keep or ()))
    if out is not None:
        check_output(out, file)
        check_not_replaced("--out", out, overwrite)
    loaded = load_model(model, device or default_device())
    with progress_bar("predicting", "rows") as on_rows:
        rows = predict_file(loaded, file, columns, out or sys.stdout, batch_size=batch_size, on_rows=on_rows)
    if out is not None:
        print_line(f"wrote {out} ({counted(rows, 'row')})", out=stderr_console())
