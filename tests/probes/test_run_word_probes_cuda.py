"""Models finetuned and probed on a GPU, against the CPU; skipped without a GPU."""

from __future__ import annotations

import pytest
import torch
from small_study import write_model
from word_models import word_probe_results

from whichlayers.data.corpora import load_corpus
from whichlayers.data.load_task import load_task
from whichlayers.data.tokenize import tokenize
from whichlayers.engine.export_weights import with_weights
from whichlayers.engine.finetune import finetune
from whichlayers.engine.settings import EngineSettings
from whichlayers.probes.activations import ActivationStore
from whichlayers.trial import Training, Trial, WordProbe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LAMBDAS = {"lambdas": (1e-3, 1e-3)}


def test_a_model_finetuned_and_probed_on_a_gpu_matches_the_cpu(tmp_path):
    from transformers import AutoModel, AutoTokenizer

    corpus = load_corpus("builtin:pos", train_words=2000, test_words=1000)
    words = {w for split in (corpus.train, corpus.test) for s in split.sentences for w in s.words}
    folder = write_model(tmp_path / "m", sorted(words))
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float()
    data = tokenize(load_task("builtin:sentiment"), tokenizer, 32, None, "m")
    training = Training(epochs=1, lr=1e-3, max_length=32)
    finetuning = [Trial("m", "m", "t", "t", 64, seed, training=training) for seed in (0, 1)]
    word_probes = [WordProbe("c", corpus.fingerprint, neurons="layer", layer=layer) for layer in range(3)]
    for settings in (
        {},
        {"neurons": "top", "share": 0.25},
        {"neurons": "bottom", "share": 0.25},
        {"measure": "spread", "neurons": "top", "share": 0.25, "layer": 1},
        {"measure": "selectivity", "neurons": "top", "share": 0.25},
        {"measure": "compression"},
        {"measure": "neurons", "neurons": "top"},
    ):
        word_probes.append(WordProbe("c", corpus.fingerprint, **settings, **LAMBDAS))
    weights, measures = {}, {}
    for device in ("cpu", "cuda"):
        trained_weights = {}
        settings = EngineSettings(precision="float32", compiled=False)
        finetune(
            finetuning,
            encoder,
            data,
            device=device,
            on_trained=lambda result, values, trained_weights=trained_weights: trained_weights.update(
                {result.trial_id: values}
            ),
            settings=settings,
        )
        weights[device] = trained_weights[finetuning[0].id]
        trials = [Trial("m", "m", "t", "t", 64, 0, training=training, word_probe=w) for w in word_probes]
        finetuned = with_weights(encoder.cpu(), weights["cpu"])
        results = word_probe_results(trials, finetuned, tokenizer, corpus, ActivationStore(device, tmp_path))
        measures[device] = [o.epochs[0].metrics[w.measure] for o, w in zip(results, word_probes, strict=True)]
    for name, value in weights["cpu"].items():
        assert torch.allclose(value, weights["cuda"][name], atol=5e-3), name
    for one, other, words in zip(measures["cpu"], measures["cuda"], word_probes, strict=True):
        assert one == pytest.approx(other, abs=0.02), words
