"""Word vectors that stay on the device, against those that lie in files; and what two corpora share."""

import dataclasses
import logging

import numpy as np
import pytest
import torch
from word_models import WORD_FAMILIES, corpus_of, random_words, word_encoder_of, word_tokenizer_of

from whichlayers.errors import WhichlayersError
from whichlayers.probes import activations as shelves
from whichlayers.probes.activations import Shelf
from whichlayers.probes.extract_words import extract_words

SPLITS = {"train": random_words(300, seed=0), "test": random_words(80, seed=1)}


@pytest.fixture
def roomy(monkeypatch):
    """The CPU plays a device that all vectors fit on."""
    monkeypatch.setattr(Shelf, "_fits", lambda *_: True)


def retagged(corpus):
    return dataclasses.replace(
        corpus, sentences=[dataclasses.replace(s, tags=("Z",) * len(s.tags)) for s in corpus.sentences]
    )


@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("family", WORD_FAMILIES)
def test_on_the_device_they_are_those_of_the_file(family, precision):
    encoder, tokenizer = word_encoder_of(family), word_tokenizer_of(family)
    told = []
    options = {"pooling": "mean", "precision": precision, "tokens_at_once": 90}
    there = extract_words(
        encoder, tokenizer, SPLITS["train"], on_device=True, on_words=told.append, **options
    )
    here = extract_words(encoder, tokenizer, SPLITS["train"], **options)
    assert isinstance(there.states, torch.Tensor)
    np.testing.assert_array_equal(there.states.numpy(), here.states)
    assert sum(told) == SPLITS["train"].n_words
    assert there.report == here.report


@pytest.mark.parametrize("fits", [True, False])
def test_corpora_with_the_same_words_share_a_pass(tmp_path, passes, monkeypatch, fits):
    monkeypatch.setattr(Shelf, "_fits", lambda *_: fits)
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    shelf, told = Shelf("cpu", tmp_path), []
    first = shelf.states(encoder, tokenizer, SPLITS, "last", told.append)
    again = shelf.states(encoder, tokenizer, {n: retagged(s) for n, s in SPLITS.items()}, "last", told.append)
    total = sum(split.n_words for split in SPLITS.values())
    assert sum(passes) == total
    assert sum(told) == 2 * total
    for name in SPLITS:
        np.testing.assert_array_equal(np.asarray(first[name]), np.asarray(again[name]))
    assert bool(list(tmp_path.glob("*.npy"))) == (not fits)


def test_the_device_holds_the_words_at_hand_alone(roomy, passes):
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    shelf, other = Shelf(), {"train": random_words(50, seed=3)}
    shelf.states(encoder, tokenizer, SPLITS, "last")
    shelf.states(encoder, tokenizer, other, "last")
    assert len(shelf.held) == 1
    shelf.states(encoder, tokenizer, other, "mean")
    assert sum(passes) == sum(s.n_words for s in SPLITS.values()) + 2 * other["train"].n_words


def test_the_folder_holds_the_files_of_the_words_at_hand_alone(tmp_path):
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    shelf, other = Shelf("cpu", tmp_path), {"train": random_words(50, seed=3)}
    (tmp_path / "pretrained").mkdir()  # another shelf's
    first = shelf.states(encoder, tokenizer, SPLITS, "last")
    before = {name: np.array(states) for name, states in first.items()}
    (tmp_path / ".half.partial").write_bytes(b"of a process that was killed")
    shelf.states(encoder, tokenizer, other, "last")
    assert len(list(tmp_path.glob("*.npy"))) == 1
    assert not list(tmp_path.glob("*.partial"))
    assert (tmp_path / "pretrained").is_dir()
    for name, states in first.items():  # whoever still reads them can
        np.testing.assert_array_equal(states, before[name])


def test_models_with_one_tokenizer_share_its_work(monkeypatch):
    calls, original = [], shelves.align
    monkeypatch.setattr(shelves, "align", lambda *given: calls.append(given) or original(*given))
    tokenizer, aligned = word_tokenizer_of("bert"), {}
    for _ in range(3):
        Shelf("cpu", aligned=aligned).states(word_encoder_of("bert"), tokenizer, SPLITS, "last")
    assert len(calls) == len(SPLITS)


def test_states_too_large_for_sixteen_bits_are_kept_in_32(roomy):
    encoder = word_encoder_of("bert", positions=200)
    with torch.no_grad():
        encoder.embeddings.LayerNorm.weight.mul_(1e6)
    found = Shelf().states(encoder, word_tokenizer_of("bert"), SPLITS, "last")
    assert {str(states.dtype) for states in found.values()} == {"torch.float32"}


def test_states_that_are_no_numbers(roomy):
    encoder = word_encoder_of("bert")
    with torch.no_grad():
        encoder.embeddings.LayerNorm.weight.fill_(torch.nan)
    with pytest.raises(WhichlayersError, match="not finite numbers: are its weights whole"):
        Shelf().states(encoder, word_tokenizer_of("bert"), SPLITS, "last")


def test_what_there_is_to_say_of_a_corpus_is_said_once(caplog):
    corpus = corpus_of("the \u200b mat", "a shelf test of its own")
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    with caplog.at_level(logging.WARNING, "whichlayers"):
        for _ in range(2):
            Shelf().states(encoder, tokenizer, {"train": corpus}, "last")
    assert sum("makes nothing of 1 word" in message for message in caplog.messages) == 1
