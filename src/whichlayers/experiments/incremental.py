"""The incremental experiment: keep the first k pretrained layers, re-initialize the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from whichlayers.experiments.base import DepthError, ReinitExperiment, Variant, layer_range
from whichlayers.experiments.display import Display
from whichlayers.experiments.layer_counts import LayerCounts, count_errors, counts_text, resolve_counts


class Incremental(ReinitExperiment):
    """Keep the first k pretrained layers and re-initialize the others."""

    kind: Literal["incremental"] = "incremental"
    displays = (
        Display(
            name="incremental",
            title="Incremental re-initialization",
            x_label="pretrained layers kept (k)",
            description="The first k layers keep their pretrained weights, all layers above are re-initialized, and "
            "the whole model is finetuned. k = 0 keeps only the embeddings.",
            plot="curves",
            learning_curves=True,
            relative_depth=True,
        ),
    )
    keep: LayerCounts = Field(
        default="all",
        description='Values of k: "all" for 0 to the depth of the model, or a list of numbers, "half", "depth", and '
        '"depth-3" for all but 3 layers.',
    )

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        yield from count_errors("keep", self.keep, depth, "can be kept")

    def variants(self, depth: int) -> Iterator[Variant]:
        for k in resolve_counts(self.keep, depth):
            yield Variant("", k, reinit=layer_range(k + 1, depth))

    def summary(self) -> str:
        return (
            f"keep the first k pretrained layers and re-initialize the others, for {counts_text(self.keep)}"
        )
