"""The localized experiment: re-initialize one block of consecutive layers, or all layers outside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from whichlayers.config.sections import Count
from whichlayers.config.validators import at_least_one
from whichlayers.experiments.base import DepthError, ReinitExperiment, Variant, baselines, layer_range
from whichlayers.experiments.display import Display


class Localized(ReinitExperiment):
    """Re-initialize one block of consecutive layers, or all layers outside it."""

    kind: Literal["localized"] = "localized"
    displays = (
        Display(
            name="localized",
            title="Localized re-initialization",
            x_label="first layer of the block",
            description="A block of consecutive layers is re-initialized, or is the only one that keeps its "
            "pretrained weights, and the whole model is finetuned.",
            position="the block that starts at layer {:g}".format,
        ),
    )
    block: Count = Field(default=3, description="Number of layers in a block.")
    mode: Annotated[tuple[Literal["reinitialized", "preserved"], ...], BeforeValidator(at_least_one)] = Field(
        default=("reinitialized", "preserved"),
        description="reinitialized: re-initialize the block; preserved: keep the block and re-initialize all other "
        "layers.",
    )

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        if self.block > depth:
            yield DepthError("block", self.block, f"a block can have 1 to {depth} layers")

    def variants(self, depth: int) -> Iterator[Variant]:
        yield from baselines(depth)
        for mode in self.mode:
            for first in range(1, depth - self.block + 2):
                block = layer_range(first, first + self.block - 1)
                others = tuple(n for n in layer_range(1, depth) if n not in block)
                yield Variant(f"block {mode}", first, reinit=block if mode == "reinitialized" else others)

    def summary(self) -> str:
        actions = {
            "reinitialized": "re-initialize it",
            "preserved": "keep it and re-initialize all other layers",
        }
        block = f"block of {self.block} consecutive layers" if self.block > 1 else "layer"
        return f"for each {block}, {', or '.join(actions[mode] for mode in self.mode)}"
