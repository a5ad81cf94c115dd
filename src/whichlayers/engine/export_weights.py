"""What a stack has learnt, as the weights of plain encoders: one trial's at a time, in float32, on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from whichlayers.engine.stack_trainer import StackRun


@torch.no_grad()
def encoder_weights(run: StackRun, trial: int) -> dict[str, Tensor]:
    """By their names in the plain encoder; those that the stack does not train are left out."""
    weights = {}
    for i, p in enumerate(run.parameters):
        if not p.name.startswith("encoder."):
            continue
        name, values = p.name.removeprefix("encoder."), run.optimiser.values(i)[trial]
        if p.work is run.words.weight:
            values = _whole_table(run, trial, run.start.pretrained[name], values)
        weights[name] = values.to(device="cpu", dtype=torch.float32, copy=True).contiguous()
    return weights


def _whole_table(run: StackRun, trial: int, pretrained: Tensor, rows: Tensor) -> Tensor:
    """(V, H): a stack holds only the rows that its trial reads, all others keep their values but for decay."""
    local, decay = run.words.local, run.words.decay
    if local is None or decay is None:
        return rows
    table = pretrained.detach().float() * decay[trial]
    touched = local[trial] >= 0  # (V,)
    table[touched] = rows[local[trial][touched].long()].to(table)
    return table


@torch.no_grad()
def with_weights(encoder: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A copy of the encoder with these weights; what they do not name stays as it was pretrained."""
    made = copy.deepcopy(encoder)
    parameters = dict(made.named_parameters())
    for name, value in weights.items():
        parameters[name].copy_(value)
    return made
