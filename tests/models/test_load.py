"""Loading every family from files: exact float32 weights, correct properties, no silent random weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import (
    DECODER_NAMES,
    DEPTH_KEY,
    FAMILY_NAMES,
    PER_LAYER,
    SHARED_MODELS,
    perturb,
    same_state,
    small_batch,
    small_config,
    small_model,
)
from test_find import DEMO, needs_demo
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertForPreTraining,
    PreTrainedTokenizerFast,
)

from whichlayers.errors import WhichlayersError
from whichlayers.models.families import UnsupportedModel
from whichlayers.models.head import build_classifier
from whichlayers.models.load import describe, known_models, load_encoder, resolve
from whichlayers.models.tokenizers import load_tokenizer

WITH_POOLER = ("bert", "roberta", "mpnet")


@pytest.fixture
def copy_of_bert(saved_bert, tmp_path):
    return Path(shutil.copytree(saved_bert, tmp_path / "model"))


def edit_weights(folder: Path, edit) -> None:
    path = folder / "model.safetensors"
    save_file(edit(load_file(path)), path, metadata={"format": "pt"})


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_properties_and_weights_of_every_family(family, tmp_path):
    model = small_model(family, depth=3)
    model.save_pretrained(tmp_path)
    files = resolve(str(tmp_path))
    info = describe(files)
    assert (info.family, info.depth, info.hidden_size, info.num_heads, info.vocab_size) == (
        family,
        3,
        32,
        2,
        100,
    )
    assert info.has_pooler == (family in WITH_POOLER)
    assert info.fingerprint == files.fingerprint
    loaded = load_encoder(files)
    assert same_state(loaded, model)
    assert not loaded.training
    assert loaded.config._attn_implementation == "eager"
    batch = small_batch()
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch).last_hidden_state, model(**batch).last_hidden_state)


@pytest.mark.parametrize(
    ("family", "expected"),
    [("bert", 64), ("roberta", 62), ("mpnet", 62), ("xlnet", None), ("modernbert", 64)],
)
def test_the_longest_input_is_reported_and_works(family, expected, tmp_path):
    model = small_model(family, depth=1)
    model.save_pretrained(tmp_path)
    assert describe(resolve(str(tmp_path))).max_length == expected
    ids = torch.full((1, expected or 200), 7)
    assert (
        model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.shape[1] == ids.shape[1]
    )


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_an_encoder_saved_inside_a_language_model(family, tmp_path):
    """The file has a head and a prefix before every name; the encoder must be loaded exactly."""
    from transformers import XLNetLMHeadModel

    language_model = AutoModelForCausalLM if family in DECODER_NAMES else AutoModelForMaskedLM
    kind = XLNetLMHeadModel._from_config if family == "xlnet" else language_model.from_config
    whole = perturb(kind(small_config(family, depth=2)))
    whole.save_pretrained(tmp_path)
    files = resolve(str(tmp_path))
    assert not describe(files).has_pooler
    loaded = load_encoder(files)
    assert same_state(loaded, whole.base_model)
    if family in WITH_POOLER:
        with pytest.raises(WhichlayersError, match="pooler"):
            build_classifier(loaded, "pooler", 2, seed=0)


def test_a_pretraining_model_in_half_precision(tmp_path):
    whole = perturb(BertForPreTraining(small_config("bert", depth=2))).half()
    whole.save_pretrained(tmp_path)
    files = resolve(str(tmp_path))
    assert describe(files).has_pooler
    loaded = load_encoder(files)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert same_state(loaded, whole.bert.float())


def test_layer_norms_under_their_old_names(copy_of_bert):
    """The first BERT checkpoints call a layer norm's weight gamma and its bias beta."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename(weights):
        return {name.replace(a, b): v for name, v in weights.items() for a, b in [_pair(name, old)]}

    edit_weights(copy_of_bert, rename)
    assert any(name.endswith("gamma") for name in load_file(copy_of_bert / "model.safetensors"))
    assert same_state(load_encoder(resolve(str(copy_of_bert))), small_model("bert", depth=2))


def _pair(name: str, renames: dict[str, str]) -> tuple[str, str]:
    return next(((a, b) for a, b in renames.items() if name.endswith(a)), ("", ""))


