"""Biases, layer norms or the head alone: what is recommended is built, and transformers loads it.

The scores in results.db are made up, so that the part under test is recommended; what is trained here is real.
"""

import numpy as np
import pytest
import torch
from easy_study import easy_study, texts_and_labels
from safetensors.torch import load_file
from synthetic_results import write_results
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import whichlayers
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.assets import Assets
from whichlayers.study.expand import expand

TEXTS = [text for text, _ in texts_and_labels(12, seed=7)]
PARTS = ("biases", "norms", "head")  # in the order in which they are tested


@pytest.mark.parametrize(
    ("part", "choice"),
    [
        ("biases", "the biases alone (lr 0.01)"),
        ("norms", "the layer norms alone (lr 0.01)"),
        ("head", "the head alone (lr 0.01)"),
    ],
)
def test_what_is_recommended_is_built_and_loaded_by_transformers(tmp_path, part, choice):
    """Parts with fewer parameters than `part` lose 20 points."""
    experiments = [{"kind": "freeze", "train": ["norms", "biases", "head"], "peft_lr": 0.01}]
    training = {"epochs": 1, "max_length": 16, "lr": 5e-3, "dropout": 0.0}
    study = easy_study(
        tmp_path, experiments=experiments, train_sizes=[40], training=training, head="pooler", trials=6
    )
    worse = PARTS[PARTS.index(part) + 1 :]

    def score(point):
        noise = np.random.default_rng([point.trial.seed, *point.condition.encode()]).normal(0, 0.002)
        return 0.8 - 0.2 * (point.condition.partition(", ")[0] in worse) + noise

    folder = write_results(tmp_path / "study", expand(study, Assets(None)), score, depth=3, name="easy")
    StudyFolder(folder).write_study(study.to_toml(folder))
    (built,) = whichlayers.load(folder).build(tmp_path / "built", question="few_parameters")
    assert built.answer is not None
    assert built.answer.choice == choice
    assert built.trial.training.lr == 0.01
    saved = str(built.folder)
    model = AutoModelForSequenceClassification.from_pretrained(saved).eval()
    batch = AutoTokenizer.from_pretrained(saved)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).logits.numpy()
    np.testing.assert_allclose(whichlayers.load_model(saved).logits(TEXTS), logits, atol=1e-5)
    before = load_file(tmp_path / "model" / "model.safetensors")
    after = {name.removeprefix("bert."): p for name, p in load_file(f"{saved}/model.safetensors").items()}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name for name in before if name.startswith("pooler.")} <= changed  # a part of the head
    inner = {name for name in changed if not name.startswith("pooler.")}
    trained = {
        "biases": {name for name in before if name.endswith(".bias") and not name.startswith("pooler.")},
        "norms": {name for name in before if "LayerNorm" in name},
        "head": set(),
    }[part]
    assert (
        {name for name in trained if "key.bias" not in name} <= inner <= trained
    )  # softmax ignores key.bias
