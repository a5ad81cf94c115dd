"""Where a family of encoders keeps its embeddings, layers, layer norms and pooler.

One small entry a family. Everything inside a layer's module is that layer's, whatever owns it: XLNet's raw
q, k, v, o, r tensors are as much its layer's as BERT's Linear weights. What several layers share (MPNet's and
DeBERTa's relative positions, ModernBERT's final norm) stands outside the layers and is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn
from transformers import PreTrainedModel

from whichlayers.errors import WhichlayersError


class UnsupportedModel(WhichlayersError):
    """A model whose layers cannot be studied one by one, or of a family that has no entry here."""


@dataclass(frozen=True)
class Family:
    """What the other rooms need to know about a family; all paths are relative to the base encoder."""

    layers: str  # path of the ModuleList that holds the layers
    embeddings: tuple[str, ...]  # modules and parameters that stand for layer 0
    pooler: str | None = None  # path of the pooler, where the family has one
    summary_token: Literal["first", "last"] = "first"  # which real token stands for the sequence
    dropout: str = "hidden_dropout_prob"  # config key of the dropout on hidden states
    positions_after_padding: bool = False  # position ids start at pad_token_id + 1
    first_layer_stays: str | None = None  # why layer 1 must stay first, where it must


FAMILIES: dict[str, Family] = {
    "bert": Family("encoder.layer", ("embeddings",), pooler="pooler"),
    "roberta": Family("encoder.layer", ("embeddings",), pooler="pooler", positions_after_padding=True),
    "electra": Family("encoder.layer", ("embeddings", "embeddings_project")),
    "distilbert": Family("transformer.layer", ("embeddings",), dropout="dropout"),
    # encoder.relative_attention_bias serves all layers
    "mpnet": Family("encoder.layer", ("embeddings",), pooler="pooler", positions_after_padding=True),
    "xlnet": Family("layer", ("word_embedding", "mask_emb"), summary_token="last", dropout="dropout"),
    # encoder.rel_embeddings and its norm serve all layers; encoder.conv follows whichever layer stands first
    "deberta-v2": Family("encoder.layer", ("embeddings",)),
    "modernbert": Family(
        "layers",
        ("embeddings",),
        dropout="mlp_dropout",
        first_layer_stays="the first layer has no attention norm of its own (the norm of the embeddings does "
        "its work), so that it can stand nowhere else and no other layer can stand in its place",
    ),
}

REFUSED: dict[str, str] = {
    "albert": "its layers share one set of weights, so that none can be redrawn, moved or dropped alone",
}


def family_of(model_type: str | None) -> Family:
    """The entry of a config's `model_type`; the error says why there is none."""
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    known = ", ".join(sorted(FAMILIES))
    if model_type in REFUSED:
        raise UnsupportedModel(
            f"model_type {model_type!r} cannot be studied layer by layer: {REFUSED[model_type]}. "
            f"Use a model of one of these families: {known}."
        )
    if model_type is None:
        raise UnsupportedModel(
            f"config.json names no model_type, so that its family is not known; add one of these: {known}."
        )
    raise UnsupportedModel(
        f"whichlayers studies encoders; {model_type!r} is not among the families it knows ({known}). "
        "CONTRIBUTING.md says how to add a family of encoders."
    )


def is_bias(name: str) -> bool:
    """Whether a parameter is a bias rather than a weight, told from its name alone.

    So XLNet's r_w_bias, r_r_bias and r_s_bias are biases; its q, k, v, o, r and seg_embed, matrices that
    multiply hidden states as a Linear does, are weights.
    """
    last = name.rpartition(".")[2]
    return last == "bias" or last.endswith("_bias")


class Anatomy:
    """The parts of one base encoder by name. Layers are numbered from 1; layer 0 is the embeddings."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.family = family_of(getattr(model.config, "model_type", None))
        try:
            found = model.get_submodule(self.family.layers)
        except AttributeError:
            found = None
        if not isinstance(found, nn.ModuleList):
            raise UnsupportedModel(
                f"{type(model).__name__} has no list of layers at {self.family.layers!r}: give the bare "
                "encoder (AutoModel, or the base_model of a model with a head)."
            )
        self.module_list = found

    @property
    def layers(self) -> list[nn.Module]:
        """Index 0 is layer 1."""
        return list(self.module_list)

    @property
    def depth(self) -> int:
        return len(self.module_list)

    def layer_prefix(self, number: int) -> str:
        """What the names of a layer's parameters start with."""
        if not 1 <= number <= self.depth:
            raise WhichlayersError(f"there is no layer {number}: this model's layers are 1 to {self.depth}.")
        return f"{self.family.layers}.{number - 1}."

    def layer_parameters(self, number: int) -> dict[str, nn.Parameter]:
        """Every parameter of a layer by its full name; layer 0 gives the embeddings."""
        if number == 0:
            return self._named(self.embedding_names())
        prefix = self.layer_prefix(number)
        return {prefix + name: p for name, p in self.layers[number - 1].named_parameters()}

    def layer_norm_names(self) -> set[str]:
        """Full names of the weights and biases of every layer norm, inside layers and outside."""
        return {
            f"{path}.{name}" if path else name
            for path, module in self.model.named_modules()
            if isinstance(module, nn.LayerNorm)
            for name, _ in module.named_parameters(recurse=False)
        }

    def embedding_names(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters() if _under(name, *self.family.embeddings)]

    def pooler_names(self) -> list[str]:
        if self.family.pooler is None:
            return []
        return [name for name, _ in self.model.named_parameters() if _under(name, self.family.pooler)]

    def layer_of(self, name: str) -> int | None:
        """1..depth for a layer's parameter, 0 for the embeddings, None for all else (pooler, shared)."""
        if _under(name, self.family.layers):
            return int(name[len(self.family.layers) + 1 :].partition(".")[0]) + 1
        return 0 if _under(name, *self.family.embeddings) else None

    def _named(self, names: list[str]) -> dict[str, nn.Parameter]:
        wanted = set(names)
        return {name: p for name, p in self.model.named_parameters() if name in wanted}


def _under(name: str, *paths: str) -> bool:
    return any(name == path or name.startswith(path + ".") for path in paths)
