"""Small random models of every family, with no parameter at its default value, so that a lost tensor is noticed."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

ENCODER_NAMES = ["bert", "roberta", "electra", "distilbert", "mpnet", "xlnet", "deberta-v2", "modernbert"]
DECODER_NAMES = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "olmo2",
]
DECODER_NAMES += ["opt", "phi3", "smollm3"]
FAMILY_NAMES = ENCODER_NAMES + DECODER_NAMES
# next to the repository; may not exist
SHARED_MODELS = Path(__file__).parents[2].parent / "shared" / "models"

BASE_SETTINGS = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
SETTINGS: dict[str, dict] = {
    "bert": BASE_SETTINGS,
    "roberta": BASE_SETTINGS,
    "electra": BASE_SETTINGS | {"embedding_size": 16},
    "distilbert": {
        "vocab_size": 100,
        "dim": 32,
        "n_heads": 2,
        "hidden_dim": 48,
        "max_position_embeddings": 64,
    },
    "mpnet": BASE_SETTINGS,
    "xlnet": {"vocab_size": 100, "d_model": 32, "n_head": 2, "d_inner": 48},
    "deberta-v2": BASE_SETTINGS
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"}
    | {"position_buckets": 8, "share_att_key": True, "position_biased_input": False},
    "modernbert": BASE_SETTINGS
    | {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    | {"local_attention": 4},
}
DECODER_SETTINGS = BASE_SETTINGS | {"num_key_value_heads": 1, "bos_token_id": 2, "eos_token_id": 3}
MIXED_LAYERS = ["sliding_attention", "full_attention"] * 2
HEADS_OF_16 = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4, "layer_types": MIXED_LAYERS}
SETTINGS |= {
    "llama": DECODER_SETTINGS,
    "mistral": DECODER_SETTINGS | {"sliding_window": 4},
    "qwen2": DECODER_SETTINGS
    | {"use_sliding_window": True, "sliding_window": 4, "layer_types": MIXED_LAYERS},
    "qwen3": DECODER_SETTINGS | {"head_dim": 16},
    "gemma": DECODER_SETTINGS | {"head_dim": 16},
    "gemma2": DECODER_SETTINGS | HEADS_OF_16,
    "gemma3_text": DECODER_SETTINGS | HEADS_OF_16,
    "gpt2": {"vocab_size": 100, "n_embd": 32, "n_head": 2, "n_inner": 48, "n_positions": 64}
    | {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3},
    "gpt_neox": {k: v for k, v in DECODER_SETTINGS.items() if k != "num_key_value_heads"},
    "olmo2": DECODER_SETTINGS,
    "opt": BASE_SETTINGS | {"ffn_dim": 48, "word_embed_proj_dim": 32, "bos_token_id": 2, "eos_token_id": 3},
    "phi3": DECODER_SETTINGS | {"sliding_window": 4},
    "smollm3": DECODER_SETTINGS | {"no_rope_layers": [1, 0, 1, 0]},
}
DEPTH_KEY = {"xlnet": "n_layer", "gpt2": "n_layer", "distilbert": "n_layers"}
PER_LAYER = ("layer_types", "no_rope_layers")  # settings with a value for each layer


def small_config(family: str, depth: int = 4):
    """Config of a small model with this many layers."""
    settings = {"use_cache": False} if family in DECODER_NAMES else {}
    settings |= {key: value[:depth] if key in PER_LAYER else value for key, value in SETTINGS[family].items()}
    return AutoConfig.for_model(family, **settings, **{DEPTH_KEY.get(family, "num_hidden_layers"): depth})


def small_model(family: str, depth: int = 4) -> PreTrainedModel:
    """A random base model in eval mode; the same for every call."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return perturb(AutoModel.from_config(small_config(family, depth), attn_implementation="eager"))


def perturb(model):
    """Add noise to every parameter, so that biases are not 0 and layer norms not 1."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def small_batch(rows: int = 3, length: int = 9) -> dict[str, torch.Tensor]:
    """input_ids and attention_mask, (rows, length), right-padded rows of different lengths."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(4, 100, (rows, length), generator=generator)
    lengths = torch.arange(length, length - 2 * rows, -2)
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}


def same_state(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two modules have identical state dicts."""
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
