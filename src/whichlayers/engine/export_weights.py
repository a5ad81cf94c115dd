"""Export a trial's finetuned weights from a stack as the weights of a plain Hugging Face encoder."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.engine.adapters import adapter_deltas
from whichlayers.engine.freezing import ADAPTER

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackTrainer


@torch.no_grad()
def encoder_weights(trainer: StackTrainer, trial: int, with_head: bool = False) -> dict[str, Tensor]:
    """One trial's encoder weights by parameter name, in float32 on the CPU, without those that no trial trains.

    Adapters are merged into the weights. With `with_head`, also those of its linear layer, classifier.weight and
    classifier.bias, and the parameters of its adapters, such as MODULE.adapter.lora_a.
    """
    weights = {}
    for i, p in enumerate(trainer.parameters):
        prefixes = ("encoder.", "classifier.") if with_head else ("encoder.",)
        if not p.name.startswith(prefixes) or f".{ADAPTER}." in p.name:
            continue
        name, values = p.name.removeprefix("encoder."), trainer.optimizer.values(i)[trial]
        if (embeddings := trainer.word_embeddings) is not None and p.param is embeddings.weight:
            values = embeddings.full_table(trial, values, trainer.initial_weights.pretrained[name].detach())
        weights[name] = values.to(device="cpu", dtype=torch.float32, copy=True).contiguous()
    for name, param in trainer.model.module.named_parameters():  # merge the adapters into the weights
        inner = name.removeprefix("encoder.")
        own = (
            trainer.initial_weights.common_source(name)
            if name in trainer.shared_names
            else weights.get(inner)
        )
        if own is None:
            continue
        if (delta := adapter_deltas(trainer, name, own.to(param.device)[None])) is not None:
            weights[inner] = (own.float().cpu() + delta[trial].cpu()).contiguous()
    if with_head:
        adapters = [(i, p.name) for i, p in enumerate(trainer.parameters) if f".{ADAPTER}." in p.name]
        for i, name in adapters:
            values = trainer.optimizer.values(i)[trial]
            weights[name.removeprefix("encoder.")] = values.to("cpu", torch.float32, copy=True).contiguous()
    return weights


@torch.no_grad()
def with_weights(encoder: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A copy of the encoder with the given weights; all other parameters keep their values."""
    result = copy.deepcopy(encoder)
    parameters = dict(result.named_parameters())
    for name, value in weights.items():
        parameters[name].copy_(value)
    return result
