"""The adapter experiment: train LoRA or IA3 adapters in some layers of the frozen model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from whichlayers.conditions import with_lr
from whichlayers.config.errors import raise_problems
from whichlayers.config.sections import Count, Number
from whichlayers.config.validators import as_tuple, at_least_one
from whichlayers.experiments.base import (
    ALL_PRETRAINED,
    DepthError,
    FinetuningExperiment,
    PeftLr,
    Variant,
    all_or_numbers,
    layer_range,
    peft_lr_text,
)
from whichlayers.experiments.display import ALL_TRAINED, Display
from whichlayers.text import counted, join_list
from whichlayers.trial import Adapter, AdapterMethod

Place = Literal["everywhere", "first", "last", "single", "blocks"]
ALL_TARGETS: Literal["all"] = "all"
DEFAULT = Adapter("lora", (), ())
BY_LAYER: tuple[Place, ...] = ("single", "blocks")  # x is a layer; otherwise it is a number of layers


def _targets(value: Any) -> Literal["all"] | tuple[str, ...]:
    """Validator: "all", or one or more names, as a tuple."""
    names = as_tuple(value)
    if value == ALL_TARGETS:
        return ALL_TARGETS
    if names and all(isinstance(name, str) and name for name in names):
        return names
    raise ValueError(
        'allowed: "all", or a list of names of modules or their ends, such as ["query", "value"]'
    )


class Adapt(FinetuningExperiment):
    """Train adapters in some layers and the head; everything else is frozen."""

    kind: Literal["adapt"] = "adapt"
    displays = (
        Display(
            name="adapt",
            title="Adapters in several layers",
            x_label="layers with adapters (k)",
            description="Adapters are trained in the first k or in the last k layers, together with the head. All "
            "other parameters are frozen.",
            position="k = {:g}".format,
            conditions={"first": "first k layers", "last": "last k layers", "everywhere": "all layers"},
            baselines=ALL_TRAINED,
            costs=True,
        ),
        Display(
            name="adapt_layers",
            title="Adapters by layer",
            x_label="(first) layer with adapters",
            description="Adapters are trained in one layer or in one block of layers, together with the head. All "
            "other parameters are frozen.",
            position="layer {:g}".format,
            conditions={"single": "one layer", "blocks": "one block of layers"},
            baselines=ALL_TRAINED,
            costs=True,
        ),
    )
    method: AdapterMethod = Field(
        default=DEFAULT.method,
        description="lora: low-rank changes of weights (Hu et al. 2022). ia3: a trained factor for each output of a "
        "module (after Liu et al. 2022).",
    )
    where: Annotated[tuple[Place, ...], BeforeValidator(at_least_one)] = Field(
        default=("everywhere", "single"),
        description="Which layers have adapters: everywhere, first (the first k), last (the last k), single (each "
        "layer alone), blocks (each block of consecutive layers); with a list, each is run.",
    )
    k: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=1)] = Field(
        default="all",
        description='Values of k for first and last: "all" for 1 to the depth of the model, or a list.',
    )
    block: Count = Field(default=3, description="Number of layers in a block.")
    targets: Annotated[Literal["all"] | tuple[str, ...], PlainValidator(_targets)] = Field(
        default=ALL_TARGETS,
        description='Linear modules that have adapters: "all" in a layer, or a list of names or ends of names, such as '
        '["query", "value"].',
    )
    rank: Annotated[tuple[Count, ...], BeforeValidator(at_least_one)] = Field(
        default=(DEFAULT.rank,), description="Rank of LoRA; with a list, each is run."
    )
    alpha: Annotated[Number, Field(gt=0)] = Field(
        default=DEFAULT.alpha, description="LoRA's changes are multiplied by alpha / rank."
    )
    dropout: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=DEFAULT.dropout, description="Dropout probability of the inputs of LoRA adapters."
    )
    peft_lr: PeftLr = Field(
        default=None,
        description="Learning rate of the trials with adapters; with a list, each is run. The baseline, which trains "
        "all parameters, has `lr`. Default: the same.",
        examples=[1e-3],
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Adapt:
        unused = self.changed("alpha", "dropout", "rank") if self.method == "ia3" else []
        problems = [(key, 'only for method = "lora"; remove it') for key in unused]
        if not {"first", "last"} & set(self.where):
            text = '`where` has neither "first" nor "last", the k layers with adapters; add one of them, or remove it'
            problems += [(key, text) for key in self.changed("k")]
        if "blocks" not in self.where:
            text = '`where` has no "blocks"; add it, or remove this key'
            problems += [(key, text) for key in self.changed("block")]
        if problems:
            raise_problems(*problems)
        return self

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        for k in self.k if self.k != "all" else ():
            if k > depth:
                yield DepthError("k", k, f"1 to {depth} layers can have adapters")
        if "blocks" in self.where and self.block > depth:
            yield DepthError("block", self.block, f"a block can have 1 to {depth} layers")

    def variants(self, depth: int) -> Iterator[Variant]:
        names = dict.fromkeys("adapt_layers" if place in BY_LAYER else "adapt" for place in self.where)
        for name in names:
            yield Variant(ALL_PRETRAINED, 0, is_baseline=True, experiment=name)
        ranks = dict.fromkeys(self.rank)
        lrs = dict.fromkeys(self.peft_lr or (None,))
        for rank, lr, place in product(ranks, lrs, self.where):
            condition = with_lr(place if len(ranks) == 1 else f"{place}, rank {rank}", lr)
            name = "adapt_layers" if place in BY_LAYER else "adapt"
            for x, layers in self._layers(place, depth):
                adapter = Adapter(
                    self.method, layers, as_tuple(self.targets), rank, self.alpha, self.dropout
                ).canonical()
                yield Variant(condition, x, adapter=adapter, experiment=name, lr=lr)

    def _layers(self, place: Place, depth: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Pairs of x and the layers that have adapters."""
        counts = range(1, depth + 1) if self.k == "all" else tuple(dict.fromkeys(self.k))
        if place == "everywhere":
            yield depth, layer_range(1, depth)
        elif place == "first":
            yield from ((k, layer_range(1, k)) for k in counts)
        elif place == "last":
            yield from ((k, layer_range(depth - k + 1, depth)) for k in counts)
        else:
            size = 1 if place == "single" else self.block
            for first in range(1, depth - size + 2):
                yield first, layer_range(first, first + size - 1)

    def summary(self) -> str:
        places = {
            "everywhere": "all layers",
            "first": "the first k layers",
            "last": "the last k layers",
            "single": "each single layer",
            "blocks": f"each block of {counted(self.block, 'layer')}",
        }
        ranks = f" of rank {join_list(self.rank, 'or')}" if self.method == "lora" else ""
        where = join_list([places[place] for place in self.where], "or")
        modules = "" if self.targets == ALL_TARGETS else f" on {join_list(self.targets)}"
        name = {"lora": "LoRA", "ia3": "IA3"}[self.method]
        values = "every k" if self.k == "all" else f"k = {join_list(self.k)}"
        curves = f", for {values}" if {"first", "last"} & set(self.where) else ""
        return f"train {name} adapters{ranks}{modules} in {where}{peft_lr_text(self.peft_lr)}{curves}"


def matching_modules(target: str, modules: tuple[str, ...]) -> list[str]:
    """The modules whose name is `target` or ends in it, after a dot; all of them for "all"."""
    return [m for m in modules if target == ALL_TARGETS or m == target or m.endswith(f".{target}")]
