"""A finetuned decoder: the saved folder gives the loss that the engine computed, with BOS token and prompts."""

import csv
import dataclasses

import pytest
import torch
from tiny_tokenizers import TEXTS, tiny_tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig, LlamaModel

import whichlayers
from whichlayers.deploy.save import layout_of, save_model
from whichlayers.deploy.text_model import Metadata
from whichlayers.deploy.train import finetune_seeds
from whichlayers.engine.finetune import finetune
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import expand
from whichlayers.study.study_file import Study


def decoder_study(folder, pairs, head):
    tokenizer = tiny_tokenizer("byte-level", bos=True)
    tokenizer.save_pretrained(folder / "model")
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaModel(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, **size)).save_pretrained(
        folder / "model"
    )
    for name in ("train", "dev"):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["a", "b", "label"])
            rows = [
                (TEXTS[i % 5][: 20 + i], TEXTS[(i + 2) % 5], i % 2)
                for i in range(30 if name == "train" else 12)
            ]
            writer.writerows((f"{name} {a}", b, label) for a, b, label in rows)
    task = {"name": "t", "train": str(folder / "train.csv"), "dev": str(folder / "dev.csv"), "text": "a"}
    task |= {"label": "label"} | ({"pair": "b"} if pairs else {})
    return Study(
        name="decoder",
        models=[str(folder / "model")],
        tasks=[task],
        head=head,
        experiments=[{"kind": "prune", "top": [1]}],
        trials=1,
        training={"epochs": 1, "lr": 1e-2, "max_length": 24},
    )


@pytest.mark.parametrize(("pairs", "head"), [(False, "last"), (True, "last"), (False, "mean")])
def test_the_saved_decoder_is_the_trained_one(tmp_path, pairs, head):
    study, assets = decoder_study(tmp_path, pairs, head), Assets(None)
    trial = next(p.trial for p in expand(study, assets) if p.condition == "top")
    result = finetune([trial], assets.encoder(trial), assets.data(trial))[0]
    (trained,) = finetune_seeds([trial], assets, held_out=False, device="cpu")
    folder = tmp_path / "built"
    folder.mkdir()
    metadata = Metadata(
        *(layout_of(trained.encoder, head), head, "classification", ("0", "1"), 24, pairs, "t", "base"),
        layers=(1,),
        depth=2,
        version="0",
        details={"trial": trial.identity()},
    )
    save_model(folder, trained, assets.tokenizer(trial), metadata)
    dev = next(iter(assets.index.tasks.values())).load_task().evals[""]
    model = whichlayers.load_model(folder)
    logits = torch.from_numpy(model.logits(dev.texts, dev.pairs, batch_size=5))
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(dev.labels))
    assert loss.item() == pytest.approx(result.epochs[-1].dev_loss, abs=1e-5)
    assert dataclasses.asdict(metadata)["layout"] == (
        "sequence_classification" if head == "last" else "sentence_transformers"
    )
    if head == "last" and not pairs:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        batch = tokenizer(dev.texts, padding=True, truncation=True, max_length=24, return_tensors="pt")
        plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.no_grad():
            torch.testing.assert_close(plain(**batch).logits, logits, atol=1e-5, rtol=0)
        assert plain.config.num_hidden_layers == 1
