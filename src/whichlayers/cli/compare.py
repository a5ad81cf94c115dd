"""`whichlayers compare`: compare two studies point by point, in the terminal and as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichlayers.cli.as_json import AsJson, comparison_data, print_json
from whichlayers.cli.format import console, print_line
from whichlayers.cli.options import Overwrite, check_not_replaced
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import find_folder

PAGE = Path("compare.html")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder or study file of the first study.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder or study file of the second study.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help=f"HTML page to write. Default: {PAGE}, which is replaced."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Compare two studies: differences B - A, paired by seed, with confidence intervals; writes an HTML page.

    With --json, no page is written.
    """
    from whichlayers.analysis.compare_studies import compare_studies
    from whichlayers.report.compare_page import (
        comparison_table,
        notes_on_models,
        verdict,
        write_comparison,
    )

    first, second = find_folder(a).path, find_folder(b).path
    if out is not None and not as_json:
        check_not_replaced("--out", out, overwrite)
    out = out or PAGE
    if out.is_dir():
        raise WhichlayersError(f"--out {out} is a folder: give a file, such as {out / 'compare.html'}")
    if not out.parent.is_dir():
        raise WhichlayersError(
            f"--out {out}: the folder {out.parent} does not exist; create it, or choose another path"
        )
    comparison = compare_studies(first, second)
    if as_json:
        print_json(comparison_data(comparison, verdict(comparison)))
        return
    for letter, study, folder in (("A", comparison.a, a), ("B", comparison.b, b)):
        name = "" if study.name in (str(folder), folder.name) else f", the study {study.name}"
        print_line(f"{letter}: {folder}{name}")
    print_line("differences are B minus A\n")
    for setting, value_a, value_b in comparison.differs:
        print_line(f"{setting}: {value_a or 'unknown'} in A, {value_b or 'unknown'} in B")
    console().print(comparison_table(comparison))
    experiments = dict.fromkeys(comparison.pairs["experiment"])
    for note in dict.fromkeys(note for name in experiments for note in notes_on_models(comparison, name)):
        print_line(note)
    print_line(verdict(comparison))
    for note in comparison.notes:
        print_line(note, "yellow")
    for reason, count in comparison.unpaired:
        print_line(f"unpaired: {reason} ({count:,})", "yellow")
    print_line(f"wrote {write_comparison(comparison, out)}")
