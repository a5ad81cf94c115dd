"""The kinds of experiment that ask what layers and neurons know of words, before and after finetuning.

Each asks its questions of the model as it was pretrained, and of the model finetuned on each of the study's
tasks, for every corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from carryover.study.errors import refuse
from carryover.study.kind import SHARED_KEYS, ExperimentKind, Misfit, Names, all_or_numbers, layer_run, listed
from carryover.study.sections import Count, CountPerSize, Number, as_tuple, at_least_one
from carryover.trial import Norm, Ranking, SubWord, Words

PRETRAINED = "pretrained"  # the model that was not finetuned, in names of conditions
PLAIN = Words("", "")
Share = Annotated[Number, Field(gt=0, le=1)]
Shares = Annotated[tuple[Share, ...], BeforeValidator(at_least_one)]
Lambda = Annotated[Number, Field(ge=0)]
WORD_KEYS = (
    *("corpora", "finetuned_on", PRETRAINED, "vector", "standardise"),
    *("l2_norm", "probe_epochs", "probe_batch_size", "probe_lr"),
)


@dataclass(frozen=True)
class Question:
    """A point of an experiment, before it is known which corpus and which model it is asked of."""

    experiment: str
    aspect: str  # what follows the name of the model in the point's condition
    x: float
    settings: dict[str, Any]  # of Words


class LinguisticKind(ExperimentKind):
    corpora: Names = Field(
        default="all", description='Which of the study\'s corpora: "all", or a list of names.'
    )
    finetuned_on: Names = Field(
        default="all",
        description='Tasks that the model is finetuned on before it is asked: "all" of the study\'s, or a list.',
    )
    pretrained: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="Ask the model as it was pretrained, too."
    )
    vector: SubWord = Field(
        default=PLAIN.vector,
        description="Which of its sub-words stand for a word: last, first or mean (of all).",
    )
    standardise: Annotated[bool, Field(strict=True)] = Field(
        default=PLAIN.standardise,
        description="Give every neuron mean 0 and standard deviation 1 over the training words before a probe reads "
        "it.",
    )
    l2_norm: Norm = Field(
        default=PLAIN.norm,
        description="What l2 weighs: the sum of the squared weights, or its root (plain), as NeuroX does.",
    )
    probe_epochs: Count = Field(default=PLAIN.epochs, description="Passes of a probe over the words.")
    probe_batch_size: Count = Field(default=PLAIN.batch_size, description="Words in a step of a probe.")
    probe_lr: Annotated[Number, Field(gt=0)] = Field(
        default=PLAIN.lr, description="Learning rate of a probe (Adam)."
    )
    epochs: CountPerSize | None = Field(default=None, description="In place of [training]'s.", examples=[3])
    lr: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="In place of [training]'s.", examples=[2e-5]
    )

    @classmethod
    def key_order(cls) -> list[str]:
        """Its own first, then those about words, then those that all experiments share."""
        return sorted(cls.model_fields, key=lambda key: (key != "kind", key in SHARED_KEYS, key in WORD_KEYS))

    def lambdas(self) -> tuple[float, float] | None:
        raise NotImplementedError

    def chooses(self) -> bool:
        """Whether lambdas or sets are chosen by sentences that are not trained on."""
        return self.lambdas() is None

    def asks_about(self, corpus: str) -> bool:
        return self.corpora == "all" or corpus in self.corpora

    def questions(self, depth: int) -> Iterator[Question]:
        raise NotImplementedError

    def asked(self, depth: int) -> Iterator[tuple[Question, Words]]:
        """Every question with all of its settings; the corpus is still to be named."""
        shared = {
            "lambdas": self.lambdas(),
            "vector": self.vector,
            "standardise": self.standardise,
            "norm": self.l2_norm,
            "epochs": self.probe_epochs,
            "batch_size": self.probe_batch_size,
            "lr": self.probe_lr,
        }
        for question in self.questions(depth):
            yield question, Words("", "", **{**shared, **question.settings}).canonical()


class WordProbing(LinguisticKind):
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


class _Ranking(LinguisticKind):
    shares: Shares = Field(default=(0.05,), description="Sizes of the sets, as shares of all neurons.")
    l1: Lambda | None = Field(
        default=None,
        description="Weight of the sum of the absolute weights. Left out with l2: found by a grid search.",
        examples=[1e-3],
    )
    l2: Lambda | None = Field(
        default=None, description="Weight of the sum of the squared weights (see l2_norm).", examples=[1e-2]
    )

    @model_validator(mode="after")
    def _has_both(self) -> _Ranking:
        if (self.l1 is None) != (self.l2 is None):
            refuse(("l1" if self.l1 is None else "l2", "give both l1 and l2, or neither for a grid search"))
        return self

    def lambdas(self) -> tuple[float, float] | None:
        return None if self.l1 is None or self.l2 is None else (self.l1, self.l2)


class NeuronRanking(_Ranking):
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
                    settings = {"ask": "spread", "neurons": "top", "share": share, "layer": layer}
                    settings["ranking"] = ranking
                    yield Question("neuron_spread", f"top {percent(share):g}%{suffix}", layer, settings)
            if self.smallest:
                settings = {"ask": "neurons", "neurons": "top", "delta": self.delta, "ranking": ranking}
                yield Question("smallest_set", suffix.removeprefix(", "), percent(self.delta), settings)

    def words(self) -> str:
        sets = f"and train on the {listed(self.sets)} {_shares(self.shares)} alone" if self.sets else ""
        return f"rank all neurons by what they say of a word's tag {sets}".rstrip()


class Selectivity(_Ranking):
    """Compare probes with a control task, in which every word type has one random tag."""

    kind: Literal["selectivity"] = "selectivity"
    description_length: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="Measure how far a probe compresses the tags (online code), too."
    )

    def questions(self, depth: int) -> Iterator[Question]:
        asks: list[tuple[str, str]] = [(self.kind, "selectivity")]
        asks += [("description_length", "compression")] if self.description_length else []
        for experiment, ask in asks:
            yield Question(experiment, "all neurons", 100, {"ask": ask})
            for share in self.shares:
                settings = {"ask": ask, "neurons": "top", "share": share}
                yield Question(experiment, "top", percent(share), settings)

    def words(self) -> str:
        return f"hold probes of all neurons and of the top {_shares(self.shares)} against a control task"


def percent(share: float) -> float:
    return float(f"{100 * share:.6g}")


def _shares(shares: tuple[float, ...]) -> str:
    return listed([f"{percent(share):g}%" for share in shares], "or")
