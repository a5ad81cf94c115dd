"""A model with a task head: mean of the last hidden states, last token or pretrained pooler, dropout, linear layer.

With head = "last" the head of a decoder is that of Hugging Face's ...ForSequenceClassification: the hidden state of the
last token before the padding, and a linear layer without a bias.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from whichlayers import rng
from whichlayers.errors import WhichlayersError
from whichlayers.models.families import FAMILIES
from whichlayers.models.structure import ModelStructure
from whichlayers.trial import Head

CLASSIFIER_STD = 0.02


class Classifier(nn.Module):
    """A base model with a task head. `build_classifier` initializes the weights of the head."""

    def __init__(self, encoder: PreTrainedModel, head: Head, n_outputs: int):
        super().__init__()
        if head not in get_args(Head):
            raise WhichlayersError(f"unknown head {head!r}: choose one of {', '.join(get_args(Head))}.")
        if head == "pooler" and not has_pooler(encoder):
            raise WhichlayersError(
                f'head = "pooler" needs a pretrained pooler, but this {encoder.config.model_type} model was saved '
                'without one. Use head = "mean", or a model that was saved with its pooler.'
            )
        family = ModelStructure(encoder).family
        if head == "last" and not family.causal:
            raise WhichlayersError(
                f'head = "last" is for decoders, whose last token has seen all others; this is a '
                f'{encoder.config.model_type} model. Use head = "mean".'
            )
        if family.causal:
            encoder.config.use_cache = False  # keys and values of earlier calls, for generating text
        self.head = head
        self.takes_token_types = takes_token_types(encoder)
        self.encoder = encoder
        self.dropout = nn.Identity() if head == "last" else nn.Dropout(dropout_of(encoder.config))
        # OPT-350m projects its output to the width of the word embeddings
        width = getattr(encoder.config, "word_embed_proj_dim", encoder.config.hidden_size)
        self.classifier = nn.Linear(width, n_outputs, bias=head != "last")

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Logits, or the regression output, of shape (B, n_outputs). All inputs have shape (B, L)."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.takes_token_types and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        features = self.features(self.encoder(**inputs), attention_mask)  # (B, H)
        return self.classifier(self.dropout(features))  # (B, n_outputs)

    def features(self, outputs: Any, attention_mask: Tensor) -> Tensor:
        """Input of the linear layer, (B, H), from the outputs of the encoder."""
        if self.head == "pooler":
            return outputs.pooler_output
        if self.head == "last":
            return cls_states(outputs.last_hidden_state, attention_mask, "last")
        return mean_states(outputs.last_hidden_state, attention_mask)


def build_classifier(encoder: PreTrainedModel, head: Head, n_outputs: int, seed: int) -> Classifier:
    """A classifier on a copy of the encoder, with weights from Normal(0, 0.02) determined by the seed alone.

    Unless head = "pooler", the copy has no pooler, which would be computed at every step without being used.
    """
    classifier = Classifier(copy.deepcopy(encoder), head, n_outputs)
    family = ModelStructure(encoder).family
    if head != "pooler" and family.pooler is not None:
        setattr(classifier.encoder, family.pooler, None)
    linear = classifier.classifier
    device = classifier.encoder.device
    linear.to(device)
    with torch.no_grad():
        linear.weight.copy_(
            rng.normal(seed, "classifier.weight", linear.weight.shape, CLASSIFIER_STD, device)
        )
        if linear.bias is not None:
            linear.bias.zero_()
    return classifier


def mean_states(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean of the hidden states over all tokens but padding: (B, L, H) and a mask (B, L) give (B, H)."""
    mask = attention_mask.unsqueeze(-1).to(hidden.dtype)  # (B, L, 1)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


def cls_states(hidden: Tensor, attention_mask: Tensor, cls_position: str) -> Tensor:
    """Hidden state of the [CLS] token: (B, L, H) and a mask (B, L) give (B, H).

    `cls_position` is that of the model's family: "first", or "last" for the last token before the padding.
    """
    if cls_position == "first":
        return hidden[:, 0]
    last = attention_mask.long().sum(1) - 1  # (B,)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]  # (B, H)


def dropout_of(config: Any) -> float:
    """Dropout on hidden states in a model's config; 0 if its family has none."""
    key = FAMILIES[config.model_type].dropout
    return 0.0 if key is None else float(getattr(config, key))


def has_pooler(encoder: PreTrainedModel) -> bool:
    """Whether the encoder has a pooler; `load_encoder` keeps it only if its weights are pretrained."""
    pooler = ModelStructure(encoder).family.pooler
    return pooler is not None and getattr(encoder, pooler, None) is not None


def takes_token_types(encoder: PreTrainedModel) -> bool:
    """Whether the encoder uses token_type_ids; RoBERTa has a single token type and DeBERTa often none.

    GPT-2 would add them to its word embeddings, but was not pretrained with any.
    """
    if (
        ModelStructure(encoder).family.causal
        or "token_type_ids" not in inspect.signature(encoder.forward).parameters
    ):
        return False
    return getattr(encoder.config, "type_vocab_size", 2) > 1  # XLNet has no such key and two types
