"""Sections of a study file (models, tasks, training) and the value types they share.

The description of a key is its documentation: the template of `whichlayers new` and docs/study-file.md are generated
from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

from whichlayers.catalog import BUILTIN, BUILTIN_TASKS, GLUE, METRICS, Kind, glue_name, metrics_of
from whichlayers.config.errors import allowed_values, close_match, format_choices, raise_problems
from whichlayers.config.validators import PairTemplate, at_least_one, at_most, two_numbers
from whichlayers.text import join_list
from whichlayers.trial import Parameters, Precision, Training

Size = int | float | Literal["all"]
DEFAULTS = Training()  # defaults of [training]
MAX_COUNT = 10_000  # trials per point, epochs
MAX_INTEGER = 10**9  # other integers, such as batch sizes
MAX_SEED = 2**62  # results.db has integers of 64 bits
OTHER_SPELLINGS = {"standardise": "standardize"}  # accepted in study files


class Section(BaseModel):
    """A table of a study file. Unknown keys are errors; keys in `OTHER_SPELLINGS` are accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _rename_other_spellings(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for other, key in OTHER_SPELLINGS.items():
            if other in value and key in cls.model_fields:
                if key in value:
                    raise_problems(
                        (other, f"another spelling of `{key}`, which is also given; remove one of them")
                    )
                value = {key if name == other else name: setting for name, setting in value.items()}
        return value

    @classmethod
    def key_order(cls) -> list[str]:
        """The keys in the order in which they are written to a file."""
        return list(cls.model_fields)

    def settings(self) -> dict[str, Any]:
        """All keys with their values, in `key_order`."""
        return {key: getattr(self, key) for key in self.key_order()}


@dataclass(frozen=True)
class PerSize:
    """A count that may depend on the number of training examples.

    Args:
        default: The count for sizes above the last limit.
        steps: Pairs (limit, count) by increasing limit; a count holds up to and including its limit.
    """

    default: int
    steps: tuple[tuple[int, int], ...] = ()

    def at(self, size: int) -> int:
        """The count for `size` training examples."""
        return next((number for limit, number in self.steps if size <= limit), self.default)

    def plus(self, more: int) -> PerSize:
        """The count, increased by `more` at every training size."""
        return PerSize(self.default + more, tuple((limit, number + more) for limit, number in self.steps))

    def plain(self) -> int | dict[str, int]:
        """The value in a study file: 3, or {"500": 50, "default": 3}."""
        if not self.steps:
            return self.default
        return {**{str(limit): number for limit, number in self.steps}, "default": self.default}


def _per_size(value: Any) -> PerSize:
    """Validator: 3 or {"500": 50, "default": 3} as a `PerSize`."""
    if isinstance(value, PerSize):
        value = value.plain()
    if isinstance(value, Mapping):
        table = {str(key): number for key, number in value.items()}
        if "default" in table and all(_is_count(n) and n <= MAX_COUNT for n in table.values()):
            limits = [key for key in table if key != "default"]
            if all(key.isascii() and key.isdecimal() and len(key) < 19 and int(key) > 0 for key in limits):
                steps = sorted((int(key), table[key]) for key in limits)
                return PerSize(table["default"], tuple(steps))
    elif _is_count(value) and value <= MAX_COUNT:
        return PerSize(value)
    raise ValueError(
        f"must be an integer from 1 to {MAX_COUNT:,}, or a table of limits on the training size and a default, "
        "for example { 500 = 50, default = 3 }"
    )


def _size(value: Any) -> Size:
    if value == "all" or _is_count(value) or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError('allowed: a number of examples (500), a fraction between 0 and 1 (0.1), or "all"')


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    return value


if TYPE_CHECKING:  # mypy has no Literal with computed values
    MetricName = str
else:
    MetricName = Literal[tuple(METRICS)]
Text = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_without_nul)]
Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1), AfterValidator(at_most(MAX_INTEGER))]
CountPerSize = Annotated[PerSize, PlainValidator(_per_size)]
Sizes = Annotated[tuple[Annotated[Size, PlainValidator(_size)], ...], BeforeValidator(at_least_one)]


