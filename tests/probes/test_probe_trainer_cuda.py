"""Hidden states of words and elastic-net probes on a GPU: equal to the CPU, and TF32 as good as float32."""

import numpy as np
import pytest
import torch
from word_models import WORD_FAMILIES, random_words, word_encoder_of, word_tokenizer_of

from whichlayers.engine.cuda_graphs import MIN_STEPS_TO_CAPTURE
from whichlayers.probes import hidden_states
from whichlayers.probes.evaluation import accuracies, code_lengths
from whichlayers.probes.extract import extract_words
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.neuron_ranking import rank_probeless
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining, layer_specs
from whichlayers.probes.probe_trainer import fit_probes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LAYERS, HIDDEN, TAGS = 3, 64, 20


def synthetic_data(n, seed):
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, LAYERS, HIDDEN)).astype(np.float32) * rng.gamma(1, 2, HIDDEN).astype(
        np.float32
    )
    rule = np.random.default_rng(99).normal(size=(LAYERS * HIDDEN, TAGS)) / 8
    labels = (states.reshape(n, -1) @ rule + rng.gumbel(size=(n, TAGS))).argmax(1)
    return states.astype(np.float16), labels


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("family", WORD_FAMILIES)
def test_states(family, pooling):
    corpus, tokenizer = random_words(600, seed=0), word_tokenizer_of(family)
    encoder = word_encoder_of(family)
    options = {"pooling": pooling, "precision": "float32"}
    on_cpu = np.array(extract_words(encoder, tokenizer, corpus, **options).states)
    on_gpu = extract_words(encoder, tokenizer, corpus, device="cuda", tokens_per_batch=200, **options).states
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("batch", [128, 16])
@pytest.mark.parametrize("fits", [True, False])
def test_probes(monkeypatch, fits, batch):
    """With the states on the device or on the host, and with steps that are captured or too few for it."""
    assert (3 * (2000 // batch) >= MIN_STEPS_TO_CAPTURE) == (batch == 16)
    if not fits:
        monkeypatch.setattr(hidden_states, "MAX_DEVICE_FRACTION", 0.0)
    states, labels = synthetic_data(2000, 0)
    on_cpu, on_gpu = HiddenStates(states), HiddenStates(states, "cuda")
    assert on_gpu.flat.is_cuda == fits
    specs = [
        *layer_specs(on_cpu, seeds=(0, 1), l1=(0.0, 1e-4), l2=(1e-4,)),
        ProbeSpec(np.array([100, 3, 50])),
    ]
    training = ProbeTraining(epochs=3, batch_size=batch, precision="float32")
    one, other = (fit_probes(inputs, labels, TAGS, specs, training) for inputs in (on_cpu, on_gpu))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.weight, b.weight, atol=1e-3, rtol=1e-2)
    np.testing.assert_allclose(accuracies(on_cpu, labels, one), accuracies(on_gpu, labels, other), atol=0.005)
    np.testing.assert_allclose(
        code_lengths(on_cpu, labels, one), code_lengths(on_gpu, labels, one), rtol=1e-3
    )
    assert rank_probeless(on_cpu, labels, TAGS).tolist() == rank_probeless(on_gpu, labels, TAGS).tolist()


@pytest.mark.parametrize("fits", [True, False])
def test_standardized_neurons(monkeypatch, fits):
    if not fits:
        monkeypatch.setattr(hidden_states, "MAX_DEVICE_FRACTION", 0.0)
    states, labels = synthetic_data(2000, 0)
    on_cpu, on_gpu = (
        inputs.standardize(inputs.compute_scale())
        for inputs in (HiddenStates(states), HiddenStates(states, "cuda"))
    )
    torch.testing.assert_close(on_gpu.rows(slice(50)).cpu(), on_cpu.rows(slice(50)), atol=1e-4, rtol=1e-4)
    specs = [ProbeSpec(on_cpu.all_neurons(), 1e-4, 1e-4), ProbeSpec(np.array([100, 3, 50]))]
    training = ProbeTraining(epochs=2, batch_size=64, precision="float32")
    one, other = (fit_probes(inputs, labels, TAGS, specs, training) for inputs in (on_cpu, on_gpu))
    np.testing.assert_allclose(accuracies(on_cpu, labels, one), accuracies(on_gpu, labels, other), atol=0.005)


def test_mixed_precision_never_costs_a_tenth_of_a_point():
    train, test = synthetic_data(30_000, 0), synthetic_data(20_000, 1)
    inputs, other = HiddenStates(train[0], "cuda"), HiddenStates(test[0], "cuda")
    specs = [
        *layer_specs(inputs, seeds=(0, 1), l1=(0.0, 1e-5, 1e-3), l2=(0.0, 1e-4)),
        *(ProbeSpec(inputs.all_neurons(), l1, 1e-4, seed) for l1 in (0.0, 1e-4) for seed in (0, 1)),
    ]
    found = [
        accuracies(other, test[1], fit_probes(inputs, train[1], TAGS, specs, ProbeTraining(precision=p)))
        for p in ("float32", "tf32")
    ]
    assert found[0].max() > 0.3
    assert np.abs(found[0] - found[1]).max() <= 0.001
