"""Hidden states of words that stay on the device, against those stored in files; and corpora that share them."""

import dataclasses
import logging

import numpy as np
import pytest
import torch
from word_models import WORD_FAMILIES, corpus_of, random_words, word_encoder_of, word_tokenizer_of

from whichlayers.errors import WhichlayersError
from whichlayers.probes import activations
from whichlayers.probes.activations import ActivationStore
from whichlayers.probes.extract import extract_words

SPLITS = {"train": random_words(300, seed=0), "test": random_words(80, seed=1)}


@pytest.fixture
def large_device(monkeypatch):
    """The CPU acts as a device that all hidden states fit on."""
    monkeypatch.setattr(ActivationStore, "_fits_on_device", lambda *_: True)


def retagged(corpus):
    return dataclasses.replace(
        corpus, sentences=[dataclasses.replace(s, tags=("Z",) * len(s.tags)) for s in corpus.sentences]
    )


@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("family", WORD_FAMILIES)
def test_hidden_states_on_the_device_equal_those_of_the_file(family, precision):
    encoder, tokenizer = word_encoder_of(family), word_tokenizer_of(family)
    reported = []
    options = {"pooling": "mean", "precision": precision, "tokens_per_batch": 90}
    on_device = extract_words(
        encoder, tokenizer, SPLITS["train"], on_device=True, on_words=reported.append, **options
    )
    in_file = extract_words(encoder, tokenizer, SPLITS["train"], **options)
    assert isinstance(on_device.states, torch.Tensor)
    np.testing.assert_array_equal(on_device.states.numpy(), in_file.states)
    assert sum(reported) == SPLITS["train"].n_words
    assert on_device.report == in_file.report


@pytest.mark.parametrize("fits", [True, False])
def test_corpora_with_the_same_words_share_a_pass(tmp_path, passes, monkeypatch, fits):
    monkeypatch.setattr(ActivationStore, "_fits_on_device", lambda *_: fits)
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    store, reported = ActivationStore("cpu", tmp_path), []
    first = store.hidden_states(encoder, tokenizer, SPLITS, "last", reported.append)
    again = store.hidden_states(
        encoder, tokenizer, {n: retagged(s) for n, s in SPLITS.items()}, "last", reported.append
    )
    total = sum(split.n_words for split in SPLITS.values())
    assert sum(passes) == total
    assert sum(reported) == 2 * total
    for name in SPLITS:
        np.testing.assert_array_equal(np.asarray(first[name]), np.asarray(again[name]))
    assert bool(list(tmp_path.glob("*.npy"))) == (not fits)


def test_the_device_holds_only_the_current_corpus(large_device, passes):
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    store, other = ActivationStore(), {"train": random_words(50, seed=3)}
    store.hidden_states(encoder, tokenizer, SPLITS, "last")
    store.hidden_states(encoder, tokenizer, other, "last")
    assert len(store.on_device) == 1
    store.hidden_states(encoder, tokenizer, other, "mean")
    assert sum(passes) == sum(s.n_words for s in SPLITS.values()) + 2 * other["train"].n_words


def test_the_folder_holds_only_the_files_of_the_current_corpus(tmp_path):
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    store, other = ActivationStore("cpu", tmp_path), {"train": random_words(50, seed=3)}
    (tmp_path / "pretrained").mkdir()  # belongs to another store
    first = store.hidden_states(encoder, tokenizer, SPLITS, "last")
    before = {name: np.array(states) for name, states in first.items()}
    (tmp_path / ".half.partial").write_bytes(b"of a process that was killed")
    store.hidden_states(encoder, tokenizer, other, "last")
    assert len(list(tmp_path.glob("*.npy"))) == 1
    assert not list(tmp_path.glob("*.partial"))
    assert (tmp_path / "pretrained").is_dir()
    for name, states in first.items():  # open mappings stay valid
        np.testing.assert_array_equal(states, before[name])


def test_models_with_the_same_tokenizer_share_alignments(monkeypatch):
    calls, original = [], activations.align
    monkeypatch.setattr(activations, "align", lambda *args: calls.append(args) or original(*args))
    tokenizer, aligned = word_tokenizer_of("bert"), {}
    for _ in range(3):
        ActivationStore("cpu", alignments=aligned).hidden_states(
            word_encoder_of("bert"), tokenizer, SPLITS, "last"
        )
    assert len(calls) == len(SPLITS)


def test_states_too_large_for_float16_are_stored_in_float32(large_device):
    encoder = word_encoder_of("bert", positions=200)
    with torch.no_grad():
        encoder.embeddings.LayerNorm.weight.mul_(1e6)
    found = ActivationStore().hidden_states(encoder, word_tokenizer_of("bert"), SPLITS, "last")
    assert {str(states.dtype) for states in found.values()} == {"torch.float32"}


def test_states_that_are_not_finite(large_device):
    encoder = word_encoder_of("bert")
    with torch.no_grad():
        encoder.embeddings.LayerNorm.weight.fill_(torch.nan)
    with pytest.raises(WhichlayersError, match="not finite numbers: check that its weights"):
        ActivationStore().hidden_states(encoder, word_tokenizer_of("bert"), SPLITS, "last")


def test_warnings_about_a_corpus_are_logged_once(caplog):
    corpus = corpus_of("the \u200b mat", "a sentence of this test")
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    with caplog.at_level(logging.WARNING, "whichlayers"):
        for _ in range(2):
            ActivationStore().hidden_states(encoder, tokenizer, {"train": corpus}, "last")
    assert sum("replaced 1 word" in message for message in caplog.messages) == 1
