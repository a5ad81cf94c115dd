"""Drop layers and finetune the remaining ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from whichlayers.config.errors import refuse
from whichlayers.config.sections import Count, as_tuple
from whichlayers.experiments.base import (
    ALL_PRETRAINED,
    Arrangement,
    Counts,
    FinetuningExperiment,
    Misfit,
    layer_run,
    listed,
)


class Prune(FinetuningExperiment):
    """Drop layers and finetune what is left. The embeddings always stay."""

    kind: Literal["prune"] = "prune"
    top: Counts = Field(
        default=(),
        description="How many layers to drop from the top: one number, or a list.",
        examples=[[1, 2]],
    )
    bottom: Counts = Field(
        default=(),
        description="How many layers to drop from the bottom: one number, or a list.",
        examples=[[1, 2]],
    )
    drop: tuple[tuple[Count, ...], ...] = Field(
        default=(),
        description="Lists of layers to drop together, 1 is the lowest: [[7], [8]] makes two models, [[7, 8]] one.",
        examples=[[[2], [1, 4]]],
    )

    @field_validator("drop", mode="before")
    @classmethod
    def _is_clear(cls, value: Any) -> Any:
        """[7, 8] could mean both layers at once or one after the other: the file has to say which."""
        numbers = [n for n in as_tuple(value) if isinstance(n, int)]
        if numbers:
            each, joint = ", ".join(f"[{n}]" for n in numbers), ", ".join(map(str, numbers))
            raise ValueError(
                f"lists of layers are needed: drop = [{each}] makes a model without each of them,"
                f" drop = [[{joint}]] one without all of them"
            )
        return value

    @model_validator(mode="after")
    def _drops_something(self) -> Prune:
        if not (self.top or self.bottom or self.drop):
            refuse(
                ("", "a prune experiment needs at least one of top, bottom and drop, for example top = [6]")
            )
        if not all(self.drop):
            refuse(("drop", "each list needs at least one layer"))
        return self

    def misfits(self, depth: int) -> Iterator[Misfit]:
        for key in ("top", "bottom"):
            for n in getattr(self, key):
                if n >= depth:
                    yield Misfit(key, n, f"1 to {depth - 1} layers can be dropped, so that one is left")
        for dropped in self.drop:
            if max(dropped) > depth:
                yield Misfit("drop", dropped, f"the layers are 1 to {depth}")
            elif len(set(dropped)) == depth:
                yield Misfit("drop", dropped, f"1 to {depth - 1} layers can be dropped, so that one is left")

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        yield Arrangement(ALL_PRETRAINED, 0, is_baseline=True)
        for n in self.top:
            yield Arrangement("top", n, order=layer_run(1, depth - n))
        for n in self.bottom:
            yield Arrangement("bottom", n, order=layer_run(n + 1, depth))
        for dropped in self.drop:
            order = tuple(layer for layer in layer_run(1, depth) if layer not in dropped)
            yield Arrangement(
                f"listed {','.join(map(str, sorted(set(dropped))))}", depth - len(order), order=order
            )

    def words(self) -> str:
        ends = [("top", self.top), ("bottom", self.bottom)]
        parts = [f"the {end} {listed(numbers, 'or')} layers" for end, numbers in ends if numbers]
        parts += [f"layers {listed(dropped)}" for dropped in self.drop]
        return f"drop {', or '.join(parts)}"
