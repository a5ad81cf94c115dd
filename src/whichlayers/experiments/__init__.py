"""Kinds of experiment that a study file can list, by name."""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import BeforeValidator, Field

from whichlayers.config.errors import close_match, format_choices, raise_problems
from whichlayers.experiments.base import Experiment
from whichlayers.experiments.epochs import Epochs
from whichlayers.experiments.incremental import Incremental
from whichlayers.experiments.localized import Localized
from whichlayers.experiments.neurons import NeuronExperiment
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
    "neurons": NeuronExperiment,
    "selectivity": Selectivity,
}


def _check_kind(value: Any) -> Any:
    """Expand "incremental" to {"kind": "incremental"}; report an unknown kind together with the known ones."""
    if not isinstance(value, str | dict):
        return value
    kind, key = (value, "") if isinstance(value, str) else (value.get("kind"), "kind")
    if not isinstance(kind, str) or kind not in KINDS:
        suggestion = close_match(kind, KINDS) if isinstance(kind, str) else ""
        raise_problems((key, f"must be a kind of experiment;{suggestion} allowed: {format_choices(KINDS)}"))
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
        NeuronExperiment,
        Selectivity,
    ],
    Field(discriminator="kind"),
    BeforeValidator(_check_kind),
]
