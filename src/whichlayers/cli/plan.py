"""`whichlayers plan`: what a study would run, how long that takes here and on other GPUs, and its disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whichlayers.cli.format import bytes_text, console, duration, messages, table
from whichlayers.cli.run import (
    Data,
    Device,
    Folder,
    MaxStack,
    Models,
    Recipe,
    Sizes,
    StudyName,
    Tasks,
    Trials,
    Words,
    Workers,
    choose,
)
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.runs.assets import CorpusFacts, TaskFacts
    from whichlayers.runs.cost_model import Disk, Span
    from whichlayers.runs.plan import Stack

Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        help="Also say how long it takes on so many GPUs like this one (8), or on GPUs of these speeds,"
        " where this one has 1 (1,1,0.5).",
    ),
]
NoMeasure = Annotated[
    bool, typer.Option("--no-measure", help="Check and count, train nothing; the time is then unknown.")
]


def plan(
    study: StudyName,
    folder: Folder = None,
    model: Models = None,
    data: Data = None,
    recipe: Recipe = None,
    trials: Trials = None,
    sizes: Sizes = None,
    tasks: Tasks = None,
    words: Words = None,
    device: Device = None,
    workers: Workers = None,
    max_stack: MaxStack = None,
    gpus: Gpus = None,
    no_measure: NoMeasure = False,
) -> None:
    """Show what a study would run, how long it takes and its disk, and check it. Trains for a minute at most."""
    from whichlayers.runs import assets, machine
    from whichlayers.runs.estimate import foresee
    from whichlayers.runs.resources import choose_means
    from whichlayers.study.describe import describe_study

    chosen = choose(study, folder, model, data, recipe, trials, sizes, tasks, words)
    means = choose_means(machine.choose_devices(device), workers, max_stack)
    speeds = gpu_speeds(gpus, means.on_cuda)
    out = console()
    out.print(describe_study(chosen.study), soft_wrap=True, markup=False, highlight=False)
    out.print()
    found = foresee(
        chosen.study,
        chosen.folder,
        means,
        speeds,
        measure=not no_measure,
        fewer_workers=workers is None,
        doing=Teller(messages()),
        subjects_at=assets.Subjects,
    )

    def show(head: str, text: str) -> None:
        out.print(Text(f"{head:<6}{text}"), soft_wrap=True)

    out.print(_counts(found.stacks, found.trials))
    for place, line in enumerate([*map(task_text, found.tasks), *map(corpus_text, found.corpora)]):
        show("" if place else "data", line)
    for note in found.notes:
        out.print(Text(f"{'':<6}{note}", style="yellow"), soft_wrap=True)
    if found.done:
        show("done", f"{found.done:,} of {len(found.trials):,} trials are done in {chosen.folder}")
    if found.here is not None:
        show("time", f"{span_text(found.here)} on {_where(found.means.workers, found.means.devices)}")
    elif found.done < len(found.trials):
        why = "it was not measured" if no_measure else "no kind of stack could be timed"
        show("time", f"unknown: {why}")
    if found.on_gpus is not None:
        show("", f"{span_text(found.on_gpus)} on {gpus_text(speeds)}")
    if found.untimed:
        show("", f"and what {counted(found.untimed, 'trial')} take that could not be timed")
    show("disk", disk_text(found.disk, cached=no_measure))


def _counts(stacks: Sequence[Stack], wanted: Sequence[Trial]) -> Table:
    from whichlayers.plots.display_names import short_names
    from whichlayers.runs.plan import plan_rows

    numbers = ("examples", "trials", "steps", "stacks")
    shown = table("model", "task", *numbers, right=numbers)
    rows = plan_rows(stacks)
    models = short_names(row.model for row in rows)
    for row in rows:
        shown.add_row(
            models[row.model],
            row.task,
            *(f"{n:,}" for n in (row.train_size, row.trials, row.steps, row.stacks)),
        )
    steps = sum(stack.steps for stack in stacks)
    shown.add_row("in all", "", "", f"{len(wanted):,}", f"{steps:,}", f"{len(stacks):,}", style="bold")
    return shown


def task_text(task: TaskFacts) -> str:
    """What was read of a task: where the study file leaves it open, the labels decided."""
    kind = f"classification, {task.classes:,} classes" if task.classes else task.kind
    rows = f"{task.train_rows:,} training and {counted(task.dev_rows, 'dev example')}"
    return f"{task.name}: {kind}, {task.metric}; {rows}"


def corpus_text(corpus: CorpusFacts) -> str:
    return f"{corpus.name}: {counted(corpus.train_words, 'tagged word')} to train probes on"


def gpu_speeds(text: str | None, on_cuda: bool) -> list[float]:
    """`8` is eight like the one here, `1,1,0.5` three of these speeds; nothing where nothing was asked."""
    if text is None:
        return []
    if not on_cuda:
        raise WhichlayersError(
            f"--gpus {text}: there is no GPU here to measure on; plan on a machine that has one, or give"
            " --workers for processes on this one"
        )
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if len(parts) == 1 and parts[0] >= 1 and parts[0] == int(parts[0]):
        return [1.0] * int(parts[0])
    if not parts or min(parts) <= 0:
        raise WhichlayersError(f"--gpus {text}: give a number of GPUs (8) or their speeds (1,1,0.5)")
    return parts


def gpus_text(speeds: Sequence[float]) -> str:
    alike = f"{counted(len(speeds), 'GPU')} like this one"
    return alike if set(speeds) == {1.0} else f"GPUs of speed {', '.join(f'{s:g}' for s in speeds)}"


def span_text(span: Span) -> str:
    return f"about {duration(span.expected)} (between {duration(span.low)} and {duration(span.high)})"


def disk_text(disk: Disk, cached: bool) -> str:
    kept = {"results": disk.results} | ({} if cached else {"tokens": disk.cache})
    meanwhile = {
        "checkpoints of long stacks": disk.checkpoints,
        "finetuned models": disk.encoders,
        "vectors of words": disk.vectors,
    }
    parts = [f"{name} {bytes_text(size)}" for name, size in kept.items()]
    most = [f"{name} up to {bytes_text(size)}" for name, size in meanwhile.items() if size]
    return ", ".join(parts) + (f"; while it runs {', '.join(most)}" if most else "")


def _where(workers: int, devices: Sequence[str]) -> str:
    place = counted(workers, "worker") if workers else "this process"
    return f"{place}, {', '.join(devices)}"


class Teller:
    """Says what is being done: a spinner on a terminal, a line elsewhere."""

    def __init__(self, err: Console) -> None:
        self.err = err

    @contextmanager
    def __call__(self, text: str) -> Iterator[None]:
        if self.err.is_terminal:
            with self.err.status(text):
                yield
        else:
            self.err.print(Text(f"{text} ..."), soft_wrap=True)
            yield
