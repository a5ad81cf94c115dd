"""`whichlayers plan`: check a study and estimate its trials, time and disk space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from whichlayers.cli.as_json import AsJson, plan_data, print_json
from whichlayers.cli.format import console, make_table, print_line, stderr_console
from whichlayers.cli.options import StudyOptions, with_study_options
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted, format_bytes, format_classes, format_duration, format_score, short_names
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.runs.asset_index import CorpusInfo, TaskInfo
    from whichlayers.runs.disk import DiskUsage
    from whichlayers.runs.estimate import TimeRange
    from whichlayers.runs.plan import Stack

NOTICEABLE_SLOWDOWN = 1.15  # by other programs


@with_study_options
def plan(
    options: StudyOptions,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            help="Also estimate the time on this many GPUs like this one (8), or on GPUs of these relative speeds,"
            " where this one has speed 1 (1,1,0.5).",
        ),
    ] = None,
    no_measure: Annotated[
        bool,
        typer.Option("--no-measure", help="Only check and count; do not train to measure the time."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a study and estimate its trials, time and disk space.

    Trains a few steps of each kind of stack, for half a minute in all: longer if models are large or if other programs
    are using the machine.
    """
    from whichlayers.runs import assets, machine
    from whichlayers.runs.estimate import estimate_study
    from whichlayers.runs.resources import choose_resources
    from whichlayers.study.describe import describe_study

    study, folder = options.select()
    resources = choose_resources(machine.choose_devices(options.device), options.workers, options.max_stack)
    speeds = gpu_speeds(gpus, resources.on_cuda)
    if not as_json:
        print_line(f"{describe_study(study)}\n")
    estimate = estimate_study(
        study,
        folder,
        resources,
        speeds,
        measure=not no_measure,
        fewer_workers=options.workers is None,
        show_activity=ActivityDisplay(stderr_console()),
        make_assets=assets.Assets,
    )
    if as_json:
        print_json(plan_data(study, folder, estimate))
        return

    def show(header: str, text: str) -> None:
        print_line(f"{header:<6}{text}")

    console().print(_plan_table(estimate.stacks, estimate.trials))
    for i, line in enumerate([*map(describe_task, estimate.tasks), *map(describe_corpus, estimate.corpora)]):
        show("" if i else "data", line)
    for note in estimate.notes:
        print_line(f"{'':<6}{note}", "yellow")
    if estimate.done or estimate.other_done:
        total, verb = counted(len(estimate.trials), "trial"), "is" if len(estimate.trials) == 1 else "are"
        show("done", f"{estimate.done:,} of {total} {verb} done in {folder}")
    if estimate.other_done:
        others = counted(estimate.other_done, "finished trial")
        show(
            "",
            f"{folder} also holds {others} of other settings: a run keeps them, but its report leaves them out; to"
            " keep the studies apart, choose another folder with --folder",
        )
    if estimate.failed:
        failed = counted(estimate.failed, "trial")
        show("", f"{failed} failed there and will not run again without --retry-failed")
    if estimate.here is not None:
        workers_text = _format_workers(estimate.resources.workers, estimate.resources.devices)
        show("time", f"{format_time_range(estimate.here)} on {workers_text}")
        if (text := describe_slowdown(estimate.here, estimate.alone)) is not None:
            show("", text)
    elif estimate.done + estimate.failed < len(estimate.trials):
        reason = "not measured" if no_measure else "no stack could be timed"
        show("time", f"unknown: {reason}")
    if estimate.on_gpus is not None:
        show("", f"{format_time_range(estimate.on_gpus)} on {format_gpus(speeds)}")
    if estimate.untimed:
        show("", f"plus {counted(estimate.untimed, 'trial')} that could not be timed")
    show("disk", format_disk_usage(estimate.disk, cached=no_measure))


def _plan_table(stacks: Sequence[Stack], trials: Sequence[Trial]) -> Table:
    """One row per model, task and training size, and one for the total."""
    from whichlayers.runs.plan import plan_rows

    numbers = ("examples", "trials", "steps", "stacks")
    table = make_table("model", "task", *numbers, right=numbers)
    rows = plan_rows(stacks)
    models = short_names(row.model for row in rows)
    for row in rows:
        table.add_row(
            models[row.model],
            row.task,
            *(f"{n:,}" for n in (row.train_size, row.trials, row.steps, row.stacks)),
        )
    steps = sum(stack.steps for stack in stacks)
    table.add_row("total", "", "", f"{len(trials):,}", f"{steps:,}", f"{len(stacks):,}", style="bold")
    return table


