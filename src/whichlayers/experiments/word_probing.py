"""Word probing: a linear probe of word tags on each layer, before and after finetuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from whichlayers.config.errors import raise_problems
from whichlayers.experiments.base import DepthError, all_or_numbers, format_layers, layer_range
from whichlayers.experiments.display import EMBEDDINGS_NOTE, Display
from whichlayers.experiments.word_base import Lambda, ProbeVariant, WordExperiment


class WordProbing(WordExperiment):
    """Train a linear probe of word tags on each layer, before and after finetuning."""

    kind: Literal["word_probing"] = "word_probing"
    displays = (
        Display(
            name="word_probing",
            title="Word-level probing by layer",
            x_label=f"layer probed {EMBEDDINGS_NOTE}",
            description="A linear probe is trained to predict the tags of words from the hidden states of one layer, "
            "for the pretrained model and for the model finetuned on a task.",
            plot="by_layer",
            position="layer {:g}".format,
            relative_depth=True,
        ),
        Display(
            name="layer_selectivity",
            title="Selectivity by layer (accuracy minus control task)",
            x_label=f"layer probed {EMBEDDINGS_NOTE}",
            description="Accuracy of a linear probe of one layer minus its accuracy on a control task in which every "
            "word type has a random tag.",
            plot="by_layer",
            position="layer {:g}".format,
            relative_depth=True,
        ),
        Display(
            name="layer_description_length",
            title="Description length by layer",
            x_label=f"layer probed {EMBEDDINGS_NOTE}",
            description="Compression by a probe of one layer: how many times shorter the online code of the tags is "
            "than a uniform code.",
            plot="by_layer",
            position="layer {:g}".format,
            relative_depth=True,
        ),
    )
    layers: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=0)] = Field(
        default="all", description='Layers to probe: "all", or a list. 0 is the embeddings.'
    )
    l1: Lambda = Field(default=0.0, description="Weight of the L1 penalty.")
    l2: Lambda = Field(default=0.0, description="Weight of the L2 penalty (see l2_norm).")
    search: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description="Whether l1 and l2 are found by a grid search, one pair per pretrained model and corpus, as in "
        "neurons and in the paper.",
    )
    selectivity: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description="Whether to also measure the selectivity of each layer, with a control task.",
    )
    description_length: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description="Whether to also measure the compression of the tags by a probe of each layer (description "
        "length, online code).",
    )

    @model_validator(mode="after")
    def _check_search(self) -> WordProbing:
        if self.search and (self.l1 or self.l2):
            key = "l1" if self.l1 else "l2"
            raise_problems((key, f"search = true finds l1 and l2: remove {key}, or search"))
        return self

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        for layer in self.layers if self.layers != "all" else ():
            if layer > depth:
                yield DepthError(
                    "layers", layer, f"allowed are layers 1 to {depth}, and 0 for the embeddings"
                )

    def lambdas(self) -> tuple[float, float] | None:
        return None if self.search else (self.l1, self.l2)

    def probe_variants(self, depth: int) -> Iterator[ProbeVariant]:
        measures: list[tuple[str, str]] = [(self.kind, "accuracy")]
        measures += [("layer_selectivity", "selectivity")] if self.selectivity else []
        measures += [("layer_description_length", "compression")] if self.description_length else []
        for experiment, measure in measures:
            for layer in layer_range(0, depth) if self.layers == "all" else self.layers:
                settings = {"neurons": "layer", "layer": layer, "measure": measure}
                yield ProbeVariant(experiment, "", layer, settings)

    def summary(self) -> str:
        which = "each layer" if self.layers == "all" else format_layers(self.layers)
        control = ", and of a control task" if self.selectivity or self.description_length else ""
        return f"train a linear probe of word tags{control} on {which}, before and after finetuning"
