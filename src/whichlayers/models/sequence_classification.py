"""Trained classifiers as Hugging Face's sequence classification models, which other libraries load.

`AutoModelForSequenceClassification` computes the same logits: BERT's has a pooler as ours, and the heads of RoBERTa
and MPNet are the pooler and the linear layer in one module. Those of decoders are the last token and a linear layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from whichlayers.models.structure import ModelStructure

# The modules of a sequence classification model that hold the pooler's dense layer and the linear layer.
HEAD_PATHS: dict[str, tuple[str | None, str]] = {
    "bert": (None, "classifier"),  # the pooler is a part of the encoder
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "mpnet": ("classifier.dense", "classifier.out_proj"),
}


def has_equivalent(encoder: PreTrainedModel, head: str) -> bool:
    """Whether Hugging Face has a sequence classification model that computes the same as this encoder and head."""
    return head == "last" or (head == "pooler" and encoder.config.model_type in HEAD_PATHS)


@torch.no_grad()
def to_sequence_classifier(encoder: PreTrainedModel, weight: Tensor, bias: Tensor | None) -> PreTrainedModel:
    """The sequence classification model with the weights of an encoder and its linear layer.

    Args:
        encoder: The finetuned encoder, with its pooler. Its config has the labels.
        weight: (C, H) of the linear layer.
        bias: (C,) of the linear layer; None if it has none.
    """
    model = AutoModelForSequenceClassification.from_config(encoder.config, dtype=torch.float32)
    family = ModelStructure(encoder).family
    dense_path, linear_path = HEAD_PATHS.get(encoder.config.model_type, (None, "score"))
    own = dict(model.base_model.named_parameters())
    for name, value in encoder.named_parameters():
        if name in own:
            own[name].copy_(value)
    if dense_path is not None:
        pooler = encoder.get_submodule(f"{family.pooler}.dense")
        model.get_submodule(dense_path).load_state_dict(pooler.state_dict())
    linear = model.get_submodule(linear_path)
    linear.weight.copy_(weight)  # type: ignore[operator, union-attr]
    if bias is not None:
        linear.bias.copy_(bias)  # type: ignore[operator, union-attr]
    return model.eval()


class LogitsOnly(nn.Module):
    """A sequence classification model that returns its logits (B, C) alone."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Tensor:
        return self.model(**inputs).logits
