"""A corpus' tags as numbers, and the accuracies that any probe should beat."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from whichlayers.data.conll import TaggedCorpus
from whichlayers.errors import WhichlayersError

UNSEEN = -1  # a tag that training never saw: no probe can give it, so it counts as an error


def training_tags(corpus: TaggedCorpus) -> tuple[str, ...]:
    """The tags a probe that trains on this corpus can give, in order."""
    tags = corpus.tag_names
    if len(tags) < 2:
        raise WhichlayersError(
            f"{corpus.name}: a probe needs at least two different tags to tell apart, found "
            f"{', '.join(map(repr, tags)) or 'none'}"
        )
    return tags


def tag_ids(corpus: TaggedCorpus, tags: Sequence[str]) -> np.ndarray:
    """(words,) int64: the place of each word's tag in `tags`, -1 where it is not among them."""
    place = {tag: i for i, tag in enumerate(tags)}
    found = (place.get(tag, UNSEEN) for sentence in corpus.sentences for tag in sentence.tags)
    return np.fromiter(found, np.int64)


def tag_frequencies(labels: np.ndarray, n_tags: int) -> np.ndarray:
    """(n_tags,): the share of words that have each tag; words of an unseen tag are left out."""
    counts = np.bincount(labels[labels != UNSEEN], minlength=n_tags)
    return counts / counts.sum()


def majority_accuracy(train_labels: np.ndarray, labels: np.ndarray, n_tags: int) -> float:
    """Of always giving the most frequent tag of training."""
    return float((labels == tag_frequencies(train_labels, n_tags).argmax()).mean())


def word_majority_accuracy(train: TaggedCorpus, test: TaggedCorpus) -> float:
    """Of giving each word its own most frequent tag of training; to a new word, the most frequent of all."""
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for sentence in train.sentences:
        overall.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word[word][tag] += 1
    fallback = overall.most_common(1)[0][0]
    best = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    pairs = [pair for s in test.sentences for pair in zip(s.words, s.tags, strict=True)]
    return sum(best.get(word, fallback) == tag for word, tag in pairs) / len(pairs)
