"""whichlayers presets: list the studies that come with the package, or print one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from whichlayers.cli.format import console, table

if TYPE_CHECKING:
    pass


def presets(
    name: Annotated[str | None, typer.Argument(help="Show this preset's study file.")] = None,
) -> None:
    """List the studies that come with whichlayers, or show one."""
    from whichlayers.study.preset import list_presets, preset_text

    if name is not None:
        typer.echo(preset_text(name), nl=False)
        return
    shown = table("preset", "what it asks")
    for preset, description in list_presets().items():
        shown.add_row(Text(preset), Text(description))
    console().print(shown)
