"""Labels of words: the tags of a corpus, control tasks, and majority baselines of tagging accuracy.

A control task (Hewitt & Liang 2019) has random tags that only depend on the word type: every word type gets one tag,
sampled with the frequencies of the real tags, and keeps it wherever it occurs. A probe can predict these tags only by
memorizing word types. The accuracy on the real tags minus the accuracy on the control tags is the selectivity of the
probe.
"""

from __future__ import annotations

import hashlib
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


# --- control tasks ---


def control_labels(corpus: TaggedCorpus, frequencies: np.ndarray, seed: int) -> np.ndarray:
    """The control tag of every word, (words,) int64, determined by the word and the seed.

    A word type therefore has the same tag in the training and the test split, and a type that occurs only in the test
    split has a tag as well.

    Args:
        corpus: The words to label.
        frequencies: (n_tags,) frequencies of the real tags in the training split.
        seed: Seed of the control task.
    """
    if len(frequencies) < 2 or (frequencies < 0).any() or not np.isclose(frequencies.sum(), 1):
        raise WhichlayersError("tag frequencies must be at least 2 non-negative numbers that add up to 1")
    types = {word for sentence in corpus.sentences for word in sentence.words}
    upper = np.cumsum(frequencies)
    upper[np.flatnonzero(frequencies)[-1] :] = np.inf  # rounding must not select a tag of frequency 0
    tag_of = {word: int(np.searchsorted(upper, _uniform(word, seed), side="right")) for word in types}
    return np.fromiter((tag_of[word] for s in corpus.sentences for word in s.words), np.int64)


def _uniform(word: str, seed: int) -> float:
    """A number in [0, 1), uniformly distributed over words, from a hash of the word and the seed."""
    text = f"{seed}\0control\0{word}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") / 2**64
