"""Base classes of the experiments: the keys they share and how they list the models they build."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, field_validator

from whichlayers.config.sections import (
    Count,
    CountPerSize,
    Number,
    Section,
    Sizes,
    Text,
    as_tuple,
    at_least_one,
)
from whichlayers.trial import Probe, Recipe

Names = Annotated[
    Literal["all"] | tuple[Text, ...], BeforeValidator(lambda v: v if v == "all" else as_tuple(v))
]
SHARED_KEYS = (
    "tasks",
    "train_sizes",
    "trials",
    "epochs",
    "lr",
    "recipe",
    "keep_layer_norm",
    "reinit_lr_factor",
)


ALL_PRETRAINED, NONE_PRETRAINED = "all pretrained", "none pretrained"
Recipes = Annotated[tuple[Recipe, ...], BeforeValidator(at_least_one)]
Flags = Annotated[tuple[Annotated[bool, Field(strict=True)], ...], BeforeValidator(at_least_one)]
Factors = Annotated[tuple[Annotated[Number, Field(ge=0)], ...], BeforeValidator(at_least_one)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(as_tuple)]


@dataclass(frozen=True)
class Arrangement:
    """A point of an experiment, before it is known what the model is trained on."""

    condition: str
    x: float
    order: tuple[int, ...] | None = None  # None: the pretrained layers as they are
    reinit: tuple[int, ...] = ()
    is_baseline: bool = False
    probe: Probe | None = None  # in place of finetuning


@dataclass(frozen=True)
class Misfit:
    """A value that a model of this depth has no room for."""

    key: str
    given: object
    allowed: str


class Experiment(Section):
    train_sizes: Sizes | None = Field(
        default=None, description="In place of the study's and the tasks'.", examples=[[500]]
    )
    trials: CountPerSize | None = Field(default=None, description="In place of the study's.", examples=[10])

    @classmethod
    def key_order(cls) -> list[str]:
        """Its own first, then those that experiments share."""
        return sorted(cls.model_fields, key=lambda key: key in SHARED_KEYS)

    def misfits(self, depth: int) -> Iterator[Misfit]:
        yield from ()

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        """All points for a model of this depth, baselines first. Only for depths without misfits."""
        raise NotImplementedError

    def words(self) -> str:
        raise NotImplementedError


def all_or_numbers(lowest: int, *words: str) -> PlainValidator:
    def fits(value: Any) -> bool:
        return value in words or (isinstance(value, int) and not isinstance(value, bool) and value >= lowest)

    def check(value: Any) -> Literal["all"] | tuple[int | str, ...]:
        if value == "all":
            return "all"
        values = as_tuple(value)
        if values and all(map(fits, values)):
            return values
        also = "".join(f' or "{word}"' for word in words)
        raise ValueError(
            f'allowed: "all", or a list of whole numbers of {lowest} or more{also}, such as [1, 6]'
        )

    return PlainValidator(check)


def layer_run(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


def listed(numbers: Iterable[Any], last_word: str = "and") -> str:
    *others, last = (str(n) for n in numbers)
    return f"{', '.join(others)} {last_word} {last}" if others else last


Keep = Annotated[Literal["all"] | tuple[int | str, ...], all_or_numbers(0, "half", "depth")]


class TaskExperiment(Experiment):
    tasks: Names = Field(default="all", description='Which of the study\'s tasks: "all", or a list of names.')

    @field_validator("tasks")
    @classmethod
    def _has_some(cls, value: Any) -> Any:
        if not value:
            raise ValueError('name at least one task, or leave the key out for "all"')
        return value


class FinetuningExperiment(TaskExperiment):
    epochs: CountPerSize | None = Field(default=None, description="In place of [training]'s.", examples=[3])
    lr: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="In place of [training]'s.", examples=[2e-5]
    )


class ReinitExperiment(FinetuningExperiment):
    recipe: Recipes | None = Field(
        default=None, description="In place of the study's; a list runs each.", examples=["bert_init"]
    )
    keep_layer_norm: Flags | None = Field(
        default=None, description="In place of the study's; a list runs each.", examples=[[False, True]]
    )
    reinit_lr_factor: Factors = Field(
        default=(1.0,),
        description="Learning rate of re-initialised layers, in multiples of lr; a list runs each.",
    )


def baselines(depth: int) -> Iterator[Arrangement]:
    yield Arrangement(ALL_PRETRAINED, 0, is_baseline=True)
    yield Arrangement(NONE_PRETRAINED, 0, reinit=layer_run(1, depth), is_baseline=True)


def unless_identity(order: tuple[int, ...], depth: int) -> tuple[int, ...] | None:
    return None if order == layer_run(1, depth) else order
