"""Built models with adapters: peft loads the adapter on the base model in a fresh process, with the same outputs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from easy_study import easy_study, texts_and_labels
from tiny_tokenizers import tiny_tokenizer
from transformers import GPT2Config, GPT2Model

from whichlayers.deploy.adapters import reference_to
from whichlayers.deploy.card import _trained_parts
from whichlayers.deploy.save import save_model
from whichlayers.deploy.text_model import Metadata
from whichlayers.deploy.train import finetune_seeds
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import expand

TEXTS = [text for text, _ in texts_and_labels(20, seed=5)]
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from peft import PeftModel
from transformers import AutoModel, AutoTokenizer
found, texts = [], json.loads(sys.argv[2])
for base, built in json.loads(sys.argv[1]):
    batch = AutoTokenizer.from_pretrained(built)(texts, padding=True, return_tensors="pt")
    plain = AutoModel.from_pretrained(base).eval()
    states = [plain(**batch).last_hidden_state]
    states.append(PeftModel.from_pretrained(plain, built + "/adapter").eval()(**batch).last_hidden_state)
    states.append(AutoModel.from_pretrained(built).eval()(**batch).last_hidden_state)
    mask = batch["attention_mask"].bool()
    found.append([s[mask].tolist() for s in states])
assert "whichlayers" not in sys.modules
print(json.dumps(found))
"""
AUTO_SCRIPT = """
import json, sys
import torch
from peft import AutoPeftModelForFeatureExtraction
from transformers import AutoTokenizer
batch = AutoTokenizer.from_pretrained(sys.argv[1])(json.loads(sys.argv[2]), padding=True, return_tensors="pt")
model = AutoPeftModelForFeatureExtraction.from_pretrained(sys.argv[1] + "/adapter").eval()
states = model(**batch).last_hidden_state
print(json.dumps(states[batch["attention_mask"].bool()].tolist()))
"""
CASES = [("bert", "lora"), ("bert", "ia3"), ("gpt2", "lora")]  # GPT-2 stores its weights as (in, out)


def write_gpt2(folder):
    shutil.rmtree(folder)
    tokenizer = tiny_tokenizer("byte-level")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=3, n_head=2, n_positions=32)
    GPT2Model(config).save_pretrained(folder)


def save_adapted(folder, family, method):
    """Train adapters in the last two layers and save the model; returns its trial, its base and its folder."""
    settings = {"rank": 2} if method == "lora" else {}
    experiment = {"kind": "adapt", "method": method, "where": ["last"], "k": [2], **settings}
    training = {"epochs": 3, "max_length": 16, "lr": 0.05 if method == "ia3" else 5e-3}
    study = easy_study(
        folder, experiments=[experiment], trials=1, train_sizes=[40], training=training, head="mean"
    )
    if family == "gpt2":
        write_gpt2(folder / "model")
    assets = Assets(None)
    trial = next(p.trial for p in expand(study, assets) if p.condition == "last")
    (trained,) = finetune_seeds([trial], assets, held_out=False, device="cpu")
    built = folder / "built"
    built.mkdir()
    metadata = Metadata(
        *("sentence_transformers", "mean", "classification", ("bad", "good"), 16, False, "signs", "base"),
        layers=(1, 2, 3),
        depth=3,
        version="0",
    )
    save_model(built, trained, assets.tokenizer(trial), metadata)
    return trial, str(folder / "model"), str(built)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """The trial of each case, and the hidden states of the base, with peft's adapter and with merged weights."""
    saved = [save_adapted(tmp_path_factory.mktemp("adapted"), *case) for case in CASES]
    arguments = [json.dumps([paths for _, *paths in saved]), json.dumps(TEXTS)]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    found = json.loads(process.stdout.splitlines()[-1])
    return {
        case: (trial, built, *states)
        for case, (trial, _, built), states in zip(CASES, saved, found, strict=True)
    }


@pytest.mark.parametrize("case", CASES)
def test_peft_loads_the_adapter(adapted, case):
    trial, built, *states = adapted[case]
    base, with_peft, merged = (np.array(s) for s in states)
    np.testing.assert_allclose(with_peft, merged, atol=1e-5)
    assert np.abs(with_peft - base).max() > 5e-3
    (text,) = _trained_parts(trial)
    name = "LoRA (rank 2, alpha 16)" if case[1] == "lora" else "IA3"
    assert text.startswith(f"Trained: {name} in layers 2-3 (")
    config = json.loads(Path(built, "adapter", "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "./model"


def test_the_base_model_is_found_from_its_folder_and_never_on_the_hub(adapted):
    trial, built, _, with_peft, _ = adapted[CASES[0]]
    arguments = [sys.executable, "-c", AUTO_SCRIPT, built, json.dumps(TEXTS)]
    here = Path(trial.model).parent
    process = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=here)
    assert process.returncode == 0, process.stderr[-2000:]
    np.testing.assert_allclose(json.loads(process.stdout.splitlines()[-1]), with_peft, atol=1e-5)
    elsewhere = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd="/")
    assert elsewhere.returncode == 1
    assert "'./model'" in elsewhere.stderr
    assert "couldn't connect" not in elsewhere.stderr  # a name that cannot be that of a model on the hub


def test_how_a_base_model_is_named(tmp_path, monkeypatch):
    (tmp_path / "m-llama").mkdir()
    monkeypatch.chdir(tmp_path)
    assert reference_to("m-llama") == reference_to(str(tmp_path / "m-llama")) == "./m-llama"
    assert reference_to("bert-base-uncased") == "bert-base-uncased"
    assert reference_to("org/name") == "org/name"
    assert reference_to("package:name") == "package:name"
