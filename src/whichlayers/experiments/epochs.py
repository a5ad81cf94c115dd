"""The incremental experiment, evaluated after every epoch of a longer training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whichlayers.config.sections import CountPerSize, PerSize
from whichlayers.experiments.base import Keep
from whichlayers.experiments.incremental import Incremental


class Epochs(Incremental):
    """Does training longer close the gap? The metric and the loss after each epoch, for a few values of k."""

    kind: Literal["epochs"] = "epochs"  # type: ignore[assignment]
    keep: Keep = Field(
        default=(0, "half", "depth"),
        description='The values of k: "all" for 0 to the depth of the model, or a list of numbers, "half" and "depth".',
    )
    epochs: CountPerSize | None = Field(
        default=PerSize(10), description="Passes over the subset.", examples=[10]
    )

    def words(self) -> str:
        return f"{super().words()}, and look at every epoch"
