"""The command-line interface. Each command has its own module.

Heavy libraries are imported inside the commands that need them, so that --help is fast.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from whichlayers.cli import (
    build,
    claims,
    compare,
    export,
    models,
    new,
    plan,
    power,
    predict,
    presets,
    recommend,
    repair,
    report,
    run,
    show,
    status,
    watch,
)
from whichlayers.cli.format import print_error
from whichlayers.cli.usage import describe_usage_error
from whichlayers.errors import WhichlayersError
from whichlayers.version import __version__

QUIET_LIBRARIES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


# click's class: typer may vendor its own copy of click
UsageError: Any = typer.BadParameter.__mro__[1]
CONTROL = (typer.Exit, typer.Abort, *typer.BadParameter.__mro__[1:3])  # not errors, or shown by click itself


class ErrorHandlingGroup(TyperGroup):
    """Prints errors that a user can fix without a traceback and exits with code 2.

    With WHICHLAYERS_DEBUG=1, they are raised with their traceback.
    """

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except UsageError as error:
            if not error.message or "Usage:" in error.message:  # no arguments: the message is the help text
                raise
            print_error(describe_usage_error(error, "whichlayers"))
            raise typer.Exit(2) from None

    def invoke(self, ctx: Any) -> Any:
        arguments = [*getattr(ctx, "_protected_args", ()), *ctx.args]  # invoke empties them
        try:
            return super().invoke(ctx)
        except WhichlayersError as error:
            if os.environ.get("WHICHLAYERS_DEBUG") == "1":
                raise
            print_error(str(error))
            raise typer.Exit(2) from None
        except OSError as error:  # a path that cannot be read or written
            if isinstance(error, BrokenPipeError) or os.environ.get("WHICHLAYERS_DEBUG") == "1":
                raise
            name = error.filename2 or error.filename
            reason = error.strerror or str(error)
            print_error(f"{name}: {reason}" if name else f"{reason}: check free disk space and permissions")
            raise typer.Exit(2) from None
        except UsageError as error:
            print_error(describe_usage_error(error, (error.ctx or ctx).command_path, arguments))
            raise typer.Exit(2) from None
        except MemoryError:
            print_error("not enough memory: close other programs, or use a smaller model or less data")
            raise typer.Exit(2) from None
        except Exception as error:
            if isinstance(error, CONTROL) or os.environ.get("WHICHLAYERS_DEBUG") == "1":
                raise
            print_error(unexpected_error(error))
            raise typer.Exit(3) from None


def unexpected_error(error: Exception) -> str:
    """One line about an error that no check foresaw."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"unexpected {text[:300]}; this is a bug in whichlayers: please report it, with the traceback that"
        " WHICHLAYERS_DEBUG=1 shows"
    )


app = typer.Typer(
    cls=ErrorHandlingGroup,
    no_args_is_help=True,
    add_completion=True,  # --install-completion and --show-completion
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find out which layers of a pretrained language model a task needs.",
)
app.command("models", rich_help_panel="Prepare a study")(models.models)
app.command("presets", rich_help_panel="Prepare a study")(presets.presets)
app.command("new", rich_help_panel="Prepare a study")(new.new)
app.command("plan", rich_help_panel="Prepare a study")(plan.plan)
app.command("run", rich_help_panel="Run a study")(run.run)
app.command("status", rich_help_panel="Run a study")(status.status)
app.command("show", rich_help_panel="Run a study")(show.show)
app.command("repair", rich_help_panel="Run a study")(repair.repair)
app.command("watch", rich_help_panel="Run a study")(watch.watch)
app.command("report", rich_help_panel="Analyze results")(report.report)
app.command("claims", rich_help_panel="Analyze results")(claims.claims)
app.command("power", rich_help_panel="Analyze results")(power.power)
app.command("compare", rich_help_panel="Analyze results")(compare.compare)
app.command("export", rich_help_panel="Analyze results")(export.export)
app.command("recommend", rich_help_panel="Decide and deliver")(recommend.recommend)
app.command("build", rich_help_panel="Decide and deliver")(build.build)
app.command("predict", rich_help_panel="Decide and deliver")(predict.predict)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"whichlayers {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    for name, value in QUIET_LIBRARIES.items():
        os.environ.setdefault(name, value)


def main() -> None:
    """Entry point of the `whichlayers` command."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # print "?" for characters the terminal cannot encode
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    finally:
        _flush_output()


def _flush_output() -> None:
    """Write what is left to stdout here: later, Python could only report a full disk with a traceback."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
        if not isinstance(error, BrokenPipeError):
            print_error(f"the output could not be written: {error.strerror}")
        sys.exit(2)
