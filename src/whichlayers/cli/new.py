"""whichlayers new: write a study file with every setting explained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    pass


def new(
    file: Annotated[Path, typer.Argument(help="The study file to write, such as my-study.toml.")],
    model: Annotated[str | None, typer.Option(help="The model to study.")] = None,
    train: Annotated[
        Path | None,
        typer.Option(help="Your training file: .tsv, .csv, .jsonl (these also .gz) or .parquet."),
    ] = None,
    dev: Annotated[Path | None, typer.Option(help="The file to evaluate on.")] = None,
    text: Annotated[str | None, typer.Option(help="Its column with the text.")] = None,
    label: Annotated[str | None, typer.Option(help="Its column with the label.")] = None,
    pair: Annotated[
        str | None, typer.Option(help="Its column with the second text, if there are two.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="classification or regression. By default the labels decide.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="accuracy, f1, macro_f1, mcc, pearson or spearman. By default what suits."),
    ] = None,
) -> None:
    """Write a study file with every setting explained, ready to run."""
    from whichlayers.data.readers import check_columns, count_rows
    from whichlayers.study.template import write_template

    rows = None if train is None else count_rows(train)
    if text is not None and label is not None:
        for data in (path for path in (train, dev) if path is not None):
            check_columns(data, [text, label] if pair is None else [text, label, pair])
    written = write_template(
        file, model, train, dev, text, label, pair=pair, kind=kind, metric=metric, rows=rows
    )
    typer.echo(f"wrote {written}; edit it, then: whichlayers plan {written}, whichlayers run {written}")
