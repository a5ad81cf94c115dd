"""The incremental experiment: keep the first k pretrained layers, re-initialize the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from whichlayers.experiments.base import DepthError, Keep, ReinitExperiment, Variant, layer_range
from whichlayers.experiments.display import Display
from whichlayers.text import join_list


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
    keep: Keep = Field(
        default="all",
        description='Values of k: "all" for 0 to the depth of the model, or a list of numbers, "half" and "depth".',
    )

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        for k in self.keep if self.keep != "all" else ():
            if isinstance(k, int) and k > depth:
                yield DepthError("keep", k, f"0 to {depth} layers can be kept")

    def variants(self, depth: int) -> Iterator[Variant]:
        named: dict[int | str, int] = {"half": depth // 2, "depth": depth}
        kept = range(depth + 1) if self.keep == "all" else [named.get(k, k) for k in self.keep]
        for k in dict.fromkeys(map(int, kept)):
            yield Variant("", k, reinit=layer_range(k + 1, depth))

    def summary(self) -> str:
        values = "every k" if self.keep == "all" else f"k = {join_list(self.keep)}"
        return f"keep the first k pretrained layers and re-initialize the others, for {values}"
