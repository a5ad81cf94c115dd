"""LoRA trials of a stack on one shared base, against peft one trial at a time, in the same run.

    python benchmarks/lora_vs_peft.py --geometry 135M --trials 32          # one CUDA device
    python benchmarks/lora_vs_peft.py --geometry tiny --trials 4 --device cpu

Random weights, which do not affect the time. Rank 8 on all linear layers, batches of 8 examples of 64 tokens, AdamW,
clip_norm 1.0, LoRA dropout 0. Where this version has decoders, the geometries are those of Llama (135M: SmolLM-135M,
1B: Llama-3.2-1B); otherwise a BERT of the same width and depth is used, and the printed family says so. whichlayers
runs as in a study: on a GPU, bfloat16 with float32 adapters and moments, compiled layers and CUDA graphs. peft runs in
bfloat16 on a GPU, with fused AdamW over the adapters and the head.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch
import torch.nn.functional as F
import transformers as tf

from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.models.families import FAMILIES
from whichlayers.models.head import build_classifier
from whichlayers.models.structure import ModelStructure
from whichlayers.trial import Adapter, Training, Trial

GEOMETRIES = {  # hidden size, feed-forward size, layers, heads, key-value heads
    "tiny": (64, 128, 4, 4, 2),
    "135M": (576, 1536, 30, 9, 3),
    "1B": (2048, 8192, 16, 32, 8),
    "3B": (3072, 8192, 28, 24, 8),
}
VOCABULARY, LENGTH, BATCH, RANK = 32_000, 64, 8, 8


def build_encoder(geometry: str) -> Any:
    """A random encoder of this geometry: Llama, or BERT if decoders are not supported."""
    hidden, inner, layers, heads, key_value_heads = GEOMETRIES[geometry]
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "max_position_embeddings": 512, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    if "llama" in FAMILIES:
        config: Any = tf.LlamaConfig(**shape, num_key_value_heads=key_value_heads)
    else:
        config = tf.BertConfig(**shape)
    return tf.AutoModel.from_config(config, attn_implementation="eager").float().eval()


def make_task(rows: int) -> TokenizedTask:
    """Random sequences of LENGTH tokens with random labels."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCABULARY, rows * LENGTH).astype(np.int32)
    offsets = np.arange(rows + 1, dtype=np.int64) * LENGTH
    split = TokenizedSplit(ids, None, offsets, rng.integers(0, 2, rows))
    return TokenizedTask(
        "random", "classification", 2, "accuracy", ("accuracy",), split, {"": split}, 0, "random"
    )


def run_stack(encoder: Any, data: TokenizedTask, trials: int, steps: int, device: str) -> tuple[float, float]:
    """Trial-steps per second and bytes of a stack of LoRA trials."""
    structure = ModelStructure(encoder)
    adapter = Adapter("lora", tuple(range(1, structure.depth + 1)), tuple(structure.linear_modules()), RANK)
    rows = BATCH * (steps + 8)
    training = Training(epochs=1, batch_size=BATCH, lr=1e-4, dropout=0.0)
    stack = [
        Trial("m", "m", "t", "t", rows, seed, training=training, adapter=adapter) for seed in range(trials)
    ]
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    settings = EngineSettings(compiled=device == "cuda")  # so few steps alone would not be worth compiling
    trainer = StackTrainer(stack, encoder, data, torch.device(device), settings)
    for step in range(8):  # compile, capture
        trainer.step_runner(step)
    _wait(device)
    began = time.perf_counter()
    for step in range(8, 8 + steps):
        trainer.step_runner(step)
    _wait(device)
    rate = trials * steps / (time.perf_counter() - began)
    used = torch.cuda.max_memory_allocated() - before if device == "cuda" else 0
    return rate, used


def run_peft(encoder: Any, data: TokenizedTask, steps: int, device: str) -> float:
    """Steps per second of one trial with peft."""
    import peft

    structure = ModelStructure(encoder)
    model = build_classifier(encoder, "mean", 2, seed=0)
    targets = [f"encoder.{structure.layer_prefix(n)}{m}" for n in range(1, structure.depth + 1)
               for m in structure.linear_modules()]  # fmt: skip
    model.encoder.config._attn_implementation = "sdpa"
    wrapped: Any = peft.get_peft_model(
        model,  # type: ignore[arg-type]
        peft.LoraConfig(
            r=RANK, lora_alpha=16, lora_dropout=0.0, target_modules=targets, modules_to_save=["classifier"]
        ),
    )
    wrapped = wrapped.to(device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32).train()
    for module in wrapped.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    ids = torch.from_numpy(data.train.ids.astype(np.int64)).view(-1, LENGTH).to(device)
    labels = torch.from_numpy(data.train.labels).to(device)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long, device=device)

    def step(number: int) -> None:
        rows = slice(number * BATCH, (number + 1) * BATCH)
        logits = wrapped(input_ids=ids[rows], attention_mask=mask)
        F.cross_entropy(logits.float(), labels[rows]).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for number in range(3):
        step(number)
    _wait(device)
    began = time.perf_counter()
    for number in range(3, 3 + steps):
        step(number)
    _wait(device)
    return steps / (time.perf_counter() - began)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--geometry", choices=GEOMETRIES, default="135M")
    parser.add_argument("--trials", type=int, nargs="+", default=[32])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data, encoder = make_task(BATCH * (options.steps + 8)), build_encoder(options.geometry)
    result: dict[str, Any] = {
        "geometry": options.geometry,
        "family": encoder.config.model_type,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "parameters": sum(p.numel() for p in encoder.parameters()),
    }

    def add(name: str, measured: Any) -> None:
        result[name] = measured
        print(json.dumps({name: measured}), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")

    add("peft_steps_per_s", round(run_peft(encoder, data, options.steps, options.device), 2))
    for trials in options.trials:
        rate, used = run_stack(encoder, data, trials, options.steps, options.device)
        add(f"stack_{trials}", {"trial_steps_per_s": round(rate, 1), "gb": round(used / 1e9, 2)})
    add("peft_again", round(run_peft(encoder, data, options.steps, options.device), 2))


if __name__ == "__main__":
    main()
