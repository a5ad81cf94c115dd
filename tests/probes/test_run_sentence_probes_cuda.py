"""Sentence-level probes on a GPU, against the CPU."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny import FAMILIES, tiny_encoder, tiny_task

from whichlayers.engine.cuda_graphs import MIN_STEPS_TO_CAPTURE
from whichlayers.probes import hidden_states
from whichlayers.probes.extract import extract_sentences
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.run_sentence_probes import ProbeJob, fit_sentence_probes, run_probes
from whichlayers.trial import Probe, Trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("family", FAMILIES)
def test_states(family):
    encoder, split = tiny_encoder(family), tiny_task().train
    on_cpu = np.array(extract_sentences(encoder, split, 0))
    np.testing.assert_allclose(
        extract_sentences(encoder, split, 0, device="cuda"), on_cpu, atol=1e-4, rtol=1e-3
    )


def test_replayed_steps_train_the_same_probes():
    rng = np.random.default_rng(0)
    states, labels = rng.normal(size=(3000, 2, 16)).astype(np.float32), rng.integers(0, 3, 3000)
    labels[states[:, 1, 0] > 0] = 0
    jobs = [
        ProbeJob(Probe(layer, max_epochs=3, lr=1e-2), seed, np.arange(3000))
        for layer in (0, 1)
        for seed in (0, 1)
    ]
    assert MIN_STEPS_TO_CAPTURE < 2700 // 8
    on_cpu, on_gpu = (
        fit_sentence_probes(HiddenStates(states, device), labels, jobs, n_outputs=3)
        for device in ("cpu", "cuda")
    )
    for one, other in zip(on_cpu, on_gpu, strict=True):
        assert one.epoch == other.epoch
        assert other.train_loss == pytest.approx(one.train_loss, abs=1e-3)
        torch.testing.assert_close(other.weight, one.weight, atol=5e-3, rtol=0)


@pytest.mark.parametrize("fits", [True, False])
def test_results(monkeypatch, fits):
    """With the hidden states on the device or on the host."""
    if not fits:
        monkeypatch.setattr(hidden_states, "MAX_DEVICE_FRACTION", 0.0)
    encoder, data = tiny_encoder("bert"), tiny_task(n_train=200, n_dev=100)
    plain = Trial("tiny", "model", "tiny", "tiny", 150, 0)
    trials = [
        dataclasses.replace(plain, seed=seed, probe=Probe(layer, max_epochs=6, standardize=layer == 2))
        for layer in range(4)
        for seed in range(3)
    ]
    on_cpu = run_probes(trials, encoder, data)
    on_gpu = run_probes(trials, encoder, data, device="cuda")
    for one, other in zip(on_cpu, on_gpu, strict=True):
        assert one.epochs[0].dev_loss == pytest.approx(other.epochs[0].dev_loss, rel=1e-2)
        assert one.epochs[0].metrics["accuracy"] == pytest.approx(
            other.epochs[0].metrics["accuracy"], abs=0.03
        )