def describe_task(task: TaskInfo) -> str:
    """Kind, metric, number of examples and score of guessing of a task, as loaded."""
    kind = f"classification, {task.classes:,} classes" if task.classes else task.kind
    rows = f"{task.train_rows:,} training and {counted(task.dev_rows, 'dev example')}"
    classes = f" ({format_classes(task.class_counts)})" if task.class_counts else ""
    guess = f"guessing scores {format_score(task.guess_scores[task.metric], task.metric)}"
    return f"{task.name}: {kind}{classes}, {task.metric}; {rows}; {guess}"


def describe_corpus(corpus: CorpusInfo) -> str:
    """Number of training words and tags of a corpus, and the accuracy of its most frequent tag."""
    tags = f"{counted(len(corpus.tag_counts), 'tag')} ({format_classes(corpus.tag_counts)})"
    guess = f"guessing scores {format_score(corpus.guess_accuracy, 'accuracy')}"
    return f"{corpus.name}: {counted(corpus.train_words, 'training word')}, {tags}; {guess}"


def gpu_speeds(text: str | None, on_cuda: bool) -> list[float]:
    """Relative speeds of the GPUs in --gpus: "8" -> eight times 1.0, "1,1,0.5" -> [1.0, 1.0, 0.5], None -> []."""
    if text is None:
        return []
    if not on_cuda:
        raise WhichlayersError(
            f"--gpus {text}: there is no GPU to measure on; run plan on a machine with a GPU, or use --workers"
            " for several processes on this one"
        )
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if len(parts) == 1 and parts[0] >= 1 and parts[0] == int(parts[0]):
        return [1.0] * int(parts[0])
    if not parts or min(parts) <= 0:
        raise WhichlayersError(f"--gpus {text}: give a number of GPUs (8) or their relative speeds (1,1,0.5)")
    return parts


def format_gpus(speeds: Sequence[float]) -> str:
    """ "8 GPUs like this one" or "GPUs of speed 1, 1, 0.5" """
    same = f"{counted(len(speeds), 'GPU')} like this one"
    return same if set(speeds) == {1.0} else f"GPUs of speed {', '.join(f'{s:g}' for s in speeds)}"


def format_time_range(time: TimeRange) -> str:
    """ "about 2 min 30 s (between 2 min 00 s and 3 min 00 s)" """
    low, high = format_duration(time.low), format_duration(time.high)
    return f"about {format_duration(time.expected)} (between {low} and {high})"


def describe_slowdown(time: TimeRange, alone: float | None) -> str | None:
    """How long a study takes without other programs, in seconds `alone`; None if they make little difference."""
    if alone is None or time.expected < NOTICEABLE_SLOWDOWN * alone:
        return None
    return f"other programs are using this machine: without them about {format_duration(alone)}"


def format_disk_usage(disk: DiskUsage, cached: bool) -> str:
    """Disk space of the results and the cache, and of temporary files. `cached` leaves out the cache."""
    kept = {"results": disk.results} | ({} if cached else {"tokens and hidden states": disk.cache})
    temporary = {
        "checkpoints": disk.checkpoints,
        "finetuned models": disk.finetuned_models,
        "activations of words": disk.activations,
    }
    parts = [f"{name} {format_bytes(size)}" for name, size in kept.items()]
    maximum = [f"{name} up to {format_bytes(size)}" for name, size in temporary.items() if size]
    return ", ".join(parts) + (f"; temporarily {', '.join(maximum)}" if maximum else "")


def _format_workers(workers: int, devices: Sequence[str]) -> str:
    place = counted(workers, "worker") if workers else "this process"
    return f"{place}, {', '.join(devices)}"


class ActivityDisplay:
    """Context manager that shows the current activity: a spinner in a terminal, otherwise a line of text."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def __call__(self, text: str) -> Iterator[None]:
        if self.console.is_terminal:
            with self.console.status(text):
                yield
        else:
            print_line(f"{text} ...", out=self.console)
            yield