class NamedSection(Section):
    """A section with a name, by which a study may give it: `models = ["some/model"]`."""

    name: Text

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        settings = {"name": value} if isinstance(value, str) else value
        if not isinstance(settings, Mapping) or not isinstance(settings.get("name"), str):
            return settings
        return {**settings, "name": cls.official_name(settings)}

    @classmethod
    def official_name(cls, settings: Mapping[str, Any]) -> str:
        """The name in its official spelling."""
        return settings["name"]

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if problems := list(self.problems()):
            raise_problems(*problems)
        return self

    def problems(self) -> Iterator[tuple[str, str]]:
        """Pairs of key and message for keys that are missing, invalid or not allowed together."""
        return iter(())

    def given(self, *keys: str) -> list[str]:
        """Those of the keys that have a value."""
        return [key for key in keys if getattr(self, key) is not None]

    def missing(self, *keys: str) -> Iterator[tuple[str, str]]:
        """Problems of the keys that your own files require."""
        return ((key, f"`{key}` is required for your own files") for key in keys if not self.given(key))

    def path_keys(self, base: Path) -> tuple[str, ...]:
        """The keys that hold paths of files or folders; `base` is the folder that relative paths start from."""
        return ()

    def resolved(self, base: Path) -> Self:
        """A copy with absolute paths; relative ones start from `base`."""
        keys = self.given(*self.path_keys(base))
        return self.model_copy(update={key: absolute_path(getattr(self, key), base) for key in keys})

    def relative_to(self, base: Path) -> Self:
        """A copy in which absolute paths in the folder `base`, or next to it, are relative to it."""
        keys = self.given(*self.path_keys(base))
        return self.model_copy(update={key: relative_path(getattr(self, key), base) for key in keys})


class ModelSpec(NamedSection):
    """A pretrained encoder or decoder."""

    name: Text = Field(
        description="A Hugging Face Hub id (google-bert/bert-base-uncased), a folder (./my-model) or package:NAME."
    )
    revision: Text | None = Field(
        default=None,
        description="Branch, tag or commit of a Hub model. Default: its main branch.",
        examples=["main"],
    )
    allow_pickle: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description="Load weights from a pickle file (.bin) if there is no safetensors file. Pickle files can execute "
        "code: allow it only for models you trust.",
    )
    bos: Annotated[bool, Field(strict=True)] | None = Field(
        default=None,
        description="Decoders: whether texts start with the BOS token. Default: if the model's tokenizer adds it.",
        examples=[True],
    )

    def path_keys(self, base: Path) -> tuple[str, ...]:
        """The name, if the model is a folder. A Hub id is a folder if one of that name exists."""
        if self.name.startswith("package:"):
            return ()
        is_path = self.name.startswith((".", "/", "~")) or (base / self.name).is_dir()
        return ("name",) if is_path else ()


