"""whichlayers claims: the papers' claims as tests, on the results of a study."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from whichlayers.cli.format import console
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder


class ClaimsForm(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


def claims(
    folder: StudyFolderPath,
    form: Annotated[
        ClaimsForm, typer.Option("--format", help="table; or json, csv with every test of every claim.")
    ] = ClaimsForm.table,
    margin: Annotated[
        float,
        typer.Option("--margin", min=1e-6, max=1.0, help="What hardly matters, in units of the metric."),
    ] = 0.01,
    tests: Annotated[
        bool, typer.Option("--tests", help="In the table, show the tests of each claim, too.")
    ] = False,
) -> None:
    """Hold the papers' claims against the results of a study: effect, interval, p and verdict of each."""
    import json

    from whichlayers.analysis.claims import Limits, as_records, as_table, study_claims
    from whichlayers.report.claim_table import claims_table

    found = study_claims(find_folder(folder).path, Limits(margin=margin))
    if form is ClaimsForm.json:
        typer.echo(json.dumps(as_records(found), indent=2, ensure_ascii=False, allow_nan=False))
    elif form is ClaimsForm.csv:
        typer.echo(as_table(found).to_csv(index=False), nl=False)
    else:
        out = console()
        out.print(claims_table(found, with_tests=tests))
        out.print(
            Text(
                "A claim holds where all its tests do; p is adjusted by Holm's method within the claim.",
                style="dim",
            )
        )
