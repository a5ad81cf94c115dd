"""The probing experiment: a linear probe on each layer of the frozen model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from whichlayers.config.sections import Count, Number
from whichlayers.experiments.base import (
    DepthError,
    TaskExperiment,
    Variant,
    all_or_numbers,
    format_layers,
    layer_range,
)
from whichlayers.experiments.display import EMBEDDINGS_NOTE, Display
from whichlayers.text import counted
from whichlayers.trial import Pooling, Probe

DEFAULTS = Probe(layer=0)


class Probing(TaskExperiment):
    """Train a linear probe on the hidden states of each layer of the frozen model."""

    kind: Literal["probing"] = "probing"
    displays = (
        Display(
            name="probing",
            title="Linear probes of the frozen model",
            x_label=f"layer probed {EMBEDDINGS_NOTE}",
            description="The model stays frozen as pretrained; a linear probe is trained on the hidden states of one "
            "layer, with early stopping on held-out training examples.",
            position="layer {:g}".format,
            conditions={"": "linear probe"},
            relative_depth=True,
        ),
    )
    layers: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=0)] = Field(
        default="all",
        description='Layers to probe: "all" for 1 to the depth, or a list. 0 is the embeddings.',
    )
    pooling: Pooling = Field(
        default=DEFAULTS.pooling,
        description="Pooling of the hidden states: mean (over the tokens), summary (the [CLS]-like token) or pooler "
        "(the pretrained pooler, frozen).",
    )
    max_epochs: Count = Field(default=DEFAULTS.max_epochs, description="Maximum number of epochs.")
    patience: Count = Field(
        default=DEFAULTS.patience,
        description="Early stopping after this many epochs without a lower held-out loss.",
    )
    held_out: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=DEFAULTS.held_out,
        description="Fraction of the training examples held out for early stopping; 0 always trains for max_epochs.",
    )
    batch_size: Count = Field(default=DEFAULTS.batch_size, description="Examples per step of a probe.")
    lr: Annotated[Number, Field(gt=0)] = Field(
        default=DEFAULTS.lr, description="Learning rate of the probes. The one in [training] is not used."
    )
    weight_decay: Annotated[Number, Field(ge=0)] = Field(
        default=DEFAULTS.weight_decay, description="Weight decay of AdamW for the probes."
    )
    standardize: Annotated[bool, Field(strict=True)] = Field(
        default=DEFAULTS.standardize,
        description="Scale each feature to mean 0 and standard deviation 1 on the probe's training examples.",
    )

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        for layer in self.layers if self.layers != "all" else ():
            if layer > depth:
                yield DepthError(
                    "layers", layer, f"allowed are layers 1 to {depth}, and 0 for the embeddings"
                )

    def variants(self, depth: int) -> Iterator[Variant]:
        settings = {key: getattr(self, key) for key in vars(DEFAULTS) if key != "layer"}
        for layer in layer_range(1, depth) if self.layers == "all" else self.layers:
            yield Variant("", layer, probe=Probe(layer, **settings))

    def summary(self) -> str:
        which = "each layer" if self.layers == "all" else format_layers(self.layers)
        return f"train a linear probe on {which} of the frozen model, for at most {counted(self.max_epochs, 'epoch')}"
