"""Rank neurons and probe the top, bottom and random ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from whichlayers.config.sections import Number, as_tuple, at_least_one
from whichlayers.experiments.base import layer_run, listed
from whichlayers.experiments.word_base import PLAIN, Question, RankingExperiment, percent, share_list
from whichlayers.trial import Ranking


class NeuronRanking(RankingExperiment):
    """Rank all neurons by what they say of a word's tag, and see what the best and the worst are worth alone."""

    kind: Literal["neurons"] = "neurons"
    sets: Annotated[tuple[Literal["top", "bottom", "random"], ...], BeforeValidator(as_tuple)] = Field(
        default=("top", "bottom", "random"), description="The sets that a probe is trained on anew."
    )
    rankings: Annotated[tuple[Ranking, ...], BeforeValidator(at_least_one)] = Field(
        default=("lca",),
        description="lca (Linguistic Correlation Analysis: by the size of the weights of a probe trained on all "
        "neurons) or probeless (by how far the tags' mean activations lie apart; no probe); a list runs each.",
    )
    spread: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="Count how many of the top neurons lie in each layer."
    )
    smallest: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="Look for the smallest set of top neurons that is about as accurate as all."
    )
    delta: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=PLAIN.delta, description="How much less accurate the smallest set may be."
    )

    def chooses(self) -> bool:
        return self.smallest or super().chooses()

    def questions(self, depth: int) -> Iterator[Question]:
        yield Question(self.kind, "all neurons", 100, {})
        for ranking in self.rankings:
            suffix = "" if ranking == "lca" else f", {ranking}"
            for share in self.shares:
                for which in self.sets if ranking == "lca" else [s for s in self.sets if s != "random"]:
                    settings: dict[str, Any] = {"neurons": which, "share": share, "ranking": ranking}
                    yield Question(self.kind, f"{which}{suffix}", percent(share), settings)
                for layer in layer_run(0, depth) if self.spread else ():
                    settings = {"measure": "spread", "neurons": "top", "share": share, "layer": layer}
                    settings["ranking"] = ranking
                    yield Question("neuron_spread", f"top {percent(share):g}%{suffix}", layer, settings)
            if self.smallest:
                settings = {"measure": "neurons", "neurons": "top", "delta": self.delta, "ranking": ranking}
                yield Question("smallest_set", suffix.removeprefix(", "), percent(self.delta), settings)

    def words(self) -> str:
        sets = f"and train on the {listed(self.sets)} {share_list(self.shares)} alone" if self.sets else ""
        return f"rank all neurons by what they say of a word's tag {sets}".rstrip()
