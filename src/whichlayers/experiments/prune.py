"""The pruning experiment: drop layers and finetune the remaining ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, field_validator, model_validator

from whichlayers.config.errors import raise_problems
from whichlayers.config.sections import Count
from whichlayers.config.validators import as_tuple
from whichlayers.experiments.base import (
    ALL_PRETRAINED,
    CountList,
    DepthError,
    FinetuningExperiment,
    Variant,
    format_layers,
    layer_range,
)
from whichlayers.experiments.display import Display
from whichlayers.text import join_list, outer_layers


def _all_or_counts(value: Any) -> Literal["all"] | tuple[int, ...]:
    """Validator: "all", or a number or list of numbers of at least 1, as a tuple, which may be empty."""
    if value == "all":
        return "all"
    numbers = as_tuple(value)
    if all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in numbers):
        return numbers
    raise ValueError('allowed: "all", or a list of integers of at least 1, such as [1, 6]')


class Prune(FinetuningExperiment):
    """Drop layers and finetune the remaining ones. The embeddings are always kept."""

    kind: Literal["prune"] = "prune"
    displays = (
        Display(
            name="prune",
            title="Layer pruning",
            x_label="layers dropped",
            description="Layers are dropped and the remaining model is finetuned.",
            position=lambda x: f"{_layers(f'{x:g}')} dropped",
            conditions={"top": "top layers dropped", "bottom": "bottom layers dropped"},
            relative_depth=True,
        ),
    )
    top: Annotated[Literal["all"] | tuple[Count, ...], PlainValidator(_all_or_counts)] = Field(
        default=(),
        description='Number of layers to drop from the top: one number, a list, or "all" for all numbers that leave at '
        'least one layer. Default: "all" if neither `bottom` nor `drop` is given.',
        examples=[[1, 2]],
    )
    bottom: CountList = Field(
        default=(),
        description="Number of layers to drop from the bottom: one number, or a list.",
        examples=[[1, 2]],
    )
    drop: tuple[tuple[Count, ...], ...] = Field(
        default=(),
        description="Lists of layers to drop together, where 1 is the lowest: [[7], [8]] gives two models, [[7, 8]] "
        "one.",
        examples=[[[2], [1, 4]]],
    )

    @model_validator(mode="before")
    @classmethod
    def _set_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and not {"top", "bottom", "drop"} & values.keys():
            return {**values, "top": "all"}
        return values

    @field_validator("drop", mode="before")
    @classmethod
    def _check_nesting(cls, value: Any) -> Any:
        """Reject [7, 8], which could mean one model without both layers or two models without one of them."""
        numbers = [n for n in as_tuple(value) if isinstance(n, int)]
        if numbers:
            separate, together = ", ".join(f"[{n}]" for n in numbers), ", ".join(map(str, numbers))
            raise ValueError(
                f"must be a list of lists: drop = [{separate}] gives a model without each of them,"
                f" drop = [[{together}]] one without all of them"
            )
        return value

    @model_validator(mode="after")
    def _check_keys(self) -> Prune:
        if not (self.top or self.bottom or self.drop):
            raise_problems(
                (
                    "",
                    "a prune experiment requires at least one of top, bottom and drop, for example top = [6]",
                )
            )
        if not all(self.drop):
            raise_problems(("drop", "each list must have at least one layer"))
        return self

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        limit = f"1 to {depth - 1} layers can be dropped, so that at least one remains"
        for key, numbers in (("top", self._from_top(depth)), ("bottom", self.bottom)):
            for n in numbers:
                if n >= depth:
                    yield DepthError(key, n, limit)
        highest = max((max(dropped) for dropped in self.drop), default=0)
        for dropped in self.drop:
            if max(dropped) > depth:
                allowed = f"allowed are layers 1 to {depth}"
                text = f"{allowed}; these lists are for models with at least {highest} layers, list others"
                yield DepthError("drop", dropped, text)
            elif len(set(dropped)) == depth:
                yield DepthError("drop", dropped, limit)

    def variants(self, depth: int) -> Iterator[Variant]:
        yield Variant(ALL_PRETRAINED, 0, is_baseline=True)
        for n in self._from_top(depth):
            yield Variant("top", n, order=layer_range(1, depth - n))
        for n in self.bottom:
            yield Variant("bottom", n, order=layer_range(n + 1, depth))
        for dropped in self.drop:
            order = tuple(layer for layer in layer_range(1, depth) if layer not in dropped)
            condition = f"listed {','.join(map(str, sorted(set(dropped))))}"
            yield Variant(condition, depth - len(order), order=order)

    def _from_top(self, depth: int) -> tuple[int, ...]:
        """Numbers of layers to drop from the top of a model of this depth."""
        return tuple(range(1, depth)) if self.top == "all" else self.top

    def summary(self) -> str:
        parts = ["any number of top layers"] if self.top == "all" else []
        ends = [("top", () if self.top == "all" else self.top), ("bottom", self.bottom)]
        parts += [
            outer_layers(end, numbers[0])
            if len(numbers) == 1
            else f"the {end} {join_list(numbers, 'or')} layers"
            for end, numbers in ends
            if numbers
        ]
        parts += [format_layers(dropped) for dropped in self.drop]
        return f"drop {', or '.join(parts)}"


def _layers(numbers: str) -> str:
    """ "1" -> "1 layer", "1 or 2" -> "1 or 2 layers" """
    return f"{numbers} layer" if numbers == "1" else f"{numbers} layers"
