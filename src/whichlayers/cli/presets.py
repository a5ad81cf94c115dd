"""`whichlayers presets`: list the included studies, or print one."""

from __future__ import annotations

import tomllib
from typing import Annotated

import typer
from rich.text import Text

from whichlayers.cli.as_json import AsJson, print_json
from whichlayers.cli.format import console, make_table
from whichlayers.cli.options import complete_preset


def presets(
    name: Annotated[
        str | None,
        typer.Argument(help="Print the study file of this preset.", autocompletion=complete_preset),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the included studies, or print one."""
    from whichlayers.study.preset import list_presets, preset_text

    if name is not None:
        text = preset_text(name)
        if as_json:
            print_json({"name": name, "study_file": text, "settings": tomllib.loads(text)})
        else:
            typer.echo(text, nl=False)
        return
    if as_json:
        print_json([{"name": name, "description": text} for name, text in list_presets().items()])
        return
    table = make_table("preset", "description")
    for preset, description in list_presets().items():
        table.add_row(Text(preset), Text(description))
    console().print(table)
