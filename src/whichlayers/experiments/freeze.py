"""The freezing experiment: finetune some layers or parameters and freeze the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from whichlayers.config.errors import raise_problems
from whichlayers.config.validators import at_least_one
from whichlayers.experiments.base import (
    ALL_PRETRAINED,
    DepthError,
    FinetuningExperiment,
    PeftLr,
    Variant,
    layer_range,
    peft_lr_text,
)
from whichlayers.experiments.display import ALL_TRAINED, Display
from whichlayers.experiments.layer_counts import LayerCounts, count_errors, counts_text, resolve_counts
from whichlayers.text import join_list

Part = Literal["top", "bottom", "norms", "biases", "head"]
ALONE: tuple[Part, ...] = ("norms", "biases", "head")  # a few parameters are trained, in place of layers
SUMMARIES: dict[Part, str] = {
    "top": "freeze the lowest k layers and finetune those above",
    "bottom": "freeze the highest k layers and finetune those below",
    "norms": "finetune the layer norms alone",
    "biases": "finetune the biases alone",
    "head": "finetune the head alone",
}


class Freeze(FinetuningExperiment):
    """Freeze k layers and finetune the others, or finetune layer norms, biases or the head alone."""

    kind: Literal["freeze"] = "freeze"
    displays = (
        Display(
            name="freeze",
            title="Freezing",
            x_label="frozen layers (k)",
            description="k layers keep their pretrained weights throughout finetuning: the lowest ones, together with "
            "the embeddings, or the highest ones. The head is always trained; with all layers frozen, it is trained "
            "alone. Also with k = 0: layer norms or biases are trained alone.",
            position="k = {:g}".format,
            conditions={
                "top": "layers above k trained",
                "bottom": "lowest layers trained",
                "norms": "layer norms trained",
                "biases": "biases trained (BitFit)",
                "head": "head trained",
            },
            baselines=ALL_TRAINED,
            costs=True,
            partly_trained=True,
            relative_depth=True,
        ),
    )
    train: Annotated[tuple[Part, ...], BeforeValidator(at_least_one)] = Field(
        default=("top", "norms", "biases", "head"),
        description="What is trained, besides the head: top (all layers but the lowest k), bottom (all layers but the "
        "highest k), norms (layer norms), biases (in models that have them), head (nothing else); with a list, each is "
        "run.",
    )
    frozen: LayerCounts = Field(
        default="all",
        description='Values of k for top and bottom: "all" for 0 to the depth of the model, or a list of numbers, '
        '"half", "depth", and "depth-3" for all but 3 layers.',
    )
    embeddings: Literal["auto", "frozen", "trained"] = Field(
        default="auto",
        description="Whether top and bottom freeze the embeddings. auto: top does if k > 0, bottom does not.",
    )

    peft_lr: PeftLr = Field(
        default=None,
        description="Learning rate of the trials that train norms, biases or the head alone; with a list, each is run. "
        "All others, which train whole layers, have `lr`. Default: the same.",
        examples=[1e-3],
    )

    @model_validator(mode="after")
    def _check_unused(self) -> Freeze:
        if not {"top", "bottom"} & set(self.train):
            text = (
                '`train` has neither "top" nor "bottom", which freeze layers; add one of them, or remove it'
            )
            problems = [(key, text) for key in self.changed("frozen", "embeddings")]
            if problems:
                raise_problems(*problems)
        if self.peft_lr is not None and not set(ALONE) & set(self.train):
            raise_problems(
                (
                    "peft_lr",
                    "only for norms, biases and head, none of which is in `train`; use `lr` or remove it",
                )
            )
        return self

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        yield from count_errors("frozen", self.frozen, depth, "can be frozen")
        if (
            "bottom" in self.train
            and self.embeddings == "frozen"
            and depth in resolve_counts(self.frozen, depth)
        ):
            yield DepthError(
                "embeddings",
                self.embeddings,
                f'train = "bottom" with all {depth} layers and the embeddings frozen leaves nothing but the head to '
                f'train; list values of k below {depth} in `frozen`, or use train = "head"',
            )

    def variants(self, depth: int) -> Iterator[Variant]:
        yield Variant(ALL_PRETRAINED, 0, is_baseline=True)
        lrs = dict.fromkeys(self.peft_lr or (None,))
        for part in self.train:
            if part == "norms" or part == "biases":
                yield from (Variant(part, 0, parameters=part, lr=lr) for lr in lrs)
            elif part == "head":
                factors = _frozen_factors(layer_range(0, depth))
                yield from (Variant(part, depth, lr_factors=factors, lr=lr) for lr in lrs)
            else:
                for k in resolve_counts(self.frozen, depth):
                    layers = layer_range(1, k) if part == "top" else layer_range(depth - k + 1, depth)
                    auto = part == "top" and k > 0
                    if self.embeddings == "frozen" or (self.embeddings == "auto" and auto):
                        layers = (0, *layers)
                    yield Variant(part, k, lr_factors=_frozen_factors(layers))

    def summary(self) -> str:
        curves = f", for {counts_text(self.frozen)}" if {"top", "bottom"} & set(self.train) else ""
        alone = join_list([part for part in self.train if part in ALONE])
        lr = f" ({alone}{peft_lr_text(self.peft_lr)})" if self.peft_lr else ""
        embeddings = {
            "auto": "",
            "frozen": ", with frozen embeddings",
            "trained": ", with trained embeddings",
        }
        summary = join_list([SUMMARIES[part] for part in self.train], "or") + curves
        return summary + embeddings[self.embeddings] + lr


def _frozen_factors(layers: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """Learning rate factors that freeze these layers."""
    return tuple((layer, 0.0) for layer in layers)
