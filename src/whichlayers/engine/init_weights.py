"""Initial weights of all trials of a stack: the pretrained encoder with each trial's surgery, and new heads.

The values equal those of models.surgery and models.head.build_classifier applied trial by trial (tested), but are
written directly into (T, ...) tensors on the device, without building a model per trial.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from whichlayers import rng
from whichlayers.models.families import layers_differ
from whichlayers.models.head import CLASSIFIER_STD, Classifier, build_classifier, mean_states
from whichlayers.models.structure import ModelStructure, is_bias
from whichlayers.models.surgery import (
    STATISTICS_RECIPES,
    check_layers,
    check_order,
    initial_values,
    reorder,
)
from whichlayers.trial import Trial


def build_template(encoder: PreTrainedModel, trials: Sequence[Trial], n_outputs: int) -> Classifier:
    """A plain classifier with the architecture that all trials of a stack share; its weights are not used."""
    structure, order = ModelStructure(encoder), trials[0].surgery.order
    for trial in trials:
        if trial.surgery.order is not None:
            check_order(structure, trial.surgery.order)
    base = encoder
    if order is not None and (len(order) < structure.depth or layers_differ(encoder.config)):
        base = reorder(encoder, order)
    heads = {t.head for t in trials}
    if heads == {"last"}:
        return build_classifier(base, "last", n_outputs, seed=0)
    template = build_classifier(base, "pooler" if "pooler" in heads else "mean", n_outputs, seed=0)
    if len(heads) == 2:
        return MixedHeadClassifier(template, torch.tensor([t.head == "pooler" for t in trials]))
    return template


class MixedHeadClassifier(Classifier):
    """A classifier for a stack in which some trials use the pooler and others the mean of the hidden states.

    Args:
        plain: A classifier with a pooler, whose modules are used.
        pooled_trials: (T,) bool, which trials use the pooler.
    """

    pooled_trials: Tensor

    def __init__(self, plain: Classifier, pooled_trials: Tensor):
        nn.Module.__init__(self)
        self.head, self.takes_token_types = plain.head, plain.takes_token_types
        self.encoder, self.dropout, self.classifier = plain.encoder, plain.dropout, plain.classifier
        self.register_buffer("pooled_trials", pooled_trials, persistent=False)  # (T,) bool

    def features(self, outputs: Any, attention_mask: Tensor) -> Tensor:
        """Input of the linear layer, (T*B, H): each trial's own."""
        mean = mean_states(outputs.last_hidden_state, attention_mask)  # (T*B, H)
        pooled_rows = self.pooled_trials.repeat_interleave(len(attention_mask) // len(self.pooled_trials))
        return torch.where(pooled_rows[:, None], outputs.pooler_output, mean)


class InitialWeights:
    """Initial value of every parameter, for all trials at once.

    Args:
        encoder: The pretrained encoder.
        trials: The trials of the stack.
    """

    def __init__(self, encoder: PreTrainedModel, trials: Sequence[Trial]):
        self.trials = list(trials)
        self.structure = ModelStructure(encoder)
        self.pretrained = dict(encoder.named_parameters())
        self.layer_norms = self.structure.layer_norm_names()
        for trial in self.trials:
            check_layers(trial.surgery.reinit, self.depth_of(trial))

    def depth_of(self, trial: Trial) -> int:
        """Number of layers of a trial's model."""
        return self.structure.depth if trial.surgery.order is None else len(trial.surgery.order)

    def layer_of(self, name: str) -> int | None:
        """Layer of a classifier's parameter; None for the head, the pooler and parameters that layers share."""
        return self.structure.layer_of(name.removeprefix("encoder.")) if name.startswith("encoder.") else None

    def is_norm_or_bias(self, name: str) -> bool:
        """Whether a classifier's parameter is a bias or belongs to a layer norm."""
        return is_bias(name) or name.removeprefix("encoder.") in self.layer_norms

    def values(self, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Initial values of one parameter for all trials.

        Args:
            name: Parameter name in the classifier, starting with "encoder." or "classifier.".
            shape: Shape of the parameter in a plain model.
            device: Where to create the tensor.

        Returns:
            (T, *shape) float32.
        """
        if name.startswith("classifier."):
            return self._head_values(name, shape, device)
        if name.rpartition(".")[2] in ("ia3", "lora_a", "lora_b"):
            return self._adapter_values(name, shape, device)
        return self._encoder_values(name.removeprefix("encoder."), shape, device)

    def _head_values(self, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Weight or bias of the linear layer of the head."""
        if name.endswith("bias"):
            return torch.zeros(len(self.trials), *shape, device=device)
        seeds = [trial.seed_of("head") for trial in self.trials]
        return torch.stack([rng.normal(seed, name, shape, CLASSIFIER_STD, device) for seed in seeds])

    def _adapter_values(self, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Parameter of an adapter, which does not change the output of its module at the start."""
        kind = name.rpartition(".")[2]
        if kind == "ia3":
            return torch.ones(len(self.trials), *shape, device=device)
        if kind == "lora_b":
            return torch.zeros(len(self.trials), *shape, device=device)
        # lora_a: uniform, as torch initializes linear layers
        bound, seeds = shape[-1] ** -0.5, [trial.seed_of("init") for trial in self.trials]
        drawn = [rng.uniform(seed, name, shape, device) for seed in seeds]
        return (torch.stack(drawn) * 2 - 1) * bound

    def _encoder_values(self, inner: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Parameter of the encoder, by its name there: pretrained or re-initialized."""
        layer = self.structure.layer_of(inner)
        result = torch.empty(len(self.trials), *shape, device=device)
        drawn: dict[tuple[Any, ...], Tensor | None] = {}  # trials with one seed and recipe share values
        for t, trial in enumerate(self.trials):
            surgery, seed = trial.surgery, trial.seed_of("init")
            source = self._source_name(inner, layer, surgery.order)
            pretrained, new = self.pretrained[source].detach(), None
            if self._is_new(inner, layer, trial):
                key: tuple[Any, ...] = (seed, surgery.recipe, surgery.keep_layer_norm)
                if surgery.recipe in STATISTICS_RECIPES:
                    key = (*key, source)
                if key not in drawn:
                    drawn[key] = initial_values(
                        inner,
                        pretrained.to(device),
                        inner in self.layer_norms,
                        is_bias(inner),
                        surgery.recipe,
                        seed,
                        surgery.keep_layer_norm,
                        self.structure.own_init(inner, self.depth_of(trial)),
                    )
                new = drawn[key]
            result[t].copy_(pretrained if new is None else new)
        return result

    def common_source(self, name: str) -> Tensor | None:
        """The pretrained parameter that all trials start from; None if they do not start from the same values."""
        inner = name.removeprefix("encoder.")
        layer = self.structure.layer_of(inner)
        if any(self._is_new(inner, layer, trial) for trial in self.trials):
            return None
        sources = {self._source_name(inner, layer, trial.surgery.order) for trial in self.trials}
        return self.pretrained[sources.pop()].detach() if len(sources) == 1 else None

    def _is_new(self, inner: str, layer: int | None, trial: Trial) -> bool:
        """Whether a trial re-initializes a parameter of the encoder; some recipes keep parts of a layer even so."""
        if layer is None:
            return trial.surgery.reinit_pooler and self.structure.is_pooler(inner)
        return layer > 0 and layer in trial.surgery.reinit

    def _source_name(self, inner: str, layer: int | None, order: tuple[int, ...] | None) -> str:
        """Name of the pretrained parameter that a trial's layer order puts in this place."""
        if not layer or order is None:
            return inner
        prefix = re.escape(self.structure.family.layers)
        return re.sub(rf"^{prefix}\.\d+\.", f"{self.structure.family.layers}.{order[layer - 1] - 1}.", inner)
