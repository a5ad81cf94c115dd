"""`whichlayers presets`: list the included studies, or print one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from whichlayers.cli.format import console, make_table


def presets(
    name: Annotated[str | None, typer.Argument(help="Print the study file of this preset.")] = None,
) -> None:
    """List the included studies, or print one."""
    from whichlayers.study.preset import list_presets, preset_text

    if name is not None:
        typer.echo(preset_text(name), nl=False)
        return
    table = make_table("preset", "description")
    for preset, description in list_presets().items():
        table.add_row(Text(preset), Text(description))
    console().print(table)
