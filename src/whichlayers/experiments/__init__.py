"""The kinds of experiment that a study file can list, and their registry."""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import BeforeValidator, Field

from whichlayers.config.errors import close_match, one_of, refuse
from whichlayers.experiments.base import Experiment
from whichlayers.experiments.epochs import Epochs
from whichlayers.experiments.incremental import Incremental
from whichlayers.experiments.localized import Localized
from whichlayers.experiments.neurons import NeuronRanking
from whichlayers.experiments.permutation import Permutation
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.prune import Prune
from whichlayers.experiments.selectivity import Selectivity
from whichlayers.experiments.single_layer import SingleLayer
from whichlayers.experiments.word_probing import WordProbing

KINDS: dict[str, type[Experiment]] = {
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


AnyExperiment = Annotated[
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
