"""The starting point of every trial of a stack: one pretrained encoder, each trial's own surgery on it.

Gives the same values as models.surgery.operate + models.head.build_classifier trial by trial (tested), but
writes them straight into (T, ...) tensors on the device: no trial's model is ever built apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.models.anatomy import Anatomy, is_bias
from whichlayers.models.head import CLASSIFIER_SD, Classifier, build_classifier, mean_states
from whichlayers.models.surgery import check_order, initial_values, reorder
from whichlayers.trial import Trial


def template_of(encoder: PreTrainedModel, trials: Sequence[Trial], n_outputs: int) -> Classifier:
    """A plain classifier with the architecture that all trials of a stack share; its values are not theirs."""
    anatomy, order = Anatomy(encoder), trials[0].surgery.order
    for trial in trials:
        if trial.surgery.order is not None:
            check_order(anatomy, trial.surgery.order)
    base = encoder
    if order is not None and (len(order) < anatomy.depth or anatomy.family.first_layer_stays):
        base = reorder(encoder, order)
    heads = {t.head for t in trials}
    template = build_classifier(base, "pooler" if "pooler" in heads else "mean", n_outputs, seed=0)
    if len(heads) == 2:
        return MixedHeadClassifier(template, torch.tensor([t.head == "pooler" for t in trials]))
    return template


class MixedHeadClassifier(Classifier):
    """A classifier for a stack in which some trials read the pooler and others the mean."""

    pooled_trials: Tensor

    def __init__(self, plain: Classifier, pooled_trials: Tensor):
        nn.Module.__init__(self)
        self.head, self.takes_token_types = plain.head, plain.takes_token_types
        self.encoder, self.dropout, self.classifier = plain.encoder, plain.dropout, plain.classifier
        self.register_buffer("pooled_trials", pooled_trials, persistent=False)  # (T,) bool

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        types = (
            {"token_type_ids": token_type_ids}
            if self.takes_token_types and token_type_ids is not None
            else {}
        )
        outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types)
        mean = mean_states(outputs.last_hidden_state, attention_mask)  # (T*B, H)
        pooled_rows = self.pooled_trials.repeat_interleave(len(input_ids) // len(self.pooled_trials))
        features = torch.where(pooled_rows[:, None], outputs.pooler_output, mean)
        return self.classifier(self.dropout(features))


class StartingValues:
    """What each plain parameter is at step 0, for all trials at once."""

    def __init__(self, encoder: PreTrainedModel, trials: Sequence[Trial]):
        self.trials = list(trials)
        self.anatomy = Anatomy(encoder)
        self.pretrained = dict(encoder.named_parameters())
        self.layer_norms = self.anatomy.layer_norm_names()
        depth = self.anatomy.depth
        for trial in self.trials:
            top = depth if trial.surgery.order is None else len(trial.surgery.order)
            wrong = [n for n in trial.surgery.reinit if not 1 <= n <= top]
            if wrong:
                raise WhichlayersError(
                    f"there is no layer {wrong[0]} to re-initialise: layers are 1 to {top}"
                )

    def layer_of(self, name: str) -> int | None:
        """The layer of a classifier's parameter; None for the head, the pooler and what layers share."""
        return self.anatomy.layer_of(name.removeprefix("encoder.")) if name.startswith("encoder.") else None

    def is_norm_or_bias(self, name: str) -> bool:
        return is_bias(name) or name.removeprefix("encoder.") in self.layer_norms

    def values(self, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """(T, *shape) float32; `name` as in the classifier, with its "encoder." or "classifier." prefix."""
        if name.startswith("classifier."):
            if name.endswith("bias"):
                return torch.zeros(len(self.trials), *shape, device=device)
            rows = [rng.normal(t.seed, name, shape, CLASSIFIER_SD, device) for t in self.trials]
            return torch.stack(rows)
        inner = name.removeprefix("encoder.")
        layer = self.anatomy.layer_of(inner)
        result = torch.empty(len(self.trials), *shape, device=device)
        drawn: dict[tuple[int, str, bool], Tensor | None] = {}  # trials of one seed and recipe draw alike
        for t, trial in enumerate(self.trials):
            surgery = trial.surgery
            new = None
            if layer and layer in surgery.reinit:
                key = (trial.seed, surgery.recipe, surgery.keep_layer_norm)
                if key not in drawn:
                    drawn[key] = initial_values(
                        inner,
                        shape,
                        inner in self.layer_norms,
                        is_bias(inner),
                        surgery.recipe,
                        trial.seed,
                        device,
                        keep_layer_norm=surgery.keep_layer_norm,
                    )
                new = drawn[key]
            if new is None:
                new = self.pretrained[self._source_name(inner, layer, surgery.order)].detach()
            result[t].copy_(new)
        return result

    def _source_name(self, inner: str, layer: int | None, order: tuple[int, ...] | None) -> str:
        """Which pretrained parameter stands at this place under a trial's order of layers."""
        if not layer or order is None:
            return inner
        prefix = re.escape(self.anatomy.family.layers)
        return re.sub(rf"^{prefix}\.\d+\.", f"{self.anatomy.family.layers}.{order[layer - 1] - 1}.", inner)
