"""Save trained LoRA and IA3 adapters in the format of peft, for the base model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.errors import WhichlayersError
from whichlayers.models.find import PACKAGE_PREFIX, local_folder
from whichlayers.trial import Adapter

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

ADAPTER_FOLDER = "adapter"


def save_adapter(
    folder: Path, encoder: PreTrainedModel, adapter: Adapter, weights: Mapping[str, Tensor], base_model: str
) -> None:
    """Write adapter_config.json and adapter_model.safetensors into a new folder.

    peft loads it with `PeftModel.from_pretrained(AutoModel.from_pretrained(base_model), folder)`, which then
    computes the hidden states of the finetuned encoder.

    Args:
        folder: The folder to create.
        encoder: The encoder, for the types of its modules.
        adapter: The adapter of the trial.
        weights: Its parameters by name: MODULE.adapter.lora_a (rank, in) and lora_b (out, rank), or ia3 (out,).
        base_model: The base model as the user named it, with which peft's Auto classes find it; see `reference_to`.
    """
    from safetensors.torch import save_file

    parts: dict[str, dict[str, Tensor]] = {}
    for name, values in weights.items():
        owner, _, own = name.rpartition(".")
        parts.setdefault(owner.rpartition(".")[0], {})[own] = values
    if not parts:
        raise WhichlayersError("the trial has no adapter weights")
    transposed = any(type(encoder.get_submodule(name)).__name__.endswith("Conv1D") for name in parts)
    common: dict[str, Any] = {
        "base_model_name_or_path": reference_to(base_model),
        "task_type": "FEATURE_EXTRACTION",
        "inference_mode": True,
        "target_modules": sorted(parts),
        "fan_in_fan_out": transposed,
    }
    tensors: dict[str, Tensor] = {}
    for module, part in parts.items():
        prefix = f"base_model.model.{module}"
        if adapter.method == "lora":
            tensors[f"{prefix}.lora_A.weight"] = part["lora_a"].contiguous()
            tensors[f"{prefix}.lora_B.weight"] = part["lora_b"].contiguous()
        else:
            tensors[f"{prefix}.ia3_l"] = part["ia3"][:, None].contiguous()
    method: dict[str, Any] = {"peft_type": "IA3", "feedforward_modules": []}
    if adapter.method == "lora":
        method = {"peft_type": "LORA", "r": adapter.rank, "lora_alpha": adapter.alpha, "bias": "none"}
        method["lora_dropout"] = adapter.dropout
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps(common | method, indent=2) + "\n", encoding="utf-8"
    )
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def reference_to(model: str) -> str:
    """How adapter_config.json names the base model: a hub id as it is, a folder as ./NAME.

    The config cannot hold a path that is valid everywhere: peft takes relative ones from the current folder, and an
    absolute one would tell of the machine that built the model. ./NAME is at least never looked up on the hub, where
    another model may have that name, and is found from the folder that the base model is in.
    """
    if model.startswith(PACKAGE_PREFIX):
        return model
    return model if local_folder(model) is None else f"./{Path(model).expanduser().resolve().name}"
