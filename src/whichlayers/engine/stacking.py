"""T copies of a Hugging Face model as one module: `stack(models)`, and `unstack` to get one back.

The stacked module is a deep copy of the plain one in which the modules that own parameters carry a leading
trial axis (see leaves.py) and everything else is Hugging Face's own code. Parameter names stay as they are:
`encoder.layer.0.output.dense.weight` has shape (T, out, in).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from whichlayers.engine.attention import stacked_attention
from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.family_patches import ROWS_SECOND, SiteCounter, patch_family
from whichlayers.engine.stacked_modules import (
    StackContext,
    StackedEmbedding,
    StackedLayerNorm,
    StackedLinear,
)
from whichlayers.errors import WhichlayersError
from whichlayers.rng import scramble

ATTENTION = "whichlayers_stacked"
GOLDEN = -1640531527  # 2**32 / golden ratio as int32: spreads consecutive numbers


def _stacked_mask(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor:
    """Hugging Face's mask as an additive one, made on the device without asking it anything."""
    kwargs["allow_is_bidirectional_skip"] = False  # 'is nothing padded?' is such a question
    allowed = sdpa_mask(*args, **kwargs)  # (T*B, 1, L, L) bool
    assert allowed is not None
    additive = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return additive.masked_fill(~allowed, torch.finfo(dtype).min)


AttentionInterface.register(ATTENTION, stacked_attention)
AttentionMaskInterface.register(ATTENTION, _stacked_mask)


class Stack(nn.Module):
    """T models in one. Call it with (T*B, L) inputs: row r belongs to trial r // B."""

    def __init__(self, template: nn.Module, trials: int, rows: Mapping[str, list[Tensor]] | None = None):
        """`template` is copied; `rows` maps an embedding's module name to the rows each trial trains."""
        super().__init__()
        if trials < 1:
            raise WhichlayersError(f"a stack needs at least one trial, not {trials}")
        encoders = [m for m in template.modules() if isinstance(m, PreTrainedModel)]
        if not encoders:
            raise WhichlayersError(
                f"cannot stack a {type(template).__name__}: it holds no Hugging Face encoder"
            )
        model_type = encoders[0].config.model_type
        self.context = StackContext(trials, rows_dim=int(model_type in ROWS_SECOND))
        # copy everything but the tables that only lend rows: they are large, and shared as they are
        lent = {
            id(template.get_submodule(name).weight): template.get_submodule(name).weight
            for name in rows or {}
        }
        self.model = copy.deepcopy(template, memo=dict(lent))
        self._swap_leaves(rows or {})
        for config in (_config_of(m) for m in self.model.modules()):
            if getattr(config, "_attn_implementation", None) is not None:
                config._attn_implementation = ATTENTION
        unstacked = [n for n, p in self.named_parameters() if p.requires_grad and not self._is_stacked(n)]
        if unstacked:
            raise WhichlayersError(
                f"cannot stack {model_type}: {unstacked[0]} lies in a module of a type that no patch knows "
                f"({len(unstacked)} such parameters). See engine/patches.py for what a family must provide."
            )

    def _swap_leaves(self, rows: Mapping[str, list[Tensor]]) -> None:
        sites, context = SiteCounter(), self.context
        for name, module in list(self.model.named_modules()):
            new: nn.Module | None = None
            if isinstance(module, nn.Linear):
                new = StackedLinear(module, context)
            elif isinstance(module, nn.LayerNorm):
                new = StackedLayerNorm(module, context)
            elif isinstance(module, nn.Embedding):
                new = StackedEmbedding(module, context, rows.get(name))
            elif isinstance(module, nn.Dropout):
                new = StackedDropout(module.p, sites.next(), context)
            if new is not None:
                parent, _, leaf = name.rpartition(".")
                setattr(self.model.get_submodule(parent), leaf, new)
        for module in self.model.modules():  # where Hugging Face's attention functions find their dropout
            site = getattr(module, "dropout", None)
            is_attention = hasattr(module, "is_causal") or type(module).__name__.endswith("SelfAttention")
            if isinstance(site, StackedDropout) and is_attention:
                module.attention_dropout_site = site
        encoder = next(m for m in self.model.modules() if isinstance(m, PreTrainedModel))
        patch_family(encoder, encoder.config.model_type, context, sites)

    def _is_stacked(self, name: str) -> bool:
        owner = self.get_submodule(name.rpartition(".")[0])
        return getattr(owner, "context", None) is self.context

    @property
    def trials(self) -> int:
        return self.context.trials

    def set_keys(self, trial_keys: Tensor, step: Tensor, batch: int) -> None:
        """Choose this step's dropout masks: trial_keys (T,) int32, step () int32."""
        step_keys = scramble(trial_keys + step * GOLDEN)  # (T,)
        row = torch.arange(batch, dtype=torch.int32, device=trial_keys.device)
        self.context.row_keys = scramble(step_keys[:, None] + row * 83492791).flatten()  # (T*B,)

    def forward(self, input_ids: Tensor, **inputs: Any) -> Any:
        rows = input_ids.shape[0]
        if rows % self.trials:
            raise ValueError(f"{rows} rows do not divide into {self.trials} trials")
        keys = self.context.row_keys
        if keys is None or keys.shape[0] != rows:
            if self.training and any(isinstance(m, StackedDropout) and m.p > 0 for m in self.modules()):
                raise RuntimeError("set_keys first: dropout masks depend on the trial and the step")
            self.context.row_keys = torch.zeros(rows, dtype=torch.int32, device=input_ids.device)
        return self.model(input_ids, **inputs)

    @torch.no_grad()
    def fill(self, trial: int, model: nn.Module) -> None:
        """Copy a plain model's parameters into one slot."""
        own = dict(self.model.named_parameters())
        for name, p in model.named_parameters():
            if own[name].requires_grad or own[name].dim() == p.dim() + 1:
                own[name][trial].copy_(p)

    @torch.no_grad()
    def write_into(self, trial: int, plain: nn.Module) -> nn.Module:
        """Copy one slot's parameters into a plain model of the same architecture."""
        for name, p in plain.named_parameters():
            p.copy_(self.value_of(name, trial))
        return plain

    def value_of(self, name: str, trial: int) -> Tensor:
        """The value of a plain parameter in one slot."""
        owner_name, _, leaf = name.rpartition(".")
        owner = self.model.get_submodule(owner_name)
        if isinstance(owner, StackedEmbedding):
            return owner.whole_table(trial)
        p = getattr(owner, leaf).detach()
        return p[trial] if getattr(owner, "context", None) is self.context else p


