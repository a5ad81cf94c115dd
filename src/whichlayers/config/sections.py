"""The parts of a study file: a model, a task, how to train, and the kinds of value they share.

What a key means stands with the key, as its description; template and documentation are written from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from whichlayers.config.errors import close_match, one_of, refuse
from whichlayers.trial import Training

GLUE_NAMES = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")
GLUE_ALIASES = {"sst": "SST-2", "sts": "STS-B", "multinli": "MNLI", "quora": "QQP"}
BUILTIN_NAMES = ("builtin:acceptability", "builtin:sentiment", "builtin:question-answer")
METRICS = {"classification": ("accuracy", "f1", "macro_f1", "mcc"), "regression": ("pearson", "spearman")}

Size = int | float | Literal["all"]
PLAIN = Training()  # where the defaults of [training] come from


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
                    refuse((other, f"the same as `{key}`, which is given too; remove one of them"))
                value = {key if name == other else name: given for name, given in value.items()}
        return value

    @classmethod
    def key_order(cls) -> list[str]:
        """In the order in which a file gives them."""
        return list(cls.model_fields)

    def settings(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self.key_order()}


@dataclass(frozen=True)
class PerSize:
    """A whole number that may depend on the training size: `steps` lists (size, number) upwards, each for
    sizes up to and including its own that no smaller step covers; `default` is for all larger ones."""

    default: int
    steps: tuple[tuple[int, int], ...] = ()

    def at(self, size: int) -> int:
        return next((number for limit, number in self.steps if size <= limit), self.default)

    def plain(self) -> int | dict[str, int]:
        """As a study file says it."""
        if not self.steps:
            return self.default
        return {**{str(limit): number for limit, number in self.steps}, "default": self.default}


def _per_size(value: Any) -> PerSize:
    if isinstance(value, PerSize):
        return value
    if isinstance(value, Mapping):
        table = {str(key): number for key, number in value.items()}
        if "default" in table and all(_is_count(n) for n in table.values()):
            limits = [key for key in table if key != "default"]
            if all(key.isdecimal() and int(key) > 0 for key in limits):
                steps = sorted((int(key), table[key]) for key in limits)
                return PerSize(table["default"], tuple(steps))
    elif _is_count(value):
        return PerSize(value)
    raise ValueError(
        "a whole number of 1 or more is needed, or one for each size up to a limit and a default, "
        "for example { 500 = 50, default = 3 }"
    )


def _size(value: Any) -> Size:
    if value == "all" or _is_count(value) or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError('allowed: a number of examples (500), a share between 0 and 1 (0.1), or "all"')


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def two_numbers(value: Any) -> tuple[Any, ...]:
    values = as_tuple(value)
    if len(values) == 2:
        return values
    raise ValueError("two numbers are needed, such as [0.9, 0.999]")


def at_least_one(value: Any) -> tuple[Any, ...]:
    if values := as_tuple(value):
        return values
    raise ValueError("at least one is needed")


def glue_name(name: str) -> str | None:
    """The name as GLUE spells it, whatever the case and the hyphens (sst2, sts-b); None if it is none."""
    plain = _plain(name)
    return next((task for task in GLUE_NAMES if _plain(task) == plain), GLUE_ALIASES.get(plain))


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


Text = Annotated[str, Field(strict=True, min_length=1)]
Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
CountPerSize = Annotated[PerSize, PlainValidator(_per_size)]
Sizes = Annotated[tuple[Annotated[Size, PlainValidator(_size)], ...], BeforeValidator(at_least_one)]


class ModelSpec(Section):
    """A pretrained encoder."""

    name: Text = Field(
        description="A hub id (google-bert/bert-base-uncased), a folder (./my-model) or package:NAME."
    )
    revision: Text | None = Field(
        default=None, description="Of a hub id: branch, tag or commit.", examples=["main"]
    )
    allow_pickle: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description="Read weights from a pickle (.bin) when there is no safetensors file. It can run code.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def resolved(self, base: Path) -> ModelSpec:
        """With a folder's path made absolute. A name like a hub id is a folder if there is one."""
        if self.name.startswith("package:"):
            return self
        is_path = self.name.startswith((".", "/", "~")) or (base / self.name).is_dir()
        return self.model_copy(update={"name": absolute(self.name, base)}) if is_path else self


