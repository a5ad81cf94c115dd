"""Probes on a fake CUDA device, their steps captured and replayed; see tests/helpers/fake_graphs.py."""

import dataclasses

import numpy as np
import pytest
from fake_graphs import fake_graphs
from small_study import write_model
from tiny import DECODERS, FAMILIES, tiny_encoder, tiny_task
from word_models import word_probe_results

from whichlayers.data.corpora import load_corpus
from whichlayers.engine import cuda_graphs
from whichlayers.probes import hidden_states
from whichlayers.probes.activations import ActivationStore
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining, layer_specs
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.run_sentence_probes import run_probes
from whichlayers.trial import Probe, Trial, WordProbe

LAMBDAS = {"lambdas": (1e-3, 1e-3)}


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MIN_STEPS_TO_CAPTURE", 4)
    with fake_graphs(monkeypatch) as graphs:
        yield graphs


@pytest.mark.parametrize("standardized", [False, True])
@pytest.mark.parametrize("fits", [True, False])
def test_steps_of_elastic_net_probes(fits, standardized, graphs, monkeypatch):
    if not fits:
        monkeypatch.setattr(hidden_states, "MAX_DEVICE_FRACTION", 0.0)
    states = HiddenStates(np.zeros((200, 3, 16), np.float16), "cuda")
    assert states.flat.is_cuda == fits
    if standardized:
        states = states.standardize(states.compute_scale())
    specs = [
        *layer_specs(states, seeds=(0, 1), l1=(0.0, 1e-4), l2=(1e-4,)),
        ProbeSpec(np.array([40, 3, 17])),
        ProbeSpec(states.all_neurons(), 1e-4, 1e-4),
    ]
    labels = np.arange(200) % 4
    for norm in ("squared", "plain"):
        training = ProbeTraining(epochs=3, batch_size=16, norm=norm)
        found = fit_probes(states, labels, 4, specs, training)
        assert all(probe.error is None and not probe.weight.is_cuda for probe in found)
    assert graphs.replays > 0


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("pooling", ["mean", "summary"])
def test_sentence_probes(pooling, kind, graphs):
    data = tiny_task(n_train=120, n_dev=60, kind=kind)
    plain = Trial("tiny", "model", "tiny", "tiny", 100, 0)
    trials = [
        dataclasses.replace(
            plain,
            seed=seed,
            probe=Probe(
                layer, max_epochs=4 + seed, patience=2 + seed, standardize=layer == 2, pooling=pooling
            ),
        )
        for layer in range(4)
        for seed in range(2)
    ]
    results = run_probes(trials, tiny_encoder("bert"), data, device="cuda")
    assert all(result.error is None for result in results)
    assert graphs.replays > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_of_every_family(family, graphs):
    pooling = "summary" if family in DECODERS else "mean"
    trial = Trial("t", "m", "t", "t", 50, 0, probe=Probe(1, max_epochs=1, pooling=pooling))
    [result] = run_probes([trial], tiny_encoder(family), tiny_task(), device="cuda")
    assert result.error is None


@pytest.mark.parametrize("fits", [True, False])
def test_word_probes(fits, tmp_path, graphs, monkeypatch):
    from transformers import AutoModel, AutoTokenizer

    if not fits:
        monkeypatch.setattr("whichlayers.probes.activations.MAX_DEVICE_FRACTION", 0.0)
        monkeypatch.setattr(hidden_states, "MAX_DEVICE_FRACTION", 0.0)
    corpus = load_corpus("builtin:pos", train_words=300, test_words=100)
    words = {w for split in (corpus.train, corpus.test) for s in split.sentences for w in s.words}
    folder = write_model(tmp_path / "m", sorted(words))
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float()
    common = {"epochs": 2, "batch_size": 16}
    probes = [WordProbe("c", corpus.fingerprint, neurons="layer", layer=1, **LAMBDAS, **common)]
    for settings in (
        {},
        {"neurons": "bottom", "share": 0.25},
        {"measure": "spread", "neurons": "top", "share": 0.25, "layer": 1},
        {"measure": "selectivity", "neurons": "top", "share": 0.25},
        {"measure": "compression"},
        {"measure": "neurons", "neurons": "top"},
        {"lambdas": None, "neurons": "top", "share": 0.25, "vector": "mean", "standardize": True},
    ):
        probes.append(WordProbe("c", corpus.fingerprint, **{**LAMBDAS, **common, **settings}))
    trials = [Trial("m", "m", "", "", 0, seed, word_probe=probe) for probe in probes for seed in (0, 1)]
    store = ActivationStore("cuda", tmp_path / "states")
    word_probe_results(trials, encoder, tokenizer, corpus, store)
    assert graphs.replays > 0
