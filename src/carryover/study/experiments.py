"""The kinds of experiment: what each may be asked, which models it builds, and what it asks in words.

An experiment turns a depth into arrangements: which pretrained layers stand where, and which are drawn anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union

import numpy as np
from pydantic import BeforeValidator, Field, field_validator, model_validator

from carryover.study.errors import close_match, one_of, refuse
from carryover.study.kind import Arrangement, ExperimentKind, Misfit, Names, all_or_numbers, layer_run, listed
from carryover.study.linguistic import NeuronRanking, Selectivity, WordProbing
from carryover.study.sections import Count, CountPerSize, Number, PerSize, as_tuple, at_least_one
from carryover.trial import Pooling, Probe, Recipe

LEAST_ORDERS = 3  # a correlation over fewer has no p value
ALL_PRETRAINED, NONE_PRETRAINED = "all pretrained", "none pretrained"

Recipes = Annotated[tuple[Recipe, ...], BeforeValidator(at_least_one)]
Flags = Annotated[tuple[Annotated[bool, Field(strict=True)], ...], BeforeValidator(at_least_one)]
Factors = Annotated[tuple[Annotated[Number, Field(ge=0)], ...], BeforeValidator(at_least_one)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(as_tuple)]
Keep = Annotated[Literal["all"] | tuple[int | str, ...], all_or_numbers(0, "half", "depth")]
PROBE = Probe(layer=0)  # where the defaults of a probing experiment come from


class _OnTasks(ExperimentKind):
    tasks: Names = Field(default="all", description='Which of the study\'s tasks: "all", or a list of names.')

    @field_validator("tasks")
    @classmethod
    def _has_some(cls, value: Any) -> Any:
        if not value:
            raise ValueError('name at least one task, or leave the key out for "all"')
        return value


class _Finetuning(_OnTasks):
    epochs: CountPerSize | None = Field(default=None, description="In place of [training]'s.", examples=[3])
    lr: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="In place of [training]'s.", examples=[2e-5]
    )


class _Reinitialising(_Finetuning):
    recipe: Recipes | None = Field(
        default=None, description="In place of the study's; a list runs each.", examples=["bert_init"]
    )
    keep_layer_norm: Flags | None = Field(
        default=None, description="In place of the study's; a list runs each.", examples=[[False, True]]
    )
    reinit_lr_factor: Factors = Field(
        default=(1.0,),
        description="Learning rate of re-initialised layers, in multiples of lr; a list runs each.",
    )


class Incremental(_Reinitialising):
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


class Localized(_Reinitialising):
    """Re-initialise one block of consecutive layers, or all layers but the block."""

    kind: Literal["localized"] = "localized"
    block: Count = Field(default=3, description="Layers in a block.")
    mode: Annotated[tuple[Literal["reinitialized", "preserved"], ...], BeforeValidator(at_least_one)] = Field(
        default=("reinitialized", "preserved"),
        description="reinitialized draws the block anew; preserved keeps it and draws all others anew.",
    )

    def misfits(self, depth: int) -> Iterator[Misfit]:
        if self.block > depth:
            yield Misfit("block", self.block, f"a block can have 1 to {depth} layers")

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        yield from _baselines(depth)
        for mode in self.mode:
            for first in range(1, depth - self.block + 2):
                block = layer_run(first, first + self.block - 1)
                others = tuple(n for n in layer_run(1, depth) if n not in block)
                yield Arrangement(f"block {mode}", first, reinit=block if mode == "reinitialized" else others)

    def words(self) -> str:
        does = {
            "reinitialized": "re-initialise it",
            "preserved": "keep it and re-initialise all other layers",
        }
        return f"for each run of {self.block} consecutive layers, {', or '.join(does[m] for m in self.mode)}"


class SingleLayer(_Reinitialising):
    """Re-initialise one layer and keep all others."""

    kind: Literal["single_layer"] = "single_layer"
    layers: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=1)] = Field(
        default="all",
        description='The layers to re-initialise, one at a time: "all", or a list. 1 is the lowest.',
    )

    def misfits(self, depth: int) -> Iterator[Misfit]:
        for layer in self.layers if self.layers != "all" else ():
            if layer > depth:
                yield Misfit("layers", layer, f"the layers are 1 to {depth}")

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        yield from _baselines(depth)
        for layer in layer_run(1, depth) if self.layers == "all" else self.layers:
            yield Arrangement("", layer, reinit=(layer,))

    def words(self) -> str:
        which = "each layer" if self.layers == "all" else f"layers {listed(self.layers)}"
        return f"re-initialise {which}, one at a time"


class Permutation(_Reinitialising):
    """Shuffle the pretrained layers; nothing is re-initialised but in a baseline."""

    kind: Literal["permutation"] = "permutation"
    permutations: Annotated[int, Field(strict=True, ge=LEAST_ORDERS)] = Field(
        default=10,
        description="How many; tasks are correlated over them. The nth is the same for every task and study.",
    )
    baseline_trials: CountPerSize | None = Field(
        default=None,
        description="Trials of the two baselines, if not as many as of each permutation.",
        examples=[3],
    )

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        yield from _baselines(depth)
        for n in range(1, self.permutations + 1):
            order = tuple(int(i) + 1 for i in np.random.RandomState(n).permutation(depth))
            yield Arrangement("permuted", n, order=_unless_identity(order, depth))

    def words(self) -> str:
        return f"shuffle the pretrained layers, in {self.permutations} random orders"


class Prune(_Finetuning):
    """Drop layers and finetune what is left. The embeddings always stay."""

    kind: Literal["prune"] = "prune"
    top: Counts = Field(
        default=(),
        description="How many layers to drop from the top: one number, or a list.",
        examples=[[1, 2]],
    )
    bottom: Counts = Field(
        default=(),
        description="How many layers to drop from the bottom: one number, or a list.",
        examples=[[1, 2]],
    )
    drop: tuple[tuple[Count, ...], ...] = Field(
        default=(),
        description="Lists of layers to drop together, 1 is the lowest: [[7], [8]] makes two models, [[7, 8]] one.",
        examples=[[[2], [1, 4]]],
    )

    @field_validator("drop", mode="before")
    @classmethod
    def _is_clear(cls, value: Any) -> Any:
        """[7, 8] could mean both layers at once or one after the other: the file has to say which."""
        numbers = [n for n in as_tuple(value) if isinstance(n, int)]
        if numbers:
            each, joint = ", ".join(f"[{n}]" for n in numbers), ", ".join(map(str, numbers))
            raise ValueError(
                f"lists of layers are needed: drop = [{each}] makes a model without each of them,"
                f" drop = [[{joint}]] one without all of them"
            )
        return value

    @model_validator(mode="after")
    def _drops_something(self) -> Prune:
        if not (self.top or self.bottom or self.drop):
            refuse(
                ("", "a prune experiment needs at least one of top, bottom and drop, for example top = [6]")
            )
        if not all(self.drop):
            refuse(("drop", "each list needs at least one layer"))
        return self

    def misfits(self, depth: int) -> Iterator[Misfit]:
        for key in ("top", "bottom"):
            for n in getattr(self, key):
                if n >= depth:
                    yield Misfit(key, n, f"1 to {depth - 1} layers can be dropped, so that one is left")
        for dropped in self.drop:
            if max(dropped) > depth:
                yield Misfit("drop", dropped, f"the layers are 1 to {depth}")
            elif len(set(dropped)) == depth:
                yield Misfit("drop", dropped, f"1 to {depth - 1} layers can be dropped, so that one is left")

    def arrangements(self, depth: int) -> Iterator[Arrangement]:
        yield Arrangement(ALL_PRETRAINED, 0, is_baseline=True)
        for n in self.top:
            yield Arrangement("top", n, order=layer_run(1, depth - n))
        for n in self.bottom:
            yield Arrangement("bottom", n, order=layer_run(n + 1, depth))
        for dropped in self.drop:
            order = tuple(layer for layer in layer_run(1, depth) if layer not in dropped)
            yield Arrangement(
                f"listed {','.join(map(str, sorted(set(dropped))))}", depth - len(order), order=order
            )

    def words(self) -> str:
        ends = [("top", self.top), ("bottom", self.bottom)]
        parts = [f"the {end} {listed(numbers, 'or')} layers" for end, numbers in ends if numbers]
        parts += [f"layers {listed(dropped)}" for dropped in self.drop]
        return f"drop {', or '.join(parts)}"


class Probing(_OnTasks):
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
    standardise: Annotated[bool, Field(strict=True)] = Field(
        default=PROBE.standardise,
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


KINDS: dict[str, type[ExperimentKind]] = {
    "incremental": Incremental,
    "localized": Localized,
    "single_layer": SingleLayer,
    "permutation": Permutation,
    "epochs": Epochs,
    "prune": Prune,
    "probing": Probing,
    "word_probing": WordProbing,
    "neurons": NeuronRanking,
    "selectivity": Selectivity,
}


def _from_kind(value: Any) -> Any:
    """Lets "incremental" stand for { kind = "incremental" }, and says which kinds there are."""
    if not isinstance(value, str | dict):
        return value
    kind, key = (value, "") if isinstance(value, str) else (value.get("kind"), "kind")
    if not isinstance(kind, str) or kind not in KINDS:
        near = close_match(kind, KINDS) if isinstance(kind, str) else ""
        refuse((key, f"a kind of experiment is needed;{near} allowed: {one_of(KINDS)}"))
    return {"kind": kind} if isinstance(value, str) else value


Experiment = Annotated[
    Union[  # noqa: UP007
        Incremental,
        Localized,
        SingleLayer,
        Permutation,
        Epochs,
        Prune,
        Probing,
        WordProbing,
        NeuronRanking,
        Selectivity,
    ],
    Field(discriminator="kind"),
    BeforeValidator(_from_kind),
]


def _baselines(depth: int) -> Iterator[Arrangement]:
    yield Arrangement(ALL_PRETRAINED, 0, is_baseline=True)
    yield Arrangement(NONE_PRETRAINED, 0, reinit=layer_run(1, depth), is_baseline=True)


def _unless_identity(order: tuple[int, ...], depth: int) -> tuple[int, ...] | None:
    return None if order == layer_run(1, depth) else order
