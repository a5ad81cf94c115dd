"""Saved folders in a fresh process: transformers, sentence-transformers and load_model give the same logits."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from small_models import DECODER_NAMES, ENCODER_NAMES
from tiny import CONFIGS, DECODERS, ENCODERS, FAMILIES
from tiny_tokenizers import tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, PreTrainedTokenizerFast

from whichlayers.deploy.save import layout_of, save_model
from whichlayers.deploy.text_model import Metadata
from whichlayers.deploy.train import TrainedModel
from whichlayers.models.find import ModelFiles
from whichlayers.models.head import Classifier, has_pooler
from whichlayers.models.surgery import reorder
from whichlayers.models.tokenizers import load_tokenizer
from whichlayers.trial import Trial

LABELS = ("no", "maybe", "yes")
TEXTS = ["w10 w11 w12", "w20", "w30 w31 w32 w33 w34 w35 w36 w37 w38 w39 w40 w41", "w50 unknown w51"]
PAIRS = ["w60 w61", "w70 w71 w72 w73", "w80", "w90 w91 w92"]
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from sentence_transformers import SentenceTransformer
found, texts, pairs = {}, *json.loads(sys.argv[2])
for name in json.loads(sys.argv[1]):
    meta = json.load(open(name + "/whichlayers.json"))
    second = pairs if meta["pairs"] else None
    if meta["layout"] == "sequence_classification":
        tokenizer = AutoTokenizer.from_pretrained(name)
        limits = {"truncation": True, "max_length": meta["max_length"]}
        batch = tokenizer(texts, second, padding=True, return_tensors="pt", **limits)
        model = AutoModelForSequenceClassification.from_pretrained(name).eval()
        assert list(model.config.id2label.values()) == meta["labels"]
        logits = model(**batch).logits
    else:
        inputs = texts if second is None else list(zip(texts, second))
        logits = SentenceTransformer(name, device="cpu").encode(inputs, convert_to_tensor=True)
    assert "whichlayers" not in sys.modules
    base = AutoModel.from_pretrained(name)
    found[name] = [logits.tolist(), base.config.num_hidden_layers]
import whichlayers
for name in found:
    model = whichlayers.load_model(name)
    found[name].append(model.logits(texts, pairs if model.metadata.pairs else None).tolist())
print(json.dumps(found))
"""


def word_tokenizer(max_length=66, pairs=True):
    vocabulary = {
        word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(110))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"] if pairs else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=max_length,
        model_input_names=names,
    )


# the tokenizers of decoders: kind, class, and whether texts start with a BOS token; none has a padding token
DECODER_TOKENIZERS = {
    "llama": ("sentencepiece", "LlamaTokenizer", True),
    "mistral": ("tiktoken-like", "PreTrainedTokenizerFast", True),
    "qwen2": ("byte-level", "Qwen2Tokenizer", False),
    "qwen3": ("byte-level", "Qwen2Tokenizer", False),
    "gemma": ("gemma-like", "GemmaTokenizer", True),
    "gemma2": ("gemma-like", "GemmaTokenizer", True),
    "gemma3_text": ("gemma-like", "GemmaTokenizer", True),
    "gpt2": ("byte-level", "GPT2Tokenizer", False),
    "gpt_neox": ("byte-level", "GPTNeoXTokenizer", True),
    "olmo2": ("tiktoken-like", "GPT2Tokenizer", False),
    "opt": ("byte-level", "GPT2Tokenizer", True),
    "phi3": ("sentencepiece", "LlamaTokenizer", False),
    "smollm3": ("tiktoken-like", "PreTrainedTokenizerFast", False),
}


def decoder_tokenizer(family, folder):
    """A tokenizer as it is loaded for a study, from a folder with a tokenizer of the family's class."""
    kind, name, bos = DECODER_TOKENIZERS[family]
    CONFIGS[family]().save_pretrained(folder)
    tiny_tokenizer(kind).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": name}))
    return load_tokenizer(ModelFiles(str(folder), folder, None, ""), bos)