def stack(models: Sequence[nn.Module]) -> Stack:
    """One module that computes all `models` at once. They must share one architecture."""
    if not models:
        raise WhichlayersError("a stack needs at least one model, got none")
    first = _architecture(models[0])
    for i, model in enumerate(models[1:], start=1):
        other = _architecture(model)
        if other != first:
            differs = min(n for n in first.keys() | other.keys() if first.get(n) != other.get(n))
            raise WhichlayersError(
                f"models 0 and {i} cannot share a stack: {differs or 'the model'} is {first.get(differs)} in one "
                f"and {other.get(differs)} in the other. Stack models of one architecture."
            )
    stacked = Stack(models[0], len(models))
    for i, model in enumerate(models[1:], start=1):
        stacked.fill(i, model)
    return stacked


def _config_of(module: Any) -> Any:
    return getattr(module, "config", None)


def _architecture(model: nn.Module) -> dict[str, str]:
    """Module types and parameter shapes by name."""
    kinds = {n: type(m).__name__ for n, m in model.named_modules()}
    return kinds | {n: str(tuple(p.shape)) for n, p in model.named_parameters()}


def unstack(stacked: Stack, trial: int, like: nn.Module) -> nn.Module:
    """Trial `trial` as a plain model; `like` gives the architecture and is not changed."""
    if not 0 <= trial < stacked.trials:
        raise WhichlayersError(f"trial {trial} is not in this stack: 0 to {stacked.trials - 1} are")
    return stacked.write_into(trial, copy.deepcopy(like))
