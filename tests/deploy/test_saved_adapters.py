"""Built models with adapters: peft loads the adapter on the base model in a fresh process, with the same outputs."""

import json
import subprocess
import sys

import numpy as np
import pytest
from easy_study import easy_study, texts_and_labels

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
base, built, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
batch = AutoTokenizer.from_pretrained(built)(texts, padding=True, return_tensors="pt")
plain = AutoModel.from_pretrained(base).eval()
states = [plain(**batch).last_hidden_state]
states.append(PeftModel.from_pretrained(plain, built + "/adapter").eval()(**batch).last_hidden_state)
states.append(AutoModel.from_pretrained(built).eval()(**batch).last_hidden_state)
mask = batch["attention_mask"].bool()
assert "whichlayers" not in sys.modules
print(json.dumps([s[mask].tolist() for s in states]))
"""


@pytest.mark.parametrize("method", ["lora", "ia3"])
def test_peft_loads_the_adapter(tmp_path, method):
    settings = {"rank": 2} if method == "lora" else {}
    experiment = {"kind": "adapt", "method": method, "where": ["last"], "k": [2], **settings}
    training = {"epochs": 3, "max_length": 16, "lr": 0.05 if method == "ia3" else 5e-3}
    study = easy_study(tmp_path, experiments=[experiment], trials=1, train_sizes=[40], training=training)
    assets = Assets(None)
    trial = next(p.trial for p in expand(study, assets) if p.condition == "last")
    (trained,) = finetune_seeds([trial], assets, held_out=False, device="cpu")
    built = tmp_path / "built"
    built.mkdir()
    metadata = Metadata(
        *("sentence_transformers", "mean", "classification", ("bad", "good"), 16, False, "signs", "base"),
        layers=(1, 2, 3),
        depth=3,
        version="0",
    )
    save_model(built, trained, assets.tokenizer(trial), metadata)
    arguments = [study.models[0].name, str(built), json.dumps(TEXTS)]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    base, adapted, merged = (np.array(s) for s in json.loads(process.stdout.splitlines()[-1]))
    np.testing.assert_allclose(adapted, merged, atol=1e-5)
    assert np.abs(adapted - base).max() > 5e-3
    (text,) = _trained_parts(trial)
    assert text.startswith(
        f"Trained: {'LoRA (rank 2, alpha 16)' if method == 'lora' else 'IA3'} in layers 2-3 ("
    )
