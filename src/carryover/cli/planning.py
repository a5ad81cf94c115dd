"""`carryover plan`: what a study would run, how long that takes here and on other GPUs, and its disk."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from carryover.cli.running import (
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
from carryover.cli.show import bytes_text, console, counted, duration, messages, table
from carryover.runs.folder import DATABASE
from carryover.trial import CarryoverError, Trial

if TYPE_CHECKING:
    from carryover.runs.forecast import Disk, Paces, Span
    from carryover.runs.plan import Stack

Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        help="Also say how long it takes on so many GPUs like this one (8), or on GPUs of these speeds,"
        " where this one has 1 (1,1,0.5).",
    ),
]
NoMeasure = Annotated[
    bool, typer.Option("--no-measure", help="Only count; the time it takes is then unknown.")
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
    from carryover.runs import machine
    from carryover.runs.forecast import at_speed, disk_of, time_of, told_apart
    from carryover.runs.means import choose_means
    from carryover.runs.measuring import fit_memory, time_stacks
    from carryover.runs.plan import make_stacks
    from carryover.runs.status import disk_use
    from carryover.runs.store import Store
    from carryover.runs.subjects import Subjects, cache_folder
    from carryover.runs.worker import DEFAULT_ENGINE
    from carryover.study.describe import describe_study
    from carryover.study.expand import expand

    chosen = choose(study, folder, model, data, recipe, trials, sizes, tasks, words)
    means = choose_means(machine.choose_devices(device), workers, max_stack)
    speeds = gpu_speeds(gpus, means.on_cuda)
    say = Teller(messages())
    with tempfile.TemporaryDirectory(prefix="carryover-plan-") as scratch:
        there = cache_folder(chosen.folder)
        subjects = Subjects(there if there.is_dir() else Path(scratch) / "cache")  # writes nothing elsewhere
        points = expand(chosen.study, subjects)
        wanted = list({point.trial.id: point.trial for point in points}.values())
        done: set[str] = set()
        if (database := chosen.folder / DATABASE).is_file():
            with Store.read(database) as store:
                done = store.ids("done") & {trial.id for trial in wanted}
        left = [trial for trial in wanted if trial.id not in done]
        out = console()

        def show(head: str, text: str) -> None:
            out.print(Text(f"{head:<6}{text}"), soft_wrap=True)

        out.print(describe_study(chosen.study), soft_wrap=True, markup=False, highlight=False)
        out.print()
        timed, before = None, 0.0
        stacked = max(1, len(speeds)) if speeds else max(1, means.workers)
        if left and not no_measure:
            began = time.monotonic()
            with say("reading models and data"):
                subjects.check(left)
            with say("trying how many trials fit into memory"):
                logs = Path(scratch) / "logs"
                means = fit_memory(means, left, DEFAULT_ENGINE, subjects, logs, workers is None)
            before = time.monotonic() - began
            stacked = len(speeds) or max(1, means.workers)
        key, fill = subjects.stack_key, means.on_cuda
        every = make_stacks(wanted, key, means.size_for, stacked, fill)
        stacks = every if len(left) == len(wanted) else make_stacks(left, key, means.size_for, stacked, fill)
        if left and not no_measure:
            with say(f"timing a few steps of {counted(_kinds(stacks), 'kind')} of stack"):
                timed = time_stacks(stacks, means, DEFAULT_ENGINE, subjects, Path(scratch) / "logs")
        out.print(_counts(every, wanted))
        if done:
            text = f"{len(done):,} of {len(wanted):,} trials are done in {chosen.folder}"
            out.print(text, soft_wrap=True, highlight=False)
        depths = {facts.fingerprint: facts.depth for facts in map(subjects.model_facts, chosen.study.models)}
        tokens = Path(scratch) / "cache"
        cache = sum(disk_use(tokens).values()) if tokens.is_dir() else 0
        disk = disk_of(stacks, len(points), stacked, subjects.weights_bytes, cache, depths)
        if timed is not None and timed.known:
            ours = (
                stacks if not speeds else make_stacks(left, key, means.size_for, max(1, means.workers), fill)
            )
            shown: list[tuple[list[Stack], Sequence[Paces], str]] = [
                (ours, timed.paces, _where(means.workers, means.devices))
            ]
            if speeds:
                shown.append((stacks, [at_speed(timed.paces[0], s) for s in speeds], gpus_text(speeds)))
            for head, (asked, paces, where) in zip(("time", ""), shown, strict=False):
                known, unknown = told_apart(asked, paces)
                show(head, f"{span_text(time_of(known, paces, timed.start, before))} on {where}")
            if unknown:
                count = sum(len(stack.trials) for stack in unknown)
                show("", f"and what {counted(count, 'trial')} take that could not be timed")
        elif left:
            why = "it was not measured" if no_measure else "no kind of stack could be timed"
            show("time", f"unknown: {why}")
        show("disk", disk_text(disk, cached=no_measure))


def _kinds(stacks: Sequence[Stack]) -> int:
    from carryover.runs.plan import memory_key

    return len({memory_key(stack.trials[0]) for stack in stacks})


def _counts(stacks: Sequence[Stack], wanted: Sequence[Trial]) -> Table:
    from carryover.runs.plan import plan_rows

    numbers = ("examples", "trials", "steps", "stacks")
    shown = table("model", "task", *numbers, right=numbers)
    for row in plan_rows(stacks):
        shown.add_row(
            row.model, row.task, *(f"{n:,}" for n in (row.train_size, row.trials, row.steps, row.stacks))
        )
    steps = sum(stack.steps for stack in stacks)
    shown.add_row("in all", "", "", f"{len(wanted):,}", f"{steps:,}", f"{len(stacks):,}", style="bold")
    return shown


def gpu_speeds(text: str | None, on_cuda: bool) -> list[float]:
    """`8` is eight like the one here, `1,1,0.5` three of these speeds; nothing where nothing was asked."""
    if text is None:
        return []
    if not on_cuda:
        raise CarryoverError(
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
        raise CarryoverError(f"--gpus {text}: give a number of GPUs (8) or their speeds (1,1,0.5)")
    return parts


def gpus_text(speeds: Sequence[float]) -> str:
    alike = f"{counted(len(speeds), 'GPU')} like this one"
    return alike if set(speeds) == {1.0} else f"GPUs of speed {', '.join(f'{s:g}' for s in speeds)}"


def span_text(span: Span) -> str:
    return f"about {duration(span.expected)} (between {duration(span.low)} and {duration(span.high)})"


def disk_text(disk: Disk, cached: bool) -> str:
    cache = f"tokens {bytes_text(disk.cache)}, " if not cached else ""
    return (
        f"results {bytes_text(disk.results)}, {cache}checkpoints of long stacks up to"
        f" {bytes_text(disk.checkpoints)} while it runs"
    )


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
