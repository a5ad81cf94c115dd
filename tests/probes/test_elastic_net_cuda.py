"""Words' states and elastic-net probes on a GPU: as on the CPU, and mixed precision as good as float32."""

import numpy as np
import pytest
import torch
from word_models import WORD_FAMILIES, random_words, word_encoder_of, word_tokenizer_of

from whichlayers.probes import word_table as tables
from whichlayers.probes.cuda_graphs import WORTH_CAPTURING
from whichlayers.probes.elastic_net import (
    ProbeTraining,
    Problem,
    accuracies,
    code_lengths,
    fit_probes,
    layer_problems,
)
from whichlayers.probes.extract_words import extract_words
from whichlayers.probes.neuron_ranking import rank_by_means
from whichlayers.probes.word_table import WordTable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LAYERS, HIDDEN, TAGS = 3, 64, 20


def made_up(n, seed):
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
    here = np.array(extract_words(encoder, tokenizer, corpus, **options).states)
    there = extract_words(encoder, tokenizer, corpus, device="cuda", tokens_at_once=200, **options).states
    np.testing.assert_allclose(there, here, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("batch", [128, 16])
@pytest.mark.parametrize("fits", [True, False])
def test_probes(monkeypatch, fits, batch):
    """Whether the states lie on the device or stay with the host, and whether steps are captured or too few."""
    assert (3 * (2000 // batch) >= WORTH_CAPTURING) == (batch == 16)
    if not fits:
        monkeypatch.setattr(tables, "SHARE_OF_DEVICE", 0.0)
    states, labels = made_up(2000, 0)
    here, there = WordTable(states), WordTable(states, "cuda")
    assert there.flat.is_cuda == fits
    problems = [
        *layer_problems(here, seeds=(0, 1), l1=(0.0, 1e-4), l2=(1e-4,)),
        Problem(np.array([100, 3, 50])),
    ]
    training = ProbeTraining(epochs=3, batch_size=batch, precision="float32")
    one, other = (fit_probes(table, labels, TAGS, problems, training) for table in (here, there))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.weight, b.weight, atol=1e-3, rtol=1e-2)
    np.testing.assert_allclose(accuracies(here, labels, one), accuracies(there, labels, other), atol=0.005)
    np.testing.assert_allclose(code_lengths(here, labels, one), code_lengths(there, labels, one), rtol=1e-3)
    assert rank_by_means(here, labels, TAGS).tolist() == rank_by_means(there, labels, TAGS).tolist()


@pytest.mark.parametrize("fits", [True, False])
def test_standardized_neurons(monkeypatch, fits):
    if not fits:
        monkeypatch.setattr(tables, "SHARE_OF_DEVICE", 0.0)
    states, labels = made_up(2000, 0)
    here, there = (table.scaled(table.measured()) for table in (WordTable(states), WordTable(states, "cuda")))
    torch.testing.assert_close(there.rows(slice(50)).cpu(), here.rows(slice(50)), atol=1e-4, rtol=1e-4)
    problems = [Problem(here.everything(), 1e-4, 1e-4), Problem(np.array([100, 3, 50]))]
    training = ProbeTraining(epochs=2, batch_size=64, precision="float32")
    one, other = (fit_probes(table, labels, TAGS, problems, training) for table in (here, there))
    np.testing.assert_allclose(accuracies(here, labels, one), accuracies(there, labels, other), atol=0.005)


def test_mixed_precision_never_costs_a_tenth_of_a_point():
    train, test = made_up(30_000, 0), made_up(20_000, 1)
    table, other = WordTable(train[0], "cuda"), WordTable(test[0], "cuda")
    problems = [
        *layer_problems(table, seeds=(0, 1), l1=(0.0, 1e-5, 1e-3), l2=(0.0, 1e-4)),
        *(Problem(table.everything(), l1, 1e-4, seed) for l1 in (0.0, 1e-4) for seed in (0, 1)),
    ]
    found = [
        accuracies(other, test[1], fit_probes(table, train[1], TAGS, problems, ProbeTraining(precision=p)))
        for p in ("float32", "tf32")
    ]
    assert found[0].max() > 0.3
    assert np.abs(found[0] - found[1]).max() <= 0.001
