"""Keep the first k pretrained layers, re-initialize the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from whichlayers.experiments.base import Arrangement, Keep, Misfit, ReinitExperiment, layer_run, listed


class Incremental(ReinitExperiment):
    """Keep the first k pretrained layers and re-initialise the rest."""

    kind: Literal["incremental"] = "incremental"
    keep: Keep = Field(
        default="all",
        description='The values of k: "all" for 0 to the depth of the model, or a list of numbers, "half" and "depth".',
    )

    def misfits(self, depth: int) -> Iterator[Misfit]:
        for k in self.keep if self.keep != "all" else ():
            if isinstance(k, int) and k > depth:
                yield Misfit("keep", k, f"0 to {depth} layers can be kept")

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        named: dict[int | str, int] = {"half": depth // 2, "depth": depth}
        kept = range(depth + 1) if self.keep == "all" else [named.get(k, k) for k in self.keep]
        for k in dict.fromkeys(map(int, kept)):
            yield Arrangement("", k, reinit=layer_run(k + 1, depth))

    def words(self) -> str:
        values = "every k" if self.keep == "all" else f"k = {listed(self.keep)}"
        return f"keep the first k pretrained layers and re-initialise the rest, for {values}"
