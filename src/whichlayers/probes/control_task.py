"""Control tasks for probes (Hewitt & Liang 2019): random tags that only depend on the word type.

Every word type gets one tag, sampled with the frequencies of the real tags, and keeps it wherever it occurs. A probe
can predict these tags only by memorizing word types. The accuracy on the real tags minus the accuracy on the control
tags is the selectivity of the probe.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np

from whichlayers.data.conll import TaggedCorpus
from whichlayers.errors import WhichlayersError

Number = TypeVar("Number", float, np.ndarray)


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


def selectivity(accuracy: Number, control: Number) -> Number:
    """Accuracy on the real tags minus accuracy on the control task."""
    return accuracy - control


def _uniform(word: str, seed: int) -> float:
    """A number in [0, 1), uniformly distributed over words, from a hash of the word and the seed."""
    text = f"{seed}\0control\0{word}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") / 2**64
