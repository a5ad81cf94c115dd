"""A linear probe of word tags on each layer, before and after finetuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from whichlayers.experiments.base import Misfit, all_or_numbers, layer_run, listed
from whichlayers.experiments.word_base import Lambda, Question, WordExperiment


class WordProbing(WordExperiment):
    """Train a linear classifier of the words' tags on each layer, before and after finetuning."""

    kind: Literal["word_probing"] = "word_probing"
    layers: Annotated[Literal["all"] | tuple[int, ...], all_or_numbers(lowest=0)] = Field(
        default="all", description='The layers to probe: "all", or a list. 0 is the embeddings.'
    )
    l1: Lambda = Field(
        default=0.0, description="Weight of the sum of the absolute weights in a probe's loss."
    )
    l2: Lambda = Field(default=0.0, description="Weight of the sum of the squared weights (see l2_norm).")

    def misfits(self, depth: int) -> Iterator[Misfit]:
        for layer in self.layers if self.layers != "all" else ():
            if layer > depth:
                yield Misfit("layers", layer, f"the layers are 1 to {depth}, 0 is the embeddings")

    def lambdas(self) -> tuple[float, float]:
        return self.l1, self.l2

    def questions(self, depth: int) -> Iterator[Question]:
        for layer in layer_run(0, depth) if self.layers == "all" else self.layers:
            yield Question(self.kind, "", layer, {"neurons": "layer", "layer": layer})

    def words(self) -> str:
        which = "each layer" if self.layers == "all" else f"layers {listed(self.layers)}"
        return f"train a linear classifier of the words' tags on {which}, before and after finetuning"
