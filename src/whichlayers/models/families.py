"""Where each model family keeps its embeddings, layers, layer norms and pooler.

`FAMILIES` has one entry per supported `model_type`: encoders, and decoders, whose attention is causal. All parameters
inside a layer's module belong to that layer, including raw tensors such as XLNet's q, k, v, o and r. Parameters for
all layers (the relative positions of MPNet and DeBERTa) and final norms belong to no layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from whichlayers.errors import WhichlayersError


class UnsupportedModel(WhichlayersError):
    """The model's family is unknown, or its layers cannot be modified one by one."""


@dataclass(frozen=True)
class Family:
    """Module paths and conventions of a model family. All paths are relative to the base model."""

    layers: str  # path of the ModuleList that holds the layers
    embeddings: tuple[str, ...]  # modules and parameters that count as layer 0
    pooler: str | None = None  # path of the pooler; None if the family has none
    for_all_layers: tuple[str, ...] = ()  # modules that all layers use: relative positions
    # position of the [CLS] token, or of a decoder's token that has seen all others, among the tokens of a sequence
    cls_position: Literal["first", "last"] = "first"
    # config key of the dropout on hidden states; None: the family has none
    dropout: str | None = "hidden_dropout_prob"
    positions_after_padding: bool = False  # position ids start at pad_token_id + 1
    first_layer_fixed: str | None = None  # the reason why layer 1 must stay first; None if it may move
    causal: bool = False  # a decoder: each token attends to itself and to earlier tokens only
    norm_weight: float = 1.0  # weight with which a layer norm does not scale; Gemma multiplies by 1 + weight
    # linear layers whose own initialization is divided by sqrt(2 * depth): they write into the residual stream
    scaled_init: tuple[str, ...] = ()
    note: str = ""  # what is special about the family


def _decoder(
    layers: str = "layers",
    embeddings: tuple[str, ...] = ("embed_tokens",),
    dropout: str | None = None,
    **kwargs: Any,
) -> Family:
    return Family(layers, embeddings, cls_position="last", dropout=dropout, causal=True, **kwargs)


FAMILIES: dict[str, Family] = {
    "bert": Family("encoder.layer", ("embeddings",), pooler="pooler"),
    "roberta": Family("encoder.layer", ("embeddings",), pooler="pooler", positions_after_padding=True),
    "electra": Family(
        "encoder.layer",
        ("embeddings", "embeddings_project"),
        note="a projection of the embeddings counts as layer 0",
    ),
    "distilbert": Family("transformer.layer", ("embeddings",), dropout="dropout"),
    "mpnet": Family(
        "encoder.layer",
        ("embeddings",),
        pooler="pooler",
        for_all_layers=("encoder.relative_attention_bias",),
        positions_after_padding=True,
        note="all layers share one table of relative positions",
    ),
    "xlnet": Family(
        "layer",
        ("word_embedding", "mask_emb"),
        cls_position="last",
        dropout="dropout",
        note="not packed; its classification token is the last one",
    ),
    # encoder.conv follows whichever layer is first
    "deberta-v2": Family(
        "encoder.layer",
        ("embeddings",),
        for_all_layers=("encoder.rel_embeddings", "encoder.LayerNorm", "encoder.conv"),
        note="all layers share the relative positions",
    ),
    "modernbert": Family(
        "layers",
        ("embeddings",),
        dropout="mlp_dropout",
        first_layer_fixed="the first layer has no attention norm of its own (it uses the norm of the embeddings), "
        "so it cannot be moved and no other layer can take its place",
        scaled_init=("Wo",),
        note="layer 1 stays first; a layer keeps its global or local attention when it moves",
    ),
    "llama": _decoder(note="also SmolLM, SmolLM2, TinyLlama"),
    "mistral": _decoder(note="one sliding window for all layers"),
    "qwen2": _decoder(note="a layer keeps its sliding window when it moves"),
    "qwen3": _decoder(
        note="norms of queries and keys belong to the layer, and so does its sliding window when it moves"
    ),
    "gemma": _decoder(norm_weight=0.0, note="norms multiply by 1 + weight: they are reset to 0"),
    "gemma2": _decoder(
        norm_weight=0.0,
        note="norms are reset to 0; a layer keeps its sliding or full attention when it moves; capped scores",
    ),
    "gemma3_text": _decoder(
        norm_weight=0.0,
        note="Gemma 3, text only; norms are reset to 0; a layer keeps its sliding or full attention, with the "
        "rotary base of that type, when it moves",
    ),
    "gpt2": _decoder(
        "h",
        ("wte", "wpe"),
        "resid_pdrop",
        scaled_init=("c_proj",),
        note="queries, keys and values are one matrix, stored as (in, out); own initialization scaled by depth",
    ),
    "gpt_neox": _decoder(
        embeddings=("embed_in",),
        dropout="hidden_dropout",
        note="Pythia; queries, keys and values are one matrix, interleaved by head",
    ),
    "olmo2": _decoder(note="norms after attention and feed-forward, and on queries and keys"),
    "opt": _decoder(
        "decoder.layers",
        ("decoder.embed_tokens", "decoder.embed_positions", "decoder.project_in"),
        "dropout",
        note="learned positions; OPT-350m, which projects its embeddings, cannot be probed",
    ),
    "phi3": _decoder(dropout="resid_pdrop", note="queries, keys and values are one matrix"),
    "smollm3": _decoder(note="a layer keeps whether it has rotary positions when it moves"),
}

