"""Kinds of experiment that a study file can list, and how the results of each are displayed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Field

from whichlayers.config.errors import format_choices, raise_problems
from whichlayers.config.synonyms import suggest_experiment
from whichlayers.experiments.adapt import Adapt
from whichlayers.experiments.base import Experiment, TaskExperiment
from whichlayers.experiments.display import Display, generic_display
from whichlayers.experiments.epochs import Epochs
from whichlayers.experiments.freeze import Freeze
from whichlayers.experiments.incremental import Incremental
from whichlayers.experiments.localized import Localized
from whichlayers.experiments.lr_decay import LrDecay
from whichlayers.experiments.neurons import NeuronExperiment
from whichlayers.experiments.permutation import Permutation
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.prune import Prune
from whichlayers.experiments.selectivity import Selectivity
from whichlayers.experiments.single_layer import SingleLayer
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.experiments.word_probing import WordProbing

KINDS: dict[str, type[Experiment]] = {  # in the order of the report
    "incremental": Incremental,
    "localized": Localized,
    "single_layer": SingleLayer,
    "permutation": Permutation,
    "epochs": Epochs,
    "prune": Prune,
    "freeze": Freeze,
    "lr_decay": LrDecay,
    "adapt": Adapt,
    "probing": Probing,
    "word_probing": WordProbing,
    "neurons": NeuronExperiment,
    "selectivity": Selectivity,
}
DISPLAYS = {display.name: display for kind in KINDS.values() for display in kind.displays}


def display_of(experiment: str) -> Display:
    """Display of an experiment by its name in the results; a generic one if this version does not know it."""
    return DISPLAYS.get(experiment) or generic_display(experiment)


def sort_experiments(experiments: Iterable[str]) -> list[str]:
    """Distinct names of experiments in the results: those in `DISPLAYS` in its order, then others by name."""
    order = list(DISPLAYS)
    return sorted(set(experiments), key=lambda e: (order.index(e) if e in order else len(order), e))


def _check_kind(value: Any) -> Any:
    """Expand "incremental" to {"kind": "incremental"}; report an unknown kind together with the known ones."""
    if not isinstance(value, str | dict):
        return value
    kind, key = (value, "") if isinstance(value, str) else (value.get("kind"), "kind")
    if not isinstance(kind, str) or kind not in KINDS:
        suggestion = suggest_experiment(kind, KINDS) if isinstance(kind, str) else ""
        raise_problems((key, f"must be a kind of experiment;{suggestion} allowed: {format_choices(KINDS)}"))
    return {"kind": kind} if isinstance(value, str) else value


if TYPE_CHECKING:
    AnyExperiment = TaskExperiment | WordExperiment
else:  # a section of a study file, parsed as the class of its kind
    AnyExperiment = Annotated[
        Union[tuple(KINDS.values())],  # noqa: UP007
        Field(discriminator="kind"),
        BeforeValidator(_check_kind),
    ]
