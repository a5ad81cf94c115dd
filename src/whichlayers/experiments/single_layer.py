"""Re-initialize one layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from whichlayers.experiments.base import (
    Arrangement,
    Misfit,
    ReinitExperiment,
    all_or_numbers,
    baselines,
    layer_run,
    listed,
)


class SingleLayer(ReinitExperiment):
    """Re-initialise one layer and keep all others."""

    kind: Literal["single_layer"] = "single_layer"
    layers: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=1)] = Field(
        default="all",
        description='The layers to re-initialise, one at a time: "all", or a list. 1 is the lowest.',
    )

    def misfits(self, depth: int) -> Iterator[Misfit]:
        for layer in self.layers if self.layers != "all" else ():
            if layer > depth:
                yield Misfit("layers", layer, f"the layers are 1 to {depth}")

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        yield from baselines(depth)
        for layer in layer_run(1, depth) if self.layers == "all" else self.layers:
            yield Arrangement("", layer, reinit=(layer,))

    def words(self) -> str:
        which = "each layer" if self.layers == "all" else f"layers {listed(self.layers)}"
        return f"re-initialise {which}, one at a time"
