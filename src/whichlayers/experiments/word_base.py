"""Base classes of the word-level experiments: word probing, neuron ranking, selectivity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from whichlayers.config.errors import refuse
from whichlayers.config.sections import Count, CountPerSize, Number, at_least_one
from whichlayers.experiments.base import SHARED_KEYS, Experiment, Names, listed
from whichlayers.trial import Norm, SubWord, WordProbe

PRETRAINED = "pretrained"  # the model that was not finetuned, in names of conditions
PLAIN = WordProbe("", "")
Share = Annotated[Number, Field(gt=0, le=1)]
Shares = Annotated[tuple[Share, ...], BeforeValidator(at_least_one)]
Lambda = Annotated[Number, Field(ge=0)]
WORD_KEYS = (
    *("corpora", "finetuned_on", PRETRAINED, "vector", "standardize"),
    *("l2_norm", "probe_epochs", "probe_batch_size", "probe_lr"),
)


@dataclass(frozen=True)
class Question:
    """A point of an experiment, before it is known which corpus and which model it is asked of."""

    experiment: str
    aspect: str  # what follows the name of the model in the point's condition
    x: float
    settings: dict[str, Any]  # of Words


class WordExperiment(Experiment):
    corpora: Names = Field(
        default="all", description='Which of the study\'s corpora: "all", or a list of names.'
    )
    finetuned_on: Names = Field(
        default="all",
        description='Tasks that the model is finetuned on before it is asked: "all" of the study\'s, or a list.',
    )
    pretrained: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="Measure the model as it was pretrained, too."
    )
    vector: SubWord = Field(
        default=PLAIN.vector,
        description="Which of its sub-words stand for a word: last, first or mean (of all).",
    )
    standardize: Annotated[bool, Field(strict=True)] = Field(
        default=PLAIN.standardize,
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

    def asked(self, depth: int) -> Iterator[tuple[Question, WordProbe]]:
        """Every question with all of its settings; the corpus is still to be named."""
        shared = {
            "lambdas": self.lambdas(),
            "vector": self.vector,
            "standardize": self.standardize,
            "norm": self.l2_norm,
            "epochs": self.probe_epochs,
            "batch_size": self.probe_batch_size,
            "lr": self.probe_lr,
        }
        for question in self.questions(depth):
            yield question, WordProbe("", "", **{**shared, **question.settings}).canonical()


class RankingExperiment(WordExperiment):
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
    def _has_both(self) -> RankingExperiment:
        if (self.l1 is None) != (self.l2 is None):
            refuse(("l1" if self.l1 is None else "l2", "give both l1 and l2, or neither for a grid search"))
        return self

    def lambdas(self) -> tuple[float, float] | None:
        return None if self.l1 is None or self.l2 is None else (self.l1, self.l2)


def percent(share: float) -> float:
    return float(f"{100 * share:.6g}")


def share_list(shares: tuple[float, ...]) -> str:
    return listed([f"{percent(share):g}%" for share in shares], "or")
