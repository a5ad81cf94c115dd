"""Locations of the parts of each family, checked against lists written by hand."""

import re

import pytest
import torch
from small_models import DECODER_NAMES, FAMILY_NAMES, small_config, small_model
from transformers import AutoConfig, AutoModel, BertForMaskedLM

from whichlayers.catalog import CAUSAL_FAMILIES
from whichlayers.errors import WhichlayersError
from whichlayers.models.families import FAMILIES, UnsupportedModel, family_of, unsupported_reason
from whichlayers.models.structure import ModelStructure, is_bias

BERT_LAYER = {
    *(f"attention.self.{m}.{p}" for m in ("query", "key", "value") for p in ("weight", "bias")),
    *(f"attention.output.{m}.{p}" for m in ("dense", "LayerNorm") for p in ("weight", "bias")),
    *(f"intermediate.dense.{p}" for p in ("weight", "bias")),
    *(f"output.{m}.{p}" for m in ("dense", "LayerNorm") for p in ("weight", "bias")),
}
XLNET_LAYER = {
    *(f"rel_attn.{p}" for p in ("q", "k", "v", "o", "r", "r_r_bias", "r_s_bias", "r_w_bias", "seg_embed")),
    *(f"rel_attn.layer_norm.{p}" for p in ("weight", "bias")),
    *(f"ff.{m}.{p}" for m in ("layer_norm", "layer_1", "layer_2") for p in ("weight", "bias")),
}
OUTSIDE_LAYERS = {  # neither in a layer nor in the embeddings: poolers and parameters shared by layers
    "bert": {"pooler.dense.weight", "pooler.dense.bias"},
    "roberta": {"pooler.dense.weight", "pooler.dense.bias"},
    "electra": set(),
    "distilbert": set(),
    "mpnet": {"pooler.dense.weight", "pooler.dense.bias", "encoder.relative_attention_bias.weight"},
    "xlnet": set(),
    "deberta-v2": {"encoder.rel_embeddings.weight", "encoder.LayerNorm.weight", "encoder.LayerNorm.bias"},
    "modernbert": {"final_norm.weight"},
    **{name: {"norm.weight"} for name in DECODER_NAMES},
    "gpt2": {"ln_f.weight", "ln_f.bias"},
    "gpt_neox": {"final_layer_norm.weight", "final_layer_norm.bias"},
    "opt": {"decoder.final_layer_norm.weight", "decoder.final_layer_norm.bias"},
}


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_parameter_belongs_to_at_most_one_layer(family):
    model = small_model(family)
    structure = ModelStructure(model)
    assert structure.family is FAMILIES[family]
    assert structure.depth == len(structure.layers) == 4

    layer_by_name: dict[str, int] = {}
    for number in range(structure.depth + 1):
        for name, parameter in structure.layer_parameters(number).items():
            assert name not in layer_by_name
            assert parameter is model.get_parameter(name)
            layer_by_name[name] = number
    for name, _ in model.named_parameters():
        assert structure.layer_of(name) == layer_by_name.get(name)
    assert {name for name, _ in model.named_parameters()} - layer_by_name.keys() == OUTSIDE_LAYERS[family]
    assert structure.embedding_names() == [name for name, number in layer_by_name.items() if number == 0]


@pytest.mark.parametrize(("family", "expected"), [("bert", BERT_LAYER), ("xlnet", XLNET_LAYER)])
def test_a_layer_has_all_parameters_inside_its_module(family, expected):
    structure = ModelStructure(small_model(family))
    prefix = {"bert": "encoder.layer.1.", "xlnet": "layer.1."}[family]
    assert set(structure.layer_parameters(2)) == {prefix + name for name in expected}


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_layer_norms_are_found_by_type(family):
    names = ModelStructure(small_model(family)).layer_norm_names()
    model = small_model(family)
    by_name = {
        n
        for n, _ in model.named_parameters()
        if "norm" in (module := n.rpartition(".")[0].rpartition(".")[2].lower()) or module.startswith("ln_")
    }
    assert names == by_name
    assert names


def test_modernbert_first_layer_has_no_attention_norm():
    structure = ModelStructure(small_model("modernbert"))
    assert "layers.0.attn_norm.weight" not in structure.layer_parameters(1)
    assert "layers.1.attn_norm.weight" in structure.layer_parameters(2)


def test_embeddings_by_name():
    electra = ModelStructure(small_model("electra"))
    assert "embeddings_project.weight" in electra.embedding_names()
    assert ModelStructure(small_model("xlnet")).embedding_names() == ["mask_emb", "word_embedding.weight"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("encoder.layer.0.output.dense.bias", True),
        ("encoder.layer.0.output.dense.weight", False),
        ("layer.0.rel_attn.r_w_bias", True),
        ("layer.0.rel_attn.r", False),
        ("layer.0.rel_attn.seg_embed", False),
        ("encoder.relative_attention_bias.weight", False),
    ],
)
def test_biases_are_recognized_by_name(name, expected):
    assert is_bias(name) is expected


def test_albert_is_rejected_with_the_reason():
    config = AutoConfig.for_model(
        "albert", hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=9
    )
    with pytest.raises(UnsupportedModel, match="share one set of weights"):
        ModelStructure(AutoModel.from_config(config))


def test_the_error_for_an_unknown_family_lists_the_supported_ones():
    with pytest.raises(
        UnsupportedModel, match=r"'bloom' is not supported; supported families: bert, .*CONTRIBUTING"
    ):
        family_of("bloom")
    with pytest.raises(UnsupportedModel, match=r"has no model_type.*set it to one of these: bert, "):
        family_of(None)


def test_a_model_with_a_head_is_rejected():
    with pytest.raises(UnsupportedModel, match="base_model"):
        ModelStructure(BertForMaskedLM(small_config("bert", depth=1)))


@pytest.mark.parametrize("number", [-1, 5])
def test_a_layer_that_does_not_exist(number):
    with pytest.raises(WhichlayersError, match="1 to 4"):
        ModelStructure(small_model("bert")).layer_parameters(number)


def test_the_model_is_not_modified():
    model = small_model("bert")
    before = {name: p.clone() for name, p in model.named_parameters()}
    structure = ModelStructure(model)
    structure.layer_parameters(1)
    structure.layer_norm_names()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_the_catalog_knows_which_families_are_decoders():
    assert {name for name, family in FAMILIES.items() if family.causal} == CAUSAL_FAMILIES


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture of experts"),
        ({"model_type": "qwen3_moe"}, "mixture of experts"),
        ({"model_type": "mamba2", "state_size": 128}, "state-space"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, "other modalities"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, "quantized .gptq"),
        ({"model_type": "llama"}, None),
        ({"model_type": "bert", "is_encoder_decoder": False}, None),
    ],
)
def test_what_is_missing_for_a_model_that_is_not_supported(config, message):
    reason = unsupported_reason(config)
    assert reason is None if message is None else re.search(message, reason)
