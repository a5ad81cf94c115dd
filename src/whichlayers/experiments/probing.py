"""The probing experiment: a linear probe on each layer of the frozen model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from whichlayers.config.errors import format_choices
from whichlayers.config.sections import Count, Number
from whichlayers.config.validators import at_least_one
from whichlayers.experiments.base import (
    DepthError,
    TaskExperiment,
    Variant,
    all_or_numbers,
    format_layers,
    layer_range,
)
from whichlayers.experiments.display import EMBEDDINGS_NOTE, Display
from whichlayers.text import counted, join_list
from whichlayers.trial import Pooling, Probe

DEFAULTS = Probe(layer=0)


def _poolings(value: Any) -> tuple[Any, ...]:
    """Validator: one or more values; the name that `head` has for the last token is refused with ours."""
    values = at_least_one(value)
    if "last" in values:
        choices = format_choices(get_args(Pooling))
        raise ValueError(f'allowed: {choices}; the last token of a decoder is "summary" here')
    return values


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
    pooling: Annotated[tuple[Pooling, ...], BeforeValidator(_poolings)] = Field(
        default=(DEFAULTS.pooling,),
        description="Pooling of the hidden states: mean (over the tokens), summary (the [CLS]-like token of an "
        "encoder, the last token of a decoder) or pooler (the pretrained pooler, frozen); with a list, each is run.",
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
        shared = {key: getattr(self, key) for key in vars(DEFAULTS) if key not in ("layer", "pooling")}
        for pooling in dict.fromkeys(self.pooling):
            settings = {"pooling": pooling, **shared}
            names = tuple((key, _setting_name(key, value)) for key, value in settings.items())
            for layer in layer_range(1, depth) if self.layers == "all" else self.layers:
                yield Variant("", layer, probe=Probe(layer, **settings), settings=names)

    def summary(self) -> str:
        which = "each layer" if self.layers == "all" else format_layers(self.layers)
        pooling = f", with {join_list(self.pooling, 'or')} pooling" if self.changed("pooling") else ""
        keys = self.changed("patience", "held_out", "batch_size", "weight_decay", "standardize")
        settings = [f"for at most {counted(self.max_epochs, 'epoch')}"]
        settings += [_setting_name(key, getattr(self, key)) for key in keys]
        return f"train a linear probe on {which} of the frozen model{pooling}, {', '.join(settings)}"


def _setting_name(key: str, value: object) -> str:
    """A setting of a probe in the condition of its points: "pooling mean", "lr 0.01" is "probe lr 0.01"."""
    if key == "standardize":
        return "standardized" if value else "not standardized"
    name = "probe lr" if key == "lr" else key.replace("_", " ")
    return f"{name} {value}"
