"""Where each model family keeps its embeddings, layers, layer norms and pooler.

`FAMILIES` has one entry per supported `model_type`. All parameters inside a layer's module belong to that layer,
including raw tensors such as XLNet's q, k, v, o and r. Parameters shared by several layers (the relative
positions of MPNet and DeBERTa, the final norm of ModernBERT) belong to no layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from whichlayers.errors import WhichlayersError


class UnsupportedModel(WhichlayersError):
    """The model's family is unknown, or its layers cannot be modified one by one."""


@dataclass(frozen=True)
class Family:
    """Module paths and conventions of a model family. All paths are relative to the base encoder."""

    layers: str  # path of the ModuleList that holds the layers
    embeddings: tuple[str, ...]  # modules and parameters that count as layer 0
    pooler: str | None = None  # path of the pooler; None if the family has none
    shared: tuple[str, ...] = ()  # modules that all layers use: relative positions
    # position of the [CLS] token among the tokens of a sequence
    cls_position: Literal["first", "last"] = "first"
    dropout: str = "hidden_dropout_prob"  # config key of the dropout on hidden states
    positions_after_padding: bool = False  # position ids start at pad_token_id + 1
    first_layer_fixed: str | None = None  # the reason why layer 1 must stay first; None if it may move


FAMILIES: dict[str, Family] = {
    "bert": Family("encoder.layer", ("embeddings",), pooler="pooler"),
    "roberta": Family("encoder.layer", ("embeddings",), pooler="pooler", positions_after_padding=True),
    "electra": Family("encoder.layer", ("embeddings", "embeddings_project")),
    "distilbert": Family("transformer.layer", ("embeddings",), dropout="dropout"),
    # encoder.relative_attention_bias is shared by all layers
    "mpnet": Family(
        "encoder.layer",
        ("embeddings",),
        pooler="pooler",
        shared=("encoder.relative_attention_bias",),
        positions_after_padding=True,
    ),
    "xlnet": Family("layer", ("word_embedding", "mask_emb"), cls_position="last", dropout="dropout"),
    # encoder.rel_embeddings and its norm are shared by all layers; encoder.conv follows whichever layer is first
    "deberta-v2": Family(
        "encoder.layer",
        ("embeddings",),
        shared=("encoder.rel_embeddings", "encoder.LayerNorm", "encoder.conv"),
    ),
    "modernbert": Family(
        "layers",
        ("embeddings",),
        dropout="mlp_dropout",
        first_layer_fixed="the first layer has no attention norm of its own (it uses the norm of the embeddings), "
        "so it cannot be moved and no other layer can take its place",
    ),
}

UNSUPPORTED_FAMILIES: dict[str, str] = {
    "albert": "its layers share one set of weights, so no single layer can be re-initialized, moved or dropped",
}


def family_of(model_type: str | None) -> Family:
    """The family of a config's `model_type`. Raises `UnsupportedModel` if it is not supported."""
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    known = ", ".join(sorted(FAMILIES))
    if model_type in UNSUPPORTED_FAMILIES:
        raise UnsupportedModel(
            f"model_type {model_type!r} is not supported: {UNSUPPORTED_FAMILIES[model_type]}. "
            f"Use a model of one of these families: {known}."
        )
    if model_type is None:
        raise UnsupportedModel(
            f"config.json has no model_type, so the model family is unknown; set it to one of these: {known}."
        )
    raise UnsupportedModel(
        f"model_type {model_type!r} is not supported; supported encoder families: {known}. "
        "CONTRIBUTING.md explains how to add a family."
    )


def is_bias(name: str) -> bool:
    """Whether a parameter is a bias rather than a weight, judged by its name.

    XLNet's r_w_bias, r_r_bias and r_s_bias are biases; its matrices q, k, v, o, r and seg_embed are weights.
    """
    last = name.rpartition(".")[2]
    return last == "bias" or last.endswith("_bias")


def linear_size(module: nn.Module) -> tuple[int, int] | None:
    """Number of inputs and outputs of a Linear module, or of GPT-2's Conv1D; None for other modules."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if isinstance(module, Conv1D):
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    return None


class Anatomy:
    """Access to the parts of a base encoder by name. Layers are numbered from 1; layer 0 is the embeddings."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.family = family_of(getattr(model.config, "model_type", None))
        try:
            module_list = model.get_submodule(self.family.layers)
        except AttributeError:
            module_list = None
        if not isinstance(module_list, nn.ModuleList):
            raise UnsupportedModel(
                f"{type(model).__name__} has no list of layers at {self.family.layers!r}: pass the base encoder "
                "(loaded with AutoModel, or the base_model of a model with a head)."
            )
        self.module_list = module_list

    @property
    def layers(self) -> list[nn.Module]:
        """The layer modules; index 0 is layer 1."""
        return list(self.module_list)

    @property
    def depth(self) -> int:
        """Number of layers, without the embeddings."""
        return len(self.module_list)

    def layer_prefix(self, number: int) -> str:
        """Prefix of the names of a layer's parameters, such as "encoder.layer.0."."""
        if not 1 <= number <= self.depth:
            raise WhichlayersError(f"there is no layer {number}: this model has layers 1 to {self.depth}.")
        return f"{self.family.layers}.{number - 1}."

    def layer_parameters(self, number: int) -> dict[str, nn.Parameter]:
        """All parameters of a layer by full name; layer 0 is the embeddings."""
        if number == 0:
            names = set(self.embedding_names())
            return {name: p for name, p in self.model.named_parameters() if name in names}
        prefix = self.layer_prefix(number)
        return {prefix + name: p for name, p in self.layers[number - 1].named_parameters()}

    def layer_norm_names(self) -> set[str]:
        """Full names of the weights and biases of all layer norms, inside and outside the layers."""
        return {
            f"{path}.{name}" if path else name
            for path, module in self.model.named_modules()
            if isinstance(module, nn.LayerNorm)
            for name, _ in module.named_parameters(recurse=False)
        }

    def linear_modules(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear modules in layers, by their name within a layer."""
        return {
            name: size
            for layer in self.layers
            for name, module in layer.named_modules()
            if (size := linear_size(module)) is not None
        }

    def embedding_names(self) -> list[str]:
        """Full names of the parameters of the embeddings (layer 0)."""
        return [name for name, _ in self.model.named_parameters() if _under(name, *self.family.embeddings)]

    def layer_of(self, name: str) -> int | None:
        """Layer number of a parameter: 1..depth, 0 for the embeddings, None for others (pooler, shared)."""
        if _under(name, self.family.layers):
            return int(name[len(self.family.layers) + 1 :].partition(".")[0]) + 1
        return 0 if _under(name, *self.family.embeddings) else None

    def is_pooler(self, name: str) -> bool:
        """Whether a parameter belongs to the pooler."""
        return self.family.pooler is not None and _under(name, self.family.pooler)

    def is_shared(self, name: str) -> bool:
        """Whether all layers use a parameter that belongs to none of them."""
        return _under(name, *self.family.shared)


def _under(name: str, *paths: str) -> bool:
    """Whether a parameter name is one of the paths or is inside one of these modules."""
    return any(name == path or name.startswith(path + ".") for path in paths)
