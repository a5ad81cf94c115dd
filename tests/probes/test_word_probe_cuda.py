"""Finetuned on a GPU and asked there, against the same on the CPU; left out where there is none."""

from __future__ import annotations

import pytest
import torch
from small_subject import write_model
from word_models import answers as answers_of

from whichlayers.data.corpora import load_corpus
from whichlayers.data.grammar import write_task
from whichlayers.data.tokenize import tokenise
from whichlayers.engine.export_weights import with_weights
from whichlayers.engine.finetune import finetune
from whichlayers.engine.results import EngineSettings
from whichlayers.probes.activations import Shelf
from whichlayers.trial import Training, Trial, WordProbe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GIVEN = {"lambdas": (1e-3, 1e-3)}


def test_a_model_finetuned_and_asked_on_a_gpu_answers_as_on_the_cpu(tmp_path):
    from transformers import AutoModel, AutoTokenizer

    corpus = load_corpus("builtin:pos", train_words=2000, test_words=1000)
    words = {w for split in (corpus.train, corpus.test) for s in split.sentences for w in s.words}
    folder = write_model(tmp_path / "m", sorted(words))
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float()
    data = tokenise(write_task("sentiment"), tokenizer, 32, None, "m")
    training = Training(epochs=1, lr=1e-3, max_length=32)
    finetuning = [Trial("m", "m", "t", "t", 64, seed, training=training) for seed in (0, 1)]
    questions = [WordProbe("c", corpus.fingerprint, neurons="layer", layer=layer) for layer in range(3)]
    for settings in (
        {},
        {"neurons": "top", "share": 0.25},
        {"neurons": "bottom", "share": 0.25},
        {"measure": "spread", "neurons": "top", "share": 0.25, "layer": 1},
        {"measure": "selectivity", "neurons": "top", "share": 0.25},
        {"measure": "compression"},
        {"measure": "neurons", "neurons": "top"},
    ):
        questions.append(WordProbe("c", corpus.fingerprint, **settings, **GIVEN))
    weights, answers = {}, {}
    for device in ("cpu", "cuda"):
        kept = {}
        settings = EngineSettings(precision="float32", compiled=False)
        finetune(
            finetuning,
            encoder,
            data,
            device=device,
            on_trained=lambda outcome, values, kept=kept: kept.update({outcome.trial_id: values}),
            settings=settings,
        )
        weights[device] = kept[finetuning[0].id]
        asked = [Trial("m", "m", "t", "t", 64, 0, training=training, word_probe=w) for w in questions]
        finetuned = with_weights(encoder.cpu(), weights["cpu"])
        outcomes = answers_of(asked, finetuned, tokenizer, corpus, Shelf(device, tmp_path))
        answers[device] = [o.epochs[0].metrics[w.measure] for o, w in zip(outcomes, questions, strict=True)]
    for name, value in weights["cpu"].items():
        assert torch.allclose(value, weights["cuda"][name], atol=5e-3), name
    for one, other, words in zip(answers["cpu"], answers["cuda"], questions, strict=True):
        assert one == pytest.approx(other, abs=0.02), words