class TaskSpec(Section):
    """A labelled task: built in, from GLUE, or your own files."""

    name: Text = Field(
        description="builtin:NAME (acceptability, sentiment, question-answer), a GLUE name "
        f"({', '.join(GLUE_NAMES)}), or any name for your own files."
    )
    source: Text | None = Field(
        default=None,
        description='Of a GLUE task: "hub", or the folder that holds it.',
        examples=["./glue_data"],
    )
    train: Text | None = Field(
        default=None,
        description="Training file: .tsv, .csv, .jsonl (these also .gz) or .parquet. Of a GLUE folder: a file in it.",
        examples=["train.tsv"],
    )
    dev: Text | None = Field(default=None, description="The file to evaluate on.", examples=["dev.tsv"])
    text: Text | None = Field(default=None, description="The column of the text.", examples=["text"])
    pair: Text | None = Field(
        default=None, description="The column of the second text, for a task on two.", examples=["question"]
    )
    label: Text | None = Field(default=None, description="The column of the label.", examples=["label"])
    kind: Literal["classification", "regression"] | None = Field(
        default=None,
        description="Of your own files: classification or regression. Left out, the labels decide.",
        examples=["classification"],
    )
    metric: Literal["accuracy", "f1", "macro_f1", "mcc", "pearson", "spearman"] | None = Field(
        default=None,
        description="What to report: accuracy, f1, macro_f1 or mcc; pearson or spearman for regression. "
        "Left out, what suits the task.",
        examples=["accuracy"],
    )
    train_sizes: Sizes | None = Field(
        default=None,
        description="Sizes in place of the study's, as when the task has too few rows for the largest.",
        examples=[[100, "all"]],
    )

    @property
    def origin(self) -> Literal["builtin", "glue", "files"]:
        if self.name.startswith("builtin:"):
            return "builtin"
        names_columns = self.text or self.pair or self.label
        names_files = (self.train or self.dev) and self.source in (None, "hub")
        return "files" if names_columns or (names_files and self.name not in GLUE_NAMES) else "glue"

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        settings = {"name": value} if isinstance(value, str) else value
        if not isinstance(settings, Mapping) or any(settings.get(key) for key in ("text", "pair", "label")):
            return settings  # your own files have any name you like
        name = settings.get("name")
        return {**settings, "name": (isinstance(name, str) and glue_name(name)) or name}

    @model_validator(mode="after")
    def _fits_together(self) -> TaskSpec:
        problems = {"builtin": self._of_builtin, "glue": self._of_glue, "files": self._of_files}[
            self.origin
        ]()
        if problems:
            refuse(*problems)
        return self

    def _set(self, *keys: str) -> list[str]:
        return [key for key in keys if getattr(self, key) is not None]

    def _of_builtin(self) -> list[tuple[str, str]]:
        takes_none = self._set("source", "train", "dev", "text", "pair", "label", "kind")
        problems = [(key, f"{self.name} is built in and takes no `{key}`; remove it") for key in takes_none]
        if self.name not in BUILTIN_NAMES:
            said = f"no such built-in task; allowed: {one_of(BUILTIN_NAMES)};"
            problems.insert(0, ("name", (said + close_match(self.name, BUILTIN_NAMES)).rstrip(";")))
        return problems

    def _of_glue(self) -> list[tuple[str, str]]:
        if self.name not in GLUE_NAMES:
            known = (*BUILTIN_NAMES, *GLUE_NAMES)
            near = close_match(self.name, known)
            return [
                (
                    "name",
                    f"no such task;{near} allowed: {one_of(known)}, "
                    "or your own files under any name, with the keys train, dev, text and label",
                )
            ]
        problems = [
            (key, f"a GLUE task has its own {key}; remove it, or give `text` and `label` for your own files")
            for key in self._set("kind")
        ]
        if self.source in (None, "hub"):
            problems += [
                (key, f"{self.name} comes from the hub; for files of your own name its folder as `source`")
                for key in self._set("train", "dev")
            ]
        return problems

    def _of_files(self) -> list[tuple[str, str]]:
        missing = [key for key in ("train", "dev", "text", "label") if getattr(self, key) is None]
        problems = [(key, f"a task of your own files needs `{key}`") for key in missing]
        if self.source is not None:
            problems.append(
                ("source", "only a GLUE task has a source; give `train` and `dev` their full paths")
            )
        if self.dev is not None and self.dev == self.train:
            problems.append(("dev", "the same file as `train`; scores must come from other examples"))
        columns = {key: getattr(self, key) for key in self._set("text", "pair", "label")}
        for i, (key, column) in enumerate(columns.items()):
            same = next((other for other in list(columns)[:i] if columns[other] == column), None)
            if same is not None:
                problems.append((key, f"the same column as `{same}`; each needs its own"))
        if self.kind and self.metric and self.metric not in METRICS[self.kind]:
            problems.append(("metric", f"for {self.kind}, allowed: {one_of(METRICS[self.kind])}"))
        return problems

    def resolved(self, base: Path) -> TaskSpec:
        """With the paths made absolute. Files of a GLUE folder are names inside it and stay as they are."""
        keys = ("train", "dev") if self.origin == "files" else ("source",)
        paths = {key: getattr(self, key) for key in keys}
        changed = {key: absolute(p, base) for key, p in paths.items() if p is not None and p != "hub"}
        return self.model_copy(update=changed)


