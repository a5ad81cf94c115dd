"""Small random models of every family, and batches for them."""

from __future__ import annotations

import torch
import transformers as tf
from torch import nn

SIZE = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}
CONFIGS = {
    "bert": lambda: tf.BertConfig(**SIZE),
    "roberta": lambda: tf.RobertaConfig(**SIZE),
    "distilbert": lambda: tf.DistilBertConfig(
        vocab_size=120, dim=32, n_layers=3, n_heads=4, hidden_dim=64, max_position_embeddings=66
    ),
    "electra": lambda: tf.ElectraConfig(**SIZE, embedding_size=16),
    "mpnet": lambda: tf.MPNetConfig(**SIZE),
    "xlnet": lambda: tf.XLNetConfig(vocab_size=120, d_model=32, n_layer=3, n_head=4, d_inner=64),
    "deberta-v2": lambda: tf.DebertaV2Config(
        **SIZE,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    "modernbert": lambda: tf.ModernBertConfig(
        **SIZE,
        pad_token_id=0,
        local_attention=8,
        attention_dropout=0.1,
        mlp_dropout=0.1,
        embedding_dropout=0.1,
    ),
}
ENCODERS = tuple(CONFIGS)
DECODER_SIZE = {  # heads of size 16, the smallest that the attention kernel supports
    "vocab_size": 120,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
CONFIGS |= {
    "llama": lambda: tf.LlamaConfig(**DECODER_SIZE),
    "mistral": lambda: tf.MistralConfig(**DECODER_SIZE, sliding_window=5),
    "qwen2": lambda: tf.Qwen2Config(
        **DECODER_SIZE, use_sliding_window=True, sliding_window=5, layer_types=WINDOWS
    ),
    "qwen3": lambda: tf.Qwen3Config(**DECODER_SIZE, head_dim=16),
    "gemma": lambda: tf.GemmaConfig(**DECODER_SIZE, head_dim=16),
    "gemma2": lambda: tf.Gemma2Config(
        **DECODER_SIZE,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=5,
        layer_types=WINDOWS,
        attn_logit_softcapping=2.0,
    ),
    "gemma3_text": lambda: tf.Gemma3TextConfig(
        **DECODER_SIZE, head_dim=16, query_pre_attn_scalar=16, sliding_window=5, layer_types=WINDOWS
    ),
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=120, n_embd=64, n_layer=3, n_head=4, n_inner=48, n_positions=66, pad_token_id=0
    ),
    "gpt_neox": lambda: tf.GPTNeoXConfig(
        **{k: v for k, v in DECODER_SIZE.items() if k != "num_key_value_heads"}, hidden_dropout=0.1
    ),
    "olmo2": lambda: tf.Olmo2Config(**DECODER_SIZE),
    "opt": lambda: tf.OPTConfig(
        **{k: v for k, v in DECODER_SIZE.items() if k not in ("num_key_value_heads", "intermediate_size")},
        ffn_dim=48,
        word_embed_proj_dim=64,
    ),
    "phi3": lambda: tf.Phi3Config(**DECODER_SIZE, sliding_window=5, resid_pdrop=0.1),
    "smollm3": lambda: tf.SmolLM3Config(**DECODER_SIZE, no_rope_layers=[1, 0, 1]),
}
FAMILIES = tuple(CONFIGS)
DECODERS = tuple(name for name in FAMILIES if name not in ENCODERS)


def tiny_encoder(family: str, seed: int = 0, dropout: float | None = None):
    """A random encoder in float32; biases and layer norms differ from their defaults, so that they have an effect."""
    config = CONFIGS[family]()
    if dropout is not None:
        for key in vars(config):
            if "drop" in key and isinstance(getattr(config, key), float):
                setattr(config, key, dropout)
    torch.manual_seed(seed)
    model = tf.AutoModel.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.eval()


def random_batch(rows: int, length: int, seed: int = 0, types: bool = True) -> dict[str, torch.Tensor]:
    """A right-padded batch (rows, length) with different lengths; the first row has no padding."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, length + 1, (rows,), generator=g)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = torch.randint(5, 110, (rows, length), generator=g) * mask
    batch = {"input_ids": ids, "attention_mask": mask}
    if types:
        batch["token_type_ids"] = (torch.arange(length) >= lengths[:, None] // 2).long() * mask
    return batch


def no_dropout(model: nn.Module) -> nn.Module:
    """Set all dropout probabilities to 0, in place."""
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    return model


def tiny_task(
    n_train: int = 60, n_dev: int = 30, kind: str = "classification", pairs: bool = True, seed: int = 0
):
    """A tokenized task of random sentences whose label is a function of their tokens."""
    import numpy as np

    from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask

    def split(n: int, seed: int) -> TokenizedSplit:
        rng = np.random.default_rng(seed)
        lengths = rng.integers(4, 14, n)
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
        ids = rng.integers(5, 110, offsets[-1]).astype(np.int32)
        types = (
            np.concatenate([(np.arange(m) >= m // 2) for m in lengths]).astype(np.uint8) if pairs else None
        )
        first = ids[offsets[:-1] + 1]
        labels = (first % 3).astype(np.int64) if kind == "classification" else (first / 50).astype(np.float32)
        return TokenizedSplit(ids=ids, type_ids=types, offsets=offsets, labels=labels)

    return TokenizedTask(
        name="tiny",
        kind=kind,
        n_outputs=3 if kind == "classification" else 1,
        metric="accuracy" if kind == "classification" else "pearson",
        metrics=("accuracy", "mcc") if kind == "classification" else ("pearson", "spearman"),
        train=split(n_train, seed),
        evals={"": split(n_dev, seed + 1)},
        pad_id=0,
        fingerprint="tiny",
    )
