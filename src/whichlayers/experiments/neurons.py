"""Neuron ranking: rank all neurons for a tagging task, then probe the top, bottom and random ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from whichlayers.config.sections import Number
from whichlayers.config.validators import as_tuple, at_least_one
from whichlayers.experiments.base import layer_range
from whichlayers.experiments.display import EMBEDDINGS_NOTE, Display
from whichlayers.experiments.word_base import (
    DEFAULTS,
    SET_SIZE,
    ProbeVariant,
    RankingExperiment,
    format_percentages,
    percent,
)
from whichlayers.text import join_list
from whichlayers.trial import Ranking


class NeuronExperiment(RankingExperiment):
    """Rank all neurons by how well they predict the tags of words, and probe the top, bottom and random ones."""

    kind: Literal["neurons"] = "neurons"
    displays = (
        Display(
            name="neurons",
            title="Top, bottom and random neurons",
            x_label="finetuned on",
            description="A linear probe for the tags of words is trained on all neurons of all layers, and again on "
            "only the top, bottom or random neurons.",
            plot="by_model",
            x_column=SET_SIZE,
            x_names={100: "all"},
        ),
        Display(
            name="neuron_spread",
            title="Distribution of the top neurons",
            x_label=f"layer {EMBEDDINGS_NOTE}",
            description="Fraction of the top neurons, those most informative about the tags of words, in each layer.",
            plot="by_layer",
            position="layer {:g}".format,
        ),
        Display(
            name="smallest_set",
            title="Smallest set of neurons",
            x_label="finetuned on",
            description="Fraction of all neurons that a probe needs, most informative first, to be nearly as accurate "
            "as with all neurons.",
            plot="by_model",
            x_column="delta (points)",
            shared_y=True,
            sets="ranking",
        ),
    )
    sets: Annotated[tuple[Literal["top", "bottom", "random"], ...], BeforeValidator(as_tuple)] = Field(
        default=("top", "bottom", "random"), description="Neuron sets on which a new probe is trained."
    )
    rankings: Annotated[tuple[Ranking, ...], BeforeValidator(at_least_one)] = Field(
        default=("lca",),
        description="Ranking method: lca (Linguistic Correlation Analysis: by the absolute weights of a probe trained "
        "on all neurons) or probeless (by the distances between the mean activations of the tags, without a probe); "
        "with a list, each is run.",
    )
    spread: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="Whether to count how many of the top neurons lie in each layer."
    )
    smallest: Annotated[bool, Field(strict=True)] = Field(
        default=True,
        description="Whether to search for the smallest set of top neurons that is about as accurate as all neurons.",
    )
    delta: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=DEFAULTS.delta, description="Accuracy that the smallest set may lose."
    )

    def needs_validation_data(self) -> bool:
        return self.smallest or super().needs_validation_data()

    def probe_variants(self, depth: int) -> Iterator[ProbeVariant]:
        yield ProbeVariant(self.kind, "all neurons", 100, {})
        for ranking in self.rankings:
            suffix = "" if ranking == "lca" else f", {ranking}"
            for share in self.shares:
                for name in self.sets if ranking == "lca" else [s for s in self.sets if s != "random"]:
                    settings: dict[str, Any] = {"neurons": name, "share": share, "ranking": ranking}
                    yield ProbeVariant(self.kind, f"{name}{suffix}", percent(share), settings)
                for layer in layer_range(0, depth) if self.spread else ():
                    settings = {"measure": "spread", "neurons": "top", "share": share, "layer": layer}
                    settings["ranking"] = ranking
                    yield ProbeVariant("neuron_spread", f"top {percent(share):g}%{suffix}", layer, settings)
            if self.smallest:
                settings = {"measure": "neurons", "neurons": "top", "delta": self.delta, "ranking": ranking}
                yield ProbeVariant("smallest_set", suffix.removeprefix(", "), percent(self.delta), settings)

    def summary(self) -> str:
        text = "rank all neurons by how well they predict the tags of words"
        if self.sets:
            text += (
                f", and train probes on the {join_list(self.sets)} {format_percentages(self.shares)} alone"
            )
        return text
