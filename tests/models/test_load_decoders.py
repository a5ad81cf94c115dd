"""Decoders from files as they are published: bfloat16, several files, tied embeddings; and models that are rejected."""

import json

import pytest
import torch
from safetensors import safe_open
from small_models import perturb, same_state, small_config
from transformers import AutoConfig, AutoModelForCausalLM

from whichlayers.models.families import UnsupportedModel
from whichlayers.models.find import float32_bytes
from whichlayers.models.load import describe, load_encoder, resolve


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("family", "tied"),
    [("llama", True), ("llama", False), ("gemma3_text", True), ("gpt2", True), ("opt", True)],
)
def test_a_language_model_in_half_precision_and_several_files(family, tied, dtype, tmp_path):
    config = small_config(family, depth=3)
    config.tie_word_embeddings = tied
    whole = perturb(AutoModelForCausalLM.from_config(config)).to(dtype)
    whole.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    names = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert any(name.startswith("lm_head") for name in names) != tied, "tied embeddings are stored once"
    with safe_open(tmp_path / next(iter(names.values())), "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {dtype}  # noqa: SIM118
    files = resolve(str(tmp_path))
    assert (describe(files).depth, describe(files).causal) == (3, True)
    loaded = load_encoder(files)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert same_state(loaded, whole.base_model.float())


def test_the_memory_of_a_model_does_not_depend_on_the_precision_of_its_files(tmp_path):
    model = AutoModelForCausalLM.from_config(small_config("llama"))
    expected = 4 * sum(p.numel() for p in model.parameters())
    for dtype, shard in ((torch.float32, "1GB"), (torch.bfloat16, "1GB"), (torch.bfloat16, "10KB")):
        folder = tmp_path / f"{dtype} {shard}"
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        assert float32_bytes(resolve(str(folder))) == expected


@pytest.mark.parametrize(
    ("model_type", "missing"),
    [
        ("mixtral", "mixture of experts: stacked experts and routing are missing"),
        ("qwen2_moe", "mixture of experts"),
        ("gpt_oss", "mixture of experts"),
        ("mamba", "state-space or recurrent model: stacked versions of its recurrent layers are missing"),
        ("falcon_h1", "state-space"),
        ("t5", "encoder-decoder: stacked cross-attention"),
        ("bart", "encoder-decoder"),
        ("gemma3", "image encoder"),
        ("bloom", "'bloom' is not supported; supported families: .*llama"),
    ],
)
def test_the_config_of_an_unsupported_model_names_what_is_missing(model_type, missing, tmp_path):
    """With the config.json that transformers itself writes; the weights are not read."""
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    for read in (describe, load_encoder):
        with pytest.raises(UnsupportedModel, match=missing):
            read(resolve(str(tmp_path)))


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"bits": 4}, "quantization_config in config.json"),
    ],
)
def test_a_quantized_checkpoint_of_a_supported_family(quantization, named, tmp_path):
    config = small_config("llama").to_dict() | {"quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnsupportedModel, match=rf"quantized \(.*{named}.*Use the original checkpoint"):
        load_encoder(resolve(str(tmp_path)))
