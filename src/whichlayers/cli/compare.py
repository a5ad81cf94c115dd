"""whichlayers compare: two studies point by point, in the terminal and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from whichlayers.cli.format import console
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import find_folder


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The folder of a study, or its study file.")],
    b: Annotated[
        Path, typer.Argument(metavar="B", help="The folder of another, or of the same run elsewhere.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("compare.html"),
) -> None:
    """Compare two studies: B minus A, paired by seed, with intervals; and a page with both."""
    from whichlayers.analysis.compare import compare as paired
    from whichlayers.report.compare_page import comparison_table, verdict, write_comparison

    first, second = find_folder(a).path, find_folder(b).path
    if not out.parent.is_dir():
        raise WhichlayersError(
            f"--out {out}: there is no folder {out.parent}; make it, or name another place"
        )
    found = paired(first, second)
    shown = console()
    for what, one, other in found.differs:
        shown.print(Text(f"{what}: {one or 'not known'} in A, {other or 'not known'} in B"), soft_wrap=True)
    shown.print(comparison_table(found))
    shown.print(Text(verdict(found)), soft_wrap=True)
    for why, count in found.unpaired:
        shown.print(Text(f"no partner: {why} ({count:,})", style="yellow"), soft_wrap=True)
    written = write_comparison(found, out)
    shown.print(Text(f"wrote {written}"), soft_wrap=True)
