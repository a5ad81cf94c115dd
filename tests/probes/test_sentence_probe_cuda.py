"""The same probes on a GPU."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny import FAMILIES, tiny_encoder, tiny_task

from whichlayers.probes import linear_probe
from whichlayers.probes.cuda_graphs import WORTH_CAPTURING
from whichlayers.probes.extract_sentences import extract
from whichlayers.probes.linear_probe import Job, Table, fit
from whichlayers.probes.sentence_probe import run
from whichlayers.trial import Probe, Trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("family", FAMILIES)
def test_states(family):
    encoder, split = tiny_encoder(family), tiny_task().train
    here = np.array(extract(encoder, split, 0))
    np.testing.assert_allclose(extract(encoder, split, 0, device="cuda"), here, atol=1e-4, rtol=1e-3)


def test_replayed_steps_train_the_same_probes():
    rng = np.random.default_rng(0)
    states, labels = rng.normal(size=(3000, 2, 16)).astype(np.float32), rng.integers(0, 3, 3000)
    labels[states[:, 1, 0] > 0] = 0
    jobs = [
        Job(Probe(layer, max_epochs=3, lr=1e-2), seed, np.arange(3000)) for layer in (0, 1) for seed in (0, 1)
    ]
    assert WORTH_CAPTURING < 2700 // 8
    here, there = (fit(Table(states, device), labels, jobs, n_outputs=3) for device in ("cpu", "cuda"))
    for one, other in zip(here, there, strict=True):
        assert one.epoch == other.epoch
        assert other.train_loss == pytest.approx(one.train_loss, abs=1e-3)
        torch.testing.assert_close(other.weight, one.weight, atol=5e-3, rtol=0)


@pytest.mark.parametrize("fits", [True, False])
def test_outcomes(monkeypatch, fits):
    """Whether the states lie on the device or stay with the host."""
    if not fits:
        monkeypatch.setattr(linear_probe, "SHARE_OF_DEVICE", 0.0)
    encoder, data = tiny_encoder("bert"), tiny_task(n_train=200, n_dev=100)
    plain = Trial("tiny", "model", "tiny", "tiny", 150, 0)
    trials = [
        dataclasses.replace(plain, seed=seed, probe=Probe(layer, max_epochs=6, standardize=layer == 2))
        for layer in range(4)
        for seed in range(3)
    ]
    here = run(trials, encoder, data)
    there = run(trials, encoder, data, device="cuda")
    for one, other in zip(here, there, strict=True):
        assert one.epochs[0].dev_loss == pytest.approx(other.epochs[0].dev_loss, rel=1e-2)
        assert one.epochs[0].metrics["accuracy"] == pytest.approx(
            other.epochs[0].metrics["accuracy"], abs=0.03
        )
