"""The single-layer experiment: re-initialize one layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from whichlayers.experiments.base import (
    DepthError,
    ReinitExperiment,
    Variant,
    all_or_numbers,
    baselines,
    format_layers,
    layer_range,
)
from whichlayers.experiments.display import Display


class SingleLayer(ReinitExperiment):
    """Re-initialize one layer and keep all others."""

    kind: Literal["single_layer"] = "single_layer"
    displays = (
        Display(
            name="single_layer",
            title="Single layer re-initialized",
            x_label="layer re-initialized",
            description="One layer is re-initialized and the whole model is finetuned.",
            position="layer {:g}".format,
            conditions={"": "single layer re-initialized"},
        ),
    )
    layers: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=1)] = Field(
        default="all",
        description='Layers to re-initialize, one at a time: "all", or a list. 1 is the lowest.',
    )

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        for layer in self.layers if self.layers != "all" else ():
            if layer > depth:
                yield DepthError("layers", layer, f"allowed are layers 1 to {depth}")

    def variants(self, depth: int) -> Iterator[Variant]:
        yield from baselines(depth)
        for layer in layer_range(1, depth) if self.layers == "all" else self.layers:
            yield Variant("", layer, reinit=(layer,))

    def summary(self) -> str:
        which = "each layer" if self.layers == "all" else format_layers(self.layers)
        return f"re-initialize {which}, one at a time"
