"""`whichlayers models`: list the models that can be studied."""

from __future__ import annotations

from rich.text import Text

from whichlayers.cli.as_json import AsJson, print_json
from whichlayers.cli.format import console, make_table


def models(as_json: AsJson = False) -> None:
    """List the available models, how to name others, and the supported model families."""
    from whichlayers.models.load import known_families, known_models

    if as_json:
        named = [{"name": name, "description": description} for name, description in known_models()]
        families = [{"name": name, "kind": kind, "note": note} for name, kind, note in known_families()]
        print_json({"models": named, "families": families})
        return
    table = make_table("name", "description")
    for name, description in known_models():
        table.add_row(Text(name), Text(description))
    console().print(table)
    special = make_table("family", "kind", "what is special")
    for row in known_families():
        special.add_row(*map(Text, row))
    console().print(special)