def test_several_files(tmp_path):
    model = small_model("bert", depth=2)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    files = resolve(str(tmp_path))
    assert describe(files).has_pooler
    assert same_state(load_encoder(files), model)


def test_an_allowed_pickle(copy_of_bert):
    (copy_of_bert / "model.safetensors").unlink()
    model = small_model("bert", depth=2)
    torch.save(model.state_dict(), copy_of_bert / "pytorch_model.bin")
    files = resolve(str(copy_of_bert), allow_pickle=True)
    assert describe(files).has_pooler
    assert same_state(load_encoder(files), model)


def test_a_missing_pooler_is_left_out_and_not_initialized(copy_of_bert):
    edit_weights(copy_of_bert, lambda weights: {n: v for n, v in weights.items() if "pooler" not in n})
    files = resolve(str(copy_of_bert))
    assert not describe(files).has_pooler
    assert load_encoder(files).pooler is None


def test_missing_layer_weights_are_an_error(copy_of_bert):
    gone = "encoder.layer.1.output.dense.weight"
    edit_weights(copy_of_bert, lambda weights: {n: v for n, v in weights.items() if n != gone})
    with pytest.raises(WhichlayersError, match=rf"lack 1 parameter of.*{gone}.*random"):
        load_encoder(resolve(str(copy_of_bert)))


def change_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_config_with_more_layers_than_the_file(copy_of_bert):
    change_config(copy_of_bert, num_hidden_layers=3)
    with pytest.raises(WhichlayersError, match=r"encoder\.layer\.2"):
        load_encoder(resolve(str(copy_of_bert)))


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("inside", [False, True])
def test_a_config_with_fewer_layers_than_the_file(family, inside, tmp_path):
    """The layers above would be dropped silently, and the depth in the study would be wrong."""
    model = small_model(family, depth=3)
    if inside and family != "xlnet":  # its names have a prefix then
        language_model = AutoModelForCausalLM if family in DECODER_NAMES else AutoModelForMaskedLM
        model = language_model.from_config(small_config(family, depth=3))
    model.save_pretrained(tmp_path)
    change_config(tmp_path, **{DEPTH_KEY.get(family, "num_hidden_layers"): 2})
    for key in PER_LAYER:
        if getattr(model.config, key, None):
            change_config(tmp_path, **{key: getattr(model.config, key)[:2]})
    with pytest.raises(
        WhichlayersError, match=r"parameters of layers.*(layers?|h)\.2\..*dropped\. Check that config\.json"
    ):
        load_encoder(resolve(str(tmp_path)))


def test_a_config_of_another_size(copy_of_bert):
    change_config(copy_of_bert, intermediate_size=64)
    with pytest.raises(WhichlayersError, match=r"intermediate\.dense\.bias is 48 and should be 64") as caught:
        load_encoder(resolve(str(copy_of_bert)))
    assert "do not have the shapes given by config.json" in str(caught.value)
    assert "ignore_mismatched_sizes" not in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("albert", "share one set"),
        ("bloom", "'bloom' is not supported"),
        (None, "has no model_type"),
    ],
)
def test_other_families_are_rejected_before_any_weight_is_read(copy_of_bert, model_type, message):
    change_config(copy_of_bert, model_type=model_type)
    files = resolve(str(copy_of_bert))
    for read in (describe, load_encoder):
        with pytest.raises(UnsupportedModel, match=message) as caught:
            read(files)
        assert str(copy_of_bert) in str(caught.value)


@pytest.mark.parametrize(("content", "kind"), [("[1]", "list"), ('"bert"', "str"), ("null", "NoneType")])
def test_a_config_that_is_not_an_object(copy_of_bert, content, kind):
    (copy_of_bert / "config.json").write_text(content)
    with pytest.raises(WhichlayersError, match=rf"config\.json must contain a JSON object, not a {kind}"):
        describe(resolve(str(copy_of_bert)))


def test_a_config_that_is_not_json(copy_of_bert):
    (copy_of_bert / "config.json").write_text("{")
    with pytest.raises(WhichlayersError, match=r"config\.json cannot be read"):
        describe(resolve(str(copy_of_bert)))


