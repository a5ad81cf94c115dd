"""Control tags: one per word type, with the real frequencies; tags as labels and majority baselines."""

import numpy as np
import pytest
from word_models import corpus_of

from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.errors import WhichlayersError
from whichlayers.probes.labels import (
    control_labels,
    majority_accuracy,
    tag_frequencies,
    tag_ids,
    training_tags,
    word_majority_accuracy,
)

FREQUENCIES = np.array([0.5, 0.0, 0.3, 0.2])


def many_types(prefix=""):
    return corpus_of([f"{prefix}{i}" for i in range(4000)])


def test_a_type_keeps_its_tag_wherever_it_occurs():
    train, test = corpus_of("the cat sat on the mat", "the dog"), corpus_of("mat the fish", "cat")
    tags: dict[str, set] = {}
    for corpus in (train, test):
        found = control_labels(corpus, FREQUENCIES, seed=3)
        words = [word for s in corpus.sentences for word in s.words]
        for word, tag in zip(words, found, strict=True):
            tags.setdefault(word, set()).add(int(tag))
    assert all(len(found) == 1 for found in tags.values())
    assert len(tags) == 7


def test_types_have_the_real_frequencies():
    found = control_labels(many_types(), FREQUENCIES, seed=0)
    fractions = np.bincount(found, minlength=4) / 4000
    assert fractions[1] == 0
    np.testing.assert_allclose(fractions, FREQUENCIES, atol=0.03)


def test_tags_depend_on_seed_and_word():
    first = control_labels(many_types(), FREQUENCIES, seed=0)
    assert (first == control_labels(many_types(), FREQUENCIES, seed=0)).all()
    chance = (FREQUENCIES**2).sum()
    for other in (
        control_labels(many_types(), FREQUENCIES, 1),
        control_labels(many_types("x"), FREQUENCIES, 0),
    ):
        assert (first == other).mean() == pytest.approx(chance, abs=0.04)


@pytest.mark.parametrize("wrong", [[1.0], [0.5, 0.6], [1.5, -0.5]])
def test_invalid_frequencies(wrong):
    with pytest.raises(WhichlayersError, match="add up to 1"):
        control_labels(corpus_of("a"), np.array(wrong), 0)


# --- tags ---


def tagged(*sentences):
    tagged_sentences = [
        TaggedSentence(tuple(w for w, _ in s), tuple(t for _, t in s), n) for n, s in enumerate(sentences)
    ]
    return TaggedCorpus("made-up", tagged_sentences)


def test_tags_as_labels():
    train = tagged([("a", "X"), ("b", "Y")], [("a", "Z")])
    assert training_tags(train) == ("X", "Y", "Z")
    test = tagged([("a", "Y"), ("q", "NEW")])
    assert tag_ids(test, training_tags(train)).tolist() == [1, -1]
    with pytest.raises(WhichlayersError, match="made-up: a probe needs at least two different tags"):
        training_tags(tagged([("a", "X")]))


def test_majority_baselines():
    train = tagged([("a", "X"), ("a", "X"), ("a", "Y"), ("b", "Y"), ("c", "Z"), ("d", "X")])
    test = tagged([("a", "X"), ("b", "Y"), ("new", "X"), ("c", "X"), ("c", "NEW")])
    tags = training_tags(train)
    train_labels, test_labels = tag_ids(train, tags), tag_ids(test, tags)
    np.testing.assert_allclose(tag_frequencies(train_labels, 3), [1 / 2, 1 / 3, 1 / 6])
    np.testing.assert_allclose(tag_frequencies(test_labels, 3), [3 / 4, 1 / 4, 0])
    assert majority_accuracy(train_labels, test_labels, 3) == pytest.approx(3 / 5)
    assert word_majority_accuracy(train, test) == pytest.approx(3 / 5)
