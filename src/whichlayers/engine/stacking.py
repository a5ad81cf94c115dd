"""Stack T copies of a Hugging Face model into one module: `stack_models`, and `unstack_model` to get one back.

The stacked model is a deep copy of a plain one in which the modules that own parameters have a leading trial axis (see
stacked_modules.py); everything else is Hugging Face's code. Parameters keep their names:
`encoder.layer.0.output.dense.weight` has shape (T, out, in).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.pytorch_utils import Conv1D

from whichlayers.engine.attention import stacked_attention
from whichlayers.engine.decoder_modules import (
    RoundedConv1D,
    StackedConv1D,
    StackedOPTPositions,
    StackedRMSNorm,
)
from whichlayers.engine.dropout import StackedDropout
from whichlayers.engine.family_patches import (
    SEQUENCE_FIRST_FAMILIES,
    DropoutCounter,
    add_attention_dropout,
    patch_family,
)
from whichlayers.engine.stacked_modules import (
    RoundedLinear,
    StackContext,
    StackedEmbedding,
    StackedLayerNorm,
    StackedLinear,
)
from whichlayers.errors import WhichlayersError
from whichlayers.models.families import family_of
from whichlayers.models.structure import is_norm
from whichlayers.rng import scramble
from whichlayers.text import counted

ATTENTION = "whichlayers_stacked"
GOLDEN = -1640531527  # 2**32 / golden ratio as int32; its multiples are spread evenly
ROW_STRIDE = 83492791


def _additive_mask(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor:
    """Hugging Face's attention mask as an additive one (T*B, 1, L, L), computed without device synchronization."""
    kwargs["allow_is_bidirectional_skip"] = False  # the check whether anything is padded would synchronize
    kwargs["allow_is_causal_skip"] = False
    allowed = sdpa_mask(*args, **kwargs)  # (T*B, 1, L, L) bool
    assert allowed is not None
    additive = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return additive.masked_fill(~allowed, torch.finfo(dtype).min)


AttentionInterface.register(ATTENTION, stacked_attention)
AttentionMaskInterface.register(ATTENTION, _additive_mask)


ROUNDED_CLASSES: dict[type, type] = {nn.Linear: RoundedLinear, Conv1D: RoundedConv1D}  # of frozen modules


