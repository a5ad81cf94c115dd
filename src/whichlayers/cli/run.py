"""`whichlayers run`: find a study, apply options, run it and print a summary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichlayers.cli.format import console, format_duration, stderr_console
from whichlayers.cli.progress import ProgressDisplay
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import STUDY_FILE, folder_of
from whichlayers.text import counted

if TYPE_CHECKING:
    from whichlayers.runs.events import RunSummary
    from whichlayers.study.study_file import Study

StudyArgument = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="A study file, the folder of a study to resume, or a preset (see whichlayers presets).",
    ),
]
ModelsOption = Annotated[
    list[str] | None, typer.Option("--model", help="Model to use instead of the study's; may be repeated.")
]
DataOption = Annotated[
    str | None, typer.Option("--data", help='Source of GLUE tasks and corpora: a folder, or "hub".')
]
RecipeOption = Annotated[
    list[str] | None,
    typer.Option("--recipe", help="Re-initialization recipes, comma-separated or repeated; each is run."),
]
TrialsOption = Annotated[int | None, typer.Option("--trials", help="Number of trials per point.")]
SizesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes", help="Training sizes, comma-separated or repeated: numbers (500), fractions (0.1) or all."
    ),
]
TasksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks", help="Tasks, comma-separated or repeated: tasks of the study, GLUE tasks or builtin:NAME."
    ),
]
WordsOption = Annotated[
    int | None,
    typer.Option(
        "--words", min=1, help="Maximum number of training words, and of test words, of each corpus."
    ),
]
FolderOption = Annotated[
    Path | None, typer.Option("--folder", help="Folder for the results. Default: the name of the study.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda, cuda:1 or cuda:0,cuda:1. Default: all GPUs, else the CPU."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Number of worker processes; 0: train in this process. Default: one per core or GPU.",
    ),
]
MaxStackOption = Annotated[
    int | None,
    typer.Option(
        "--max-stack",
        help="Maximum number of trials trained as one stack. Default: as many as fit in memory, up to 64 on a "
        "GPU and 4 on a CPU.",
    ),
]


@dataclass(frozen=True)
class SelectedStudy:
    """A study and the folder for its results."""

    study: Study
    folder: Path


def run(
    study: StudyArgument,
    folder: FolderOption = None,
    model: ModelsOption = None,
    data: DataOption = None,
    recipe: RecipeOption = None,
    trials: TrialsOption = None,
    sizes: SizesOption = None,
    tasks: TasksOption = None,
    words: WordsOption = None,
    device: DeviceOption = None,
    workers: WorkersOption = None,
    max_stack: MaxStackOption = None,
    on: Annotated[
        str,
        typer.Option(
            "--on", help="Where to train: this (this machine), ray (Ray on this machine) or ray://HOST:PORT."
        ),
    ] = "this",
    checkpoint_minutes: Annotated[
        float,
        typer.Option(
            "--checkpoint-minutes", help="Minutes between checkpoints of running stacks; 0: no checkpoints."
        ),
    ] = 5.0,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", help="Folder for checkpoints. Default: in the study folder."),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            "--retries", help="How often a stack is retried after its worker died, before it is split."
        ),
    ] = 2,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry trials that failed in an earlier run.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show only failures and the final summary.")
    ] = False,
) -> None:
    """Run a study, or resume an interrupted one. Finished trials are kept and not run again."""
    from whichlayers.runs.run_study import run as run_study

    selected = select_study(study, folder, model, data, recipe, trials, sizes, tasks, words)
    err = stderr_console()
    try:
        with ProgressDisplay(err, quiet) as display:
            summary = run_study(
                selected.study,
                selected.folder,
                device=device,
                workers=workers,
                max_stack=max_stack,
                on=on,
                checkpoint_minutes=checkpoint_minutes,
                checkpoints=checkpoints,
                retries=retries,
                retry_failed=retry_failed,
                on_event=display,
            )
    except KeyboardInterrupt:
        err.print(
            f"interrupted; finished trials are kept. Resume with: whichlayers run {selected.folder}",
            style="yellow",
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(130) from None
    _print_summary(summary, quiet)
    if summary.failed:
        raise typer.Exit(1)


def _print_summary(summary: RunSummary, quiet: bool) -> None:
    """Print the table of results, the number of trials done and failed, and what to do next."""
    from whichlayers.report.terminal import summary_table

    out = console()
    if summary.done and not quiet:
        out.print(summary_table(summary.folder))
    text = "nothing to run"
    if summary.ran:
        text = f"ran {counted(summary.ran, 'trial')} in {format_duration(summary.seconds)}"
    total, verb = counted(summary.trials, "trial"), "is" if summary.trials == 1 else "are"
    out.print(
        f"{text}; {summary.done:,} of {total} of the study {verb} done",
        soft_wrap=True,
        highlight=False,
    )
    if summary.failed:
        out.print(
            f"{counted(summary.failed, 'trial')} failed; for the errors: whichlayers status {summary.folder}; to"
            f" retry: whichlayers run {summary.folder} --retry-failed",
            style="red",
            soft_wrap=True,
            highlight=False,
        )
    if summary.done:
        out.print(f"for a report: whichlayers report {summary.folder}", soft_wrap=True, highlight=False)


def select_study(
    name: str,
    folder: Path | None,
    models: list[str] | None,
    data: str | None,
    recipe: list[str] | None,
    trials: int | None,
    sizes: list[str] | None,
    tasks: list[str] | None,
    words: int | None = None,
) -> SelectedStudy:
    """The study of this name (a file, a folder or a preset) with the options of the command applied."""
    if trials is not None and trials < 1:
        raise WhichlayersError(f"--trials {trials}: must be at least 1")
    selected = _find_study(name, folder)
    overrides = {
        "models": models or None,
        "tasks": _split_commas(tasks),
        "source": data,
        "recipe": _split_commas(recipe),
        "trials": trials,
        "sizes": [_parse_size(text) for text in _split_commas(sizes) or ()] or None,
        "words": words,
    }
    if all(value is None for value in overrides.values()):
        return selected
    return SelectedStudy(selected.study.override(**overrides), selected.folder)  # type: ignore[arg-type]


def _find_study(name: str, folder: Path | None) -> SelectedStudy:
    """The study in a folder or a file, or the preset of this name; `folder` overrides where its results are written."""
    from whichlayers.config.errors import close_match
    from whichlayers.study.preset import list_presets, load_preset
    from whichlayers.study.study_file import load_study

    path = Path(name)
    if (path / STUDY_FILE).is_file():
        return SelectedStudy(load_study(path), folder or path)
    if path.is_file() or path.suffix == ".toml":
        return SelectedStudy(load_study(path), folder or folder_of(path))
    presets = list_presets()
    if name not in presets:
        if path.is_dir():
            raise WhichlayersError(
                f"{name} is a folder without {STUDY_FILE}: no study was run in it; give a study file"
            )
        raise WhichlayersError(
            f"no study file or preset {name};{close_match(name, presets)} presets: {', '.join(presets)}; create a"
            " study file with: whichlayers new my-study.toml"
        )
    return SelectedStudy(load_preset(name), folder or Path(name.replace("/", "-")))


def _split_commas(values: list[str] | None) -> list[str] | None:
    """Values of an option that may be comma-separated, repeated, or both; None without values."""
    return [part.strip() for text in values or () for part in text.split(",") if part.strip()] or None


def _parse_size(text: str) -> int | float | str:
    if text == "all":
        return text
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        raise WhichlayersError(
            f"--sizes {text}: give numbers of examples (500), fractions (0.1) or all, separated by commas"
        ) from None
