"""whichlayers models: list the models that can be studied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from whichlayers.cli.format import console, table

if TYPE_CHECKING:
    pass


def models() -> None:
    """List the models there are, and how to name others."""
    from whichlayers.models.load import known_models

    shown = table("name", "what it is")
    for name, description in known_models():
        shown.add_row(Text(name), Text(description))
    console().print(shown)