def random_encoder(family, vocabulary):
    """A random encoder whose padding token is 0."""
    config = CONFIGS[family]()
    config.vocab_size, config.pad_token_id = vocabulary, 0
    torch.manual_seed(0)
    encoder = AutoModel.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for p in encoder.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return encoder.eval()


def reference_logits(encoder, head, weight, bias, tokenizer, pairs, max_length):
    """Our classifier on one text at a time, without padding."""
    classifier = Classifier(encoder, head, len(weight)).eval()
    with torch.no_grad():
        classifier.classifier.weight.copy_(weight)
        if bias is not None:
            classifier.classifier.bias.copy_(bias)
        rows = []
        for i, text in enumerate(TEXTS):
            pair = PAIRS[i] if pairs else None
            batch = tokenizer(
                text, pair, truncation="longest_first", max_length=max_length, return_tensors="pt"
            )
            types = batch.get("token_type_ids")
            rows.append(classifier(batch["input_ids"], batch["attention_mask"], types)[0])
    return torch.stack(rows).numpy()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Every family with its heads, saved here and loaded in a new process: (reference, loaded, depth) by name."""
    root, expected, layouts = tmp_path_factory.mktemp("saved"), {}, {}
    generator = torch.Generator().manual_seed(0)
    for family in FAMILIES:
        decoder = family in DECODERS
        if decoder:
            tokenizer = decoder_tokenizer(family, tmp_path_factory.mktemp(family))
        else:
            tokenizer = word_tokenizer(pairs=family in ("bert", "mpnet", "xlnet", "electra"))
        encoder = random_encoder(family, max(120, len(tokenizer)))
        for head in ("mean", "pooler") if has_pooler(encoder) else ("mean", "last") if decoder else ("mean",):
            pairs = family in ("bert", "mpnet")
            max_length = {"bert": 9, "llama": 20}.get(family, 60)
            small = reorder(encoder, (1, 3))
            hidden = small.config.hidden_size
            weight = torch.randn(len(LABELS), hidden, generator=generator)
            bias = None if head == "last" else torch.randn(len(LABELS), generator=generator)
            trial = Trial("some/model", "f", "tiny", "t", 10, 0, head=head)
            folder = root / f"{family}-{head}"
            folder.mkdir()
            layout = layouts[folder.name] = layout_of(small, head)
            metadata = Metadata(
                *(
                    layout,
                    head,
                    "classification",
                    LABELS,
                    max_length,
                    pairs,
                    "tiny",
                    "some/model",
                    (1, 3),
                    3,
                    "0",
                )
            )
            expected[str(folder)] = reference_logits(small, head, weight, bias, tokenizer, pairs, max_length)
            save_model(folder, TrainedModel(trial, small, weight, bias, None), tokenizer, metadata)
    arguments = [json.dumps(list(expected)), json.dumps([TEXTS, PAIRS])]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(process.stdout.splitlines()[-1])
    return {name.rpartition("/")[2]: (expected[name], *found[name]) for name in expected}, layouts


def test_every_family_is_saved(loaded):
    results, layouts = loaded
    assert {name.rpartition("-")[0] for name in results} == set(FAMILIES)
    assert (set(ENCODERS), set(DECODERS)) == (set(ENCODER_NAMES), set(DECODER_NAMES))
    with_pooler = {name for name, layout in layouts.items() if layout == "sequence_classification"}
    last = {f"{name}-last" for name in DECODERS}
    assert with_pooler == {"bert-pooler", "roberta-pooler", "mpnet-pooler", *last}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_libraries_compute_the_same_logits(loaded, family):
    results, _ = loaded
    for name, (expected, others, depth, ours) in results.items():
        if name.rpartition("-")[0] == family:
            np.testing.assert_allclose(others, expected, atol=2e-4, err_msg=name)
            np.testing.assert_allclose(ours, expected, atol=2e-4, err_msg=name)
            assert depth == 2
            for i in range(len(TEXTS)):
                others_apart = np.abs(np.delete(expected, i, 0) - expected[i]).max(1)
                assert others_apart.min() > 0.02, f"{name}: two texts have the same logits"
