"""The parts of a model by name: its layers, embeddings, pooler, layer norms and linear modules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from whichlayers.errors import WhichlayersError
from whichlayers.models.families import UnsupportedModel, family_of

INIT_STD = 0.02


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


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a layer norm: torch's, or one of the RMSNorm classes of transformers, one per family."""
    return isinstance(module, nn.LayerNorm) or "RMSNorm" in type(module).__name__


@dataclass(frozen=True)
class OwnInit:
    """How a family's own code initializes one parameter of a layer: Normal(0, std), unless it is a norm or a bias."""

    std: float = INIT_STD
    cutoff: float | None = None  # truncated at +-cutoff; None: not truncated
    draws_bias: bool = False  # biases are drawn as well, instead of set to 0
    norm_weight: float = 1.0  # of a layer norm


class ModelStructure:
    """Access to the parts of a base model by name. Layers are numbered from 1; layer 0 is the embeddings."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.family = family_of(getattr(model.config, "model_type", None))
        try:
            module_list = model.get_submodule(self.family.layers)
        except AttributeError:
            module_list = None
        if not isinstance(module_list, nn.ModuleList):
            raise UnsupportedModel(
                f"{type(model).__name__} has no list of layers at {self.family.layers!r}: pass the base model "
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
            if is_norm(module)
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

    def own_init(self, name: str, depth: int) -> OwnInit:
        """How the family's own code initializes a parameter of a layer, in a model with `depth` layers."""
        config = self.model.config
        if hasattr(config, "initializer_range"):
            std = config.initializer_range or INIT_STD
        else:
            std = getattr(config, "init_std", INIT_STD)
        module = name.rpartition(".")[0].rpartition(".")[2]
        if module in self.family.scaled_init:
            std /= math.sqrt(2 * depth)
        cutoff = None
        if config.model_type == "modernbert":
            cutoff = std * (config.initializer_cutoff_factor or 3)
        raw_bias = config.model_type == "xlnet" and module == "rel_attn"  # r_w_bias, r_r_bias, r_s_bias
        return OwnInit(std, cutoff, raw_bias, self.family.norm_weight)

    def embedding_names(self) -> list[str]:
        """Full names of the parameters of the embeddings (layer 0)."""
        return [name for name, _ in self.model.named_parameters() if _under(name, *self.family.embeddings)]

    def layer_of(self, name: str) -> int | None:
        """Layer number of a parameter: 1..depth, 0 for the embeddings, None for others (pooler, for all layers)."""
        if _under(name, self.family.layers):
            return int(name[len(self.family.layers) + 1 :].partition(".")[0]) + 1
        return 0 if _under(name, *self.family.embeddings) else None

    def is_pooler(self, name: str) -> bool:
        """Whether a parameter belongs to the pooler."""
        return self.family.pooler is not None and _under(name, self.family.pooler)

    def is_for_all_layers(self, name: str) -> bool:
        """Whether all layers use a parameter that belongs to none of them."""
        return _under(name, *self.family.for_all_layers)


def _under(name: str, *paths: str) -> bool:
    """Whether a parameter name is one of the paths or is inside one of these modules."""
    return any(name == path or name.startswith(path + ".") for path in paths)
