"""The adapter experiment: train LoRA or IA3 adapters in some layers of the frozen model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

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
Targets = Literal["all"] | tuple[str, ...]  # the linear modules in a layer that have adapters
METHOD_NAMES: dict[AdapterMethod, str] = {"lora": "LoRA", "ia3": "IA3"}
DEFAULT = Adapter("lora", (), ())
BY_LAYER: tuple[Place, ...] = ("single", "blocks")  # x is a layer; otherwise it is a number of layers


def _targets(value: Any) -> tuple[Targets, ...]:
    """Validator: "all", a list of names, or a list with several of these; as a tuple of "all" and tuples of names."""
    several = any(isinstance(entry, list | tuple) for entry in as_tuple(value))
    entries = [as_tuple(entry) for entry in (as_tuple(value) if several else [value])]
    if entries and all(names and all(isinstance(n, str) and n for n in names) for names in entries):
        return tuple(ALL_TARGETS if ALL_TARGETS in names else names for names in entries)
    raise ValueError(
        'allowed: "all", or a list of names of modules or their ends, such as ["query", "value"], or a list of such'
        ' lists, such as [["query", "value"], ["dense"]], each of which is run'
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
            partly_trained=True,
        ),
        Display(
            name="adapt_layers",
            title="Adapters by layer",
            x_label="(first) layer with adapters",
            description="Adapters are trained in one layer or in one block of layers, together with the head. All "
            "other parameters are frozen.",
            position="layer {:g}".format,
            conditions={"single": "one layer", "blocks": "one block"},
            baselines=ALL_TRAINED,
            costs=True,
            partly_trained=True,
        ),
    )
    method: Annotated[tuple[AdapterMethod, ...], BeforeValidator(at_least_one)] = Field(
        default=(DEFAULT.method,),
        description="lora: low-rank changes of weights (Hu et al. 2022). ia3: a trained factor for each output of a "
        "module (after Liu et al. 2022). With a list, each is run.",
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
    targets: Annotated[tuple[Targets, ...], PlainValidator(_targets)] = Field(
        default=(ALL_TARGETS,),
        description='Linear modules that have adapters: "all" in a layer, or a list of names or ends of names, such as '
        '["query", "value"]; with a list of such lists, each is run.',
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
        unused = self.changed("alpha", "dropout", "rank") if "lora" not in self.method else []
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
        lrs = dict.fromkeys(self.peft_lr or (None,))
        for adapter, lr, place in product(self._adapters(), lrs, self.where):
            name = "adapt_layers" if place in BY_LAYER else "adapt"
            settings = self._settings(adapter, place)
            for x, layers in self._layers(place, depth):
                placed = replace(adapter, layers=layers)
                yield Variant(place, x, adapter=placed, experiment=name, lr=lr, settings=settings)

    def _adapters(self) -> Iterator[Adapter]:
        """The adapters of a layer, by method, targets and rank."""
        for method, targets in product(dict.fromkeys(self.method), dict.fromkeys(self.targets)):
            for rank in dict.fromkeys(self.rank) if method == "lora" else (DEFAULT.rank,):
                yield Adapter(method, (), as_tuple(targets), rank, self.alpha, self.dropout).canonical()

    def _settings(self, adapter: Adapter, place: Place) -> tuple[tuple[str, str], ...]:
        """The settings that may tell these adapters apart from others at the same place."""
        modules = "all modules" if adapter.targets == (ALL_TARGETS,) else " + ".join(adapter.targets)
        settings = [("block", f"of {counted(self.block, 'layer')}")] if place == "blocks" else []
        settings.append(("method", METHOD_NAMES[adapter.method]))
        if adapter.method == "lora":
            settings.append(("rank", f"rank {adapter.rank}"))
        settings.append(("targets", modules))
        if adapter.method == "lora":
            settings += [("alpha", f"alpha {adapter.alpha:g}"), ("dropout", f"dropout {adapter.dropout:g}")]
        return tuple(settings)

    def _layers(self, place: Place, depth: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Pairs of x and the layers that have adapters; `everywhere` has all layers, which first and last leave out."""
        counts = list(range(1, depth + 1) if self.k == "all" else dict.fromkeys(self.k))
        if "everywhere" in self.where and depth in counts:
            counts.remove(depth)
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
        settings = [f"rank {join_list(dict.fromkeys(self.rank), 'or')}"]
        settings += [f"{key} {getattr(self, key):g}" for key in self.changed("alpha", "dropout")]
        methods = {"lora": f"LoRA adapters of {join_list(settings)}", "ia3": "IA3 adapters"}
        adapters = join_list([methods[method] for method in dict.fromkeys(self.method)], "or")
        where = join_list([places[place] for place in self.where], "or")
        targets = dict.fromkeys(self.targets)
        listed = ["all modules" if names == ALL_TARGETS else join_list(names) for names in targets]
        modules = "" if set(targets) == {ALL_TARGETS} else f" on {', or on '.join(listed)}"
        values = "every k" if self.k == "all" else f"k = {join_list(self.k)}"
        curves = f", for {values}" if {"first", "last"} & set(self.where) else ""
        return f"train {adapters}{modules} in {where}{peft_lr_text(self.peft_lr)}{curves}"


def matching_modules(target: str, modules: tuple[str, ...]) -> list[str]:
    """The modules whose name is `target` or ends in it, after a dot; all of them for "all"."""
    return [m for m in modules if target == ALL_TARGETS or m == target or m.endswith(f".{target}")]
