"""Re-initialize, or alone preserve, one block of consecutive layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from whichlayers.config.sections import Count, at_least_one
from whichlayers.experiments.base import Arrangement, Misfit, ReinitExperiment, baselines, layer_run


class Localized(ReinitExperiment):
    """Re-initialise one block of consecutive layers, or all layers but the block."""

    kind: Literal["localized"] = "localized"
    block: Count = Field(default=3, description="Layers in a block.")
    mode: Annotated[tuple[Literal["reinitialized", "preserved"], ...], BeforeValidator(at_least_one)] = Field(
        default=("reinitialized", "preserved"),
        description="reinitialized draws the block anew; preserved keeps it and draws all others anew.",
    )

    def misfits(self, depth: int) -> Iterator[Misfit]:
        if self.block > depth:
            yield Misfit("block", self.block, f"a block can have 1 to {depth} layers")

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        yield from baselines(depth)
        for mode in self.mode:
            for first in range(1, depth - self.block + 2):
                block = layer_run(first, first + self.block - 1)
                others = tuple(n for n in layer_run(1, depth) if n not in block)
                yield Arrangement(f"block {mode}", first, reinit=block if mode == "reinitialized" else others)

    def words(self) -> str:
        does = {
            "reinitialized": "re-initialise it",
            "preserved": "keep it and re-initialise all other layers",
        }
        return f"for each run of {self.block} consecutive layers, {', or '.join(does[m] for m in self.mode)}"
