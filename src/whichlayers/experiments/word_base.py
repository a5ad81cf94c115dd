"""Base classes of the word-level experiments: word probing, neuron ranking, selectivity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from whichlayers.config.errors import raise_problems
from whichlayers.config.sections import Count, CountPerSize, Number
from whichlayers.config.validators import at_least_one
from whichlayers.experiments.base import SHARED_KEYS, Experiment, Names
from whichlayers.text import join_list
from whichlayers.trial import Norm, Subword, WordProbe

DEFAULTS = WordProbe("", "")
SET_SIZE = "set (% of neurons)"  # x of the probes of sets of neurons
Share = Annotated[Number, Field(gt=0, le=1)]
Shares = Annotated[tuple[Share, ...], BeforeValidator(at_least_one)]
Lambda = Annotated[Number, Field(ge=0)]
WORD_KEYS = (
    *("corpora", "finetuned_on", "pretrained", "vector", "standardize"),
    *("l2_norm", "probe_epochs", "probe_batch_size", "probe_lr"),
)


@dataclass(frozen=True)
class ProbeVariant:
    """One word probe: a point of a word-level experiment, before corpus, model and seed are chosen.

    Args:
        experiment: Name of the experiment in the results.
        label: Part of the point's condition after the name of the finetuning task; may be empty.
        x: Position on the curve.
        settings: Fields of `WordProbe` that differ from those of the experiment.
    """

    experiment: str
    label: str
    x: float
    settings: dict[str, Any]


class WordExperiment(Experiment):
    """Base class of the experiments that probe words of a tagged corpus, before and after finetuning."""

    corpora: Names = Field(
        default="all", description='Corpora of the study to use: "all", or a list of names.'
    )
    finetuned_on: Names = Field(
        default="all",
        description='Tasks that the model is finetuned on before it is probed: "all", or a list of names. [] probes '
        "only the pretrained model.",
    )
    pretrained: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="Whether to also probe the pretrained model, without finetuning."
    )
    vector: Subword = Field(
        default=DEFAULTS.vector,
        description="Which subwords represent a word: last, first or mean (of all its subwords).",
    )
    standardize: Annotated[bool, Field(strict=True)] = Field(
        default=DEFAULTS.standardize,
        description="Scale each neuron to mean 0 and standard deviation 1 on the training words.",
    )
    l2_norm: Norm = Field(
        default=DEFAULTS.norm,
        description="L2 penalty: squared (sum of the squared weights) or plain (its square root, as in NeuroX).",
    )
    probe_epochs: Count = Field(default=DEFAULTS.epochs, description="Number of epochs of a probe.")
    probe_batch_size: Count = Field(default=DEFAULTS.batch_size, description="Words per step of a probe.")
    probe_lr: Annotated[Number, Field(gt=0)] = Field(
        default=DEFAULTS.lr, description="Learning rate of a probe (Adam)."
    )
    epochs: CountPerSize | None = Field(
        default=None, description="Number of epochs, in place of the one in [training].", examples=[3]
    )
    lr: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="Learning rate, in place of the one in [training].", examples=[2e-5]
    )

    @classmethod
    def key_order(cls) -> list[str]:
        """The experiment's own keys, then those of word-level experiments, then those of all experiments."""
        return sorted(cls.model_fields, key=lambda key: (key != "kind", key in SHARED_KEYS, key in WORD_KEYS))

    def lambdas(self) -> tuple[float, float] | None:
        """Weights of the L1 and the L2 penalty; None for a grid search."""
        raise NotImplementedError

    def needs_validation_data(self) -> bool:
        """Whether lambdas or neuron sets are selected on held-out sentences."""
        return self.lambdas() is None

    def uses_corpus(self, name: str) -> bool:
        """Whether the experiment probes words of this corpus."""
        return self.corpora == "all" or name in self.corpora

    def probe_variants(self, depth: int) -> Iterator[ProbeVariant]:
        """All probes of a model with `depth` layers. Requires that `depth_errors` is empty."""
        raise NotImplementedError

    def word_probes(self, depth: int) -> Iterator[tuple[ProbeVariant, WordProbe]]:
        """Each probe variant with its complete settings; the corpus is left empty."""
        shared = {
            "lambdas": self.lambdas(),
            "vector": self.vector,
            "standardize": self.standardize,
            "norm": self.l2_norm,
            "epochs": self.probe_epochs,
            "batch_size": self.probe_batch_size,
            "lr": self.probe_lr,
        }
        for variant in self.probe_variants(depth):
            yield variant, WordProbe("", "", **{**shared, **variant.settings}).canonical()


class RankingExperiment(WordExperiment):
    """Base class of the experiments that rank neurons."""

    shares: Shares = Field(
        default=(0.05,), description="Sizes of the neuron sets, as fractions of all neurons."
    )
    l1: Lambda | None = Field(
        default=None,
        description="Weight of the L1 penalty. Default, if l2 is not given either: found by a grid search.",
        examples=[1e-3],
    )
    l2: Lambda | None = Field(
        default=None,
        description="Weight of the L2 penalty (see l2_norm). Default: found by a grid search.",
        examples=[1e-2],
    )

    @model_validator(mode="after")
    def _check_lambdas(self) -> RankingExperiment:
        if (self.l1 is None) != (self.l2 is None):
            missing = "l1" if self.l1 is None else "l2"
            raise_problems((missing, "give both l1 and l2, or neither for a grid search"))
        return self

    def lambdas(self) -> tuple[float, float] | None:
        return None if self.l1 is None or self.l2 is None else (self.l1, self.l2)


def percent(share: float) -> float:
    """A fraction as a percentage, without rounding errors of floats: 0.07 -> 7.0."""
    return float(f"{100 * share:.6g}")


def format_percentages(shares: tuple[float, ...]) -> str:
    """(0.05, 0.1) -> "5% or 10%" """
    return join_list([f"{percent(share):g}%" for share in shares], "or")