def test_a_weights_file_that_is_only_a_pointer(copy_of_bert):
    (copy_of_bert / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    for read in (describe, load_encoder):
        with pytest.raises(WhichlayersError, match="git lfs pull"):
            read(resolve(str(copy_of_bert)))


def word_tokenizer(**options) -> PreTrainedTokenizerFast:
    vocab = {"[UNK]": 0, "[PAD]": 1, "one": 2, "two": 3}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]", **options)


def test_a_tokenizer_pads_on_the_right(copy_of_bert):
    word_tokenizer(padding_side="left").save_pretrained(copy_of_bert)
    tokenizer = load_tokenizer(resolve(str(copy_of_bert)))
    assert tokenizer.is_fast
    encoded = tokenizer(["two", "one two"], padding=True)
    assert encoded["input_ids"] == [[3, 1], [2, 3]]
    assert encoded.word_ids(1) == [0, 1]


def test_a_tokenizer_that_transformers_would_misread(tmp_path):
    """For qwen2, transformers builds a BPE tokenizer whatever tokenizer.json holds: every text would be empty."""
    small_model("qwen2", depth=2).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        WhichlayersError, match="holds a WordLevel tokenizer, which transformers reads as BPE"
    ):
        load_tokenizer(resolve(str(tmp_path)))


def test_sentencepiece_tokenizer_of_xlnet(tmp_path):
    """A sentencepiece file alone, as in old checkpoints: special tokens last, followed by padding."""
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf", reason="transformers reads sentencepiece files with protobuf")
    small_model("xlnet", depth=1).save_pretrained(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\na dog ran to the red house\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=60,
        hard_vocab_limit=False,
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"],
        minloglevel=2,
    )
    tokenizer = load_tokenizer(resolve(str(tmp_path)))
    ids = tokenizer(["the cat", "the cat sat on the mat"], padding=True)["input_ids"]
    shorter = [token for token in ids[0] if token != tokenizer.pad_token_id]
    assert shorter[-2:] == [tokenizer.sep_token_id, tokenizer.cls_token_id]
    assert ids[0] == shorter + [tokenizer.pad_token_id] * (len(ids[1]) - len(shorter))


def test_no_tokenizer(copy_of_bert):
    with pytest.raises(WhichlayersError, match="no tokenizer"):
        load_tokenizer(resolve(str(copy_of_bert)))


def test_a_broken_tokenizer(copy_of_bert):
    (copy_of_bert / "tokenizer.json").write_text("{}")
    with pytest.raises(WhichlayersError, match="could not be read"):
        load_tokenizer(resolve(str(copy_of_bert)))


@needs_demo
def test_the_demo_model_is_a_sentence_encoder():
    """Paraphrases are closer to each other than to an unrelated sentence, so the weights are loaded."""
    files = resolve(f"package:{DEMO}")
    info = describe(files)
    assert (info.family, info.depth, info.hidden_size, info.has_pooler) == ("bert", 6, 384, True)
    batch = load_tokenizer(files)(
        ["A man eats food.", "Someone is eating a meal.", "The stock market fell."],
        padding=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        hidden = load_encoder(files)(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert near > 0.5 > 0.2 > far


TINY_BERT = SHARED_MODELS / "carryover-bert-tiny"


@pytest.mark.skipif(not TINY_BERT.is_dir(), reason="no ../shared/models/carryover-bert-tiny")
def test_the_shared_tiny_bert():
    folder = TINY_BERT
    files = resolve(str(folder))
    info = describe(files)
    assert (info.family, info.depth, info.hidden_size, info.has_pooler) == ("bert", 12, 128, True)
    encoder = load_encoder(files)
    stored = load_file(folder / "model.safetensors")
    for name, parameter in encoder.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, stored[f"bert.{name}"].float()), name
    assert load_tokenizer(files)("hello world")["input_ids"]


@needs_demo
def test_known_models_lists_packages_and_ways_to_name_a_model():
    rows = dict(known_models())
    assert rows[f"package:{DEMO}"] == "installed: bert, 6 layers, hidden size 384"
    text = json.dumps(rows)
    for word in (*FAMILY_NAMES, "albert", "ORG/NAME", "FOLDER", "pip install"):
        assert word in text
