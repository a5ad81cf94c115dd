"""A linear probe on each layer of the frozen model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from whichlayers.config.sections import Count, Number
from whichlayers.experiments.base import (
    Arrangement,
    Misfit,
    TaskExperiment,
    all_or_numbers,
    layer_run,
    listed,
)
from whichlayers.trial import Pooling, Probe

PROBE = Probe(layer=0)  # source of the defaults


class Probing(TaskExperiment):
    """Train a linear classifier on the states of each layer of the model, which stays frozen."""

    kind: Literal["probing"] = "probing"
    layers: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=0)] = Field(
        default="all", description='The layers to probe: "all", or a list. 0 is the embeddings.'
    )
    pooling: Pooling = Field(
        default=PROBE.pooling,
        description="What the probe reads: mean (over the tokens) or summary (the token that stands for all).",
    )
    max_epochs: Count = Field(default=PROBE.max_epochs, description="A probe ends here at the latest.")
    patience: Count = Field(
        default=PROBE.patience, description="It ends after this many epochs without a lower held-out loss."
    )
    held_out: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=PROBE.held_out,
        description="Share of the training examples that is held out to stop by; 0 trains for max_epochs.",
    )
    batch_size: Count = Field(default=PROBE.batch_size, description="Examples in a step of a probe.")
    lr: Annotated[Number, Field(gt=0)] = Field(
        default=PROBE.lr, description="Learning rate of the probes; that of [training] is not for them."
    )
    weight_decay: Annotated[Number, Field(ge=0)] = Field(
        default=PROBE.weight_decay, description="AdamW's weight decay, of the probes."
    )
    standardize: Annotated[bool, Field(strict=True)] = Field(
        default=PROBE.standardize,
        description="Give each feature mean 0 and sd 1 on the examples that a probe is trained on.",
    )

    def misfits(self, depth: int) -> Iterator[Misfit]:
        for layer in self.layers if self.layers != "all" else ():
            if layer > depth:
                yield Misfit("layers", layer, f"the layers are 1 to {depth}, 0 is the embeddings")

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        settings = {key: getattr(self, key) for key in vars(PROBE) if key != "layer"}
        for layer in layer_run(1, depth) if self.layers == "all" else self.layers:
            yield Arrangement("", layer, probe=Probe(layer, **settings))

    def words(self) -> str:
        which = "each layer" if self.layers == "all" else f"layers {listed(self.layers)}"
        return (
            f"train a linear classifier on {which} of the frozen model, for at most {self.max_epochs} epochs"
        )
