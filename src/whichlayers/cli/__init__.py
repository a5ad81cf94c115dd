"""The command line: parses, calls, shows. `whichlayers --help` says what there is.

Heavy libraries are imported inside the commands that need them, so that help comes at once.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from whichlayers import __version__
from whichlayers.cli import (
    claims,
    compare,
    export,
    models,
    new,
    plan,
    power,
    presets,
    report,
    run,
    status,
    watch,
)
from whichlayers.cli.format import complain
from whichlayers.errors import WhichlayersError

QUIET_LIBRARIES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


# of the click that typer brings with it, or of click itself in older ones
UsageError: Any = typer.BadParameter.__mro__[1]


class FriendlyGroup(TyperGroup):
    """What the user can put right is shown as a short message, exit code 2; WHICHLAYERS_DEBUG=1 shows all."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WhichlayersError as error:
            if os.environ.get("WHICHLAYERS_DEBUG") == "1":
                raise
            complain(str(error))
            raise typer.Exit(2) from None
        except OSError as error:  # a place that cannot be read or written
            if error.filename is None or os.environ.get("WHICHLAYERS_DEBUG") == "1":
                raise
            complain(f"{error.filename2 or error.filename}: {error.strerror}")
            raise typer.Exit(2) from None
        except UsageError as error:
            said = error.format_message().rstrip(".")
            command = (error.ctx or ctx).command_path
            complain(f"{said[:1].lower()}{said[1:]}; see {command} --help")
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=FriendlyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What a pretrained language model carries over to a task, layer by layer.",
)
app.command("models", rich_help_panel="Before a study")(models.models)
app.command("presets", rich_help_panel="Before a study")(presets.presets)
app.command("new", rich_help_panel="Before a study")(new.new)
app.command("plan", rich_help_panel="Before a study")(plan.plan)
app.command("run", rich_help_panel="A study")(run.run)
app.command("status", rich_help_panel="A study")(status.status)
app.command("watch", rich_help_panel="A study")(watch.watch)
app.command("report", rich_help_panel="Its results")(report.report)
app.command("claims", rich_help_panel="Its results")(claims.claims)
app.command("power", rich_help_panel="Its results")(power.power)
app.command("compare", rich_help_panel="Its results")(compare.compare)
app.command("export", rich_help_panel="Its results")(export.export)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"whichlayers {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    for name, value in QUIET_LIBRARIES.items():
        os.environ.setdefault(name, value)


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # what the terminal cannot show becomes "?"
        sys.stdout.reconfigure(errors="replace")
    app()
