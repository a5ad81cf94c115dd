"""Which parameters a trial trains, which frozen parameters all trials of a stack share, and dropout in frozen layers.

A parameter that is frozen in every trial and has the same value in all of them is kept once, without a trial axis: its
module stays the plain Hugging Face one, which computes one matrix product over the rows of all trials. It has no
gradient and no optimizer state, and no backward pass runs below the lowest trained layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.init_weights import InitialWeights
from whichlayers.engine.stacking import StackedModel
from whichlayers.models.structure import is_bias
from whichlayers.trial import Trial

ADAPTER = "adapter"  # attribute of a module that holds its adapter


def lr_factor(initial: InitialWeights, trial: Trial, name: str) -> float:
    """The learning rate of a classifier's parameter in a trial, as a multiple of lr; 0: frozen.

    The head, including the pooler, is always trained; of a model with adapters, nothing but these and the head is.
    Parameters that all layers use, such as relative positions, have the factor of the embeddings. Those above the
    layers, such as a final norm, are frozen with the last layer.
    """
    inner = name.removeprefix("encoder.")
    if not name.startswith("encoder.") or initial.structure.is_pooler(inner):
        return 1.0
    if trial.adapter is not None:
        return float(f".{ADAPTER}." in inner)
    if trial.training.parameters == "biases" and not is_bias(inner):
        return 0.0
    if trial.training.parameters == "norms" and inner not in initial.layer_norms:
        return 0.0
    factors = dict(trial.training.lr_factors)
    layer = initial.structure.layer_of(inner)
    if layer is not None:
        return factors.get(layer, 1.0)
    if initial.structure.is_for_all_layers(inner):
        return factors.get(0, 1.0)
    return 0.0 if factors.get(initial.depth_of(trial), 1.0) == 0 else 1.0


def shared_parameters(initial: InitialWeights, trials: Sequence[Trial], names: Iterable[str]) -> set[str]:
    """The parameters that no trial trains and that have the same value in all trials."""
    return {
        name
        for name in names
        if name.startswith("encoder.")
        # relative positions are looked up by patched code, which needs a trial axis; they are small
        and not initial.structure.is_for_all_layers(name.removeprefix("encoder."))
        and all(lr_factor(initial, trial, name) == 0 for trial in trials)
        and initial.common_source(name) is not None
    }


def frozen_layers(initial: InitialWeights, trials: Sequence[Trial]) -> set[int]:
    """The layers without a parameter that any trial trains; 0 is the embeddings."""
    trained, layers = {n for t in trials for n in (t.adapter.layers if t.adapter else ())}, set[int]()
    for inner in initial.pretrained:
        layer = initial.structure.layer_of(inner)
        if layer is None or layer > initial.depth_of(trials[0]):
            continue
        layers.add(layer)
        if layer not in trained and any(lr_factor(initial, t, f"encoder.{inner}") > 0 for t in trials):
            trained.add(layer)
    return layers - trained


def set_dropout(model: StackedModel, initial: InitialWeights, trials: Sequence[Trial]) -> None:
    """Set the dropout probability of the trials, and 0 in frozen layers if `frozen_dropout` is off, in place."""
    training = trials[0].training
    frozen = set() if training.frozen_dropout else frozen_layers(initial, trials)
    for name, module in model.module.named_modules():
        if not isinstance(module, StackedDropout) or f".{ADAPTER}." in name:  # adapters have their own
            continue
        if training.dropout is not None:
            module.p = training.dropout
        if initial.layer_of(name) in frozen:
            module.p = 0.0