class StackedModel(nn.Module):
    """T models as one module. Its inputs are (T*B, L), where row r belongs to trial r // B.

    Args:
        template: A plain model with the architecture of all trials, which is copied.
        trials: Number of trials (T).
        rows: Maps the names of embedding modules to the rows that each trial trains, see `StackedEmbedding`.
        shared: Names of parameters that are frozen and the same in all trials. A module that has no others stays as it
            is; biases and layer norms of which a part is trained have a trial axis nevertheless.
        row_multiple: Round the number of rows up to a multiple of this.
    """

    def __init__(
        self,
        template: nn.Module,
        trials: int,
        rows: Mapping[str, list[Tensor]] | None = None,
        shared: Collection[str] = (),
        row_multiple: int = 1,
    ):
        super().__init__()
        if trials < 1:
            raise WhichlayersError(f"a stack needs at least one trial, got {trials}")
        encoders = [m for m in template.modules() if isinstance(m, PreTrainedModel)]
        if not encoders:
            raise WhichlayersError(
                f"cannot stack a {type(template).__name__}: it does not contain a Hugging Face encoder"
            )
        model_type = encoders[0].config.model_type
        self.family = family_of(model_type)
        self.row_multiple = row_multiple
        self.context = StackContext(trials, batch_dim=int(model_type in SEQUENCE_FIRST_FAMILIES))
        # copy everything except what trials share: it is large and not modified
        parameters = dict(template.named_parameters())
        kept = [template.get_submodule(name).weight for name in rows or {}] + [parameters[n] for n in shared]
        self.module = copy.deepcopy(template, memo={id(p): p for p in kept})
        self._replace_modules(rows or {}, frozenset(shared))
        for config in (_config_of(m) for m in self.module.modules()):
            if getattr(config, "_attn_implementation", None) is not None:
                config._attn_implementation = ATTENTION
        unstacked = [n for n, p in self.named_parameters() if p.requires_grad and not self._is_stacked(n)]
        if unstacked:
            raise WhichlayersError(
                f"cannot stack {model_type}: {unstacked[0]} belongs to a module of an unsupported type"
                f" ({counted(len(unstacked), 'such parameter')}). Add a patch for this model type to"
                " whichlayers/engine/family_patches.py."
            )

    def _replace_modules(self, rows: Mapping[str, list[Tensor]], shared: frozenset[str]) -> None:
        """Replace linear, norm, Embedding and Dropout modules by their stacked versions, in place."""
        counter, context = DropoutCounter(), self.context
        for name, module in list(self.module.named_modules()):
            new: nn.Module | None = None
            own = {p for p, _ in module.named_parameters(recurse=False)}
            common = frozenset(p for p in own if f"{name}.{p}" in shared)
            if own and own == common:
                for attribute in own:
                    getattr(module, attribute).requires_grad_(False)
                continue
            if isinstance(module, nn.Linear):
                new = StackedLinear(module, context, common)
            elif isinstance(module, nn.LayerNorm):
                new = StackedLayerNorm(module, context)
            elif is_norm(module):
                new = StackedRMSNorm(module, context, zero_centered=self.family.norm_weight == 0.0)
            elif isinstance(module, Conv1D):
                new = StackedConv1D(module, context, common)
            elif isinstance(module, nn.Embedding):
                new = self._stacked_embedding(module, rows.get(name))
            elif isinstance(module, nn.Dropout):
                new = StackedDropout(module.p, counter.next(), context)
            if new is not None:
                parent, _, attribute = name.rpartition(".")
                setattr(self.module.get_submodule(parent), attribute, new)
        for module in self.module.modules():  # the attention functions look up `stacked_dropout`
            dropout = getattr(module, "dropout", None)
            is_attention = hasattr(module, "is_causal") or type(module).__name__.endswith("SelfAttention")
            if isinstance(dropout, StackedDropout) and is_attention:
                module.stacked_dropout = dropout
        encoder = next(m for m in self.module.modules() if isinstance(m, PreTrainedModel))
        patch_family(encoder, encoder.config.model_type, context, counter)
        add_attention_dropout(encoder, context, counter)

    def _stacked_embedding(self, module: nn.Embedding, rows: list[Tensor] | None) -> StackedEmbedding:
        """The stacked version of an embedding; subclasses change what an embedding computes."""
        if type(module).__name__ == "OPTLearnedPositionalEmbedding":
            return StackedOPTPositions(module, self.context)
        if type(module) is not nn.Embedding and not hasattr(module, "embed_scale"):
            raise WhichlayersError(
                f"cannot stack {type(module).__name__}, a kind of embedding that is not supported. Add it to"
                " whichlayers/engine/stacking.py."
            )
        embedding = StackedEmbedding(module, self.context, rows, self.row_multiple)
        embedding.freeze_padding = self.family.causal
        return embedding

    def _is_stacked(self, name: str) -> bool:
        owner = self.get_submodule(name.rpartition(".")[0])
        return getattr(owner, "context", None) is self.context

    @property
    def trials(self) -> int:
        return self.context.trials

    def round_linear_layers(self, dtype: torch.dtype) -> None:
        """Let linear layers round their operands to `dtype`; frozen weights that all trials share are kept in it."""
        self.context.linear_dtype = dtype
        for module in self.module.modules():
            frozen = type(module) in ROUNDED_CLASSES
            if frozen or "weight" in getattr(module, "shared_names", ()):
                module.weight.data = module.weight.data.to(dtype)  # type: ignore[operator, union-attr]
            if frozen:
                module.__class__ = ROUNDED_CLASSES[type(module)]

    def set_dropout_keys(self, trial_keys: Tensor, step: Tensor, batch_size: int) -> None:
        """Set the dropout keys of a step: trial_keys (T,) int32, step () int32."""
        step_keys = scramble(trial_keys + step * GOLDEN)  # (T,)
        row = torch.arange(batch_size, dtype=torch.int32, device=trial_keys.device)
        self.context.row_keys = scramble(step_keys[:, None] + row * ROW_STRIDE).flatten()  # (T*B,)

    def forward(self, input_ids: Tensor, **inputs: Any) -> Any:
        """Call the wrapped model with (T*B, L) inputs."""
        rows = input_ids.shape[0]
        if rows % self.trials:
            raise ValueError(f"cannot divide {rows} rows among {self.trials} trials")
        keys = self.context.row_keys
        if keys is None or keys.shape[0] != rows:
            if self.training and any(isinstance(m, StackedDropout) and m.p > 0 for m in self.modules()):
                raise RuntimeError(
                    "call set_dropout_keys before forward: dropout masks depend on the trial and the step"
                )
            self.context.row_keys = torch.zeros(rows, dtype=torch.int32, device=input_ids.device)
        return self.module(input_ids, **inputs)

    @torch.no_grad()
    def copy_from(self, trial: int, model: nn.Module) -> None:
        """Copy the parameters of a plain model into one trial."""
        own = dict(self.module.named_parameters())
        for name, p in model.named_parameters():
            if own[name].requires_grad or own[name].dim() == p.dim() + 1:
                own[name][trial].copy_(p)

    @torch.no_grad()
    def copy_to(self, trial: int, plain: nn.Module) -> nn.Module:
        """Copy the parameters of one trial into a plain model of the same architecture; returns that model."""
        for name, p in plain.named_parameters():
            p.copy_(self.trial_parameter(name, trial))
        return plain

    def trial_parameter(self, name: str, trial: int) -> Tensor:
        """Value of a parameter in one trial, in the shape of the plain model."""
        owner_name, _, attribute = name.rpartition(".")
        owner = self.module.get_submodule(owner_name)
        if isinstance(owner, StackedEmbedding):
            return owner.full_weight(trial)
        p = getattr(owner, attribute).detach()
        return p[trial] if self.has_trial_axis(name) else p

    def has_trial_axis(self, name: str) -> bool:
        """Whether a parameter of the wrapped model has a value for each trial, rather than one for all of them."""
        owner_name, _, attribute = name.rpartition(".")
        owner: Any = self.module.get_submodule(owner_name)
        return getattr(owner, "context", None) is self.context and attribute not in owner.shared_names


def stack_models(models: Sequence[nn.Module]) -> StackedModel:
    """One module that computes all `models` at once; they must have the same architecture."""
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
    stacked = StackedModel(models[0], len(models))
    for i, model in enumerate(models[1:], start=1):
        stacked.copy_from(i, model)
    return stacked


def _config_of(module: Any) -> Any:
    return getattr(module, "config", None)


def _architecture(model: nn.Module) -> dict[str, str]:
    """Module types and parameter shapes by name."""
    kinds = {n: type(m).__name__ for n, m in model.named_modules()}
    return kinds | {n: str(tuple(p.shape)) for n, p in model.named_parameters()}


def unstack_model(stacked: StackedModel, trial: int, like: nn.Module) -> nn.Module:
    """One trial as a plain model with the architecture of `like`, which is copied."""
    if not 0 <= trial < stacked.trials:
        raise WhichlayersError(f"trial {trial} is not in this stack: trials are 0 to {stacked.trials - 1}")
    return stacked.copy_to(trial, copy.deepcopy(like))
