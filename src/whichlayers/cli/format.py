"""Terminal output: consoles, errors, tables and descriptions of trials."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from whichlayers.experiments.adapt import METHOD_NAMES
from whichlayers.report.word_table import WordTable
from whichlayers.text import counted
from whichlayers.trial import Trial

UNBROKEN = 10_000  # width of output that is not for a terminal
UNCHANGED = "all pretrained"  # a trial without surgery, frozen layers or adapters


class OutputConsole(Console):
    """Console for the output of a command: in a pipe or a file, no line is broken or padded.

    The width can be set with COLUMNS there too.
    """

    def __init__(self) -> None:
        super().__init__()
        if self.is_piped:
            self.width = UNBROKEN

    @property
    def is_piped(self) -> bool:
        """Whether the output goes to a pipe or a file of unlimited width."""
        return not (self.is_terminal or self.is_jupyter or os.environ.get("COLUMNS", "").isdigit())

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """Print as `rich.console.Console` does, but never cut off the end of a line."""
        if not self.is_piped:
            super().print(*objects, crop=crop, **options)
            return
        with self.capture() as captured:
            super().print(*objects, crop=crop, **options)
        text = re.sub(r"[ ]+$", "", captured.get(), flags=re.MULTILINE)
        super().print(Text(text), end="", soft_wrap=True)


def console() -> Console:
    """Console for the output of a command (stdout)."""
    return OutputConsole()


def stderr_console() -> Console:
    """Console for progress and errors (stderr), so that the output of a command can be piped."""
    return Console(stderr=True)


def print_line(text: str, style: str = "", out: Console | None = None) -> None:
    """Print a line as it is, without markup, to `out` (default: stdout). Long lines are not broken."""
    (out or console()).print(Text(text, style=style), soft_wrap=True)


def print_error(text: str) -> None:
    """Print "error: ..." in red to stderr."""
    print_line(f"error: {text}", "red", stderr_console())


def make_table(*headers: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table with these columns; those in `right` hold numbers and are right-aligned."""
    table = WordTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:  # in a narrow terminal, text wraps; numbers do not
        is_number = header in right
        table.add_column(header, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    return table


@contextlib.contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, in a terminal only; yields a function that takes the completed and the total number."""
    out = stderr_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=out, transient=True, disable=not out.is_terminal
    ) as bar:
        task = bar.add_task(title, total=None, count="")
        yield lambda done, total: bar.update(
            task, completed=done, total=total, count=f"{done:,} of {total:,} {unit}"
        )


def describe_trial(trial: Trial) -> str:
    """One line that identifies a trial, for messages."""
    examples = counted(trial.train_size, "example")
    if (probe := trial.word_probe) is not None:
        neurons = f"layer {probe.layer}" if probe.layer is not None else f"{probe.neurons} neurons"
        state = f"finetuned on {trial.task}, {examples}" if trial.train_size else "pretrained"
        return (
            f"{trial.model} {state}, probed on {probe.corpus}, seed {trial.seed} ({probe.measure}, {neurons})"
        )
    changes = []
    if trial.surgery.order is not None:
        changes.append(f"layers {_format_layers(trial.surgery.order)}")
    if trial.surgery.reinit:
        changes.append(f"re-initialized {_format_layers(trial.surgery.reinit)}")
    if trial.training.frozen_layers:
        changes.append(f"frozen {_format_layers(trial.training.frozen_layers)}")
    if trial.training.parameters != "all":
        changes.append(f"only {trial.training.parameters} trained")
    if trial.adapter is not None:
        rank = f" of rank {trial.adapter.rank}" if trial.adapter.method == "lora" else ""
        name = METHOD_NAMES[trial.adapter.method]
        changes.append(f"{name} adapters{rank} in {_format_layers(trial.adapter.layers)}")
    return f"{trial.model} on {trial.task}, {examples}, seed {trial.seed} ({', '.join(changes) or UNCHANGED})"


def _format_layers(layers: tuple[int, ...]) -> str:
    """(1, 2, 3, 4) -> "1-4", (3, 1, 2) -> "3 1 2" """
    if len(layers) > 1 and layers == tuple(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    return " ".join(map(str, layers))
