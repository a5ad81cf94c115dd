"""Arguments and options shared by several commands, and the study that they select."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import STUDY_FILE, folder_of

if TYPE_CHECKING:
    from whichlayers.config.sections import Size
    from whichlayers.study.study_file import Study


MAX_COLUMNS = 12  # column names in a message


def complete_study(incomplete: str) -> list[str]:
    """Study files, study folders and presets that start with this text, for completion in a shell."""
    from whichlayers.study.preset import preset_names

    return [*complete_folder(incomplete), *(name for name in preset_names() if name.startswith(incomplete))]


def complete_folder(incomplete: str) -> list[str]:
    """Study files and study folders that start with this text."""
    parent = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    found = []
    for path in sorted(parent.iterdir()) if parent.is_dir() else ():
        is_study = path.suffix == ".toml" or (path / STUDY_FILE).is_file()
        if is_study and str(path).startswith(incomplete):
            found.append(str(path))
    return found


def complete_preset(incomplete: str) -> list[str]:
    """Presets that start with this text."""
    from whichlayers.study.preset import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file to write if it exists.")]


def check_not_replaced(option: str, path: Path, overwrite: bool) -> None:
    """Raise WhichlayersError if `option` names a file that exists, unless `overwrite` is set.

    Devices and pipes, such as /dev/stdout, are not replaced but written to.
    """
    if path.is_file() and not overwrite:
        raise WhichlayersError(
            f"{option} {path} already exists; choose another name, or replace it with --overwrite"
        )


StudyFolderPath = Annotated[
    Path,
    typer.Argument(
        metavar="STUDY",
        help="Folder of a study, a file in it, or its study file.",
        autocompletion=complete_folder,
    ),
]


@dataclass(frozen=True)
class StudyOptions:
    """The argument and the options that `plan` and `run` share."""

    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A study file, the folder of a study to resume, or a preset (see whichlayers presets).",
            autocompletion=complete_study,
        ),
    ]
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            help="Folder for the results. Default: the path of the study file without .toml, or the preset's name.",
        ),
    ] = None
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Model to use instead of the study's; may be repeated."),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help='Source of GLUE tasks and corpora: a folder, or "hub". Also a folder with your own data files, if they'
            " were moved.",
        ),
    ] = None
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", help="Re-initialization recipes, comma-separated or repeated; each is run."),
    ] = None
    trials: Annotated[int | None, typer.Option("--trials", help="Number of trials per point.")] = None
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--sizes",
            help="Training sizes, comma-separated or repeated: numbers (500), fractions (0.1) or all.",
        ),
    ] = None
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            help="Tasks, comma-separated or repeated: tasks of the study, GLUE tasks or builtin:NAME.",
        ),
    ] = None
    words: Annotated[
        int | None,
        typer.Option(
            "--words", min=1, help="Maximum number of training words, and of test words, of each corpus."
        ),
    ] = None
    set_key: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a key of the study file, checked like the file: trials=5, training.lr=1e-4,"
            " 'experiments[0].keep=[0, 6]' (in quotes, for the shell). May be repeated; applied after the other"
            " options.",
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option("--device", help="cpu, cuda, cuda:1 or cuda:0,cuda:1. Default: all GPUs, else the CPU."),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Number of worker processes; 0: train in this process. Default: one per core or GPU.",
        ),
    ] = None
    max_stack: Annotated[
        int | None,
        typer.Option(
            "--max-stack",
            help="Maximum number of trials trained as one stack. Default: as many as fit in memory, up to 64 on a "
            "GPU and 4 on a CPU.",
        ),
    ] = None

    def select(self) -> tuple[Study, Path]:
        """The study with the options applied, and the folder for its results."""
        if self.trials is not None and self.trials < 1:
            raise WhichlayersError(f"--trials {self.trials}: must be at least 1")
        study, default_folder = find_study(self.study)
        overrides = {
            "models": self.model or None,
            "tasks": _split_commas(self.tasks),
            "source": self.data,
            "recipe": _split_commas(self.recipe),
            "trials": self.trials,
            "sizes": [parse_size("--sizes", text) for text in _split_commas(self.sizes) or ()] or None,
            "words": self.words,
        }
        if any(value is not None for value in overrides.values()):
            study = study.override(**overrides)  # type: ignore[arg-type]
        if self.set_key:
            from whichlayers.study.set_keys import set_keys

            study = set_keys(study, self.set_key)
        return study, self.folder or default_folder


def with_study_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: its first parameter, a `StudyOptions`, becomes one parameter of the CLI per field."""
    shared = fields(StudyOptions)
    hints = get_type_hints(StudyOptions, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in shared
    ]
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        options = StudyOptions(**{field.name: values.pop(field.name) for field in shared})
        command(options, **values)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def find_study(name: str) -> tuple[Study, Path]:
    """The study in a folder or a file, or the preset of this name, and the default folder for its results."""
    from whichlayers.config.errors import close_match
    from whichlayers.runs.moved import load_moved_study
    from whichlayers.study.preset import list_presets, load_preset

    path = Path(name)
    if (path / STUDY_FILE).is_file():
        return load_moved_study(path), path
    if path.suffix == ".toml":
        return load_moved_study(path), folder_of(path)
    if path.is_file():
        raise _not_a_study_file(path)
    presets = list_presets()
    if name not in presets:
        if path.is_dir():
            raise WhichlayersError(
                f"{name} is a folder without {STUDY_FILE}: no study was run in it; give a study file"
            )
        if (study_file := path.with_name(f"{path.name}.toml")).is_file():
            raise WhichlayersError(f"no folder of a study and no preset {name}; did you mean {study_file}?")
        raise WhichlayersError(
            f"no study file or preset {name};{close_match(name, presets)} presets: {', '.join(presets)}; create a"
            " study file with: whichlayers new my-study.toml"
        )
    return load_preset(name), Path(name.replace("/", "-"))


def _not_a_study_file(path: Path) -> WhichlayersError:
    """The error for a file in place of a study file: how to make a study of a data file, or which files are allowed."""
    from whichlayers.data.readers import FORMATS, column_names

    name = path.name.lower().removesuffix(".gz")
    if Path(name).suffix not in FORMATS:
        hint = f"; if it is one, rename it to {path}.toml" if path.suffix == "" else ""
        return WhichlayersError(
            f"{path} is not a study file, which ends in .toml{hint}. Give a study file, the folder of a study or a"
            " preset"
        )
    columns = ""
    if name.endswith((".csv", ".tsv")):
        with contextlib.suppress(WhichlayersError):  # about the content of the file
            columns = f" (columns of {path.name}: {', '.join(column_names(path)[:MAX_COLUMNS])})"
    return WhichlayersError(
        f"{path} is a data file, not a study file; write a study of it with: whichlayers new my-study.toml --train"
        f" {path} --dev FILE --text COLUMN --label COLUMN{columns}"
    )


def _split_commas(values: list[str] | None) -> list[str] | None:
    """Values of an option that may be comma-separated, repeated, or both; None without values."""
    return [part.strip() for text in values or () for part in text.split(",") if part.strip()] or None


def parse_size(option: str, text: str) -> Size:
    """A training size from text: a number of examples (500), a fraction (0.1) or all."""
    if text == "all":
        return "all"
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        several = ", separated by commas" if option == "--sizes" else ""
        raise WhichlayersError(
            f"{option} {text}: give numbers of examples (500), fractions (0.1) or all{several}"
        ) from None
