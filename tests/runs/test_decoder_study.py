"""A decoder through every experiment with the real engine, from the study file to the report page."""

from __future__ import annotations

import csv
import re

import pytest
import torch
from tiny_tokenizers import TEXTS, tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import whichlayers
from whichlayers.experiments import KINDS
from whichlayers.report.build import page
from whichlayers.results.export import points_frame
from whichlayers.results.folder import StudyFolder
from whichlayers.runs import machine
from whichlayers.study.study_file import Study

TEMPLATE = "First: {first}\nSecond: {second}\nAnswer:"
WORDS = {"name": "builtin:pos", "train_words": 120, "test_words": 60}
ONE_EPOCH = {"probe_epochs": 1, "l1": 0.001, "l2": 0.001}  # no grid search
EXPERIMENTS = [
    {"kind": "incremental", "keep": [0, 1, 2], "train_sizes": [8, 0.75]},
    {"kind": "localized", "block": 1, "mode": "reinitialized"},
    {"kind": "single_layer", "layers": [1]},
    {"kind": "permutation", "permutations": 3},
    {"kind": "prune", "top": [1]},
    {"kind": "epochs", "keep": [1], "epochs": 2},
    {"kind": "freeze", "train": ["top", "norms", "head"], "frozen": [1]},
    {"kind": "lr_decay", "factors": 0.8},
    {"kind": "adapt", "where": "everywhere", "rank": 2},
    {"kind": "probing", "layers": [2], "max_epochs": 2},
    {"kind": "word_probing", "layers": [2], "finetuned_on": "all", "probe_epochs": 1},
    {"kind": "neurons", "finetuned_on": [], "sets": "top", "smallest": False, **ONE_EPOCH},
    {"kind": "selectivity", "finetuned_on": [], "description_length": False, **ONE_EPOCH},
]


@pytest.fixture
def study(tmp_path, monkeypatch) -> Study:
    """A Llama whose tokenizer has no padding token, and a task of sentence pairs."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    tokenizer = tiny_tokenizer("byte-level", bos=True)
    tokenizer.save_pretrained(tmp_path / "model")
    size = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=len(tokenizer), num_hidden_layers=2, attention_dropout=0.1, **size)
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    for name, rows in (("train", 16), ("dev", 8)):
        with open(tmp_path / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            pairs = [(TEXTS[i % 5][: 9 + i], f"{name} {TEXTS[(i + 2) % 5]}"[:20], i % 2) for i in range(rows)]
            csv.writer(file).writerows([("a", "b", "label"), *pairs])
    task = {"name": "pairs", "train": str(tmp_path / "train.csv"), "dev": str(tmp_path / "dev.csv")}
    return Study(
        name="decoder",
        models=[str(tmp_path / "model")],
        tasks=[task | {"text": "a", "pair": "b", "label": "label", "pair_template": TEMPLATE}],
        corpora=[WORDS],
        experiments=EXPERIMENTS,
        train_sizes=[8],
        trials=1,
        training={"epochs": 1, "lr": 1e-3, "max_length": 40},
    )


def test_every_experiment_of_a_decoder(study, tmp_path):
    assert {e["kind"] for e in EXPERIMENTS} == set(KINDS), "a new experiment is tested here as well"
    whichlayers.run(study, tmp_path / "study", device="cpu", workers=0)
    frame = points_frame(StudyFolder(tmp_path / "study"))
    assert {e["kind"] for e in EXPERIMENTS} <= set(frame["experiment"])
    incremental = frame[frame["experiment"] == "incremental"]
    assert sorted(zip(incremental["train_size"], incremental["x"], strict=True)) == [
        (size, k) for size in (8, 12) for k in (0, 1, 2)
    ]
    finetuned = frame[(frame["train_size"] > 0) & (frame["experiment"] != "probing")]
    assert set(finetuned["head"]) == {"last"}
    text = page(tmp_path / "study")
    assert re.search(r"<dt>Head</dt>\s*<dd>last</dd>", text)
    assert "In a decoder, a word sees only the words to the left of it." in text
    assert "two texts are one prompt, First: {first}" in text
    assert "texts start with the BOS token" in text
