"""Word probing: a linear probe of word tags on each layer, before and after finetuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from whichlayers.experiments.base import DepthError, all_or_numbers, format_layers, layer_range
from whichlayers.experiments.display import Display
from whichlayers.experiments.word_base import Lambda, ProbeVariant, WordExperiment


class WordProbing(WordExperiment):
    """Train a linear probe of word tags on each layer, before and after finetuning."""

    kind: Literal["word_probing"] = "word_probing"
    displays = (
        Display(
            name="word_probing",
            title="Word-level probing by layer",
            x_label="layer probed (0: embeddings)",
            description="A linear probe is trained to predict the tags of words from the hidden states of one layer, "
            "for the pretrained model and for the model finetuned on a task.",
            plot="by_layer",
            position="layer {:g}".format,
        ),
    )
    layers: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=0)] = Field(
        default="all", description='Layers to probe: "all", or a list. 0 is the embeddings.'
    )
    l1: Lambda = Field(default=0.0, description="Weight of the L1 penalty.")
    l2: Lambda = Field(default=0.0, description="Weight of the L2 penalty (see l2_norm).")

    def depth_errors(self, depth: int) -> Iterator[DepthError]:
        for layer in self.layers if self.layers != "all" else ():
            if layer > depth:
                yield DepthError(
                    "layers", layer, f"allowed are layers 1 to {depth}, and 0 for the embeddings"
                )

    def lambdas(self) -> tuple[float, float]:
        return self.l1, self.l2

    def probe_variants(self, depth: int) -> Iterator[ProbeVariant]:
        for layer in layer_range(0, depth) if self.layers == "all" else self.layers:
            yield ProbeVariant(self.kind, "", layer, {"neurons": "layer", "layer": layer})

    def summary(self) -> str:
        which = "each layer" if self.layers == "all" else format_layers(self.layers)
        return f"train a linear probe of word tags on {which}, before and after finetuning"