UNSUPPORTED_FAMILIES: dict[str, str] = {
    "albert": "its layers share one set of weights, so no single layer can be re-initialized, moved or dropped",
    "gemma3": "it has an image encoder beside the language model; use a text-only Gemma 3 (gemma3_text)",
}
# keys of config.json that tell why a model of another family cannot be used
_EXPERT_KEYS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_experts_per_tok",
)
_STATE_SPACE_KEYS = (
    "state_size",
    "ssm_cfg",
    "ssm_state_size",
    "mamba_d_state",
    "time_step_rank",
    "rwkv_version",
)
_STATE_SPACE_NAMES = ("mamba", "rwkv", "jamba", "zamba", "bamba", "recurrent_gemma", "xlstm", "hyena")


def unsupported_reason(config: Mapping[str, Any]) -> str | None:
    """Why a model with this config.json cannot be used, whatever its family is; None if nothing is known.

    Quantized checkpoints are rejected for every family.
    """
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        return (
            f"its checkpoint is quantized ({method or 'see quantization_config in config.json'}): stacked training "
            "and re-initialization need the weights as floating-point matrices. Use the original checkpoint in "
            "float32, float16 or bfloat16"
        )
    model_type = str(config.get("model_type"))
    if model_type in FAMILIES or model_type in UNSUPPORTED_FAMILIES:
        return None
    if any(config.get(key) for key in _EXPERT_KEYS) or "moe" in model_type:
        return (
            "it is a mixture of experts: stacked experts and routing are missing, so its layers cannot be trained. "
            "Use a dense model"
        )
    if any(config.get(key) for key in _STATE_SPACE_KEYS) or any(n in model_type for n in _STATE_SPACE_NAMES):
        return (
            "it is a state-space or recurrent model: stacked versions of its recurrent layers are missing. Use a "
            "transformer"
        )
    if config.get("is_encoder_decoder"):
        return (
            "it is an encoder-decoder: stacked cross-attention, and layers counted over two stacks, are missing. "
            "Use an encoder or a decoder"
        )
    if config.get("text_config"):
        return "it has encoders of other modalities beside its language model. Use a text-only model"
    return None


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
        f"model_type {model_type!r} is not supported; supported families: {known}. "
        "CONTRIBUTING.md explains how to add a family."
    )


def layers_differ(config: Any) -> bool:
    """Whether the layers of a model differ in more than their parameters.

    They may have different kinds of attention, or rotary positions in some of them only. These go with a layer when it
    is moved, so that trials with different orders cannot share a stack.
    """
    kinds = [getattr(config, key, None) for key in ("layer_types", "no_rope_layers")]
    if any(kind and len(set(kind)) > 1 for kind in kinds):
        return True
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):  # an option of GPT-2
        return True
    return FAMILIES[config.model_type].first_layer_fixed is not None
