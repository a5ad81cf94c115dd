"""Small random models of every family, with no parameter at its default value, so that a lost tensor is noticed."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

FAMILY_NAMES = ["bert", "roberta", "electra", "distilbert", "mpnet", "xlnet", "deberta-v2", "modernbert"]
SHARED_MODELS = (
    Path(__file__).parents[2].parent / "shared" / "models"
)  # next to the repository; may not exist

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
DEPTH_KEY = {"xlnet": "n_layer", "distilbert": "n_layers"}


def small_config(family: str, depth: int = 4):
    """Config of a small model with this many layers."""
    return AutoConfig.for_model(
        family, **SETTINGS[family], **{DEPTH_KEY.get(family, "num_hidden_layers"): depth}
    )


def small_model(family: str, depth: int = 4) -> PreTrainedModel:
    """A random base encoder in eval mode; the same for every call."""
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