class TaskSpec(NamedSection):
    """A labeled task: built in, from GLUE, or your own files."""

    name: Text = Field(
        description=f"builtin:NAME ({', '.join(name.removeprefix(BUILTIN) for name in BUILTIN_TASKS)}), a GLUE name "
        f"({', '.join(GLUE)}), or any name for your own files."
    )
    source: Text | None = Field(
        default=None,
        description='Source of a GLUE task: "hub" (Hugging Face Hub) or a folder in the GLUE layout. Default: "hub".',
        examples=["./glue_data"],
    )
    train: Text | None = Field(
        default=None,
        description="Training file: .tsv, .csv or .jsonl (also .gz), or .parquet. With a GLUE folder: a file in it.",
        examples=["train.tsv"],
    )
    dev: Text | None = Field(
        default=None, description="File of the examples that models are evaluated on.", examples=["dev.tsv"]
    )
    text: Text | None = Field(default=None, description="Name of the text column.", examples=["text"])
    pair: Text | None = Field(
        default=None,
        description="Name of the column with the second text, for sentence-pair tasks.",
        examples=["question"],
    )
    label: Text | None = Field(default=None, description="Name of the label column.", examples=["label"])
    kind: Kind | None = Field(
        default=None,
        description="Your own files: classification or regression. Default: chosen from the label type.",
        examples=["classification"],
    )
    metric: MetricName | None = Field(
        default=None,
        description=f"Metric: {join_list(metrics_of('classification'), 'or')} for classification; "
        f"{join_list(metrics_of('regression'), 'or')} for regression. "
        "Default: the official metric of a GLUE task; otherwise chosen from the label type.",
        examples=["accuracy"],
    )
    pair_template: PairTemplate | None = Field(
        default=None,
        description="Decoders: how the two texts of this task become one prompt, in place of the study's.",
        examples=["Question: {first}\nSentence: {second}"],
    )
    train_sizes: Sizes | None = Field(
        default=None,
        description="Training sizes of this task, in place of the study's; for example if it has too few examples.",
        examples=[[100, "all"]],
    )

    @property
    def origin(self) -> Literal["builtin", "glue", "files"]:
        """Where the task comes from: built in, GLUE, or your own files."""
        if self.name.startswith(BUILTIN):
            return "builtin"
        names_columns = self.text or self.pair or self.label
        names_files = (self.train or self.dev) and self.source in (None, "hub")
        return "files" if names_columns or (names_files and self.name not in GLUE) else "glue"

    @classmethod
    def official_name(cls, settings: Mapping[str, Any]) -> str:
        """The official spelling of a GLUE name; your own files may have any name."""
        if any(settings.get(key) for key in ("text", "pair", "label")):
            return settings["name"]
        return glue_name(settings["name"]) or settings["name"]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Pairs of key and message for keys that are missing, invalid or not allowed for this kind of task."""
        if self.origin == "files":
            yield from self._file_problems()
        elif self.origin == "builtin":
            if self.name not in BUILTIN_TASKS:
                yield "name", f"unknown built-in task; {allowed_values(self.name, BUILTIN_TASKS)}"
            for key in self.given("source", "train", "dev", "text", "pair", "label", "kind"):
                yield key, f"{self.name} is built in and has no key `{key}`; remove it"
        elif self.name not in GLUE:
            known = (*BUILTIN_TASKS, *GLUE)
            text = f"unknown task;{close_match(self.name, known)} allowed: {format_choices(known)}, or any name for"
            yield "name", f"{text} your own files, with the keys train, dev, text and label"
        else:
            yield from self._glue_problems()
        metrics = self._metrics()
        if self.metric is not None and metrics and self.metric not in metrics:
            where = self.kind if self.origin == "files" else self.name
            yield "metric", f"allowed for {where}: {format_choices(metrics)}"

    def _metrics(self) -> Sequence[str]:
        """The metrics that the task may have; empty if they depend on the labels of your own files."""
        if self.origin == "files":
            return () if self.kind is None else metrics_of(self.kind)
        known = GLUE | BUILTIN_TASKS
        return known[self.name].metrics if self.name in known else ()

    def _glue_problems(self) -> Iterator[tuple[str, str]]:
        if self.kind is not None:
            yield (
                "kind",
                "the kind of a GLUE task is fixed; remove it, or give `text` and `label` for your own files",
            )
        for key in self.given("train", "dev") if self.source in (None, "hub") else ():
            yield (
                key,
                f"{self.name} is loaded from the Hub; to load files of a folder, give the folder as `source`",
            )

    def _file_problems(self) -> Iterator[tuple[str, str]]:
        yield from self.missing("train", "dev", "text", "label")
        if self.source is not None:
            yield "source", "only for GLUE tasks; remove it and give paths in `train` and `dev`"
        if self.dev is not None and self.dev == self.train:
            yield "dev", "the same file as `train`; dev examples must not be training examples"
        columns: dict[str, str] = {}  # the first key of each column
        for key in self.given("text", "pair", "label"):
            same = columns.setdefault(getattr(self, key), key)
            if same != key:
                yield key, f"the same column as `{same}`; give different columns"

    def path_keys(self, base: Path) -> tuple[str, ...]:
        """The data files. Files of a GLUE folder are relative to that folder and stay so."""
        if self.origin == "files":
            return "train", "dev"
        return () if self.source == "hub" else ("source",)


class TrainingSpec(Section):
    """Finetuning hyperparameters. The defaults follow Tamkin et al. 2020."""

    epochs: CountPerSize = Field(
        default=PerSize(DEFAULTS.epochs),
        description="Number of epochs. It may depend on the training size: { 500 = 5, default = 3 } means 5 up to "
        "500 examples and 3 above.",
    )
    batch_size: Count = Field(default=DEFAULTS.batch_size, description="Examples per step.")
    lr: Annotated[Number, Field(gt=0)] = Field(
        default=DEFAULTS.lr, description="Peak learning rate of AdamW."
    )
    weight_decay: Annotated[Number, Field(ge=0)] = Field(
        default=DEFAULTS.weight_decay, description="Weight decay of AdamW."
    )
    betas: Annotated[
        tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]],
        BeforeValidator(two_numbers),
    ] = Field(default=DEFAULTS.betas, description="Betas of AdamW.")
    eps: Annotated[Number, Field(gt=0)] = Field(default=DEFAULTS.eps, description="Epsilon of AdamW.")
    clip_norm: Annotated[Number, Field(ge=0)] = Field(
        default=DEFAULTS.clip_norm,
        description="Maximum global gradient norm of a trial; 0 disables clipping.",
    )
    warmup: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=DEFAULTS.warmup,
        description="Fraction of the steps used for linear warmup of the learning rate.",
    )
    schedule: Literal["linear", "constant"] = Field(
        default=DEFAULTS.schedule,
        description="Learning rate schedule after the warmup: linear (decay to 0) or constant.",
    )
    max_length: Annotated[int, Field(strict=True, ge=2), AfterValidator(at_most(MAX_INTEGER))] = Field(
        default=DEFAULTS.max_length,
        description="Maximum sequence length in tokens; longer texts are truncated.",
    )
    dropout: Annotated[Number, Field(ge=0, lt=1)] | None = Field(
        default=DEFAULTS.dropout,
        description="Dropout probability. Default: the value in the model's config.",
        examples=[0.1],
    )
    evaluate: Literal["every epoch", "end"] = Field(
        default=DEFAULTS.evaluate,
        description="When trials are evaluated on the dev set: every epoch, or only at the end, which is faster.",
    )
    frozen_dropout: Annotated[bool, Field(strict=True)] = Field(
        default=DEFAULTS.frozen_dropout,
        description="Whether dropout is applied in frozen layers. If not, the output of the lowest frozen layers is "
        "computed once per example, which is faster.",
    )
    bias_correction: Annotated[bool, Field(strict=True)] = Field(
        default=DEFAULTS.bias_correction,
        description="Whether AdamW corrects the bias of its moments. The optimizer released with BERT does not.",
    )
    precision: Precision = Field(
        default=DEFAULTS.precision,
        description="Precision of matrix products: auto (bfloat16 on GPUs, float32 on CPUs), float32 or bfloat16, "
        "which is faster on CPUs with bfloat16 instructions, too. Weights and moments are always float32.",
    )

    def at(
        self,
        size: int,
        epochs: PerSize | None,
        lr: float | None,
        lr_factors: tuple[tuple[int, float], ...],
        parameters: Parameters = "all",
    ) -> Training:
        """Hyperparameters of a trial with `size` training examples; `epochs` and `lr` override the section's."""
        same = {key: getattr(self, key) for key in TrainingSpec.model_fields if key not in ("epochs", "lr")}
        return Training(
            **same,
            epochs=(epochs or self.epochs).at(size),
            lr=lr or self.lr,
            lr_factors=lr_factors,
            parameters=parameters,
        )


def absolute_path(path: str, base: Path) -> str:
    """`path` as an absolute path; "~" is expanded, relative paths start from `base`."""
    return os.path.realpath(base / Path(path).expanduser())  # Path.resolve raises for a loop of links


def relative_path(path: str, base: Path) -> str:
    """An absolute path in the folder `base`, or next to it, as a path that starts with ./ or ../; others unchanged."""
    folder = Path(os.path.realpath(base))
    if not Path(path).is_absolute() or folder.parent not in Path(path).parents:
        return path
    relative = os.path.relpath(path, folder)
    return relative if relative.startswith("..") else f"./{relative}"
