"""What all kinds of experiment have in common, whatever they do to a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from carryover.study.sections import CountPerSize, Section, Sizes, Text, as_tuple
from carryover.trial import Probe

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


class ExperimentKind(Section):
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
