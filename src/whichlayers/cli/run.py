"""`whichlayers run`: which study is meant, how it is changed, what is shown in the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichlayers.cli.format import console, duration, messages
from whichlayers.cli.progress import Onlooker
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import STUDY_FILE, folder_of
from whichlayers.text import counted

if TYPE_CHECKING:
    from whichlayers.runs.events import RunSummary
    from whichlayers.study.file import Study

StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="A study file, the folder of a study to go on with, or a preset (whichlayers presets).",
    ),
]
Models = Annotated[
    list[str] | None, typer.Option("--model", help="Model to use in place of the study's; may be repeated.")
]
Data = Annotated[
    str | None, typer.Option("--data", help='Where GLUE tasks and corpora are: a folder, or "hub".')
]
Recipe = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe", help="How layers are re-initialised; several, with commas or repeated, run each."
    ),
]
Trials = Annotated[int | None, typer.Option("--trials", help="Repetitions of every point.")]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--sizes", help="Training sizes, with commas or repeated: counts, shares (0.1) or all."),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option("--tasks", help="Tasks, with commas or repeated: of the study, GLUE or builtin:NAME."),
]
Words = Annotated[
    int | None, typer.Option("--words", min=1, help="Most words of each corpus to train on, and to score on.")
]
Folder = Annotated[
    Path | None, typer.Option("--folder", help="Where results go. By default named after the study.")
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1 or cuda:0,cuda:1. By default a GPU if any.")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", help="Processes that train; 0: this one. By default one per core or GPU."),
]
MaxStack = Annotated[
    int | None,
    typer.Option("--max-stack", help="Most trials that train as one model. By default what memory allows."),
]


@dataclass(frozen=True)
class Chosen:
    study: Study
    folder: Path


def run(
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
    on: Annotated[
        str,
        typer.Option(
            "--on", help="Where to train: this (machine), ray (on this machine) or ray://HOST:PORT."
        ),
    ] = "this",
    checkpoint_minutes: Annotated[
        float,
        typer.Option("--checkpoint-minutes", help="How often stacks under way are saved; 0: never."),
    ] = 5.0,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", help="Where stacks under way are saved. By default in the folder."),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            "--retries", help="How often a stack whose worker died is run again before it is split."
        ),
    ] = 2,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try the trials again that failed in an earlier run.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only failures and the end.")] = False,
) -> None:
    """Run a study, or go on with one that was stopped: what is done is kept and never run again."""
    from whichlayers.runs.run_study import run as run_study

    chosen = choose(study, folder, model, data, recipe, trials, sizes, tasks, words)
    err = messages()
    try:
        with Onlooker(err, quiet) as onlooker:
            summary = run_study(
                chosen.study,
                chosen.folder,
                device=device,
                workers=workers,
                max_stack=max_stack,
                on=on,
                checkpoint_minutes=checkpoint_minutes,
                checkpoints=checkpoints,
                retries=retries,
                retry_failed=retry_failed,
                on_event=onlooker,
            )
    except KeyboardInterrupt:
        err.print(
            f"stopped; what is done is kept. Go on with: whichlayers run {chosen.folder}",
            style="yellow",
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(130) from None
    _show_end(summary, quiet)
    if summary.failed:
        raise typer.Exit(1)


def _show_end(summary: RunSummary, quiet: bool) -> None:
    from whichlayers.report.terminal import summary_table

    out = console()
    if summary.done and not quiet:
        out.print(summary_table(summary.folder))
    ran = (
        f"{counted(summary.ran, 'trial')} in {duration(summary.seconds)}" if summary.ran else "nothing to run"
    )
    out.print(
        f"{ran}; {summary.done:,} of {summary.trials:,} trials of the study are done",
        soft_wrap=True,
        highlight=False,
    )
    if summary.failed:
        out.print(
            f"{counted(summary.failed, 'trial')} failed: see whichlayers status {summary.folder}, then try"
            f" again with whichlayers run {summary.folder} --retry-failed",
            style="red",
            soft_wrap=True,
            highlight=False,
        )
    if summary.done:
        out.print(f"whichlayers report {summary.folder} writes its report", soft_wrap=True, highlight=False)


def choose(
    name: str,
    folder: Path | None,
    models: list[str] | None,
    data: str | None,
    recipe: list[str] | None,
    trials: int | None,
    sizes: list[str] | None,
    tasks: list[str] | None,
    words: int | None = None,
) -> Chosen:
    if trials is not None and trials < 1:
        raise WhichlayersError(f"--trials {trials}: give 1 or more")
    chosen = _find(name, folder)
    changes = {
        "models": models or None,
        "tasks": _listed(tasks),
        "source": data,
        "recipe": _listed(recipe),
        "trials": trials,
        "sizes": [_size(text) for text in _listed(sizes) or ()] or None,
        "words": words,
    }
    if all(value is None for value in changes.values()):
        return chosen
    return Chosen(chosen.study.override(**changes), chosen.folder)  # type: ignore[arg-type]


def _find(name: str, folder: Path | None) -> Chosen:
    from whichlayers.config.errors import close_match
    from whichlayers.study.file import load_study
    from whichlayers.study.preset import list_presets, load_preset

    path = Path(name)
    if (path / STUDY_FILE).is_file():
        return Chosen(load_study(path), folder or path)
    if path.is_file() or path.suffix == ".toml":
        return Chosen(load_study(path), folder or folder_of(path))
    presets = list_presets()
    if name not in presets:
        if path.is_dir():
            raise WhichlayersError(
                f"{name} is a folder without {STUDY_FILE}: no study was run in it; name its file"
            )
        raise WhichlayersError(
            f"there is neither a study file nor a preset {name};{close_match(name, presets)} the presets are:"
            f" {', '.join(presets)}; `whichlayers new my-study.toml` writes a study file"
        )
    return Chosen(load_preset(name), folder or Path(name.replace("/", "-")))


def _listed(given: list[str] | None) -> list[str] | None:
    """An option's values: with commas, repeated, or both."""
    return [part.strip() for text in given or () for part in text.split(",") if part.strip()] or None


def _size(text: str) -> int | float | str:
    if text == "all":
        return text
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        raise WhichlayersError(
            f"--sizes {text}: give counts (500), shares (0.1) or all, with commas"
        ) from None
