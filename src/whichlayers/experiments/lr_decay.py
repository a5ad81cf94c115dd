"""The layer-wise learning rate decay experiment: lower layers are finetuned with a smaller learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from whichlayers.config.sections import Number
from whichlayers.config.validators import at_least_one
from whichlayers.experiments.base import (
    ALL_PRETRAINED,
    DepthError,
    ReinitExperiment,
    Variant,
    layer_range,
)
from whichlayers.experiments.display import SAME_LR, Display
from whichlayers.text import join_list, outer_layers

Decay = Annotated[Number, Field(gt=0, le=1)]
Depths = Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], BeforeValidator(at_least_one)]


class LrDecay(ReinitExperiment):
    """Finetune each layer with a learning rate that is smaller than that of the layer above by a factor."""

    kind: Literal["lr_decay"] = "lr_decay"
    displays = (
        Display(
            name="lr_decay",
            title="Layer-wise learning rate decay",
            x_label="learning rate of a layer, relative to the layer above",
            description="The head and the highest layer have the learning rate lr, and each layer below has that of "
            "the layer above times the decay factor; the embeddings are the lowest layer (Howard & Ruder 2018). A "
            "factor of 1 is the usual finetuning.",
            position="a factor of {:g}".format,
            conditions={"": "all layers pretrained"},
            baselines=SAME_LR,
            layer_axis=False,
            partly_trained=True,
        ),
    )
    factors: Annotated[tuple[Decay, ...], BeforeValidator(at_least_one)] = Field(
        default=(0.8, 0.9, 0.95, 1.0),
        description="Decay factors: learning rate of a layer divided by that of the layer above; one number, or a "
        "list.",
    )
    reinit_top: Depths = Field(
        default=(0,),
        description="Number of highest layers that are re-initialized; with a list, each is run.",
    )

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        for n in self.reinit_top:
            if n > depth:
                yield DepthError("reinit_top", n, f"0 to {depth} layers can be re-initialized")

    def variants(self, depth: int) -> Iterator[Variant]:
        yield Variant(ALL_PRETRAINED, 0, is_baseline=True)
        for n in dict.fromkeys(self.reinit_top):
            condition = f"top {n} reinitialized" if n else ""
            for factor in dict.fromkeys(self.factors):
                factors = tuple((layer, factor ** (depth - layer)) for layer in layer_range(0, depth))
                reinit = layer_range(depth - n + 1, depth)
                yield Variant(condition, factor, reinit=reinit, lr_factors=factors if factor != 1 else ())

    def summary(self) -> str:
        factors = join_list([f"{factor:g}" for factor in self.factors], "or")
        reinit = [outer_layers("highest", n) if n else "no layer" for n in dict.fromkeys(self.reinit_top)]
        layers = f", with {join_list(reinit, 'or')} re-initialized" if any(self.reinit_top) else ""
        return f"finetune each layer with {factors} times the learning rate of the layer above{layers}"
