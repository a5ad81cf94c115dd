"""The command line: parses, calls, shows. `carryover --help` says what there is.

Heavy libraries are imported inside the commands that need them, so that help comes at once.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from carryover import __version__
from carryover.cli import claims, compare, looking, planning, power, running, watch
from carryover.cli.show import complain
from carryover.trial import CarryoverError

QUIET_LIBRARIES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


# of the click that typer brings with it, or of click itself in older ones
UsageError: Any = typer.BadParameter.__mro__[1]


class FriendlyGroup(TyperGroup):
    """What the user can put right is shown as a short message, exit code 2; CARRYOVER_DEBUG=1 shows all."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CarryoverError as error:
            if os.environ.get("CARRYOVER_DEBUG") == "1":
                raise
            complain(str(error))
            raise typer.Exit(2) from None
        except OSError as error:  # a place that cannot be read or written
            if error.filename is None or os.environ.get("CARRYOVER_DEBUG") == "1":
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
app.command("models", rich_help_panel="Before a study")(looking.models)
app.command("presets", rich_help_panel="Before a study")(looking.presets)
app.command("new", rich_help_panel="Before a study")(looking.new)
app.command("plan", rich_help_panel="Before a study")(planning.plan)
app.command("run", rich_help_panel="A study")(running.run)
app.command("status", rich_help_panel="A study")(looking.status)
app.command("watch", rich_help_panel="A study")(watch.watch)
app.command("report", rich_help_panel="Its results")(looking.report)
app.command("claims", rich_help_panel="Its results")(claims.claims)
app.command("power", rich_help_panel="Its results")(power.power)
app.command("compare", rich_help_panel="Its results")(compare.compare)
app.command("export", rich_help_panel="Its results")(looking.export)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"carryover {__version__}")
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
