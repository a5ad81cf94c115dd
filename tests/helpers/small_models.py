"""Small random models of every family, nothing at its initial value, so that a lost tensor shows."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

FAMILY_NAMES = ["bert", "roberta", "electra", "distilbert", "mpnet", "xlnet", "deberta-v2", "modernbert"]
SHARED_MODELS = (
    Path(__file__).parents[2].parent / "shared" / "models"
)  # beside the repository, where it is there

USUAL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
SETTINGS: dict[str, dict] = {
    "bert": USUAL,
    "roberta": USUAL,
    "electra": USUAL | {"embedding_size": 16},
    "distilbert": {
        "vocab_size": 100,
        "dim": 32,
        "n_heads": 2,
        "hidden_dim": 48,
        "max_position_embeddings": 64,
    },
    "mpnet": USUAL,
    "xlnet": {"vocab_size": 100, "d_model": 32, "n_head": 2, "d_inner": 48},
    "deberta-v2": USUAL
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"}
    | {"position_buckets": 8, "share_att_key": True, "position_biased_input": False},
    "modernbert": USUAL
    | {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    | {"local_attention": 4},
}
DEPTH_KEY = {"xlnet": "n_layer", "distilbert": "n_layers"}


def small_config(family: str, depth: int = 4):
    return AutoConfig.for_model(
        family, **SETTINGS[family], **{DEPTH_KEY.get(family, "num_hidden_layers"): depth}
    )


def small_model(family: str, depth: int = 4) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return scatter(AutoModel.from_config(small_config(family, depth), attn_implementation="eager"))


def scatter(model):
    """Move every parameter off its initial value: biases from 0, layer norms from 1."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def small_batch(rows: int = 3, length: int = 9) -> dict[str, torch.Tensor]:
    """Right-padded rows of different length."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(4, 100, (rows, length), generator=generator)
    lengths = torch.arange(length, length - 2 * rows, -2)
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}


def same_state(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