class TrainingSpec(Section):
    """How every trial is finetuned. The defaults are those of Tamkin et al. 2020."""

    epochs: CountPerSize = Field(
        default=PerSize(PLAIN.epochs),
        description="Passes over the subset. Per size: { 500 = 5, default = 3 } is 5 up to 500 examples.",
    )
    batch_size: Count = Field(default=PLAIN.batch_size, description="Examples in a step.")
    lr: Annotated[Number, Field(gt=0)] = Field(
        default=PLAIN.lr, description="Learning rate of AdamW at its highest."
    )
    weight_decay: Annotated[Number, Field(ge=0)] = Field(
        default=PLAIN.weight_decay, description="AdamW's weight decay."
    )
    betas: Annotated[
        tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]],
        BeforeValidator(two_numbers),
    ] = Field(default=PLAIN.betas, description="AdamW's betas.")
    eps: Annotated[Number, Field(gt=0)] = Field(default=PLAIN.eps, description="AdamW's epsilon.")
    clip_norm: Annotated[Number, Field(ge=0)] = Field(
        default=PLAIN.clip_norm,
        description="Largest global norm of a trial's gradient; 0 turns clipping off.",
    )
    warmup: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=PLAIN.warmup, description="Share of the steps in which the learning rate rises from 0."
    )
    schedule: Literal["linear", "constant"] = Field(
        default=PLAIN.schedule, description="After the warm-up: linear (down to 0) or constant."
    )
    max_length: Annotated[int, Field(strict=True, ge=2)] = Field(
        default=PLAIN.max_length, description="Longer texts are cut to this many sub-words."
    )
    dropout: Annotated[Number, Field(ge=0, lt=1)] | None = Field(
        default=PLAIN.dropout, description="Left out: what the model's own config says.", examples=[0.1]
    )
    evaluate: Literal["every epoch", "end"] = Field(
        default=PLAIN.evaluate,
        description="When trials are scored on the dev set: every epoch, or once at the end, which takes less time.",
    )

    def at(
        self, size: int, epochs: PerSize | None, lr: float | None, lr_factors: tuple[tuple[int, float], ...]
    ) -> Training:
        """The training of a trial on `size` examples; epochs and lr replace its own if given."""
        same = {key: getattr(self, key) for key in TrainingSpec.model_fields if key not in ("epochs", "lr")}
        return Training(
            **same, epochs=(epochs or self.epochs).at(size), lr=lr or self.lr, lr_factors=lr_factors
        )


def absolute(path: str, base: Path) -> str:
    return str((base / Path(path).expanduser()).resolve())
