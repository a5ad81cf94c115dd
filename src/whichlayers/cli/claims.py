"""`whichlayers claims`: test the claims of the papers on the results of one study or of several."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichlayers.cli.as_json import AsJson, print_json, records
from whichlayers.cli.format import console, print_line, stderr_console
from whichlayers.cli.options import Overwrite, check_not_replaced, complete_folder
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

if TYPE_CHECKING:
    from whichlayers.analysis.claims import Claim
    from whichlayers.analysis.claims.subjects import SubjectClaim


class ClaimsFormat(StrEnum):
    """Output formats of the command."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def claims(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="STUDY...",
            help="Folder of a study, a file in it, or its study file. A folder without results.db is read from its"
            " claims.csv. With several studies: the verdicts by claim, model and task.",
            autocompletion=complete_folder,
        ),
    ],
    output_format: Annotated[
        ClaimsFormat,
        typer.Option(
            "--format",
            help="Output format. json and csv list every test of every claim; of several studies every claim, model"
            " and task, as markdown does.",
        ),
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
        bool, typer.Option("--tests", help="Also list the tests of each claim in the table, for one study.")
    ] = False,
    all_claims: Annotated[
        bool,
        typer.Option("--all", help="Also list the claims that are not tested on this study in the table."),
    ] = False,
    as_json: AsJson = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", help="Also draw the verdicts by claim, model and task: a .png, .svg or .pdf file."
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Test the claims of the papers on one study or on several: effect, confidence interval, p value and verdict."""
    from whichlayers.analysis.claims import ClaimThresholds
    from whichlayers.analysis.claims.subjects import StudyClaims, claims_by_subject, load_claims, load_studies

    thresholds = ClaimThresholds(margin=margin)
    output_format = ClaimsFormat.json if as_json else output_format
    if figure is not None:
        _check_figure(figure)
        check_not_replaced("--figure", figure, overwrite)
    if len(folders) == 1 and output_format is not ClaimsFormat.markdown:
        found = load_claims(folders[0], thresholds)
        _print_study(list(found), output_format, tests, all_claims)
        subjects = claims_by_subject([StudyClaims(folders[0].name, found)], thresholds)
    else:
        subjects = claims_by_subject(load_studies(folders, thresholds), thresholds)
        _print_studies(subjects, output_format)
    is_table = output_format is ClaimsFormat.table
    for note in _seed_notes(folders):
        print_line(note, "yellow", console() if is_table else stderr_console())
    if figure is not None:
        from whichlayers.plots.claims_grid import draw_claims_grid
        from whichlayers.plots.figures import save_as

        save_as(draw_claims_grid(subjects), figure)
        if output_format is ClaimsFormat.table:
            print_line(f"wrote {figure}")


def _seed_notes(folders: list[Path]) -> list[str]:
    """Notes on the seeds of the studies, with their names if there are several; none of those without results.db."""
    from whichlayers.results.folder import locate_folder
    from whichlayers.results.frames import load_points
    from whichlayers.results.shared_seeds import named_notes, seed_notes

    studies = {folder.path.resolve(): folder for folder in map(locate_folder, folders)}
    found = [
        (path.name, seed_notes(load_points(path)))
        for path, folder in studies.items()
        if folder.database.is_file()
    ]
    return named_notes(found) if len(studies) > 1 else [note for _, notes in found for note in notes]


def _check_figure(path: Path) -> None:
    from whichlayers.plots.figures import FORMATS

    if path.suffix.removeprefix(".") not in FORMATS:
        allowed = ", ".join(f".{name}" for name in FORMATS)
        raise WhichlayersError(
            f"--figure {path}: the extension {path.suffix or '(none)'} is not known; use {allowed}"
        )
    if not path.parent.is_dir():
        raise WhichlayersError(f"--figure {path}: the folder {path.parent} does not exist; create it first")


def _print_study(results: list[Claim], output_format: ClaimsFormat, tests: bool, all_claims: bool) -> None:
    """One study: a table of its claims, or all tests as JSON or CSV."""
    import json

    from whichlayers.analysis.claims import NOT_TESTED, as_records, as_table
    from whichlayers.analysis.guessing import NOT_JUDGED
    from whichlayers.report.claim_table import claims_table

    if output_format is ClaimsFormat.json:
        typer.echo(json.dumps(as_records(results), indent=2, ensure_ascii=False, allow_nan=False))
    elif output_format is ClaimsFormat.csv:
        typer.echo(as_table(results).to_csv(index=False), nl=False)
    else:
        listed = [
            claim
            for claim in results
            if all_claims or claim.verdict != NOT_TESTED or claim.details.startswith(NOT_JUDGED)
        ]
        if listed:
            console().print(claims_table(listed, with_tests=tests))
        if any(claim.verdict != NOT_TESTED for claim in listed):
            print_line(
                "A claim holds if all of its tests do; p values of single tests are Holm-adjusted within the claim.",
                "dim",
            )
        if others := [claim.id for claim in results if claim not in listed]:
            verb, noun = "is" if len(others) == 1 else "are", "other claim" if listed else "claim"
            print_line(
                f"{counted(len(others), noun)} of the papers {verb} {NOT_TESTED} on this study"
                f" ({', '.join(others)}); for what they require, add --all",
                "dim",
            )


def _print_studies(subjects: list[SubjectClaim], output_format: ClaimsFormat) -> None:
    """Several studies: verdicts by claim, model and task."""
    from whichlayers.analysis.claims.subjects import subject_table
    from whichlayers.report.subject_claims import LEGEND, subjects_markdown, subjects_table

    if output_format is ClaimsFormat.json:
        table = subject_table(subjects).astype(object)
        print_json(records(table.where(table.notna(), None)))
    elif output_format is ClaimsFormat.csv:
        typer.echo(subject_table(subjects).to_csv(index=False), nl=False)
    elif output_format is ClaimsFormat.markdown:
        typer.echo(subjects_markdown(subjects), nl=False)
    else:
        console().print(subjects_table(subjects))
        print_line(LEGEND, "dim")
        print_line(
            "One symbol per study of the model and task. For effects and intervals: --format csv, json or markdown",
            "dim",
        )
