"""`whichlayers models`: list the models that can be studied."""

from __future__ import annotations

from rich.text import Text

from whichlayers.cli.format import console, make_table


def models() -> None:
    """List the available models, and how to name others."""
    from whichlayers.models.load import known_models

    table = make_table("name", "description")
    for name, description in known_models():
        table.add_row(Text(name), Text(description))
    console().print(table)
