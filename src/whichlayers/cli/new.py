"""`whichlayers new`: write a study file, short or with all settings explained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichlayers.catalog import METRICS
from whichlayers.text import join_list


def new(
    file: Annotated[
        Path,
        typer.Argument(help="Study file to write, such as my-study.toml; .toml may be left out."),
    ],
    model: Annotated[
        str | None, typer.Option(help="Model to study: a Hub id, a folder or package:NAME.")
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(help="Your training file: .tsv, .csv or .jsonl (also .gz), or .parquet."),
    ] = None,
    dev: Annotated[Path | None, typer.Option(help="Your dev file, for evaluation.")] = None,
    text: Annotated[str | None, typer.Option(help="Name of the text column.")] = None,
    label: Annotated[str | None, typer.Option(help="Name of the label column.")] = None,
    pair: Annotated[
        str | None, typer.Option(help="Name of the column with the second text, for sentence-pair tasks.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="classification or regression. Default: chosen from the label type.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help=f"{join_list(METRICS, 'or')}. Default: chosen from the label type."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="List all settings, each with its meaning and default.")
    ] = False,
) -> None:
    """Write a runnable study file: the settings that a study needs, or with --full all of them."""
    from whichlayers.data.readers import check_columns, count_rows
    from whichlayers.models.find import check_name, local_folder
    from whichlayers.study.template import task_name, write_template

    if model is not None:
        check_name(model)
        if local_folder(model) is not None:
            from whichlayers.models.load import check_local_model

            check_local_model(model)
    rows = None if train is None else count_rows(train)
    if text is not None and label is not None:
        for data in (path for path in (train, dev) if path is not None):
            check_columns(data, [text, label] if pair is None else [text, label, pair])
    written = write_template(
        file, model, train, dev, text, label, pair=pair, kind=kind, metric=metric, rows=rows, full=full
    )
    if train is not None:
        typer.echo(f"the task is named {task_name(train)}, after the path of its training file")
    typer.echo(f"wrote {written}; edit it, then: whichlayers plan {written}, whichlayers run {written}")
