"""Tags of a corpus as integer labels, and majority baselines of tagging accuracy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from whichlayers.data.conll import TaggedCorpus
from whichlayers.errors import WhichlayersError

# label of a tag that does not occur in training: no probe can predict it, so it counts as an error
UNSEEN = -1


def training_tags(corpus: TaggedCorpus) -> tuple[str, ...]:
    """The tag set of a training corpus, in the order of their labels."""
    tags = corpus.tag_names
    if len(tags) < 2:
        raise WhichlayersError(
            f"{corpus.name}: a probe needs at least two different tags, found "
            f"{', '.join(map(repr, tags)) or 'none'}"
        )
    return tags


def tag_ids(corpus: TaggedCorpus, tags: Sequence[str]) -> np.ndarray:
    """The label of each word, (words,) int64: the index of its tag in `tags`, -1 if it is not in `tags`."""
    index = {tag: i for i, tag in enumerate(tags)}
    found = (index.get(tag, UNSEEN) for sentence in corpus.sentences for tag in sentence.tags)
    return np.fromiter(found, np.int64)


def tag_frequencies(labels: np.ndarray, n_tags: int) -> np.ndarray:
    """The fraction of words with each tag, (n_tags,); words with an unseen tag are ignored."""
    counts = np.bincount(labels[labels != UNSEEN], minlength=n_tags)
    return counts / counts.sum()


def majority_accuracy(train_labels: np.ndarray, labels: np.ndarray, n_tags: int) -> float:
    """Accuracy of always predicting the most frequent training tag."""
    return float((labels == tag_frequencies(train_labels, n_tags).argmax()).mean())


def word_majority_accuracy(train: TaggedCorpus, test: TaggedCorpus) -> float:
    """Accuracy of predicting the most frequent training tag of each word; of all words, for an unseen word."""
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
