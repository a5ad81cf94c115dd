"""`whichlayers claims`: test the claims of the papers on the results of a study."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from whichlayers.cli.format import console, print_line
from whichlayers.cli.options import StudyFolderPath
from whichlayers.results.folder import find_folder
from whichlayers.text import counted


class ClaimsFormat(StrEnum):
    """Output formats of the command."""

    table = "table"
    json = "json"
    csv = "csv"


def claims(
    folder: StudyFolderPath,
    output_format: Annotated[
        ClaimsFormat,
        typer.Option("--format", help="Output format. json and csv list every test of every claim."),
    ] = ClaimsFormat.table,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            min=1e-6,
            max=1.0,
            help="Largest difference that counts as negligible, in units of the metric. Default: 0.01, or half of"
            " the standard deviation between seeds if that is more.",
        ),
    ] = None,
    tests: Annotated[
        bool, typer.Option("--tests", help="Also list the tests of each claim in the table.")
    ] = False,
    all_claims: Annotated[
        bool,
        typer.Option("--all", help="Also list the claims that do not apply to this study in the table."),
    ] = False,
) -> None:
    """Test the claims of the papers on a study: effect, confidence interval, p value and verdict."""
    import json

    from whichlayers.analysis.claims import NOT_TESTED, ClaimThresholds, as_records, as_table, study_claims
    from whichlayers.report.claim_table import claims_table

    results = study_claims(find_folder(folder).path, ClaimThresholds(margin=margin))
    if output_format is ClaimsFormat.json:
        typer.echo(json.dumps(as_records(results), indent=2, ensure_ascii=False, allow_nan=False))
    elif output_format is ClaimsFormat.csv:
        typer.echo(as_table(results).to_csv(index=False), nl=False)
    else:
        listed = [claim for claim in results if all_claims or claim.verdict != NOT_TESTED]
        if listed:
            console().print(claims_table(listed, with_tests=tests))
            print_line(
                "A claim holds if all of its tests do; p values of single tests are Holm-adjusted within the claim.",
                "dim",
            )
        if others := [claim.id for claim in results if claim not in listed]:
            verb = "does" if len(others) == 1 else "do"
            print_line(
                f"{counted(len(others), 'claim')} of the papers {verb} not apply to this study ({', '.join(others)});"
                " for what they require, add --all",
                "dim",
            )
